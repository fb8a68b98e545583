//! The progress of reading a long prompt, only on a terminal.

use std::time::{Duration, Instant};

use crate::{say, units};

/// A prompt that has been read within this time needs no line.
const SOON: Duration = Duration::from_millis(500);

/// A line about a prompt that is being read.
#[derive(Debug)]
pub struct Reading {
    total: usize,
    began: Instant,
    /// The number of tokens at the first check, and its time: some may have been reused.
    first: Option<(usize, Instant)>,
    shown: bool,
}

impl Reading {
    /// Starts with this total number of tokens. Nothing is shown yet.
    pub fn of(total: usize) -> Reading {
        Reading { total, began: Instant::now(), first: None, shown: false }
    }

    /// Shows that `done` tokens have been read.
    pub fn show(&mut self, done: usize) {
        let (before, since) = *self.first.get_or_insert((done, Instant::now()));
        if self.began.elapsed() < SOON || done >= self.total {
            return;
        }
        self.shown = true;
        say::progress(&text(done, self.total, done - before, since.elapsed()));
    }

    /// Removes the line, when the answer begins or fails.
    pub fn end(&mut self) {
        if std::mem::take(&mut self.shown) {
            say::progress("");
        }
    }
}

/// Returns the line, if `read` tokens took `time`.
fn text(done: usize, total: usize, read: usize, time: Duration) -> String {
    let line = format!("reading {} of {} tokens", units::grouped(done), units::grouped(total));
    if read == 0 {
        return line;
    }
    let rest = time.as_secs_f64() * (total - done) as f64 / read as f64;
    format!("{line}, {} left", units::duration(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_goes_by_what_was_read() {
        let second = Duration::from_secs(1);
        assert_eq!(text(2048, 6845, 1024, second), "reading 2,048 of 6,845 tokens, 5 s left");
        assert_eq!(text(512, 1024, 0, second), "reading 512 of 1,024 tokens");
    }
}
