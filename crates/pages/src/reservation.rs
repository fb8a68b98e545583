//! Address space that gets memory as it is written, and that parts of files can be put into.

use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::error::MapError;
use crate::fault::{self, MapEntry};
use crate::map::Map;

/// Address space of this process that reads as zeros. A page of it uses memory only after it is first
/// written.
///
/// Parts of files can be put into it ([`put`](Reservation::put)): they are read in place, from the page cache, which all processes share,
/// and writes over them stay in this process. Huge pages are declined, since each would use memory for much that is not written yet,
/// except where the owner [requests them](Reservation::ask_for_huge_pages).
#[derive(Debug)]
pub struct Reservation {
    start: NonNull<u8>,
    /// Bytes, in whole pages.
    len: usize,
    parts: Vec<Part>,
}

/// A part of a file, and its position.
#[derive(Debug)]
struct Part {
    range: Range<usize>,
    file: Arc<Map>,
    /// The registry's entry, removed with the part.
    slot: &'static MapEntry,
}

// SAFETY: the memory belongs to this value alone and is unmapped once, by its owner; shared access only reads.
unsafe impl Send for Reservation {}
// SAFETY: as above.
unsafe impl Sync for Reservation {}

const PROTECTION: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;
#[cfg(any(target_os = "linux", target_os = "android"))]
const PRIVATE: libc::c_int = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const PRIVATE: libc::c_int = libc::MAP_PRIVATE;

impl Reservation {
    /// Reserves at least `len` bytes.
    ///
    /// # Errors
    /// There is not enough address space.
    pub fn new(len: usize) -> io::Result<Reservation> {
        let too_large = || io::Error::from_raw_os_error(libc::ENOMEM);
        let len = len.max(1).checked_next_multiple_of(fault::page_size()).ok_or_else(too_large)?;
        if len > isize::MAX as usize {
            return Err(too_large());
        }
        let start = zeros(ptr::null_mut(), len, 0)?;
        Ok(Reservation { start, len, parts: Vec::new() })
    }

    /// The whole reservation.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `len` readable bytes that live as long as `self`; for parts of files see `Map::bytes`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The whole reservation, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `bytes`; all pages may be written, and written pages of files become this process's
        // own copies.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Requests huge pages for unwritten memory from byte `from` on. The system may decline.
    pub fn ask_for_huge_pages(&mut self, from: usize) {
        let from = from.next_multiple_of(fault::page_size()).min(self.len);
        #[cfg(any(target_os = "linux", target_os = "android"))]
        // SAFETY: advice on our own memory, which changes no contents. Kernels without huge pages refuse it, which is no
        // error.
        unsafe {
            let start = self.start.as_ptr().add(from);
            libc::madvise(start.cast(), self.len - from, libc::MADV_HUGEPAGE);
        }
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let _ = from;
    }

    /// Puts the bytes `offset..offset + len` of a file at `at`, replacing the current contents. Nothing is read. A file that is
    /// truncated meanwhile reads as zeros where bytes are gone, and [`check`](Reservation::check) fails from then on.
    ///
    /// # Errors
    /// The system does not map it. The range then reads as zeros.
    ///
    /// # Panics
    /// If one of the numbers is not a multiple of the [page size](fault::page_size), or if the part does not fit into the reservation or
    /// the file, or overlaps another part.
    pub fn put(
        &mut self,
        at: usize,
        file: &Arc<Map>,
        offset: usize,
        len: usize,
    ) -> Result<(), MapError> {
        let page = fault::page_size();
        let fits = |end: Option<usize>, most: usize| end.is_some_and(|end| end <= most);
        assert!([at, offset, len].iter().all(|n| n.is_multiple_of(page)) && len > 0);
        assert!(fits(at.checked_add(len), self.len), "a part in the reservation");
        assert!(fits(offset.checked_add(len), file.len()), "a part of the file");
        let range = at..at + len;
        let apart = |part: &Part| part.range.end <= range.start || range.end <= part.range.start;
        assert!(self.parts.iter().all(apart), "parts that overlap");
        let error = |source| MapError::Map { path: file.path().into(), len: len as u64, source };
        let offset = libc::off_t::try_from(offset)
            .map_err(|_| error(io::Error::from_raw_os_error(libc::EOVERFLOW)))?;
        // SAFETY: within the reservation.
        let start = unsafe { self.start.as_ptr().add(at) };
        let flags = PRIVATE | libc::MAP_FIXED;
        // SAFETY: replaces our own pages, to which there are no references (`&mut self`), with pages that may be read and
        // written.
        let placed = unsafe {
            libc::mmap(start.cast(), len, PROTECTION, flags, file.file().as_raw_fd(), offset)
        };
        if placed == libc::MAP_FAILED {
            let source = io::Error::last_os_error();
            // The old pages may be gone.
            zeros(start, len, libc::MAP_FIXED).map_err(error)?;
            return Err(error(source));
        }
        let slot = MapEntry::register(start as usize, len, PROTECTION);
        self.parts.push(Part { range, file: Arc::clone(file), slot });
        Ok(())
    }

    /// Removes the part of a file that was put at `at`; the range then reads as zeros. Does nothing if
    /// there is none.
    pub fn take_out(&mut self, at: usize) {
        let Some(i) = self.parts.iter().position(|part| part.range.start == at) else { return };
        let part = self.parts.swap_remove(i);
        part.slot.unregister();
        // SAFETY: within the reservation.
        let start = unsafe { self.start.as_ptr().add(at) };
        // If there is no memory for another mapping, the file stays mapped: it may be read and written like zeros.
        let _ = zeros(start, part.range.len(), libc::MAP_FIXED);
    }

    /// Checks that the bytes read from files are reliable.
    ///
    /// # Errors
    /// The errors of [`Map::check`].
    pub fn check(&self) -> Result<(), MapError> {
        for part in &self.parts {
            part.file.check()?;
            if let Some(address) = part.slot.poisoned() {
                let at = (address - self.start.as_ptr() as usize - part.range.start) as u64;
                let (path, len) = (part.file.path().into(), part.file.len() as u64);
                return Err(MapError::Unreadable { path, at, len });
            }
        }
        Ok(())
    }
}

/// Maps `len` bytes of zeros, at `start` if the flags include MAP_FIXED.
fn zeros(start: *mut u8, len: usize, flags: libc::c_int) -> io::Result<NonNull<u8>> {
    let flags = PRIVATE | libc::MAP_ANON | flags;
    // SAFETY: new memory where the system chooses, or, with MAP_FIXED, in place of pages that the caller owns.
    let start = unsafe { libc::mmap(start.cast(), len, PROTECTION, flags, -1, 0) };
    let start = match NonNull::new(start.cast::<u8>()) {
        Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => start,
        _ => return Err(io::Error::last_os_error()),
    };
    #[cfg(any(target_os = "linux", target_os = "android"))]
    // SAFETY: advice on our own memory, which changes no contents. Kernels without huge pages refuse it, which is no
    // error.
    unsafe {
        libc::madvise(start.as_ptr().cast(), len, libc::MADV_NOHUGEPAGE);
    }
    Ok(start)
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.parts.drain(..).for_each(|part| part.slot.unregister());
        // SAFETY: mapped by `new`, by this value alone; no reference outlives it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
