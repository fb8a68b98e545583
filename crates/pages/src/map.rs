//! A read-only shared map of one regular file.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::MapError;
use crate::fault::{self, MapEntry};
use crate::incoming::Incoming;
use crate::open::{file_kind, open_file};
use crate::ranges::Ranges;
use crate::region::LockError;
use crate::residency;
use crate::stamp::Stamp;

/// Bytes of a huge page of the page cache, where it has huge pages.
pub const HUGE_PAGE: usize = 2 << 20;

/// A read-only shared map of one regular file.
///
/// Its pages are the page cache's: any number of processes share them, and nothing is read until it is
/// touched. Renaming or deleting the file does not affect a map. Truncating it does: then the missing
/// parts read as zeros and [`Map::check`] fails until [`Map::try_again`]. Code that computes from a map
/// calls `check` before it releases a result.
///
/// A process that writes to the file changes the contents of the map; the system offers no protection
/// against that. Code that reads a map must stay memory-safe whatever the bytes are, at any time: it
/// computes with them, and takes no length, index or text from them ([`Map::read`] is for these).
#[derive(Debug)]
pub struct Map {
    start: NonNull<u8>,
    len: usize,
    path: PathBuf,
    file: File,
    /// The stamp from when the file was opened.
    stamp: Stamp,
    /// The map's entry in the registry.
    slot: &'static MapEntry,
    /// Locked byte ranges.
    locked: Mutex<Ranges>,
    /// If the file is still being received: what has come.
    incoming: Option<Arc<Incoming>>,
}

// SAFETY: the map is only read, through shared references, and unmapped once, by its owner.
unsafe impl Send for Map {}
// SAFETY: as above; the slot is made of atomics.
unsafe impl Sync for Map {}

/// How a range is going to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// In no particular order.
    Normal,
    /// From front to back: read ahead eagerly.
    Sequential,
    /// At scattered offsets: do not read ahead.
    Random,
    /// Soon: start reading now.
    WillNeed,
    /// Not for a while: this process's pages may be released (the page cache keeps the file's).
    DontNeed,
    /// Data read from the disk may be cached in huge pages, where the filesystem supports them: two
    /// megabytes at a time, which every process also maps at once, while they stay cached.
    HugePages,
}

impl Map {
    /// Maps the file at `path`. Symbolic links are followed.
    ///
    /// # Errors
    /// The file cannot be opened, is not a regular file (this never blocks, not even on a pipe), is
    /// empty, or cannot be mapped.
    pub fn open(path: &Path) -> Result<Map, MapError> {
        let (file, metadata) = open_file(path)?;
        Map::of_opened(file, &metadata, path)
    }

    /// Maps an open file, which errors call `path`.
    ///
    /// # Errors
    /// It is not a regular file, is empty, or cannot be mapped.
    pub fn of_file(file: File, path: &Path) -> Result<Map, MapError> {
        let metadata =
            file.metadata().map_err(|source| MapError::Open { path: path.into(), source })?;
        if !metadata.is_file() {
            let kind = file_kind(&metadata);
            return Err(MapError::NotAFile { path: path.into(), kind });
        }
        Map::of_opened(file, &metadata, path)
    }

    /// Maps a file that is still being received; `file` must have its final length, or more. [`Map::read`], [`Map::populate`] and
    /// [`Map::touch`] wait for what they read. The caller of [`Map::bytes`] must have [waited](Map::wait) for what it uses: until then
    /// they are zeros. [`Map::check`] fails once the file will not be complete.
    ///
    /// # Errors
    /// It is shorter, is empty, or cannot be mapped.
    pub fn of_incoming(file: File, incoming: Arc<Incoming>) -> Result<Map, MapError> {
        let path = incoming.path().to_owned();
        let metadata =
            file.metadata().map_err(|source| MapError::Open { path: path.clone(), source })?;
        let (expected, found) = (incoming.len(), metadata.len());
        if found < expected {
            return Err(MapError::FileShrank { path, expected, found });
        }
        let mut map = Map::of_len(file, expected, &metadata, &path)?;
        map.incoming = Some(incoming);
        Ok(map)
    }

