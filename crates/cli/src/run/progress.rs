//! The progress that an answer waits for, only on a terminal: weights that are being loaded, or a prompt that is being read.
//!
//! The answer itself is parked, so a separate thread checks the progress. After [`AnswerProgress::end`] it writes nothing more, so that the
//! next writer has the line.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use alight_model::{Loading, Model};

use super::engine::STEP_TOKENS;
use crate::bar::Bar;
use crate::{say, units};

/// Work that has ended within this time needs no line.
const SOON: Duration = Duration::from_millis(500);
/// The interval between two checks.
const PAUSE: Duration = Duration::from_millis(100);

/// A line about what an answer waits for.
pub struct AnswerProgress<'m> {
    model: Option<&'m Model>,
    /// Until the line is no longer needed.
    line: Mutex<Option<Line>>,
    ended: Condvar,
}

/// The progress known so far.
struct Line {
    loading: Option<Bar>,
    reading: Reading,
    shown: bool,
}

impl AnswerProgress<'_> {
    /// Runs `work`, and shows meanwhile what the answer to a prompt of `tokens` waits for. `work` calls [`end`](AnswerProgress::end) before it
    /// writes.
    pub fn during<T>(
        model: Option<&Model>,
        tokens: usize,
        work: impl FnOnce(&AnswerProgress<'_>) -> T,
    ) -> T {
        let loading = model.and_then(Model::loading);
        let what = if model.is_some_and(Model::is_incoming) { "pulling" } else { "loading" };
        let loading = loading.map(|loading| Bar::going_on(what, loading.done));
        let line = Line { loading, reading: Reading::of(model, tokens), shown: false };
        let line = say::is_terminal().then_some(line);
        let is_shown = line.is_some();
        let progress = AnswerProgress { model, line: Mutex::new(line), ended: Condvar::new() };
        thread::scope(|scope| {
            if is_shown {
                // If no thread can be created, there is no line.
                let _ = thread::Builder::new()
                    .name("progress".into())
                    .spawn_scoped(scope, || progress.tick());
            }
            let done = work(&progress);
            progress.end();
            done
        })
    }

    /// Records that this number of the prompt's tokens have been read.
    pub fn read(&self, done: usize) {
        if let Some(line) = &mut *self.line() {
            line.reading.read(done);
        }
    }

    /// Removes the line permanently.
    pub fn end(&self) {
        if let Some(line) = self.line().take() {
            if line.shown {
                say::progress("");
            }
            self.ended.notify_all();
        }
    }

    /// Shows the line until the answer begins.
    fn tick(&self) {
        let mut pause = SOON;
        let mut held = self.line();
        while held.is_some() {
            // (A wait may end early, which causes one more check.)
            held = match self.ended.wait_timeout(held, pause) {
                Ok((held, _)) => held,
                Err(poisoned) => poisoned.into_inner().0,
            };
            let Some(line) = &mut *held else { return };
            line.shown = true;
            match (self.model.and_then(Model::loading), &mut line.loading) {
                (Some(Loading { done, total }), Some(bar)) if done < total => bar.show(done, total),
                // All pieces of the files are loaded: the memory is being locked.
                (Some(Loading { total, .. }), Some(bar)) => {
                    bar.show_text(None, || format!("{}, locking it", units::bytes(total)));
                }
                _ => say::progress(&line.reading.text()),
            }
            pause = PAUSE;
        }
    }

    fn line(&self) -> MutexGuard<'_, Option<Line>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A prompt that is being read.
struct Reading {
    total: usize,
    /// The number of tokens that were read when it was last known, and the number of the model's layers computed by then.
    done: usize,
    layers: u64,
    /// The number of tokens that need not have been read, and the time from which on the others were.
    reused: usize,
    began: Instant,
    is_known: bool,
    /// Counts the layers computed, and their number in a step; a step reads [`STEP_TOKENS`] tokens.
    computed: Option<(Arc<AtomicU64>, u64)>,
}

impl Reading {
    fn of(model: Option<&Model>, total: usize) -> Reading {
        let computed = model.map(|model| (model.progress(), model.spec().layers.len() as u64));
        let (done, layers, reused, began) = (0, 0, 0, Instant::now());
        Reading { total, done, layers, reused, began, is_known: false, computed }
    }

    fn layers(&self) -> u64 {
        self.computed.as_ref().map_or(0, |(computed, _)| computed.load(Ordering::Relaxed))
    }

    fn read(&mut self, done: usize) {
        if !self.is_known {
            (self.reused, self.began, self.is_known) = (done, Instant::now(), true);
        }
        (self.done, self.layers) = (done, self.layers());
    }

    fn text(&self) -> String {
        let step = STEP_TOKENS.min(self.total - self.done.min(self.total)) as u64;
        let since = self.layers().saturating_sub(self.layers);
        let part =
            self.computed.as_ref().map_or(0, |(_, all)| step * since.min(*all) / (*all).max(1));
        let done = if self.is_known { self.done + part as usize } else { 0 };
        text(done, self.total, done.saturating_sub(self.reused), self.began.elapsed())
    }
}

/// Returns the line, if `read` tokens took `time`.
fn text(done: usize, total: usize, read: usize, time: Duration) -> String {
    let line = format!("reading {} of {} tokens", units::grouped(done), units::grouped(total));
    if read == 0 || done >= total {
        return line;
    }
    let rate = read as f64 / time.as_secs_f64().max(1e-9);
    let rest = (total - done) as f64 / rate;
    format!("{line}, {} a second, {} left", units::digits(rate), units::duration(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_goes_by_what_was_read() {
        let second = Duration::from_secs(1);
        assert_eq!(
            text(2048, 6845, 1024, second),
            "reading 2,048 of 6,845 tokens, 1024 a second, 5 s left"
        );
        assert_eq!(text(512, 1024, 0, second), "reading 512 of 1,024 tokens");
    }

    #[test]
    fn a_part_of_a_step_counts_by_its_layers() {
        let computed = Arc::new(AtomicU64::new(7));
        let mut reading = Reading::of(None, 2000);
        reading.computed = Some((Arc::clone(&computed), 8));
        assert!(reading.text().starts_with("reading 0 of"), "nothing is known yet");
        reading.read(100);
        assert_eq!(reading.text(), "reading 100 of 2,000 tokens");
        computed.fetch_add(4, Ordering::Relaxed);
        let half = format!("reading {} of 2,000 tokens, ", 100 + STEP_TOKENS / 2);
        assert!(reading.text().starts_with(&half), "{}", reading.text());
        computed.fetch_add(40, Ordering::Relaxed);
        let whole = format!("reading {} of 2,000 tokens, ", 100 + STEP_TOKENS);
        assert!(reading.text().starts_with(&whole), "{}", reading.text());
    }
}
