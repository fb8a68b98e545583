//! A read-only shared map of one regular file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::MapError;
use crate::fault::{self, Slot};
use crate::open::open_file;
use crate::ranges::Ranges;
use crate::region::LockError;
use crate::residency;
use crate::stamp::Stamp;

/// Bytes of a huge page of the page cache, where it has such.
pub const HUGE_PAGE: usize = 2 << 20;

/// A read-only shared map of one regular file.
///
/// Its pages are the page cache's: any number of processes share them, and nothing is read before it
/// is touched. Renaming or deleting the file does not matter to a map. Cutting it short does: then
/// missing parts read as zeros and [`Map::check`] fails from then on. Code that computes from a map
/// asks `check` before it lets a result out.
///
/// A process that writes into the file changes what the map shows; the system has no means against
/// that. Code that reads a map has to stay memory-safe whatever the bytes are, at any time: it computes
/// with them, and takes no length, index or text from them ([`Map::read`] is for these).
#[derive(Debug)]
pub struct Map {
    start: NonNull<u8>,
    len: usize,
    path: PathBuf,
    file: File,
    /// The stamp of the moment when it was opened.
    stamp: Stamp,
    /// The registry's entry.
    slot: &'static Slot,
    /// Bytes that are locked.
    locked: Mutex<Ranges>,
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
    /// Not for a while: this process's pages may go (the page cache keeps the file's).
    DontNeed,
    /// What is read from the disk may come in huge pages, where the filesystem's cache has such: two
    /// megabytes at a time, which are also mapped at once, by every process, as long as they stay cached.
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
        if metadata.len() == 0 {
            return Err(MapError::Empty { path: path.into() });
        }
        let too_large = || MapError::TooLarge { path: path.into(), len: metadata.len() };
        // A slice may not be longer than isize::MAX, and the last page has to fit as well.
        let len = isize::try_from(metadata.len()).map_err(|_| too_large())? as usize;
        let pages = len.checked_next_multiple_of(fault::page_size()).ok_or_else(too_large)?;

        let map_error = |source| MapError::Map { path: path.into(), len: metadata.len(), source };
        fault::install().map_err(map_error)?;
        // SAFETY: a new map at an address that the system chooses.
        let start = unsafe {
            libc::mmap(ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        let start = match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => start,
            _ => return Err(map_error(io::Error::last_os_error())),
        };
        let slot = Slot::register(start.as_ptr() as usize, pages, libc::PROT_READ);
        let stamp = Stamp::from(&metadata);
        Ok(Map { start, len, path: path.into(), file, stamp, slot, locked: Mutex::default() })
    }

    /// The bytes of the file at this moment; they may change at the next. Use them to compute with
    /// tensors, and for nothing else: take what is checked and then relied on (a header, text, an offset)
    /// from [`Map::read`].
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `start` is a readable map of `len` bytes that lives as long as `self`; a fault in
        // it is answered with zero pages at the same address. That another process may write into the
        // file is the caveat of every shared map; see the type's documentation.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Fills `to` with the bytes from `at` on, by reading and not through the map: the copy belongs to
    /// the caller and does not change. Use it for what is looked at twice, such as a header.
    ///
    /// # Errors
    /// As [`Map::check`], which fails from then on: the file ends before, or cannot be read there.
    pub fn read(&self, to: &mut [u8], at: u64) -> Result<(), MapError> {
        match self.file.read_exact_at(to, at) {
            Ok(()) => Ok(()),
            Err(_) => {
                // What is beyond the end is missing as well, but no address of the map.
                let at = at.min(self.len as u64 - 1);
                self.slot.poison(self.start.as_ptr() as usize + at as usize);
                self.check()
            }
        }
    }

    /// The first bytes of the file, `most` at most; none if they cannot be read.
    pub fn head(&self, most: usize) -> Vec<u8> {
        let mut head = vec![0; most.min(self.len)];
        match self.read(&mut head, 0) {
            Ok(()) => head,
            Err(_) => Vec::new(),
        }
    }