    /// Maps a regular file.
    fn of_opened(file: File, metadata: &Metadata, path: &Path) -> Result<Map, MapError> {
        Map::of_len(file, metadata.len(), metadata, path)
    }

    /// Maps the first `len` bytes of a regular file that has as many.
    fn of_len(file: File, len: u64, metadata: &Metadata, path: &Path) -> Result<Map, MapError> {
        if len == 0 {
            return Err(MapError::Empty { path: path.into() });
        }
        let too_large = || MapError::TooLarge { path: path.into(), len };
        let map_error = |source| MapError::Map { path: path.into(), len, source };
        // A slice may not be longer than isize::MAX, and the last page must fit as well.
        let len = isize::try_from(len).map_err(|_| too_large())? as usize;
        let pages = len.checked_next_multiple_of(fault::page_size()).ok_or_else(too_large)?;

        fault::install().map_err(map_error)?;
        // SAFETY: a new map at an address that the system chooses.
        let start = unsafe {
            libc::mmap(ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        let start = match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => start,
            _ => return Err(map_error(io::Error::last_os_error())),
        };
        let slot = MapEntry::register(start.as_ptr() as usize, pages, libc::PROT_READ);
        let (stamp, path, locked) = (Stamp::from(metadata), path.into(), Mutex::default());
        Ok(Map { start, len, path, file, stamp, slot, locked, incoming: None })
    }

    /// The state of a file that is still being received; `None` if all of it is there.
    pub fn incoming(&self) -> Option<&Arc<Incoming>> {
        self.incoming.as_ref().filter(|incoming| !incoming.is_complete())
    }

    /// Returns true when the bytes of `range` are those of the file, which takes time only while it is being received, or false if
    /// `give_up` returned true before that.
    ///
    /// # Errors
    /// They will not come.
    pub fn wait(&self, range: &Range<usize>, give_up: &dyn Fn() -> bool) -> Result<bool, MapError> {
        match self.incoming() {
            None => Ok(true),
            Some(incoming) => {
                let range = range.start as u64..range.end as u64;
                incoming.ask_now(range.clone());
                incoming.wait(&range, give_up)
            }
        }
    }

    /// The bytes of the file at this moment; they may change at the next. Use them only to compute with
    /// tensors. Data that is checked and then relied on (a header, text, an offset) must come from
    /// [`Map::read`].
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `start` is a readable map of `len` bytes that lives as long as `self`; a fault in it is
        // answered with zero pages at the same address. Another process may write to the file, which is
        // the caveat of every shared map; see the type's documentation.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Fills `to` with the bytes at `at`, by reading and not through the map: the copy belongs to the
    /// caller and does not change. Use it for data that is read twice, such as a header.
    ///
    /// # Errors
    /// The errors of [`Map::check`], which fails from then on: the file ends before, or cannot be read
    /// there.
    pub fn read(&self, to: &mut [u8], at: u64) -> Result<(), MapError> {
        // On a machine of 32 bits, no offset past its addresses is in a map.
        let start = usize::try_from(at).unwrap_or(usize::MAX);
        self.wait(&(start..start.saturating_add(to.len())), &|| false)?;
        match self.file.read_exact_at(to, at) {
            Ok(()) => Ok(()),
            Err(_) => {
                // Bytes past the end are missing as well, but they have no address in the map.
                let at = at.min(self.len as u64 - 1);
                self.slot.poison(self.start.as_ptr() as usize + at as usize);
                self.check()
            }
        }
    }

    /// Returns the first bytes of the file, at most `most`; none if they cannot be read.
    pub fn head(&self, most: usize) -> Vec<u8> {
        let mut head = vec![0; most.min(self.len)];
        match self.read(&mut head, 0) {
            Ok(()) => head,
            Err(_) => Vec::new(),
        }
    }

    /// [`Map::read`] as a function that returns true on success, for parsers.
    pub fn reader(&self) -> impl Fn(&mut [u8], u64) -> bool + '_ {
        |to, at| self.read(to, at).is_ok()
    }

