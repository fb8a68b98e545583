//! Memory for the first few allocations, which are all that a single run makes.
//!
//! The start-up of an allocator (the break, a few maps, the pages of its metadata) costs a wrapper
//! that lives for a third of a millisecond a tenth of that. Allocations that fit are served from a
//! piece of the program's own zeroed memory, of which only used pages exist; no part of it is handed
//! out twice. Later allocations go to the system's allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A dozen pages for arguments and lines.
const SIZE: usize = 48 << 10;

#[repr(align(4096))]
struct Space(UnsafeCell<[u8; SIZE]>);

// SAFETY: `USED` gives every byte to only one caller.
unsafe impl Sync for Space {}

static SPACE: Space = Space(UnsafeCell::new([0; SIZE]));
/// Bytes from the start that have been handed out; it only grows.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Allocates from the arena first, then from the system.
pub struct Arena;

impl Arena {
    /// Returns the address of the next bytes of this layout, if they fit.
    fn take(layout: Layout) -> Option<*mut u8> {
        // Alignment is relative to the start of the space, which is page-aligned.
        if layout.align() > 4096 {
            return None;
        }
        let mut used = USED.load(Relaxed);
        loop {
            let start = used.checked_next_multiple_of(layout.align())?;
            let end = start.checked_add(layout.size()).filter(|&end| end <= SIZE)?;
            match USED.compare_exchange_weak(used, end, Relaxed, Relaxed) {
                // SAFETY: start is within the space.
                Ok(_) => return Some(unsafe { SPACE.0.get().cast::<u8>().add(start) }),
                Err(now) => used = now,
            }
        }
    }
}

// SAFETY: memory from `take` is aligned, large enough and never handed out again; the rest is the
// system allocator's, to which exactly the memory that came from it is returned.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract, passed on.
        Arena::take(layout).unwrap_or_else(|| unsafe { System.alloc(layout) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let within = (at as usize).wrapping_sub(SPACE.0.get() as usize) < SIZE;
        if !within {
            // SAFETY: it is not the arena's, so it is the system's; the rest is the caller's contract.
            unsafe { System.dealloc(at, layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_and_apart_and_too_much_is_not_there() {
        let mut end = SPACE.0.get() as usize;
        for (size, align) in [(1, 1), (3, 1), (8, 8), (1, 1), (100, 64), (1, 1), (5, 4096)] {
            let at = Arena::take(Layout::from_size_align(size, align).unwrap()).unwrap() as usize;
            assert!(
                at >= end && at.is_multiple_of(align),
                "{size} bytes at {at:#x}, after {end:#x}"
            );
            end = at + size;
        }
        assert!(Arena::take(Layout::from_size_align(1, 8192).unwrap()).is_none());
        assert!(Arena::take(Layout::from_size_align(SIZE, 1).unwrap()).is_none());
        let left = SPACE.0.get() as usize + SIZE - end;
        assert!(Arena::take(Layout::from_size_align(left, 1).unwrap()).is_some());
        assert!(Arena::take(Layout::from_size_align(1, 1).unwrap()).is_none());
    }
}
