//! How much of a file is in the page cache, and its eviction.
//!
//! The kernel reports it by cachestat(2) (Linux 6.5; from 33 µs per GiB to 16 ms, see `COUNTED`),
//! otherwise by mincore(2) over a map that is never touched (12 ms per GiB). Three things make the plain
//! calls wrong:
//! - Both calls answer only users who own the file or may write it. For others cachestat returns EPERM,
//!   and mincore reports *every* page as cached. Then pages are sampled by reads that refuse to wait
//!   (RWF_NOWAIT), which every user who may read the file may do.
//! - On overlayfs (used by containers) cachestat checks a file that has no pages of its own and returns
//!   0. A map is of the underlying file, so mincore is used there.
//! - A container's filter may forbid cachestat with EPERM instead of ENOSYS; then it counts as missing.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::time::Duration;

/// The number of cached pages in a range. It may change at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residency {
    /// Pages that the range touches (of the system's page size), the ends included.
    pub pages: u64,
    /// The number of these pages in the page cache.
    pub cached: u64,
    /// How this was determined.
    pub probe: CacheProbe,
}

impl Residency {
    /// The cached share, 0 to 1; 1 for an empty range.
    pub fn share(&self) -> f64 {
        if self.pages == 0 { 1.0 } else { self.cached as f64 / self.pages as f64 }
    }

    /// Bytes of the cached pages in a range of `len` bytes.
    pub fn cached_bytes(&self, len: u64) -> u64 {
        self.cached.saturating_mul(crate::page_size() as u64).min(len)
    }

    /// True if no page is cached, and that was counted, not sampled.
    pub fn is_proven_cold(&self) -> bool {
        self.cached == 0 && self.probe != CacheProbe::Sampled
    }
}

/// How a residency was determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheProbe {
    /// Counted by cachestat(2).
    Cachestat,
    /// Counted by mincore(2).
    Mincore,
    /// Estimated from pages all over the range.
    Sampled,
}

impl CacheProbe {
    /// Its one-word name.
    pub fn name(self) -> &'static str {
        match self {
            CacheProbe::Cachestat => "cachestat",
            CacheProbe::Mincore => "mincore",
            CacheProbe::Sampled => "sampled",
        }
    }
}

/// Samples of a file for an estimate, and pages per sample: the standard error is at most 1/√n/2 of the
/// file, here 3 %. (An estimate decides between "nearly all" and "not".)
const SAMPLES: u64 = 256;
const SAMPLE_PAGES: u64 = 8;
/// The number of samples by reads, each of which triggers the read of a page that is not cached.
const READ_SAMPLES: u64 = 64;
/// The least distance of samples by reads, in bytes: with the page of a compressed extent btrfs brings the others (at most
/// 128 KiB), which a sample nearby would count as cached.
const READ_DISTANCE: u64 = 256 << 10;
/// Up to this number of pages an estimate counts all of them. Counting costs 70 ns for each page that was
/// evicted earlier (the kernel looks up how long ago) or that is cached on its own, with either call:
/// measured, 60 ms for a file of 3.8 GB after its eviction, 0.1 ms where it is cached in large folios.
const COUNTED: u64 = 4096;
/// Pages per call of mincore: one byte each, on the stack.
const VECTOR: usize = 16 << 10;

/// Returns how much of `range` (bytes of `file`; cut at its end) is in the page cache: counted, if the
/// system reports it to this user; otherwise estimated (see [`CacheProbe`]).
///
/// # Errors
/// The system refuses every probe.
pub fn residency(file: &File, range: Range<u64>) -> io::Result<Residency> {
    ask(file, range, u64::MAX)
}

/// True if all of `range` is in the page cache; `None` if one quick call cannot determine it.
pub fn is_cached(file: &File, range: Range<u64>) -> Option<bool> {
    if is_overlay(file) {
        return None;
    }
    let missing = cachestat_says(file, &range).ok()?;
    Some(missing.is_some_and(|missing| missing.is_empty()))
}

/// Like [`residency`], but in a fraction of a millisecond: large ranges are sampled.
pub(crate) fn estimate(file: &File, range: Range<u64>) -> io::Result<Residency> {
    ask(file, range, COUNTED)
}

