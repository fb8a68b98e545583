//! One value for each thread of a pool: scratch that a unit of work may write to.

use std::cell::UnsafeCell;

/// Values indexed by the thread number that a region hands to its units.
pub(crate) struct PerThread<T>(Vec<UnsafeCell<T>>);

// SAFETY: values are reached through `&self` only by `get`, whose callers promise that no two of them hold the same one; a value
// may move between threads, so it must be Send.
unsafe impl<T: Send> Sync for PerThread<T> {}

impl<T> PerThread<T> {
    pub(crate) fn new(threads: usize, mut make: impl FnMut() -> T) -> PerThread<T> {
        PerThread((0..threads).map(|_| UnsafeCell::new(make())).collect())
    }

    /// The value of `thread`.
    ///
    /// # Safety
    /// Within a region, only the unit that was given this thread number may call it, and it must release the value before it
    /// ends. No two regions over the same values may be in flight.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn get(&self, thread: usize) -> &mut T {
        // SAFETY: exclusive by the caller's promise.
        unsafe { &mut *self.0[thread].get() }
    }
}
