//! Private memory for copies of weights: large, zeroed, and free until touched.

use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};

use alight_types::units;
use thiserror::Error;

/// Private anonymous memory of this process.
///
/// It begins at a multiple of 2 MiB and requests huge pages, because the first touch of a 4 KiB page
/// costs more than copying into it. It reads as zeros until written, and pages that are never touched
/// cost only address space.
///
/// Several threads fill a region at the same time, each a separate part, through
/// [`as_mut_ptr`](Region::as_mut_ptr). The region cannot check that; the writers must ensure it.
#[derive(Debug)]
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    /// Bytes mapped from `start`: `len` in whole pages, at least one page.
    mapped: usize,
}

// SAFETY: the memory belongs to this value alone and is unmapped once, by its owner. Shared access only
// reads; a caller that writes through `as_mut_ptr` promises that nothing else uses that part meanwhile.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// The system does not provide this much memory.
#[derive(Debug, Error)]
#[error(
    "cannot reserve {} of memory: {source}; free some, raise the limit on address space (ulimit -v), or use a smaller model",
    units::bytes(*.len as u64)
)]
pub struct RegionError {
    /// Bytes requested.
    pub len: usize,
    /// The system's error.
    pub source: io::Error,
}

/// Memory cannot be locked.
#[derive(Debug, Error)]
#[error("cannot lock {} in memory: {source}; {}", units::bytes(*.bytes as u64), advice(*.limit, source))]
pub struct LockError {
    /// Bytes to lock.
    pub bytes: usize,
    /// The number of bytes this process may lock (the soft RLIMIT_MEMLOCK); `None` if there is no limit.
    pub limit: Option<u64>,
    /// The system's error.
    pub source: io::Error,
}

/// Advice on memory that cannot be locked.
fn advice(limit: Option<u64>, source: &io::Error) -> String {
    match (limit, source.raw_os_error()) {
        (Some(limit), Some(libc::ENOMEM | libc::EPERM | libc::EAGAIN)) => format!(
            "the limit RLIMIT_MEMLOCK is {} for all that this process locks: raise it \
             (ulimit -l unlimited, LimitMEMLOCK= of a systemd unit, or --ulimit memlock=-1 of a \
             container), grant CAP_IPC_LOCK, or do without locking",
            units::bytes(limit)
        ),
        _ => "there may not be as much free memory: free some, or do without locking".into(),
    }
}

impl LockError {
    /// The system's last error, for `bytes` that could not be locked.
    pub(crate) fn last(bytes: usize) -> LockError {
        let source = io::Error::last_os_error();
        LockError { bytes, limit: lock_limit(), source }
    }
}

/// Checks that this process may lock `bytes` of memory, as far as the limits show.
///
/// # Errors
/// RLIMIT_MEMLOCK allows fewer, and the process lacks the capability that lifts it.
pub fn check_lock(bytes: u64) -> Result<(), LockError> {
    match lock_limit() {
        Some(limit) if bytes > limit && !may_lock_anything() => Err(LockError {
            bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
            limit: Some(limit),
            source: io::Error::from_raw_os_error(libc::ENOMEM),
        }),
        _ => Ok(()),
    }
}

/// True if the process has CAP_IPC_LOCK, to which RLIMIT_MEMLOCK does not apply. Also true if the system
/// does not report it: locking itself will show it.
fn may_lock_anything() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_none_or(|bits| bits >> CAP_IPC_LOCK & 1 == 1)
}

/// The soft limit on locked memory, in bytes.
fn lock_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills our own struct.
    let status = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    #[allow(clippy::unnecessary_cast)] // signed on some systems
    (status == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur as u64)
}

impl Region {
    /// Alignment of a region's start: the size of a huge page on x86-64 and (with 4 KiB pages) on
    /// AArch64.
    pub const HUGE: usize = 2 << 20;