/// Like [`estimate`], where the system reports what is cached; `None` where only reads could find out, which leave pages in it.
pub(crate) fn reported(file: &File, range: Range<u64>) -> Option<Residency> {
    let metadata = file.metadata().ok()?;
    let by_call = !is_overlay(file) && cachestat(file, range.start..range.start + 1).is_some();
    (by_call || may_be_told(file, &metadata)).then(|| estimate(file, range).ok())?
}

/// Drops the file from the page cache, as far as possible without privilege: its changes are written
/// (fsync), then its pages are dropped (fadvise). Returns what is still cached: nothing, if
/// [`Residency::is_proven_cold`]. Pages that a process has mapped and touched, or is reading, stay.
///
/// # Errors
/// The system cannot do it (it is not Linux, Android or FreeBSD), or cannot report what is still cached.
pub fn evict(file: &File) -> io::Result<Residency> {
    let len = file.metadata()?.len();
    // A file on a read-only medium has no changes to write.
    let _ = file.sync_all();
    let mut left = None;
    // The first pass occasionally misses pages that are on their way into the cache's lists.
    for pause in [0, 1, 5, 20, 50] {
        std::thread::sleep(Duration::from_millis(pause));
        give_up(file)?;
        let now = residency(file, 0..len)?;
        if now.cached == 0 {
            return Ok(now);
        }
        left = Some(now);
    }
    left.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))
}

/// Starts writing dirty bytes to the disk without waiting: a later fsync has less to do. Where the system does not support this, nothing is
/// lost.
pub fn start_writing(file: &File, range: Range<u64>) {
    // The system treats an empty range as the whole file.
    if !range.is_empty() {
        let _ = crate::sys::start_writing(file, &range);
    }
}

/// Drops the file's pages from the page cache, except dirty and mapped ones.
///
/// # Errors
/// The system cannot do it (it is not Linux, Android or FreeBSD).
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
pub fn give_up(file: &File) -> io::Result<()> {
    // SAFETY: takes numbers only.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Drops the file's pages from the page cache, except dirty and mapped ones.
///
/// # Errors
/// The system cannot do it (it is not Linux, Android or FreeBSD).
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
pub fn give_up(_: &File) -> io::Result<()> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "this system has no call that takes a file out of the page cache",
    ))
}

/// Like [`give_up`], for the whole pages of a range. A refusal is no error: the pages just stay cached.
pub(crate) fn give_up_range(file: &File, range: Range<u64>) {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        let (offset, len) = (range.start as libc::off_t, (range.end - range.start) as libc::off_t);
        // SAFETY: takes numbers only.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, len, libc::POSIX_FADV_DONTNEED) };
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = (file, range);
}

fn ask(file: &File, range: Range<u64>, counted: u64) -> io::Result<Residency> {
    let metadata = file.metadata()?;
    let range = range.start..range.end.min(metadata.len());
    if range.start >= range.end {
        return Ok(Residency { pages: 0, cached: 0, probe: CacheProbe::Cachestat });
    }
    let page = crate::fault::page_size() as u64;
    let first = range.start / page;
    let count = (range.end - 1) / page + 1 - first;
    let answer = |cached, probe| Ok(Residency { pages: count, cached, probe });
    // Page numbers are relative to `range`.
    let by_cachestat = |pages: Range<u64>| {
        let bytes = (first + pages.start) * page..(first + pages.end) * page;
        Some(cachestat(file, bytes)?.min(pages.end - pages.start))
    };
    let whole = count <= counted;
    if !is_overlay(file) && by_cachestat(0..1).is_some() {
        let ask = |pages| by_cachestat(pages).ok_or_else(|| io::ErrorKind::Unsupported.into());
        return match whole {
            true => answer(ask(0..count)?, CacheProbe::Cachestat),
            false => answer(sample(count, SAMPLES, SAMPLE_PAGES, ask)?, CacheProbe::Sampled),
        };
    }
    if may_be_told(file, &metadata) {
        let window = Window::map(file, first..first + count)?;
        return match whole {
            true => answer(window.cached()?, CacheProbe::Mincore),
            false => answer(
                sample(count, SAMPLES, SAMPLE_PAGES, |p| window.look(p))?,
                CacheProbe::Sampled,
            ),
        };
    }
    let apart = without_readahead(file);
    let file = apart.as_ref().unwrap_or(file);
    let read = |pages: Range<u64>| {
        is_there_without_waiting(file, (first + pages.start) * page).map(u64::from)
    };
    let samples = READ_SAMPLES.min(count * page / READ_DISTANCE);
    answer(sample(count, samples, 1, read)?, CacheProbe::Sampled)
}

