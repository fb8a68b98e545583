//! Reads a copy from the disk and compares it with its source.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use super::cache_record::CacheRecord;
use super::steps::{Files, refusal};
use super::{CopyError, OnProgress, Options, Progress, segments, sys};
use crate::filesystem::{self, Kind};
use crate::region::Region;
use crate::residency::evict;
use crate::transfer::direct;

/// How the copy was read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verified {
    /// Around the page cache (O_DIRECT).
    Direct,
    /// Through the page cache, after it was proven that nothing of the copy was in it.
    Evicted,
    /// The filesystem is in memory: there is no disk.
    InMemory,
    /// It could not be proven that the bytes came from the disk.
    Unproven,
}

impl Verified {
    /// A description in a few words.
    pub fn name(self) -> &'static str {
        match self {
            Verified::Direct => "read from the disk around the page cache",
            Verified::Evicted => "read from the disk, after eviction",
            Verified::InMemory => "read from memory, because the filesystem has no disk",
            Verified::Unproven => "read, maybe from the page cache, which would not let go of it",
        }
    }
}

/// Bytes that are compared at a time.
const BUFFER: usize = 1 << 20;

/// Syncs `dest`, takes it out of the page cache, reads it and compares it with `source`.
///
/// # Errors
/// [`CopyError::Differs`] with the first byte that is different; or a file cannot be read.
pub fn verify(
    source: (&File, &Path),
    dest: (&File, &Path),
    options: &Options,
    on_progress: &mut OnProgress<'_>,
) -> Result<Verified, CopyError> {
    let files = Files { source: source.0, from: source.1, dest: dest.0, to: dest.1 };
    dest.0.sync_all().map_err(|error| files.write(0, error))?;
    let evicted = match evict(dest.0) {
        _ if filesystem::of(dest.0).kind == Kind::Memory => Verified::InMemory,
        Ok(left) if left.is_proven_cold() => Verified::Evicted,
        _ => Verified::Unproven,
    };
    let direct = direct::open(dest.0, dest.1).ok();
    let [from_len, to_len] = [(source.0, source.1), (dest.0, dest.1)].map(|(file, path)| {
        let cannot = |source| CopyError::Read { path: path.into(), at: 0, source };
        file.metadata().map(|metadata| metadata.len()).map_err(cannot)
    });
    let (from_len, to_len) = (from_len?, to_len?);
    let no_memory = |_| files.read(0, std::io::ErrorKind::OutOfMemory.into());
    let [mut one, mut two] =
        [Region::new(BUFFER).map_err(no_memory)?, Region::new(BUFFER).map_err(no_memory)?];
    let mut compare = Compare {
        files: &files,
        direct: direct.as_ref().map(|direct| &direct.file),
        source: CacheRecord::new(source.0, from_len, options.window),
        dest: CacheRecord::new(dest.0, to_len, options.window),
        buffers: [&mut one, &mut two],
    };
    // Files of no length that have contents (/proc) are another file at every reading.
    let len = if from_len == 0 { 0 } else { to_len };
    let parts = parts(&files, len)?;
    let total = parts.iter().map(|part| part.end - part.start).sum();
    let mut done = 0;
    for part in parts {
        let mut at = part.start;
        while at < part.end {
            if on_progress(Progress { durable: done, total }).is_break() {
                return Err(CopyError::Stopped);
            }
            let end = (at / options.window + 1).saturating_mul(options.window).min(part.end);
            compare.window(at..end)?;
            done += end - at;
            at = end;
        }
    }
    if from_len > 0 && from_len != to_len {
        return Err(files.differs(from_len.min(to_len)));
    }
    Ok(if compare.direct.is_some() { Verified::Direct } else { evicted })
}

/// The ranges that are not a hole in both files. The whole last block is always among them.
fn parts(files: &Files<'_>, len: u64) -> Result<Vec<Range<u64>>, CopyError> {
    let cannot = |error| files.read(0, error);
    let mut all = segments::of(files.source, len).map_err(cannot)?.0;
    all.extend(segments::of(files.dest, len).map_err(cannot)?.0);
    all.sort_by_key(|part| part.start);
    let mut parts: Vec<Range<u64>> = Vec::new();
    for part in all {
        // Direct reads begin and end with a block.
        let part = part.start / BLOCK * BLOCK..part.end.next_multiple_of(BLOCK).min(len);
        match parts.last_mut() {
            Some(last) if part.start <= last.end => last.end = last.end.max(part.end),
            _ => parts.push(part),
        }
    }
    Ok(parts)
}

/// More than any filesystem asks of direct reads.
const BLOCK: u64 = 64 << 10;

struct Compare<'a> {
    files: &'a Files<'a>,
    direct: Option<&'a File>,
    source: CacheRecord<'a>,
    dest: CacheRecord<'a>,
    buffers: [&'a mut Region; 2],
}

impl Compare<'_> {
    fn window(&mut self, range: Range<u64>) -> Result<(), CopyError> {
        let files = self.files;
        self.source.before(&range);
        self.dest.before(&range);
        let mut at = range.start;
        while at < range.end {
            let want = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(BUFFER);
            let [one, two] = &mut self.buffers;
            let (one, two) = (one.bytes_mut(), two.bytes_mut());
            let got =
                fill(files.source, &mut one[..want], at).map_err(|error| files.read(at, error))?;
            // Direct reads take whole blocks, and end with the file.
            let whole = want.next_multiple_of(BLOCK as usize).min(BUFFER);
            let mut read = match self.direct {
                Some(direct) => fill(direct, &mut two[..whole], at),
                None => fill(files.dest, &mut two[..want], at),
            };
            if self.direct.is_some() && read.as_ref().is_err_and(|e| refusal(e).is_some()) {
                // The file could be opened for direct reads, but not read.
                self.direct = None;
                read = fill(files.dest, &mut two[..want], at);
            }
            let cannot = |source| CopyError::Read { path: files.to.into(), at, source };
            let put = read.map_err(cannot)?.min(want);
            let (one, two) = (&one[..got], &two[..put]);
            if one != two {
                let first = one.iter().zip(two).position(|(a, b)| a != b);
                return Err(files.differs(at + first.unwrap_or(got.min(put)) as u64));
            }
            if got < want {
                break;
            }
            at += want as u64;
        }
        self.source.after(range.end);
        self.dest.after(range.end);
        Ok(())
    }
}

/// Reads until `into` is full or the file ends.
fn fill(file: &File, into: &mut [u8], at: u64) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match sys::read(file, &mut into[filled..], at + filled as u64, false)? {
            0 => break,
            // After the end of a file that ends within a block, direct reads are refused.
            n if n % 512 != 0 => return Ok(filled + n),
            n => filled += n,
        }
    }
    Ok(filled)
}