    /// [`Map::read`] as a function that says whether it succeeded, for parsers.
    pub fn reader(&self) -> impl Fn(&mut [u8], u64) -> bool + '_ {
        |to, at| self.read(to, at).is_ok()
    }

    /// The path by which the file was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file, for questions to the system (its residency, for instance).
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

    /// Loads `range` into memory and into this process's page table, reading what is not cached.
    /// Returns when that is done. A range that reaches past the end is cut.
    ///
    /// This is a matter of speed only: where the system cannot do it, pages are loaded when touched.
    ///
    /// # Errors
    /// As [`Map::check`].
    pub fn populate(&self, range: Range<usize>) -> Result<(), MapError> {
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
                        // A touch would have raised SIGBUS. Which page it was, touching tells.
                        Some(libc::EFAULT) => break,
                        // An older kernel, or no memory for page tables.
                        _ => break,
                    },
                }
            }
        }
        // Errors do not matter: this only starts the reading early.
        let _ = self.madvise(start, len, libc::MADV_WILLNEED);
        self.touch_each(start, len, fault::page_size());
        self.check()
    }

    /// Maps what is cached of `range`, a fault at a time. While [`populate`](Self::populate) works, other threads cannot map memory, and
    /// a thread that waits for that is passed over for milliseconds; so use this where others work meanwhile. (On Linux a fault maps
    /// the pages around it that are cached, 64 KiB in all; what it leaves out is mapped when it is used.)
    ///
    /// # Errors
    /// As [`Map::check`].
    pub fn touch(&self, range: Range<usize>) -> Result<(), MapError> {
        const AROUND: usize = if cfg!(target_os = "linux") { 64 << 10 } else { 1 };
        if let Some((start, len)) = self.pages(range) {
            self.touch_each(start, len, AROUND.max(fault::page_size()));
        }
        self.check()
    }

    /// Reads a byte in every `step` bytes of a range that [`pages`](Self::pages) has given.
    fn touch_each(&self, start: usize, len: usize, step: usize) {
        for at in (start..start + len).step_by(step) {
            // SAFETY: `at` is in a page of the map, see `pages`.
            unsafe { self.start.add(at).read_volatile() };
        }
    }

    /// Reads a range of at most a [huge page](HUGE_PAGE) again, in huge pages if the map [should come in such](Advice::HugePages). The page
    /// cache keeps what it has read in the pages in which it was read, and this takes it out of there before. Pages stay that another
    /// process has mapped. Returns whether huge ones came, as far as that can be seen; in a filesystem whose cache has none, there is no
    /// use in it. What cannot be read is seen by who touches it.
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
        // One fault maps a huge page, and one maps sixteen small ones.
        fault::of_this_thread().saturating_sub(before) < small.div_ceil(32) as u64
    }

    /// Tells the system how `range` is going to be used. A range that reaches past the end is cut.
    ///
    /// # Errors
    /// The system does not take the advice; nothing is lost but speed.
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

    /// Gives back this process's hold on the whole pages within `range`, and returns their bytes. The
    /// map stays valid: a page that is touched again comes back from the page cache, or from the file.
    /// For what has been copied elsewhere.
    ///
    /// Pages that are partly outside of `range` stay, and so do pages that are
    /// [locked](Map::lock), here or by `mlockall`.
    pub fn give_back(&self, range: Range<usize>) -> usize {
        let page = fault::page_size();
        // There is nothing after the end of the file: its last page is whole.
        let end = if range.end >= self.len { self.pages_len() } else { range.end / page * page };
        let Some(start) = range.start.checked_next_multiple_of(page) else { return 0 };
        if start >= end {
            return 0;
        }
        let locked = self.locked();
        let spare = locked.spare(start..end, |held| self.outward(held));
        // While the lock is held: no thread locks a page that is being given back.
        let given =
            |part: &Range<usize>| self.madvise(part.start, part.len(), libc::MADV_DONTNEED).is_ok();
        spare.into_iter().filter(given).map(|part| part.len()).sum()
    }

    /// Reads `range` and keeps it in physical memory until it is [unlocked](Map::unlock) or the map is
    /// dropped. A range that reaches past the end is cut.
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
                // Some systems have locked a part by now.
                self.unlock_pages(pages, &locked);
                Err(error)
            }
        }
    }

    /// Unlocks `range`, except for pages that hold something else that is locked.
    pub fn unlock(&self, range: Range<usize>) {
        let range = range.start..range.end.min(self.len);
        if range.is_empty() {
            return;
        }
        let mut locked = self.locked();
        locked.remove(&range);
        self.unlock_pages(self.outward(&range), &locked);
    }

    /// Unlocks the `pages` of which nothing is `locked`.
    fn unlock_pages(&self, pages: Range<usize>, locked: &Ranges) {
        for part in locked.spare(pages, |held| self.outward(held)) {
            // SAFETY: pages of the map; unlocking changes no contents.
            unsafe { libc::munlock(self.start.as_ptr().add(part.start).cast(), part.len()) };
        }
    }

    fn locked(&self) -> MutexGuard<'_, Ranges> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The whole pages around `range`, which is not empty and within the file.
    fn outward(&self, range: &Range<usize>) -> Range<usize> {
        let page = fault::page_size();
        range.start / page * page..range.end.next_multiple_of(page)
    }

    /// Bytes of the file in whole pages.
    fn pages_len(&self) -> usize {
        self.len.next_multiple_of(fault::page_size())
    }

    /// Checks that what was read from the map can be relied on. Costs one `fstat`: a file that was cut short
    /// within its last page raises no fault, its lost bytes just read as zeros.
    ///
    /// # Errors
    /// The file has become shorter ([`MapError::FileShrank`]), or a page could not be read
    /// ([`MapError::Unreadable`]). After a fault this stays so for the life of the map.
    pub fn check(&self) -> Result<(), MapError> {
        let expected = self.len as u64;
        let found = self.file.metadata().map(|metadata| metadata.len());
        match (self.slot.poisoned(), found) {
            (_, Ok(found)) if found < expected => {
                Err(MapError::FileShrank { path: self.path.clone(), expected, found })
            }
            (Some(address), _) => {
                let at = (address - self.start.as_ptr() as usize) as u64;
                Err(MapError::Unreadable { path: self.path.clone(), at, len: expected })
            }
            // That `fstat` fails says nothing about the pages.
            (None, _) => Ok(()),
        }
    }

    /// The stamp of the file when it was opened.
    pub fn stamp(&self) -> &Stamp {
        &self.stamp
    }

    /// As [`check`](Map::check), and checks that the file is unchanged since it was opened, for results
    /// that must be of one state of it. The caller has [settled](Stamp::settle) its stamp before
    /// anything was read.
    ///
    /// # Errors
    /// As of `check`, and [`MapError::Changed`].
    pub fn check_unchanged(&self) -> Result<(), MapError> {
        self.check()?;
        match self.stamp.still_holds(&self.file) {
            Ok(false) => Err(MapError::Changed { path: self.path.clone() }),
            // That `fstat` fails says nothing about the bytes.
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

    /// `start` is the offset of a page, `start + len` at most the map's length in whole pages.
    fn madvise(&self, start: usize, len: usize, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: within the map; none of the advice in use changes what a read-only map of a file
        // shows. (DONTNEED drops pages that come back from the file, or as the zeros they were.)
        let status = unsafe { libc::madvise(self.start.as_ptr().add(start).cast(), len, advice) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        self.slot.unregister();
        // SAFETY: maps `len` bytes from `start` on, by this value alone; no reference outlives it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
