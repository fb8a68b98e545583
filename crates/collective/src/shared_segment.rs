//! Where ranks of several processes find each other: a segment with a directory of its groups.
//!
//! One process creates the segment under a name that it has passed to the others, all map it, and the name is removed.
//! From then on it lives until the last process that has mapped it ends. A group is found by its key: the first process
//! to request it creates its region.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use crate::error::CollectiveError;
use crate::segment::Segment;

/// Address space of a segment; only what groups use needs memory.
const SIZE: usize = 8 << 30;
/// The first bytes of a segment of this layout.
const MAGIC: u64 = u64::from_le_bytes(*b"alight\x00\x01");
const ENTRIES: usize = 4096;
const PAGE: usize = 4096;

/// The entry is unused.
const FREE: u32 = 0;
/// A process is creating the region.
const BEGUN: u32 = 1;
/// The region is ready.
const READY: u32 = 2;
/// There was no memory for it.
const FAILED: u32 = 3;

#[repr(C)]
struct Head {
    magic: AtomicU64,
    /// Where the next region begins.
    next: AtomicU64,
    entries: [Entry; ENTRIES],
}

#[repr(C)]
struct Entry {
    state: AtomicU32,
    /// Number of users that have left.
    left: AtomicU32,
    key: [AtomicU64; 2],
    start: AtomicU64,
}

/// Identifies a group. The same in all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(pub [u64; 2]);

/// Memory shared by processes of this host, for their groups.
pub struct SharedSegment {
    segment: Segment,
}

impl SharedSegment {
    /// Creates the segment. The name must begin with a slash, contain no other, and be impossible to guess; only this
    /// user may open the segment. The name must be removed with [`SharedSegment::unlink`] as soon as the others have
    /// opened it.
    pub fn create(name: &str) -> io::Result<SharedSegment> {
        let segment = Segment::create(name, SIZE)?;
        segment.reserve(0, size_of::<Head>())?;
        let segment = SharedSegment { segment };
        let first = size_of::<Head>().next_multiple_of(PAGE) as u64;
        segment.head().next.store(first, Relaxed);
        segment.head().magic.store(MAGIC, Release);
        Ok(segment)
    }

    /// Opens a segment that another process has created.
    pub fn open(name: &str) -> io::Result<SharedSegment> {
        let segment = SharedSegment { segment: Segment::open(name, SIZE)? };
        match segment.head().magic.load(Acquire) {
            MAGIC => Ok(segment),
            _ => Err(io::Error::other("of another version, or not made by Alight")),
        }
    }

    /// Removes the name. The memory is freed with the last process that has it.
    pub fn unlink(name: &str) -> io::Result<()> {
        Segment::unlink(name)
    }

    fn head(&self) -> &Head {
        // SAFETY: the segment begins with a head, made of atomics, at the start of a page; memory was reserved for it,
        // otherwise creating or opening it has failed: reserving comes first, and the size is checked.
        unsafe { &*self.segment.at(0).cast::<Head>() }
    }

    /// Returns the region of `bytes` bytes, initially zero, that belongs to `key`, for the given number of users; waits
    /// up to `limit` for another process that is creating it.
    pub(crate) fn place(
        self: &Arc<SharedSegment>,
        key: Key,
        bytes: usize,
        users: u32,
        limit: Duration,
    ) -> Result<SharedRegion, CollectiveError> {
        let wrong = |problem: String| CollectiveError::Memory { bytes, problem };
        let end = Instant::now() + limit;
        for entry in &self.head().entries {
            loop {
                match entry.state.load(Acquire) {
                    FREE => {
                        if entry.state.compare_exchange(FREE, BEGUN, AcqRel, Relaxed).is_err() {
                            continue;
                        }
                        let made = self.make(entry, key, bytes);
                        entry.state.store(if made.is_ok() { READY } else { FAILED }, Release);
                        made.map_err(|error| wrong(error.to_string()))?;
                    }
                    BEGUN if Instant::now() >= end => {
                        return Err(wrong(
                            "another process began to make it, and did not end".into(),
                        ));
                    }
                    BEGUN => std::thread::sleep(Duration::from_micros(100)),
                    _ if entry.key.each_ref().map(|half| half.load(Relaxed)) != key.0 => break,
                    READY => {
                        let start = entry.start.load(Relaxed) as usize;
                        return Ok(SharedRegion {
                            segment: self.clone(),
                            entry,
                            start,
                            bytes,
                            users,
                        });
                    }
                    _ => return Err(wrong("another process could not get it".into())),
                }
            }
        }
        Err(wrong(format!("{ENTRIES} have been made already")))
    }

    fn make(&self, entry: &Entry, key: Key, bytes: usize) -> io::Result<()> {
        entry.key[0].store(key.0[0], Relaxed);
        entry.key[1].store(key.0[1], Relaxed);
        let size = bytes.checked_next_multiple_of(PAGE).filter(|size| *size <= SIZE);
        let size = size.ok_or_else(|| io::Error::other("larger than any segment"))?;
        let start = self.head().next.fetch_add(size as u64, Relaxed) as usize;
        if start.checked_add(size).is_none_or(|end| end > self.segment.size()) {
            return Err(io::Error::other("the address space of the segment is used up"));
        }
        self.segment.reserve(start, size)?;
        entry.start.store(start as u64, Relaxed);
        Ok(())
    }
}

/// A group's part of a shared segment. When its last user leaves, its memory is given back.
pub(crate) struct SharedRegion {
    segment: Arc<SharedSegment>,
    entry: *const Entry,
    start: usize,
    bytes: usize,
    users: u32,
}

// SAFETY: the entry is made of atomics, and is in the segment that `segment` keeps alive.
unsafe impl Send for SharedRegion {}
// SAFETY: as above.
unsafe impl Sync for SharedRegion {}

impl SharedRegion {
    /// Returns the address `offset` bytes into the region. Panics beyond its end.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.bytes, "an offset past the end of a place");
        self.segment.segment.at(self.start + offset)
    }
}

impl Drop for SharedRegion {
    fn drop(&mut self) {
        // SAFETY: an entry of the segment that we keep alive.
        let entry = unsafe { &*self.entry };
        if entry.left.fetch_add(1, AcqRel) + 1 == self.users {
            let size = self.bytes.next_multiple_of(PAGE);
            self.segment.segment.release(self.start, size);
        }
    }
}
