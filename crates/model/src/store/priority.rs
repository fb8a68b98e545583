//! The order of reads: the forward pass comes before a load in the background.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::threads::Parking;

/// Pauses reads ahead while other bytes are needed now. Neither side allocates.
pub(crate) struct Priority {
    /// The number of callers that need bytes now.
    needed: Parking,
    /// True if they include the first answer, of which it is not known when it begins.
    held: AtomicBool,
}

impl Priority {
    pub(crate) fn new() -> Priority {
        Priority { needed: Parking::new(0), held: AtomicBool::new(false) }
    }

    /// Pauses reads ahead until the first answer has begun: of a file that is being received, what is not needed for it would only
    /// delay it.
    pub(crate) fn hold(&self) {
        if !self.held.swap(true, Ordering::Relaxed) {
            self.needed.word.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends that pause, if there is one.
    pub(crate) fn release(&self) {
        if self.held.load(Ordering::Relaxed) && self.held.swap(false, Ordering::Relaxed) {
            self.leave();
        }
    }

    fn leave(&self) {
        if self.needed.word.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.needed.wake(u32::MAX);
        }
    }

    /// Gives reads that begin now precedence, until the result is dropped.
    pub(crate) fn take(&self) -> First<'_> {
        // Threads read this count to decide which reads come first. No other memory depends on it, so the order is Relaxed.
        self.needed.word.fetch_add(1, Ordering::Relaxed);
        First(self)
    }

    /// Returns when no caller needs bytes now.
    pub(crate) fn let_pass(&self) {
        loop {
            let needed = self.needed.word.load(Ordering::Relaxed);
            if needed == 0 {
                return;
            }
            self.needed.wait(needed, None);
        }
    }
}

/// While this is alive, its owner's reads come first.
pub(crate) struct First<'p>(&'p Priority);

impl Drop for First<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::thread;

    use super::*;

    #[test]
    fn who_reads_ahead_waits_for_all_who_need_something() {
        let priority = Priority::new();
        priority.let_pass();
        let read = AtomicU32::new(0);
        thread::scope(|scope| {
            let (first, second) = (priority.take(), priority.take());
            for _ in 0..2 {
                scope.spawn(|| {
                    priority.let_pass();
                    read.fetch_add(1, Ordering::Relaxed);
                });
            }
            drop(first);
            thread::yield_now();
            assert_eq!(read.load(Ordering::Relaxed), 0);
            drop(second);
        });
        assert_eq!(read.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn it_is_held_once_and_released_once() {
        let priority = Priority::new();
        priority.hold();
        priority.hold();
        assert_eq!(priority.needed.word.load(Ordering::Relaxed), 1);
        priority.release();
        priority.release();
        priority.let_pass();
    }
}
