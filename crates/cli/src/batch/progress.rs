//! The progress of a batch: a line on a terminal while it is computed, and a summary.

use std::time::Instant;

use super::results::Results;
use crate::bar::Bar;
use crate::units;

/// Counts and times.
pub struct Progress {
    bar: Option<Bar>,
    began: Instant,
    /// Bytes of the input, if known, and how many of them have been read.
    total: Option<u64>,
    /// See [`total`](Progress::total).
    pub read: u64,
    /// Tokens of prompts that were read, computed or taken from the beginning of an earlier prompt.
    pub prompt_tokens: u64,
    /// Tokens that were generated.
    pub tokens: u64,
    /// Lines that an earlier run has answered.
    pub skipped: u64,
}

impl Progress {
    /// Creates a progress at zero.
    pub fn new(shown: bool, total: Option<u64>) -> Progress {
        let bar = shown.then(|| Bar::new("batch"));
        let began = Instant::now();
        Progress { bar, began, total, read: 0, prompt_tokens: 0, tokens: 0, skipped: 0 }
    }

    /// Shows it. Cheap when called often.
    pub fn show(&mut self, results: &Results) {
        let Some(bar) = &mut self.bar else { return };
        let seconds = self.began.elapsed().as_secs_f64();
        let rate = |tokens: u64| units::digits(tokens as f64 / seconds.max(1e-3));
        bar.show_text(self.total.map(|total| (self.read, total)), || {
            // Results that wait for an earlier line count as done here.
            let waiting = results.waiting() as u64;
            let done = self.skipped + results.answered + results.failed + waiting;
            let done = units::so_many(done, "line");
            let failed = match results.failed {
                0 => String::new(),
                n => format!(" ({n} failed)"),
            };
            let (tokens, prompts) = (rate(self.tokens), rate(self.prompt_tokens));
            format!("{done}{failed}, {tokens} tokens/s, prompts {prompts} tokens/s")
        });
    }

    /// Removes the line.
    pub fn clear(&mut self) {
        if let Some(bar) = &mut self.bar {
            bar.clear();
        }
    }

    /// Returns a summary in one line.
    pub fn summary(&self, results: &Results) -> String {
        let seconds = self.began.elapsed().as_secs_f64();
        let rate = |tokens: u64| units::digits(tokens as f64 / seconds.max(1e-3));
        let Results { answered, failed, .. } = results;
        let before = match self.skipped {
            0 => String::new(),
            n => format!(", {n} had results already"),
        };
        let lines = units::so_many(answered + failed + self.skipped, "line");
        if self.prompt_tokens == 0 {
            return format!("{lines}: {answered} answered, {failed} failed{before}");
        }
        format!(
            "{}: {answered} answered, {failed} failed{before}; {} tokens in {} = {} tokens/s, prompts {} tokens = {} tokens/s",
            lines,
            self.tokens,
            units::ms(seconds * 1e3),
            rate(self.tokens),
            self.prompt_tokens,
            rate(self.prompt_tokens),
        )
    }
}
