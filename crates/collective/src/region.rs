//! Memory that ranks share: bytes on their own cache lines, read and written through pointers.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Two cache lines: processors fetch them in pairs.
pub(crate) const LINE: usize = 128;

/// Zeroed bytes at an address that is a multiple of [`LINE`]. The protocol (`thread_group`) decides who may access
/// which of them when; this only owns them.
pub(crate) struct Region {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the region itself only owns the memory; every access goes through a pointer in an unsafe block that states
// why the access is exclusive.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Allocates `bytes` zeroed bytes, not yet touched. `None` if the size is impossible.
    pub(crate) fn new(bytes: usize) -> Option<Region> {
        let layout = Layout::from_size_align(bytes.max(LINE), LINE).ok()?;
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Some(Region { start, layout })
    }

    /// Returns the address `offset` bytes into the region. Panics beyond its end.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.layout.size(), "an offset past the end of a region");
        // SAFETY: inside the allocation.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and no references to the owner are left.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
