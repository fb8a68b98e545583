//! Being small at the moment when a child is made.
//!
//! A child's account of its peak size begins with the peak of the image that exec replaces, which, as
//! the child shares it, is this process's. So before that the pages of this program's own code are
//! given back (they are the page cache's, and come again when they are executed, 64 KiB at a time),
//! and the kernel is told to forget the peak so far. What runs from then until exec must be little,
//! and lie close together.

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use crate::account::kilobytes;

/// Loaded segments that cannot be written: three of a static program, some more of one with
/// libraries. What is beyond stays.
const SEGMENTS: usize = 48;

/// The peak of this process is told a little lower than what the child begins with: by what is touched
/// between here and exec, and by what the kernel counts apart for each processor (32 pages and more).
const SLACK: u64 = 256 << 10;

/// This process's size, which a child's account begins with.
pub(super) struct Floor {
    /// Where the size stands, and what was read there: `/proc/self/statm`, if a new peak begins with
    /// the present size, or else `/proc/self/status`, which has the old peak but takes the kernel
    /// longer to write.
    size: Option<OwnedFd>,
    text: [u8; 1536],
    len: usize,
    /// proc(5): a 5 in here resets the peak resident set size to the present size.
    reset: Option<OwnedFd>,
    /// What can be had again from the files of this program and its libraries: addresses and lengths.
    segments: [(usize, usize); SEGMENTS],
    count: usize,
}

impl Floor {
    /// Everything that can be done before. `lower`: the size is to be made small.
    pub(super) fn prepare(lower: bool) -> Floor {
        let mut floor = Floor {
            size: None,
            text: [0; 1536],
            len: 0,
            reset: None,
            segments: [(0, 0); SEGMENTS],
            count: 0,
        };
        if lower {
            floor.reset = open(c"/proc/self/clear_refs", libc::O_WRONLY);
            // SAFETY: the function is of the right type; the pointer is to what it expects, and is
            // used during this call only.
            unsafe {
                libc::dl_iterate_phdr(Some(add), ptr::from_mut(&mut floor).cast());
            }
        }
        let small = floor.reset.is_some();
        let path = if small { c"/proc/self/statm" } else { c"/proc/self/status" };
        floor.size = open(path, libc::O_RDONLY);
        floor
    }

    /// To be called just before the child is made: gives the segments back, begins a new peak, and
    /// looks at what it is. Where the kernel does not do that, nothing is lost but the small size.
    #[inline(always)]
    pub(super) fn lower(&mut self) {
        for &(start, len) in &self.segments[..self.count] {
            // SAFETY: nothing was ever written to these pages of a private map of a file: read
            // again, they hold the same.
            unsafe { libc::madvise(start as *mut c_void, len, libc::MADV_DONTNEED) };
        }
        // SAFETY: one byte of a string, and a buffer with its length.
        unsafe {
            if let Some(reset) = &self.reset {
                libc::write(reset.as_raw_fd(), c"5".as_ptr().cast(), 1);
            }
            if let Some(size) = &self.size {
                let text = self.text.as_mut_ptr().cast();
                let len = libc::pread(size.as_raw_fd(), text, self.text.len(), 0);
                self.len = usize::try_from(len).unwrap_or(0);
            }
        }
    }

    /// At a peak size of so many bytes or less, a child that was made then shows this process's size
    /// and not its own. 0 if unknown. (This process's ru_maxrss is no help: that has the peak of
    /// whoever started it in it.)
    pub(super) fn bytes(&self) -> u64 {
        let text = &self.text[..self.len];
        match if self.reset.is_some() { resident(text) } else { peak(text) } {
            0 => 0,
            size => size + SLACK,
        }
    }
}

/// The peak size of this process's image now.
pub(super) fn own_peak() -> u64 {
    peak(&std::fs::read("/proc/self/status").unwrap_or_default())
}

/// Out of the beginning of `/proc/PID/status`.
fn peak(text: &[u8]) -> u64 {
    // The program's name, which may be anything, is in the first line.
    let rest = text.iter().position(|&byte| byte == b'\n').map_or(text, |at| &text[at..]);
    std::str::from_utf8(rest).ok().and_then(|text| kilobytes(text, "VmHWM:")).unwrap_or(0)
}

/// Without the standard library's way of opening files, whose code would be one more thing to bring
/// into memory.
fn open(path: &CStr, flags: c_int) -> Option<OwnedFd> {
    // SAFETY: a string with its end; what is returned is a descriptor that is nobody else's, or -1.
    unsafe {
        let fd = libc::open(path.as_ptr(), flags | libc::O_CLOEXEC);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
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
    // SAFETY: takes a number.
    let vdso = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
    if vdso == base && base != 0 {
        // The kernel's own.
        return 0;
    }
    let page = page();
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

/// Out of `/proc/PID/statm`: pages of address space, resident pages, and more.
fn resident(text: &[u8]) -> u64 {
    let pages = std::str::from_utf8(text).ok().and_then(|t| t.split(' ').nth(1)?.parse().ok());
    pages.unwrap_or(0) * page() as u64
}

/// Bytes of a page.
fn page() -> usize {
    // SAFETY: takes a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_found_whatever_the_programs_name() {
        assert_eq!(
            peak(b"Name:\t\xff\xfe\nUmask:\t0022\nVmHWM:\t    1164 kB\nVmRSS: 1"),
            1164 << 10
        );
        assert_eq!(peak(b"Name:\tx\nVmPeak:\t 7 kB\n"), 0);
        assert_eq!(peak(b""), 0);
        assert_eq!(resident(b"100 7 3 1 0 9 0\n"), 7 * page() as u64);
        assert_eq!(resident(b""), 0);
        assert!(own_peak() > 0);
    }

    #[test]
    fn a_lowered_floor_is_lower() {
        let mut high = Floor::prepare(false);
        high.lower();
        let mut low = Floor::prepare(true);
        assert!(low.reset.is_some() && low.count >= 2);
        low.lower();
        assert!(low.bytes() > 0 && low.bytes() < high.bytes(), "{} {}", low.bytes(), high.bytes());
    }
}
