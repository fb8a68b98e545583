//! Reads ranges of a file around the page cache.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::Region;
use crate::around::is_plain_disk;
use crate::fault::pages_around;
use crate::residency::{self, ExactProbe};
use crate::sys;
use crate::transfer::direct::{self, Direct};

/// Reads ranges of a file, from any number of threads.
///
/// Cached parts are read from the page cache. The rest is read around it, or through it and then dropped.
/// In the latter case the kernel may read ahead; a caller that found the file cold can [give
/// up](crate::give_up) those pages at the end.
pub struct Reader<'f> {
    file: &'f File,
    len: u64,
    direct: Option<Direct>,
    /// Set when the filesystem has refused a direct read after all.
    refused: AtomicBool,
    exact_probe: Option<ExactProbe>,
    /// The latest parts requested by [`Reader::read_columns`].
    held: Mutex<VecDeque<CachedParts>>,
}

/// Equal parts of a file at equal distances, like the columns of a matrix: part `i` is the `len` bytes at
/// `first + i * stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Offset of the first part.
    pub first: u64,
    /// Bytes from the start of one part to the start of the next.
    pub stride: u64,
    /// Bytes of a part.
    pub len: u64,
    /// Number of parts.
    pub count: u64,
}

impl Parts {
    /// The range from the start of the first part to the end of the last.
    fn span(&self) -> Range<u64> {
        let last = self.count.saturating_sub(1).saturating_mul(self.stride);
        self.first..self.first.saturating_add(last).saturating_add(self.len)
    }
}

/// Parts that are kept in the page cache for a while.
struct CachedParts {
    parts: Parts,
    /// The ranges of their span that were not cached before.
    missing: Vec<Range<u64>>,
}

/// Maximum bytes to hold. `HELD_PARTS` entries are held in any case, because threads work on several.
const HELD: u64 = 256 << 20;
const HELD_PARTS: usize = 4;

/// A buffer for ranges, as large as the largest range so far.
#[derive(Default)]
pub struct Buffer {
    region: Option<Region>,
}