/// A system call that reports exactly which pages of a file are cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExactProbe {
    Cachestat,
    Mincore,
}

/// The exact probe that works for this user and file; `None` for a file of another user.
pub(crate) fn exact_probe(file: &File) -> Option<ExactProbe> {
    let metadata = file.metadata().ok()?;
    let page = crate::fault::page_size() as u64;
    if !is_overlay(file) && cachestat(file, 0..page).is_some() {
        return Some(ExactProbe::Cachestat);
    }
    may_be_told(file, &metadata).then_some(ExactProbe::Mincore)
}

/// The parts of `range` (bytes; it begins on a page, and ends on one or with the file) that are not in
/// the page cache, in whole pages and in order.
pub(crate) fn not_cached(
    file: &File,
    range: Range<u64>,
    exact_probe: ExactProbe,
) -> io::Result<Vec<Range<u64>>> {
    let mut parts: Vec<Range<u64>> = Vec::new();
    let mut left = vec![range];
    while let Some(range) = left.pop() {
        // A partly cached range is split in half, so that the page-by-page check covers few of the holes
        // of a large file.
        if exact_probe == ExactProbe::Cachestat && range.end - range.start > LOOKED_AT {
            match cachestat_says(file, &range)? {
                Some(missing) => add(&mut parts, missing),
                None => {
                    let half = (range.end - range.start).div_ceil(2).next_multiple_of(LOOKED_AT);
                    let middle = range.start + half;
                    left.extend([middle..range.end, range.start..middle]);
                }
            }
            continue;
        }
        look_for_missing(file, range, exact_probe, &mut parts)?;
    }
    Ok(parts)
}

/// Maximum bytes of a range that is checked page by page, where cachestat is quicker.
const LOOKED_AT: u64 = 1 << 30;

