//! Stopping an encoding whose result is no longer needed.

/// Returns true once the text that is being encoded is no longer needed. Called every few thousand steps.
pub type Stop = fn() -> bool;

/// The steps between two calls of a [`Stop`]: a fraction of a millisecond.
const INTERVAL: u32 = 4096;

/// Counts the steps of one encoding, and remembers that it was stopped.
#[derive(Clone, Copy)]
pub(crate) struct StopCheck {
    stop: Stop,
    steps: u32,
    stopped: bool,
}

impl StopCheck {
    pub(crate) fn new(stop: Stop) -> StopCheck {
        StopCheck { stop, steps: 0, stopped: false }
    }

    /// Counts a step. Returns true if there should be no further one.
    #[inline]
    pub(crate) fn step(&mut self) -> bool {
        self.steps += 1;
        if self.steps == INTERVAL {
            self.steps = 0;
            self.stopped |= (self.stop)();
        }
        self.stopped
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stopped
    }
}

/// Never stops.
pub(crate) fn never() -> bool {
    false
}

impl Default for StopCheck {
    fn default() -> StopCheck {
        StopCheck::new(never)
    }
}
