//! Reads a copy from the disk and compares it with its source.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use super::cache_record::CacheRecord;
use super::steps::{Files, refusal};
use super::{CopyError, OnProgress, Options, Progress, is_pseudo, segments};
use crate::filesystem::{self, Kind};
use crate::region::Region;
use crate::residency::evict;
use crate::sys;
use crate::transfer::direct;

/// How the copy was read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verified {
    /// Around the page cache (O_DIRECT).
    Direct,
    /// Through the page cache, after proving that none of the copy was in it.
    Evicted,
    /// The filesystem is in memory: there is no disk.
    InMemory,
    /// It could not be proven that the bytes came from the disk.
    Unproven,
    /// The source has different contents at each read (a file of /proc): there is nothing to compare
    /// with.
    NotCompared,
}

impl Verified {
    /// A short description.
    pub fn name(self) -> &'static str {
        match self {
            Verified::Direct => "read from the disk around the page cache",
            Verified::Evicted => "read from the disk, after eviction",
            Verified::InMemory => "read from memory, because the filesystem has no disk",
            Verified::Unproven => "read, maybe from the page cache, which would not let go of it",
            Verified::NotCompared => {
                "except for the contents, which the system makes again whenever the source is read"
            }
        }
    }
}

/// Bytes compared at a time.
const BUFFER: usize = 1 << 20;

/// Syncs `dest`, evicts it from the page cache, reads it and compares it with `source`.
///
/// # Errors
/// [`CopyError::Differs`] with the first byte that differs; or a file cannot be read.
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
    let [from, to] = [(source.0, source.1), (dest.0, dest.1)].map(|(file, path)| {
        let cannot = |source| CopyError::Read { path: path.into(), at: 0, source };
        file.metadata().map_err(cannot)
    });
    let (from, to_len) = (from?, to?.len());
    let from_len = from.len();
    if from_len == 0 && to_len > 0 {
        return Ok(Verified::NotCompared);
    }
    let segments = segments::of(source.0, from_len).map_err(|error| files.read(0, error))?.0;
    let no_memory = |_| files.read(0, io::ErrorKind::OutOfMemory.into());
    let [mut one, mut two] =
        [Region::new(BUFFER).map_err(no_memory)?, Region::new(BUFFER).map_err(no_memory)?];
    let mut compare = Compare {
        files: &files,
        direct: direct.as_ref().map(|direct| &direct.file),
        len: to_len,
        source: CacheRecord::new(source.0, from_len, options.window),
        dest: CacheRecord::new(dest.0, to_len, options.window),
        buffers: [&mut one, &mut two],
    };
    let parts = parts(&files, to_len)?;
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
    if from_len != to_len {
        // A file of /sys has less than its length.
        let ends = to_len < from_len
            && is_pseudo(&from, &segments)
            && sys::read(source.0, &mut [0], to_len, false)
                .map_err(|error| files.read(to_len, error))?
                == 0;
        if !ends {
            return Err(files.differs(from_len.min(to_len)));
        }
    }
    Ok(if compare.direct.is_some() { Verified::Direct } else { evicted })
}

/// The ranges that are not holes in both files. They always include the whole last block.
fn parts(files: &Files<'_>, len: u64) -> Result<Vec<Range<u64>>, CopyError> {
    let cannot = |error| files.read(0, error);
    let mut all = segments::of(files.source, len).map_err(cannot)?.0;
    all.extend(segments::of(files.dest, len).map_err(cannot)?.0);
    all.sort_by_key(|part| part.start);
    let mut parts: Vec<Range<u64>> = Vec::new();
    for part in all {
        // Direct reads begin and end on block boundaries.
        let part = part.start / BLOCK * BLOCK..part.end.next_multiple_of(BLOCK).min(len);
        match parts.last_mut() {
            Some(last) if part.start <= last.end => last.end = last.end.max(part.end),
            _ => parts.push(part),
        }
    }
    Ok(parts)
}

/// More than any filesystem requires of direct reads.
const BLOCK: u64 = 64 << 10;

struct Compare<'a> {
    files: &'a Files<'a>,
    direct: Option<&'a File>,
    /// Length of the copy.
    len: u64,
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
            let from = |into: &mut [u8], at| sys::read(files.source, into, at, false);
            let to = |into: &mut [u8], at| sys::read(files.dest, into, at, false);
            let got = fill(from, &mut one[..want], at, u64::MAX);
            let got = got.map_err(|error| files.read(at, error))?;
            // Direct reads read whole blocks, and end with the file.
            let whole = want.next_multiple_of(BLOCK as usize).min(BUFFER);
            let mut read = match self.direct {
                Some(direct) => {
                    let around = |into: &mut [u8], at| sys::read(direct, into, at, false);
                    fill(around, &mut two[..whole], at, self.len)
                }
                None => fill(to, &mut two[..want], at, u64::MAX),
            };
            if self.direct.is_some() && read.as_ref().is_err_and(|e| refusal(e).is_some()) {
                // The file could be opened for direct reads but not read.
                self.direct = None;
                read = fill(to, &mut two[..want], at, u64::MAX);
            }
            let cannot = |source| CopyError::Read { path: files.to.into(), at, source };
            let put = read.map_err(cannot)?.min(want);
            let (one, two) = (&one[..got], &two[..put]);
            // Both have this many bytes by their lengths: a file that has become shorter differs.
            if one != two || got < want {
                let first = one.iter().zip(two).position(|(a, b)| a != b);
                return Err(files.differs(at + first.unwrap_or(got.min(put)) as u64));
            }
            at += want as u64;
        }
        self.source.after(range.end);
        self.dest.after(range.end);
        Ok(())
    }
}

/// Reads until `into` is full or the file ends. Never reads at or after `end`: where the file ends within
/// a block, a direct read there would be refused.
fn fill(
    read: impl Fn(&mut [u8], u64) -> io::Result<usize>,
    into: &mut [u8],
    at: u64,
    end: u64,
) -> io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() && at + (filled as u64) < end {
        match read(&mut into[filled..], at + filled as u64)? {
            0 => break,
            n => filled += n,
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Network filesystems and user-space filesystems may return less than requested, anywhere.
    #[test]
    fn a_short_read_is_not_the_end() {
        let file: Vec<u8> = (0..2000).map(|i| i as u8).collect();
        let short = |into: &mut [u8], at: u64| {
            assert!(at <= 2000);
            let n = into.len().min(100).min(2000 - at as usize);
            into[..n].copy_from_slice(&file[at as usize..][..n]);
            Ok(n)
        };
        let mut into = [0; 1500];
        assert_eq!(fill(short, &mut into, 300, u64::MAX).unwrap(), 1500);
        assert!(into == file[300..1800]);
        assert_eq!(fill(short, &mut into, 1900, u64::MAX).unwrap(), 100);
        let to_the_end = |into: &mut [u8], at: u64| {
            assert!(at < 2000, "asked for what is after the end");
            short(into, at)
        };
        assert_eq!(fill(to_the_end, &mut into, 1900, 2000).unwrap(), 100);
    }
}
