//! A bar for work that takes seconds, on a terminal only.

use std::time::{Duration, Instant};

use crate::{layout, say, units};

/// The most columns of the bar between its brackets, and the fewest: with less, the numbers stand alone.
const WIDTHS: [usize; 2] = [30, 8];
/// Minimum interval between two updates.
const PAUSE: Duration = Duration::from_millis(100);

/// The progress of some work.
pub struct Bar {
    what: &'static str,
    /// Bytes that were already done at the start.
    before: u64,
    started: Instant,
    shown: Option<Instant>,
}

impl Bar {
    /// Creates a bar; nothing is shown yet.
    pub fn new(what: &'static str) -> Bar {
        Bar::going_on(what, 0)
    }

    /// Creates a bar for work of which `before` bytes are already done.
    pub fn going_on(what: &'static str, before: u64) -> Bar {
        Bar { what, before, started: Instant::now(), shown: None }
    }

    /// Shows that `done` of `total` bytes are done. Cheap when called often.
    pub fn show(&mut self, done: u64, total: u64) {
        // The last update is always shown: the disk still has work left, which takes time.
        let Some(elapsed) = self.elapsed(done >= total) else { return };
        let text = if done < total {
            speed_and_rest(done.saturating_sub(self.before), total - done, elapsed)
        } else {
            "waiting for the disk".to_owned()
        };
        let text = format!("{} of {}, {text}", units::bytes(done), units::bytes(total));
        self.draw(Some((done, total)), &text);
    }

    /// Shows a text, after a bar if the progress is known. Cheap when called often.
    pub fn show_text(&mut self, share: Option<(u64, u64)>, text: impl FnOnce() -> String) {
        if self.elapsed(false).is_none() {
            return;
        }
        self.draw(share, &text());
    }

    fn draw(&self, share: Option<(u64, u64)>, text: &str) {
        let Some(columns) = say::columns() else { return };
        say::progress(&line(self.what, share, text, columns));
    }

    /// Returns the time since the start if an update is due, or if `always`.
    fn elapsed(&mut self, always: bool) -> Option<Duration> {
        let now = Instant::now();
        if !always && now.duration_since(self.shown.unwrap_or(self.started)) < PAUSE {
            return None;
        }
        self.shown = Some(now);
        Some(now.duration_since(self.started))
    }

    /// Removes the bar.
    pub fn clear(&mut self) {
        if self.shown.take().is_some() {
            say::progress("");
        }
    }
}

/// Returns the bytes per second so far and, once that can be estimated, the time left at that rate.
fn speed_and_rest(done: u64, rest: u64, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(1e-9);
    let speed = format!("{}/s", units::bytes(rate as u64));
    if done == 0 || elapsed < Duration::from_millis(500) {
        return speed;
    }
    format!("{speed}, {} left", units::duration(rest as f64 / rate))
}

/// Returns the line, with a bar if there are columns left for one.
fn line(what: &str, share: Option<(u64, u64)>, text: &str, columns: usize) -> String {
    let [most, fewest] = WIDTHS;
    // Two brackets and two blanks.
    let left = columns.saturating_sub(layout::width(what) + layout::width(text) + 4).min(most);
    match share {
        Some((done, total)) if left >= fewest => {
            format!("{what} {} {text}", picture(done, total, left))
        }
        _ => format!("{what} {text}"),
    }
}

/// `[████      ]`.
fn picture(done: u64, total: u64, columns: usize) -> String {
    let full = (u128::from(done.min(total)) * columns as u128 / u128::from(total.max(1))) as usize;
    format!("[{}{}]", "█".repeat(full), " ".repeat(columns - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_it_will_take() {
        let after =
            |seconds| speed_and_rest(1_000_000, 4_000_000, Duration::from_secs_f64(seconds));
        assert_eq!(after(0.1), "10.0 MB/s");
        assert_eq!(after(1.0), "1.00 MB/s, 4 s left");
        assert_eq!(after(100.0), "10.0 kB/s, 6 min 40 s left");
        assert_eq!(speed_and_rest(0, 5, Duration::from_secs(9)), "0 B/s");
    }

    #[test]
    fn the_bar_fills() {
        assert_eq!(picture(0, 0, 30), format!("[{}]", " ".repeat(30)));
        assert_eq!(picture(u64::MAX / 2 + 1, u64::MAX, 30).matches('█').count(), 15);
        assert_eq!(picture(7, 7, 9), format!("[{}]", "█".repeat(9)));
    }

    #[test]
    fn the_bar_takes_the_columns_that_are_left() {
        let of = |columns| line("copying", Some((1, 2)), "1 of 2", columns);
        assert_eq!(of(200), format!("copying {} 1 of 2", picture(1, 2, 30)));
        assert_eq!(of(25), "copying [████    ] 1 of 2");
        assert_eq!(of(24), "copying 1 of 2");
    }
}
