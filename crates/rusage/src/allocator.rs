//! The system's allocator, which reports what the system refuses; and the memory that it keeps.

use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator. It calls a function with the size of each allocation that the system refuses. If the function returns, the
/// allocation fails, and the standard library ends the process unless the caller expects that.
///
/// The function must not allocate: it may be called within any allocation.
#[derive(Debug)]
pub struct ReportingAllocator {
    refused: fn(usize),
}

impl ReportingAllocator {
    /// Creates it, for `#[global_allocator]`.
    pub const fn new(refused: fn(usize)) -> ReportingAllocator {
        ReportingAllocator { refused }
    }

    fn reported(&self, start: *mut u8, size: usize) -> *mut u8 {
        if start.is_null() {
            (self.refused)(size);
        }
        start
    }
}

// SAFETY: all memory is the system allocator's, which gets the caller's arguments unchanged and whose results are returned unchanged.
unsafe impl GlobalAlloc for ReportingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract, passed on.
        self.reported(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract, passed on.
        self.reported(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's contract, passed on.
        self.reported(unsafe { System.realloc(start, layout, size) }, size)
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract, passed on.
        unsafe { System.dealloc(start, layout) }
    }
}

/// Gives the system back what the allocator keeps of memory that was freed. glibc keeps some for each of several groups of threads, and does
/// not give it back by itself; other allocators are not asked.
pub fn release_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it has no preconditions, and changes no memory that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    static REFUSED: AtomicUsize = AtomicUsize::new(0);
    static ALLOCATOR: ReportingAllocator =
        ReportingAllocator::new(|bytes| REFUSED.store(bytes, Ordering::Relaxed));

    #[test]
    fn what_is_refused_is_reported_and_nothing_else() {
        let layout = |size| Layout::from_size_align(size, 8).unwrap();
        let (small, large) = (layout(64), layout(isize::MAX as usize & !7));
        // SAFETY: the layouts have sizes, and memory is given back with the layout that it has.
        unsafe {
            let start = ALLOCATOR.alloc(small);
            let start = ALLOCATOR.realloc(start, small, 128);
            assert!(!start.is_null() && REFUSED.load(Ordering::Relaxed) == 0);
            let refuses = |start: *mut u8| {
                assert!(start.is_null());
                assert_eq!(REFUSED.swap(0, Ordering::Relaxed), large.size());
            };
            refuses(ALLOCATOR.alloc(large));
            refuses(ALLOCATOR.alloc_zeroed(large));
            refuses(ALLOCATOR.realloc(start, layout(128), large.size()));
            ALLOCATOR.dealloc(start, layout(128));
        }
    }
}