    /// Reserves `len` bytes.
    ///
    /// # Errors
    /// There is not enough address space.
    pub fn new(len: usize) -> Result<Region, RegionError> {
        let error = |source| RegionError { len, source };
        let too_large = || error(io::Error::from_raw_os_error(libc::ENOMEM));
        let page = crate::fault::page_size();
        if len > isize::MAX as usize {
            return Err(too_large());
        }
        let mapped = len.max(1).checked_next_multiple_of(page).ok_or_else(too_large)?;
        let reserved = mapped.checked_add(Region::HUGE).ok_or_else(too_large)?;
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory at an address that the system chooses.
        let base = unsafe { libc::mmap(ptr::null_mut(), reserved, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(error(io::Error::last_os_error()));
        }
        // More than needed was mapped, to find a multiple of 2 MiB in it; unmap the rest.
        let before = (base as usize).next_multiple_of(Region::HUGE) - base as usize;
        let after = reserved - before - mapped;
        // SAFETY: within what was just mapped, to which nothing else has a pointer; whole pages, because
        // `base`, `Region::HUGE` and `mapped` are multiples of the page size (a page is at most 64 KiB).
        let start = unsafe {
            if before > 0 {
                libc::munmap(base, before);
            }
            let start = base.cast::<u8>().add(before);
            if after > 0 {
                libc::munmap(start.add(mapped).cast(), after);
            }
            start
        };
        #[cfg(any(target_os = "linux", target_os = "android"))]
        // SAFETY: advice on our own memory, which changes no contents. It may be refused.
        unsafe {
            libc::madvise(start.cast(), mapped, libc::MADV_HUGEPAGE);
        }
        let start = NonNull::new(start).ok_or_else(too_large)?;
        Ok(Region { start, len, mapped })
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The whole region. A part that a thread is still writing to must not be read until that is done.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `len` readable bytes that live as long as `self`. Writers promise to write only
        // where nothing reads.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The memory, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: our own memory, of this length and initialised; there is no other reference to it.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len()) }
    }

    /// The address of the first byte, for writing: a multiple of 2 MiB. Writing through this pointer is
    /// sound only where no other thread reads or writes at the same time, and while the region lives.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns all of its memory to the system. It then reads as zeros until it is written again.
    ///
    /// # Safety
    /// There are no references to its bytes, and nothing is being written to them.
    pub unsafe fn give_back(&self) {
        // SAFETY: passed on.
        unsafe { self.give_back_range(0..self.mapped) };
    }

    /// Like [`give_back`](Region::give_back), for the whole pages of `range`. The part past the end is
    /// ignored.
    ///
    /// # Safety
    /// There are no references to these bytes, and nothing is being written to them.
    pub unsafe fn give_back_range(&self, range: Range<usize>) {
        let page = crate::fault::page_size();
        let (start, end) =
            (range.start.next_multiple_of(page), range.end.min(self.mapped) / page * page);
        if start < end {
            // SAFETY: our own memory; the caller promises that nothing sees it change. A refusal only
            // costs memory.
            unsafe {
                libc::madvise(
                    self.as_mut_ptr().add(start).cast(),
                    end - start,
                    libc::MADV_DONTNEED,
                );
            }
        }
    }

    /// Keeps the whole region in physical memory until it is dropped. This touches every page, so lock
    /// after filling; otherwise the memory is allocated at once.
    ///
    /// # Errors
    /// RLIMIT_MEMLOCK or the machine's memory does not allow it.
    pub fn lock(&self) -> Result<(), LockError> {
        self.lock_range(0..self.len)
    }

    /// Like [`lock`](Region::lock), for the pages of `range`. The part past the end is ignored.
    ///
    /// # Errors
    /// The errors of [`lock`](Region::lock).
    pub fn lock_range(&self, range: Range<usize>) -> Result<(), LockError> {
        let (start, end) = (range.start, range.end.min(self.len));
        if start >= end {
            return Ok(());
        }
        let page = crate::fault::page_size();
        let start = start / page * page;
        // SAFETY: within our own memory, from the start of a page; locking changes no contents.
        match unsafe { libc::mlock(self.start.as_ptr().add(start).cast(), end - start) } {
            0 => Ok(()),
            _ => Err(LockError::last(end - start)),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, by this value alone; no reference outlives it. Locks are released with
        // the memory.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.mapped) };
    }
}
