//! Counts the memory that a call takes, of its own thread. A program with this module has its allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    /// Bytes held, and the most held.
    static HELD: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

fn count(change: isize) {
    // Fails only while the thread ends.
    let _ = HELD.try_with(|held| {
        let now = held.get().0.saturating_add_signed(change);
        held.set((now, held.get().1.max(now)));
    });
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promises are the same.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls `what`; what it returns, and the most bytes that it held.
pub fn peak<T>(what: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get().0;
    HELD.set((before, before));
    let result = what();
    (result, HELD.get().1.saturating_sub(before))
}

/// Calls `what` and checks that it never held more than `allowed` bytes.
#[track_caller]
pub fn within<T>(allowed: usize, what: impl FnOnce() -> T) -> T {
    let (result, peak) = peak(what);
    assert!(peak <= allowed, "{peak} bytes of memory, {allowed} are allowed");
    result
}
