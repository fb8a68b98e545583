//! Being small at the moment when a child is made.
//!
//! A child's account of its peak size begins with the peak of the image that exec replaces, which, as
//! the child shares it, is this process's. So before that the pages of this program's own code are
//! given back (they are the page cache's, and come again when they are executed, 64 KiB at a time),
//! and the kernel is told to forget the peak so far. What runs from then until exec must be little,
//! and lie close together.

use std::ffi::{c_int, c_void};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::ptr;

use crate::account::kilobytes;

/// Loaded segments that cannot be written: three of a static program, some more of one with
/// libraries. What is beyond stays.
const SEGMENTS: usize = 48;

/// What can be had again from the files of this program and its libraries.
pub(super) struct Floor {
    /// proc(5): a 5 in here resets the peak resident set size to the present size.
    reset: Option<File>,
    /// Addresses and lengths.
    segments: [(usize, usize); SEGMENTS],
    count: usize,
}

impl Floor {
    /// Everything that can be done before.
    pub(super) fn prepare() -> Floor {
        let reset = OpenOptions::new().write(true).open("/proc/self/clear_refs").ok();
        let mut floor = Floor { reset, segments: [(0, 0); SEGMENTS], count: 0 };
        // SAFETY: the function is of the right type; the pointer is to what it expects, and is used
        // during this call only.
        unsafe {
            libc::dl_iterate_phdr(Some(add), ptr::from_mut(&mut floor).cast());
        }
        floor
    }

    /// Gives the segments back and begins a new peak. Where the kernel does not do that, nothing is
    /// lost but the small size.
    #[inline(always)]
    pub(super) fn lower(&self) {
        for &(start, len) in &self.segments[..self.count] {
            // SAFETY: nothing was ever written to these pages of a private map of a file: read
            // again, they hold the same.
            unsafe { libc::madvise(start as *mut c_void, len, libc::MADV_DONTNEED) };
        }
        if let Some(reset) = &self.reset {
            // SAFETY: one byte of a string.
            unsafe { libc::write(reset.as_raw_fd(), c"5".as_ptr().cast(), 1) };
        }
    }
}

/// Adds the parts of a loaded object that cannot be written.
extern "C" fn add(object: *mut libc::dl_phdr_info, _: usize, floor: *mut c_void) -> c_int {
    // SAFETY: the loader hands a valid description with as many headers as it says, and the pointer
    // that `prepare` gave it.
    let (object, headers, floor) = unsafe {
        let object = &*object;
        let headers = std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum));
        (object, headers, &mut *floor.cast::<Floor>())
    };
    let base = object.dlpi_addr as usize;
    // SAFETY: both take a number.
    let (vdso, page) = unsafe {
        (libc::getauxval(libc::AT_SYSINFO_EHDR) as usize, libc::sysconf(libc::_SC_PAGESIZE))
    };
    if vdso == base && base != 0 {
        // The kernel's own.
        return 0;
    }
    let page = usize::try_from(page).unwrap_or(65536);
    for header in headers {
        if header.p_type != libc::PT_LOAD || header.p_flags & libc::PF_W != 0 {
            continue;
        }
        // Segments of different rights share no page: what lies in this one's pages is its own.
        let start = (base + header.p_vaddr as usize) & !(page - 1);
        let end = base + header.p_vaddr as usize + header.p_memsz as usize;
        if let Some(place) = floor.segments.get_mut(floor.count) {
            *place = (start, end - start);
            floor.count += 1;
        }
    }
    0
}

/// The peak size of this process's own image since [`Floor::lower`], or of its life, in bytes; 0 if
/// unknown. (Its ru_maxrss is no help: that has the peak of whoever started this process in it.)
pub(super) fn peak() -> u64 {
    // The line is within the first kilobyte.
    let mut text = [0; 2048];
    let read = File::open("/proc/self/status").and_then(|mut file| file.read(&mut text));
    let text = &text[..read.unwrap_or(0)];
    let text = std::str::from_utf8(text).unwrap_or_else(|e| {
        // The name of the program, cut or not UTF-8, comes before.
        std::str::from_utf8(&text[..e.valid_up_to()]).unwrap_or("")
    });
    kilobytes(text, "VmHWM:").unwrap_or(0)
}