/// The missing part of a range that is cached as a whole or not at all; `None` if it is partly cached.
fn cachestat_says(file: &File, range: &Range<u64>) -> io::Result<Option<Range<u64>>> {
    let page = crate::fault::page_size() as u64;
    let pages = range.start / page..range.end.div_ceil(page);
    match cachestat(file, pages.start * page..pages.end * page) {
        Some(0) => Ok(Some(range.clone())),
        Some(cached) if cached >= pages.end - pages.start => Ok(Some(range.end..range.end)),
        Some(_) => Ok(None),
        None => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Adds a part that follows all others.
fn add(parts: &mut Vec<Range<u64>>, part: Range<u64>) {
    match parts.last_mut() {
        _ if part.is_empty() => {}
        Some(last) if last.end == part.start => last.end = part.end,
        _ => parts.push(part),
    }
}

/// Adds the missing parts of a range; checks each page if the range is partly cached.
fn look_for_missing(
    file: &File,
    range: Range<u64>,
    exact_probe: ExactProbe,
    parts: &mut Vec<Range<u64>>,
) -> io::Result<()> {
    let page = crate::fault::page_size() as u64;
    let pages = range.start / page..range.end.div_ceil(page);
    // Nearly always it is nothing or everything, which cachestat reports without a check of each page.
    if exact_probe == ExactProbe::Cachestat
        && let Some(missing) = cachestat_says(file, &range)?
    {
        add(parts, missing);
        return Ok(());
    }
    let window = Window::map(file, pages.clone())?;
    let mut vector = [0u8; VECTOR];
    for from in (0..window.pages).step_by(VECTOR) {
        let looked = from..(from + VECTOR as u64).min(window.pages);
        let vector = &mut vector[..(looked.end - looked.start) as usize];
        window.fill(looked.start, vector)?;
        for (i, _) in vector.iter().enumerate().filter(|(_, there)| *there & 1 == 0) {
            let start = (pages.start + from + i as u64) * page;
            add(parts, start..(start + page).min(range.end));
        }
    }
    Ok(())
}

/// Bytes that the kernel may read ahead in this file.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn readahead(file: &File) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    let dev = file.metadata().ok()?.dev();
    let (major, minor) = (libc::major(dev), libc::minor(dev));
    let text =
        std::fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb")).ok()?;
    text.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn readahead(_: &File) -> Option<u64> {
    None
}

/// Estimates how many of `pages` pages are cached, from `at_once` pages in the middle of each of
/// `samples` equal parts.
fn sample(
    pages: u64,
    samples: u64,
    at_once: u64,
    cached: impl Fn(Range<u64>) -> io::Result<u64>,
) -> io::Result<u64> {
    let samples = samples.min(pages / at_once).max(1);
    let mut there = 0;
    // From the end, since what a sample by a read brings with it lies after it.
    for i in (0..samples).rev() {
        let middle = (u128::from(2 * i + 1) * u128::from(pages) / u128::from(2 * samples)) as u64;
        let start = middle.saturating_sub(at_once / 2);
        there += cached(start..(start + at_once).min(pages))?;
    }
    let asked = samples * at_once.min(pages);
    Ok(((u128::from(there) * u128::from(pages) / u128::from(asked)) as u64).min(pages))
}

/// True on overlayfs, where the open file has no pages of its own.
fn is_overlay(file: &File) -> bool {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    return crate::filesystem::magic(file) == Some(crate::filesystem::OVERLAYFS);
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    {
        let _ = file;
        false
    }
}

/// The number of cached pages in a range of bytes, by cachestat; `None` if the call fails.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn cachestat(file: &File, range: Range<u64>) -> Option<u64> {
    /// The system call number on every architecture except Alpha. Not in the C libraries yet.
    const SYS_CACHESTAT: libc::c_long = 451;
    #[repr(C)]
    struct CachestatRange {
        off: u64,
        len: u64,
    }
    #[repr(C)]
    #[derive(Default)]
    struct Cachestat {
        cache: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    let asked = CachestatRange { off: range.start, len: range.end - range.start };
    let mut answer = Cachestat::default();
    // SAFETY: the kernel reads the first struct and writes the second; both have the kernel's layout and
    // outlive the call. An older kernel returns ENOSYS.
    let status = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            ptr::from_ref(&asked),
            ptr::from_mut(&mut answer),
            0 as libc::c_uint,
        )
    };
    (status == 0).then_some(answer.cache)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn cachestat(_: &File, _: Range<u64>) -> Option<u64> {
    None
}

/// True if mincore's result is true for this user: since Linux 5.2 only for the owner, users with the
/// owner's rights, and users who may write the file.
fn may_be_told(file: &File, metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    if !cfg!(any(target_os = "linux", target_os = "android")) {
        return true;
    }
    // SAFETY: always succeeds, takes no arguments.
    let me = unsafe { libc::geteuid() };
    if me == 0 || me == metadata.uid() {
        return true;
    }
    let own = format!("/proc/self/fd/{}\0", file.as_raw_fd());
    // SAFETY: a string that ends with a zero byte.
    unsafe {
        libc::faccessat(libc::AT_FDCWD, own.as_ptr().cast(), libc::W_OK, libc::AT_EACCESS) == 0
    }
}

/// Opens the same file again: reads there do not trigger readahead, and the advice for that does not
/// affect the maps made from `file`.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn without_readahead(file: &File) -> Option<File> {
    let apart = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    // SAFETY: takes numbers only.
    unsafe { libc::posix_fadvise(apart.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    Some(apart)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn without_readahead(_: &File) -> Option<File> {
    None
}

/// True if the page at offset `at` is cached: reads one byte on that condition.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_there_without_waiting(file: &File, at: u64) -> io::Result<bool> {
    let mut byte = 0u8;
    let into = libc::iovec { iov_base: ptr::from_mut(&mut byte).cast(), iov_len: 1 };
    let at = libc::off_t::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: one byte is written to `byte`, which outlives the call.
    let got = unsafe { libc::preadv2(file.as_raw_fd(), &into, 1, at, libc::RWF_NOWAIT) };
    match got {
        1 => Ok(true),
        0 => Ok(false),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EAGAIN) => Ok(false),
            error => Err(error),
        },
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn is_there_without_waiting(_: &File, _: u64) -> io::Result<bool> {
    Err(io::ErrorKind::Unsupported.into())
}

/// A map of pages that is never touched, only passed to mincore.
struct Window {
    start: *mut libc::c_void,
    len: usize,
    pages: u64,
}

impl Window {
    fn map(file: &File, pages: Range<u64>) -> io::Result<Window> {
        let page = crate::fault::page_size() as u64;
        let too_large = |_| io::Error::from(io::ErrorKind::FileTooLarge);
        let len = usize::try_from((pages.end - pages.start) * page).map_err(too_large)?;
        let at = libc::off_t::try_from(pages.start * page).map_err(too_large)?;
        // SAFETY: a new map at an address that the system chooses.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                at,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Window { start, len, pages: pages.end - pages.start })
    }

    fn cached(&self) -> io::Result<u64> {
        let mut cached = 0;
        for from in (0..self.pages).step_by(VECTOR) {
            cached += self.look(from..(from + VECTOR as u64).min(self.pages))?;
        }
        Ok(cached)
    }

    /// The number of cached pages in a range of the window, at most [`VECTOR`] pages.
    fn look(&self, pages: Range<u64>) -> io::Result<u64> {
        let mut vector = [0u8; VECTOR];
        let vector = &mut vector[..(pages.end - pages.start) as usize];
        self.fill(pages.start, vector)?;
        // The other bits are reserved, or have other meanings on other systems.
        Ok(vector.iter().filter(|&&b| b & 1 == 1).count() as u64)
    }

    /// Queries `vector.len()` pages from `first` on, all within the window.
    fn fill(&self, first: u64, vector: &mut [u8]) -> io::Result<()> {
        let page = crate::fault::page_size();
        assert!(first + vector.len() as u64 <= self.pages);
        // SAFETY: pages of the map, and a vector with one byte for each.
        let status = unsafe {
            let start = self.start.cast::<u8>().add(first as usize * page);
            mincore(start.cast(), vector.len() * page, vector.as_mut_ptr().cast())
        };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, unmapped once, and never dereferenced.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

#[cfg(not(target_os = "openbsd"))]
use libc::mincore;

/// OpenBSD has had no mincore since 6.5: it reports the page cache to no process.
///
/// # Safety
/// None.
#[cfg(target_os = "openbsd")]
unsafe fn mincore(_: *mut libc::c_void, _: usize, _: *mut libc::c_char) -> libc::c_int {
    // SAFETY: the address of a thread-local variable.
    unsafe { *libc::__errno() = libc::ENOSYS };
    -1
}

/// Reads `range` of `file` into the page cache, 1 MiB at a time, and discards the bytes.
///
/// # Errors
/// The errors of reading.
pub fn warm(file: &File, range: Range<u64>) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut at = range.start;
    while at < range.end {
        let want = buffer.len().min(usize::try_from(range.end - at).unwrap_or(usize::MAX));
        match file.read_at(&mut buffer[..want], at) {
            Ok(0) => return Ok(()),
            Ok(n) => at += n as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::io::Write;

    const PAGE: u64 = 4096;
    const LEN: u64 = 300 * PAGE + 5;

    /// A file of 301 pages on the disk, next to the test binary (/tmp may be in memory).
    fn file() -> File {
        let exe = std::env::current_exe().unwrap();
        let mut file = tempfile::tempfile_in(exe.parent().unwrap()).unwrap();
        file.write_all(&vec![7; LEN as usize]).unwrap();
        // Readahead would load more than a test reads.
        // SAFETY: takes numbers only.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
        file
    }

    fn by_mincore(file: &File) -> u64 {
        Window::map(file, 0..301).unwrap().cached().unwrap()
    }

    fn by_reads(file: &File) -> u64 {
        sample(301, 64, 1, |p| is_there_without_waiting(file, p.start * PAGE).map(u64::from))
            .unwrap()
    }

    #[test]
    fn evicted_is_0_and_read_is_all_whoever_is_asked() {
        let file = file();
        let left = evict(&file).unwrap();
        assert!(left.is_proven_cold(), "{left:?}");
        assert_eq!((left.pages, by_mincore(&file)), (301, 0));

        warm(&file, 7 * PAGE..9 * PAGE).unwrap();
        let some = residency(&file, 0..LEN).unwrap();
        assert_eq!(some.cached, by_mincore(&file));
        assert!((2..301).contains(&some.cached), "{some:?}");
        let two = residency(&file, 8 * PAGE - 1..8 * PAGE + 1).unwrap();
        assert_eq!((two.pages, two.cached), (2, 2));

        warm(&file, 0..LEN).unwrap();
        let all = residency(&file, 0..u64::MAX).unwrap();
        assert_eq!((all.pages, all.cached, all.share()), (301, 301, 1.0));
        assert_eq!((by_mincore(&file), by_reads(&file)), (301, 301));

        // The kernel requests an uncached page from the disk, and a fast disk may answer before the kernel checks again: retry.
        let none_by_reads = || {
            evict(&file).unwrap();
            by_reads(&file) == 0
        };
        assert!((0..100).any(|_| none_by_reads()));
        let none = residency(&file, LEN..LEN + 1).unwrap();
        assert_eq!((none.pages, none.cached, none.share()), (0, 0, 1.0));
    }

    /// Also in a large file that is mostly holes.
    #[test]
    fn what_is_not_cached_is_known_to_the_page() {
        let file = file();
        let Some(exact_probe) = exact_probe(&file) else {
            return eprintln!("skipped: nobody tells");
        };
        let len = 5 << 30;
        if file.set_len(len + 5).is_err() {
            return eprintln!("skipped: no such large files here");
        }
        evict(&file).unwrap();
        let at = [0, 3 << 30, len];
        at.iter().for_each(|at| warm(&file, *at..at + 1).unwrap());
        let parts = not_cached(&file, 0..len + 5, exact_probe).unwrap();
        let missing: u64 = parts.iter().map(|part| part.end - part.start).sum();
        let there = residency(&file, 0..u64::MAX).unwrap().cached;
        assert!(there >= 3 && missing <= len - 2 * PAGE, "{there}, {missing}");
        assert!(parts.is_sorted_by(|a, b| a.end < b.start), "{parts:?}");
        for part in &parts {
            assert_eq!(residency(&file, part.clone()).unwrap().cached, 0, "{part:?}");
        }
        for at in at {
            assert!(!parts.iter().any(|part| part.contains(&at)), "{at} in {parts:?}");
        }
    }

    #[test]
    fn an_estimate_looks_all_over_the_file() {
        for pages in [1, 7, 8, 9, 100, 2047, 2048, 2049, 1 << 40] {
            let all = sample(pages, SAMPLES, SAMPLE_PAGES, |p| {
                assert!(p.end <= pages, "{p:?} of {pages}");
                Ok(p.end - p.start)
            });
            // Parts at the edge are narrower than counted only in tiny files.
            assert_eq!(all.unwrap(), pages);
        }
        let first_tenth = |p: Range<u64>| Ok(if p.start < 100_000 { p.end - p.start } else { 0 });
        let got = sample(1_000_000, SAMPLES, SAMPLE_PAGES, first_tenth).unwrap();
        assert!((95_000..105_000).contains(&got), "{got}");
    }

    /// For other users the kernel reports nothing (cachestat: EPERM) or a falsehood (mincore:
    /// everything).
    #[test]
    fn somebody_elses_file_is_sampled() {
        // SAFETY: always succeeds.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("skipped: only root can become somebody else");
            return;
        }
        let exe = std::env::current_exe().unwrap();
        let readable = tempfile::NamedTempFile::new_in(exe.parent().unwrap()).unwrap();
        std::fs::write(readable.path(), vec![7; LEN as usize]).unwrap();
        std::fs::set_permissions(
            readable.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o444),
        )
        .unwrap();
        let readable = File::open(readable.path()).unwrap();
        let left = evict(&readable).unwrap().cached;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: takes numbers; the plain system call affects only this thread.
                let status = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
                assert_eq!(status, 0);
                let cold = residency(&readable, 0..LEN).unwrap();
                // An older kernel still counts.
                if cold.probe == CacheProbe::Sampled {
                    assert_eq!(
                        by_mincore(&readable),
                        301,
                        "mincore tells strangers the truth now?"
                    );
                }
                assert!(left > 0 || cold.cached == 0, "{cold:?}");
                warm(&readable, 0..LEN).unwrap();
                assert_eq!(residency(&readable, 0..LEN).unwrap().cached, 301);
            });
        });
    }
}