impl<'f> Reader<'f> {
    /// Creates a reader of `file`, which was opened by the name `path`.
    ///
    /// # Errors
    /// The file's length cannot be determined.
    pub fn new(file: &'f File, path: &Path) -> io::Result<Reader<'f>> {
        let len = file.metadata()?.len();
        let direct = if is_plain_disk(file) { direct::open(file, path).ok() } else { None };
        let refused = AtomicBool::new(false);
        let (exact_probe, held) = (residency::exact_probe(file), Mutex::default());
        Ok(Reader { file, len, direct, refused, exact_probe, held })
    }

    /// Reads `range` of each of the parts and returns the bytes one after the other. For callers that
    /// read the parts completely, a few bytes at a time: the parts are brought into the page cache
    /// together, and dropped after enough other parts have been requested.
    ///
    /// # Errors
    /// The file is too short, it cannot be read, or there is no memory.
    pub fn read_columns<'b>(
        &self,
        parts: &Parts,
        range: Range<u64>,
        buffer: &'b mut Buffer,
    ) -> io::Result<&'b [u8]> {
        let len = length(&range)?;
        if parts.span().end > self.len || range.end > parts.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.hold(parts);
        let count = usize::try_from(parts.count).ok().and_then(|count| count.checked_mul(len));
        let all = count.ok_or(io::ErrorKind::FileTooLarge)?;
        let out = &mut buffer.at_least(all.max(1))?[..all];
        for (i, out) in (0..).zip(out.chunks_exact_mut(len.max(1))) {
            let at = parts.first + i * parts.stride + range.start;
            if fill(self.file, at, out, len)? < len {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(buffer.bytes(0..all))
    }

    /// Prefetches parts that were not requested recently, and drops the oldest ones.
    fn hold(&self, parts: &Parts) {
        // Nothing panics while it holds the lock.
        let Ok(mut held) = self.held.lock() else { return };
        if held.iter().any(|held| held.parts == *parts) {
            return;
        }
        let probe = |exact_probe| {
            let Range { start, end } = pages_around(&parts.span());
            let pages = start..end.min(self.len);
            residency::not_cached(self.file, pages, exact_probe).ok()
        };
        let missing = self.exact_probe.and_then(probe).unwrap_or_default();
        if !missing.is_empty() || self.exact_probe.is_none() {
            for i in 0..parts.count {
                let at = parts.first + i * parts.stride;
                // If this fails, reading only takes longer.
                let _ = sys::ask_for(self.file, &(at..at + parts.len));
            }
        }
        held.push_back(CachedParts { parts: *parts, missing });
        let bytes = |held: &CachedParts| held.parts.len.saturating_mul(held.parts.count);
        while held.len() > HELD_PARTS && held.iter().map(bytes).sum::<u64>() > HELD {
            let Some(oldest) = held.pop_front() else { return };
            for part in &oldest.missing {
                let _ = sys::give_up(self.file, part);
            }
        }
    }

    /// Reads the bytes of `range`.
    ///
    /// # Errors
    /// The file is too short, it cannot be read, or there is no memory.
    pub fn read<'b>(&self, range: Range<u64>, buffer: &'b mut Buffer) -> io::Result<&'b [u8]> {
        if range.is_empty() {
            return Ok(&[]);
        }
        if range.end > self.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Range { start, end } = pages_around(&range);
        let pages = start..end.min(self.len);
        let ours = self.exact_probe.and_then(|exact_probe| {
            residency::not_cached(self.file, pages.clone(), exact_probe).ok()
        });
        let cached = ours.as_ref().is_some_and(Vec::is_empty);
        if let Some(direct) = self.direct.as_ref().filter(|_| !cached)
            && !self.refused.load(Relaxed)
        {
            match around(direct, &range, buffer) {
                Ok(from) => return Ok(buffer.bytes(from)),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    self.refused.store(true, Relaxed);
                }
                Err(error) => return Err(error),
            }
        }
        let len = length(&range)?;
        let out = &mut buffer.at_least(len)?[..len];
        let got = fill(self.file, range.start, out, len)?;
        for part in ours.into_iter().flatten() {
            // If this fails it only costs memory; the bytes are correct.
            let _ = sys::give_up(self.file, &part);
        }
        if got < len { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(buffer.bytes(0..len)) }
    }
}

/// Reads the blocks that contain `range`; returns the position of `range` in the buffer.
fn around(direct: &Direct, range: &Range<u64>, buffer: &mut Buffer) -> io::Result<Range<usize>> {
    let unit = direct.align.offset as u64;
    let blocks = range.start / unit * unit..range.end.next_multiple_of(unit);
    let whole = length(&blocks)?;
    let out = &mut buffer.at_least(whole)?[..whole];
    direct.prepare(out.as_mut_ptr(), whole);
    let from = (range.start - blocks.start) as usize;
    let needed = from + length(range)?;
    // The file may end within the last block.
    match fill(&direct.file, blocks.start, out, needed)? {
        got if got < needed => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(from..needed),
    }
}

/// Reads into `out` until it holds `needed` bytes or the file ends. Returns the number of bytes read.
fn fill(file: &File, at: u64, out: &mut [u8], needed: usize) -> io::Result<usize> {
    let mut got = 0;
    while got < needed {
        match sys::read(file, &mut out[got..], at + got as u64, false)? {
            0 => break,
            n => got += n,
        }
    }
    Ok(got)
}

fn length(range: &Range<u64>) -> io::Result<usize> {
    (range.end - range.start).try_into().map_err(|_| io::ErrorKind::FileTooLarge.into())
}

impl Buffer {
    /// Returns at least `len` bytes with arbitrary contents.
    fn at_least(&mut self, len: usize) -> io::Result<&mut [u8]> {
        if self.region.as_ref().is_none_or(|region| region.len() < len) {
            self.region = None;
            let no_memory = |error| io::Error::new(io::ErrorKind::OutOfMemory, error);
            self.region = Some(Region::new(len.next_power_of_two()).map_err(no_memory)?);
        }
        Ok(self.region.as_mut().map_or(&mut [], Region::bytes_mut))
    }

    fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.region.as_ref().and_then(|region| region.bytes().get(range)).unwrap_or_default()
    }
}