    /// The path by which the file was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file, for system queries (its residency, for example).
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Bytes of the file when it was mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: empty files are refused.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Loads `range` into memory and into this process's page table, and reads pages that are not cached.
    /// Returns when that is done. The part of a range past the end is ignored.
    ///
    /// This affects only speed: where the system cannot do it, pages are loaded when touched.
    ///
    /// # Errors
    /// The errors of [`Map::check`].
    pub fn populate(&self, range: Range<usize>) -> Result<(), MapError> {
        self.wait(&range, &|| false)?;
        let Some((start, len)) = self.pages(range) else { return self.check() };
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            /// Since Linux 5.14.
            const MADV_POPULATE_READ: libc::c_int = 22;
            loop {
                match self.madvise(start, len, MADV_POPULATE_READ) {
                    Ok(()) => return self.check(),
                    Err(error) => match error.raw_os_error() {
                        Some(libc::EINTR) => continue,
                        // A touch would have raised SIGBUS. Touching the pages below finds which one.
                        Some(libc::EFAULT) => break,
                        // An older kernel, or no memory for page tables.
                        _ => break,
                    },
                }
            }
        }
        // Errors do not matter: this only starts reading early.
        let _ = self.madvise(start, len, libc::MADV_WILLNEED);
        self.touch_each(start, len, fault::page_size());
        self.check()
    }

    /// Maps the cached pages of `range`, one fault at a time. While [`populate`](Self::populate) works,
    /// other threads cannot map memory, and a thread that waits for that can be delayed by milliseconds;
    /// so use this where other threads work at the same time. (On Linux a fault maps the cached pages
    /// around it, 64 KiB in all; pages that it skips are mapped when they are used.)
    ///
    /// # Errors
    /// The errors of [`Map::check`].
    pub fn touch(&self, range: Range<usize>) -> Result<(), MapError> {
        const AROUND: usize = if cfg!(target_os = "linux") { 64 << 10 } else { 1 };
        self.wait(&range, &|| false)?;
        if let Some((start, len)) = self.pages(range) {
            self.touch_each(start, len, AROUND.max(fault::page_size()));
        }
        self.check()
    }

    /// Reads one byte in every `step` bytes of a range returned by [`pages`](Self::pages).
    fn touch_each(&self, start: usize, len: usize, step: usize) {
        for at in (start..start + len).step_by(step) {
            // SAFETY: `at` is in a page of the map, see `pages`.
            unsafe { self.start.add(at).read_volatile() };
        }
    }

    /// Reads a range of at most a [huge page](HUGE_PAGE) again, in huge pages if the map [was advised
    /// so](Advice::HugePages). The page cache keeps data in pages of the size in which it was read, so
    /// this evicts the range first. Pages mapped by another process stay. Returns true if huge pages were
    /// loaded, as far as that can be detected; useless on a filesystem whose cache has no huge pages.
    /// Pages that cannot be read are detected when they are touched.
    pub fn read_anew(&self, range: Range<usize>) -> bool {
        let range = range.start..range.end.min(self.len);
        if range.is_empty() {
            return false;
        }
        let small = range.len() / fault::page_size();
        self.give_back(range.clone());
        residency::give_up_range(&self.file, range.start as u64..range.end as u64);
        let before = fault::of_this_thread();
        let _ = self.populate(range);
        // One fault maps a huge page, or sixteen small ones.
        fault::of_this_thread().saturating_sub(before) < small.div_ceil(32) as u64
    }

    /// Advises the system how `range` will be used. The part of a range past the end is ignored.
    ///
    /// # Errors
    /// The system does not take the advice; only speed is lost.
    pub fn advise(&self, range: Range<usize>, advice: Advice) -> io::Result<()> {
        let Some((start, len)) = self.pages(range) else { return Ok(()) };
        let advice = match advice {
            Advice::Normal => libc::MADV_NORMAL,
            Advice::Sequential => libc::MADV_SEQUENTIAL,
            Advice::Random => libc::MADV_RANDOM,
            Advice::WillNeed => libc::MADV_WILLNEED,
            Advice::DontNeed => libc::MADV_DONTNEED,
            #[cfg(any(target_os = "linux", target_os = "android"))]
            Advice::HugePages => libc::MADV_HUGEPAGE,
            #[cfg(not(any(target_os = "linux", target_os = "android")))]
            Advice::HugePages => return Err(io::Error::from(io::ErrorKind::Unsupported)),
        };
        self.madvise(start, len, advice)
    }

    /// Releases this process's mappings of the whole pages within `range`, and returns their bytes. The
    /// map stays valid: a page that is touched again is loaded from the page cache, or from the file. For
    /// data that has been copied elsewhere.
    ///
    /// Pages that are partly outside of `range` stay, and so do pages that are
    /// [locked](Map::lock), here or by `mlockall`.
    pub fn give_back(&self, range: Range<usize>) -> usize {
        let page = fault::page_size();
        // Nothing follows the end of the file, so its last page counts as whole.
        let end = if range.end >= self.len { self.pages_len() } else { range.end / page * page };
        let Some(start) = range.start.checked_next_multiple_of(page) else { return 0 };
        if start >= end {
            return 0;
        }
        let locked = self.locked();
        let spare = locked.spare(start..end, |held| self.outward(held));
        // The lock is held, so no thread locks a page that is being released.
        let given =
            |part: &Range<usize>| self.madvise(part.start, part.len(), libc::MADV_DONTNEED).is_ok();
        spare.into_iter().filter(given).map(|part| part.len()).sum()
    }

    /// Reads `range` and keeps it in physical memory until it is [unlocked](Map::unlock) or the map is
    /// dropped. The part of a range past the end is ignored.
    ///
    /// # Errors
    /// RLIMIT_MEMLOCK or the machine's memory does not allow it: see [`LockError`].
    pub fn lock(&self, range: Range<usize>) -> Result<(), LockError> {
        let range = range.start..range.end.min(self.len);
        if range.is_empty() {
            return Ok(());
        }
        let mut locked = self.locked();
        let pages = self.outward(&range);
        // SAFETY: pages of the map; locking changes no contents.
        match unsafe { libc::mlock(self.start.as_ptr().add(pages.start).cast(), pages.len()) } {
            0 => {
                locked.add(range);
                Ok(())
            }
            _ => {
                let error = LockError::last(range.len());
                // Some systems have locked a part already.
                self.unlock_pages(pages, &locked);
                Err(error)
            }
        }
    }

    /// Unlocks `range`, except for pages that also contain other locked bytes.
    pub fn unlock(&self, range: Range<usize>) {
        let range = range.start..range.end.min(self.len);
        if range.is_empty() {
            return;
        }
        let mut locked = self.locked();
        locked.remove(&range);
        self.unlock_pages(self.outward(&range), &locked);
    }

    /// Unlocks those of `pages` that contain nothing in `locked`.
    fn unlock_pages(&self, pages: Range<usize>, locked: &Ranges) {
        for part in locked.spare(pages, |held| self.outward(held)) {
            // SAFETY: pages of the map; unlocking changes no contents.
            unsafe { libc::munlock(self.start.as_ptr().add(part.start).cast(), part.len()) };
        }
    }

    fn locked(&self) -> MutexGuard<'_, Ranges> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The whole pages around `range`, which must not be empty and must be within the file.
    fn outward(&self, range: &Range<usize>) -> Range<usize> {
        let page = fault::page_size();
        range.start / page * page..range.end.next_multiple_of(page)
    }

    /// Bytes of the file in whole pages.
    fn pages_len(&self) -> usize {
        self.len.next_multiple_of(fault::page_size())
    }

    /// Checks that the bytes read from the map are reliable. Costs one `fstat`: a file that was truncated
    /// within its last page raises no fault; its lost bytes just read as zeros.
    ///
    /// # Errors
    /// The file has become shorter ([`MapError::FileShrank`]), or a page could not be read
    /// ([`MapError::Unreadable`]). After a fault this remains until [`Map::try_again`]. A file that was being received will not be
    /// complete, or is not what was promised ([`MapError::NotReceived`]).
    pub fn check(&self) -> Result<(), MapError> {
        if let Some(incoming) = &self.incoming {
            incoming.check()?;
        }
        let expected = self.len as u64;
        let found = self.file.metadata().map(|metadata| metadata.len());
        match (self.slot.poisoned(), found) {
            (_, Ok(found)) if found < expected => {
                Err(MapError::FileShrank { path: self.path.clone(), expected, found })
            }
            (Some(address), _) => Err(self.unreadable(address)),
            // A failing `fstat` says nothing about the pages.
            (None, _) => Ok(()),
        }
    }

    /// The number of times that a page of this map could not be read, for [`Map::check_since`]. It never shrinks.
    pub fn faults(&self) -> usize {
        self.slot.faults()
    }

    /// Like [`check`](Map::check) for bytes that were read since [`Map::faults`] was `faults`. Where several
    /// threads compute from a map, one may [try again](Self::try_again) after another has read zeros.
    ///
    /// # Errors
    /// The errors of `check`.
    pub fn check_since(&self, faults: usize) -> Result<(), MapError> {
        self.check()?;
        match self.faults() == faults {
            true => Ok(()),
            false => Err(self.unreadable(self.slot.last())),
        }
    }

    fn unreadable(&self, address: usize) -> MapError {
        let at = (address - self.start.as_ptr() as usize) as u64;
        MapError::Unreadable { path: self.path.clone(), at, len: self.len as u64 }
    }

    /// After a failure, maps the pages again that could not be read, so that they are read again when they
    /// are used. Without one it does nothing. Locked ranges are locked again as far as the system allows.
    ///
    /// # Errors
    /// The file is still too short, or cannot be mapped; the map stays as it is.
    pub fn try_again(&self) -> Result<(), MapError> {
        let Some(address) = self.slot.poisoned() else { return Ok(()) };
        if let Err(error @ MapError::FileShrank { .. }) = self.check() {
            return Err(error);
        }
        // No thread locks or gives back pages meanwhile.
        let locked = self.locked();
        let from =
            (address - self.start.as_ptr() as usize) / fault::page_size() * fault::page_size();
        self.slot.heal();
        // SAFETY: replaces pages of our own map, to its end, by the same pages of its file, with the same
        // protection. References into them stay valid, with the caveat of `bytes`.
        let placed = unsafe {
            libc::mmap(
                self.start.as_ptr().add(from).cast(),
                self.len - from,
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_FIXED,
                self.file.as_raw_fd(),
                from as libc::off_t,
            )
        };
        if placed == libc::MAP_FAILED {
            let source = io::Error::last_os_error();
            self.slot.poison(address);
            let (path, len) = (self.path.clone(), self.len as u64);
            return Err(MapError::Map { path, len, source });
        }
        for range in locked.all() {
            let pages = self.outward(range);
            // SAFETY: pages of the map; locking changes no contents. A refusal costs only time.
            unsafe { libc::mlock(self.start.as_ptr().add(pages.start).cast(), pages.len()) };
        }
        Ok(())
    }

    /// The stamp of the file when it was opened.
    pub fn stamp(&self) -> &Stamp {
        &self.stamp
    }

    /// Like [`check`](Map::check), and also checks that the file is unchanged since it was opened, for
    /// results that must come from one state of it. The caller must have [settled](Stamp::settle) its
    /// stamp before anything was read.
    ///
    /// # Errors
    /// The errors of `check`, and [`MapError::Changed`].
    pub fn check_unchanged(&self) -> Result<(), MapError> {
        self.check()?;
        match self.stamp.still_holds(&self.file) {
            Ok(false) => Err(MapError::Changed { path: self.path.clone() }),
            // A failing `fstat` says nothing about the bytes.
            Ok(true) | Err(_) => Ok(()),
        }
    }

    /// The whole pages around `range`, as offset and length; `None` if the range is empty.
    fn pages(&self, range: Range<usize>) -> Option<(usize, usize)> {
        let end = range.end.min(self.len);
        if range.start >= end {
            return None;
        }
        let start = range.start - range.start % fault::page_size();
        Some((start, end - start))
    }

    /// Requires that `start` is the offset of a page, and `start + len` at most the map's length in whole
    /// pages.
    fn madvise(&self, start: usize, len: usize, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: within the map; no advice in use changes the contents of a read-only map of a file.
        // (DONTNEED drops pages that come back from the file, or as the zeros they were.)
        let status = unsafe { libc::madvise(self.start.as_ptr().add(start).cast(), len, advice) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        self.slot.unregister();
        // SAFETY: this value alone maps `len` bytes at `start`; no reference outlives it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
