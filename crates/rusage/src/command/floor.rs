//! Makes this process small before a child is created.
//!
//! A child's account of its peak size begins with the peak of the image that exec replaces, which, as
//! the child shares it, is this process's. So before that, the pages of this program's own code are
//! given back (they belong to the page cache, and return when they are executed, 64 KiB at a time), and
//! the kernel is made to forget the peak so far. The code that runs from then until exec must be small
//! and close together.

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

/// Maximum number of loaded segments that cannot be written: a static program has three, one with
/// libraries some more. Any beyond that stay.
const SEGMENTS: usize = 48;

/// The memory that can be loaded again from the files of this program and its libraries.
pub(super) struct Floor {
    /// proc(5): writing 5 to it resets the peak resident set size to the present size.
    reset: Option<OwnedFd>,
    /// Addresses and lengths.
    segments: [(usize, usize); SEGMENTS],
    count: usize,
}

impl Floor {
    /// Does everything that can be done in advance.
    pub(super) fn prepare() -> Floor {
        let reset = open(c"/proc/self/clear_refs", libc::O_WRONLY);
        let mut floor = Floor { reset, segments: [(0, 0); SEGMENTS], count: 0 };
        // SAFETY: the function is of the right type; the pointer is of the type that it expects, and is
        // used only during this call.
        unsafe {
            libc::dl_iterate_phdr(Some(add), ptr::from_mut(&mut floor).cast());
        }
        floor
    }

    /// To be called just before the child is made: gives the segments back and begins a new peak. If
    /// the kernel does not support that, only the small size is lost.
    #[inline(always)]
    pub(super) fn lower(&self) {
        for &(start, len) in &self.segments[..self.count] {
            // SAFETY: nothing was ever written to these pages of a private map of a file: read again,
            // they have the same contents.
            unsafe { libc::madvise(start as *mut c_void, len, libc::MADV_DONTNEED) };
        }
        if let Some(reset) = &self.reset {
            // SAFETY: one byte of a string.
            unsafe { libc::write(reset.as_raw_fd(), c"5".as_ptr().cast(), 1) };
        }
    }
}

/// Opens a file without the standard library, whose code for that would be more to bring into memory.
fn open(path: &CStr, flags: c_int) -> Option<OwnedFd> {
    // SAFETY: a terminated string; the call returns a descriptor that is ours alone, or -1.
    unsafe {
        let fd = libc::open(path.as_ptr(), flags | libc::O_CLOEXEC);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
    }
}

/// Adds the segments of a loaded object that cannot be written.
extern "C" fn add(object: *mut libc::dl_phdr_info, _: usize, floor: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description with the stated number of headers, and the pointer
    // that `prepare` gave it.
    let (object, headers, floor) = unsafe {
        let object = &*object;
        let headers = std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum));
        (object, headers, &mut *floor.cast::<Floor>())
    };
    let base = object.dlpi_addr as usize;
    // SAFETY: takes a number.
    let vdso = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
    if vdso == base && base != 0 {
        // The vDSO is the kernel's own.
        return 0;
    }
    let page = alight_pages::page_size();
    for header in headers {
        if header.p_type != libc::PT_LOAD || header.p_flags & libc::PF_W != 0 {
            continue;
        }
        // Segments with different permissions share no page: the pages of this one hold nothing else.
        let start = (base + header.p_vaddr as usize) & !(page - 1);
        let end = base + header.p_vaddr as usize + header.p_memsz as usize;
        if let Some(place) = floor.segments.get_mut(floor.count) {
            *place = (start, end - start);
            floor.count += 1;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::own_peak;

    #[test]
    fn the_peak_is_known_and_can_be_lowered() {
        let ballast = vec![1u8; 32 << 20];
        assert!(std::hint::black_box(&ballast).iter().all(|&byte| byte == 1));
        drop(ballast);
        let before = own_peak();
        assert!(before > 32 << 20);
        let floor = Floor::prepare();
        assert!(floor.reset.is_some() && floor.count >= 2);
        floor.lower();
        assert!(own_peak() < before, "{} after {before}", own_peak());
    }
}
