//! The order of reads: the forward pass comes before a load in the background.

use std::sync::atomic::Ordering;

use crate::threads::Parking;

/// Pauses reads ahead while other bytes are needed now. Neither side allocates.
pub(crate) struct Priority {
    /// The number of callers that need bytes now.
    needed: Parking,
}

impl Priority {
    pub(crate) fn new() -> Priority {
        Priority { needed: Parking::new(0) }
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
        if self.0.needed.word.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.needed.wake(u32::MAX);
        }
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
}
