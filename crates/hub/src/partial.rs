//! An incomplete file: `ETAG.alight.incomplete` next to the final one, with the bytes at their final offsets, followed by a record
//! of which of them have been received. So received bytes are available to the next process, however this one ends.
//!
//! Hugging Face's tools do not modify it (theirs have other names), but count it among incomplete files and remove it with them.
//!
//! ```text
//! 0            the bytes of the file received so far
//! record_at    "alightP1", the size, and for each piece the number of its first bytes received (u32), little-endian
//! ```

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use alight_pages::{MapError, open_unfollowed};

use crate::HubError;

const MAGIC: &[u8; 8] = b"alightP1";
const HEAD: u64 = 16;
/// Bytes of a piece; the last one may have fewer.
pub(crate) const PIECE: u64 = 8 << 20;

/// A file that is being received.
pub(crate) struct Partial {
    pub file: File,
    pub path: PathBuf,
    size: u64,
    /// For each piece, the number of its bytes received, from its beginning.
    there: Vec<AtomicU32>,
}

impl Partial {
    /// Opens the file at `path`, or creates it.
    ///
    /// # Errors
    /// It cannot be opened or written, or is not a regular file.
    pub fn open(path: &Path, size: u64) -> Result<Partial, HubError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        // A link planted there would lead elsewhere, and a pipe would wait for its other end.
        let (file, _) = open_unfollowed(path, &options).map_err(HubError::opening)?;
        let partial = Partial::of(file, path, size);
        if !partial.read_record().map_err(HubError::cache(path))? {
            partial.reset().map_err(HubError::cache(path))?;
        }
        Ok(partial)
    }

    /// The number of bytes received of the file at `path`, which another process may be writing; 0 if there is no such file.
    ///
    /// # Errors
    /// It is not a regular file.
    pub fn received_at(path: &Path, size: u64) -> Result<u64, HubError> {
        let file = match open_unfollowed(path, OpenOptions::new().read(true)) {
            Ok((file, _)) => file,
            Err(error @ MapError::NotAFile { .. }) => return Err(HubError::opening(error)),
            // Opening it for writing reports the error, if it is one.
            Err(_) => return Ok(0),
        };
        let partial = Partial::of(file, path, size);
        Ok(if partial.read_record().unwrap_or(false) { partial.received() } else { 0 })
    }

    fn of(file: File, path: &Path, size: u64) -> Partial {
        let pieces = size.div_ceil(PIECE) as usize;
        let there = (0..pieces).map(|_| AtomicU32::new(0)).collect();
        Partial { file, path: path.to_owned(), size, there }
    }

    /// Reads the record from the file. Returns true if there is a matching one.
    fn read_record(&self) -> io::Result<bool> {
        let length = HEAD + 4 * self.there.len() as u64;
        if self.file.metadata()?.len() != self.record_at() + length {
            return Ok(false);
        }
        let mut record = vec![0; length as usize];
        self.file.read_exact_at(&mut record, self.record_at())?;
        if !record.starts_with(MAGIC) || record[8..16] != self.size.to_le_bytes() {
            return Ok(false);
        }
        for (no, bytes) in record[HEAD as usize..].as_chunks::<4>().0.iter().enumerate() {
            let there = u64::from(u32::from_le_bytes(*bytes));
            let range = self.range(no);
            self.there[no].store(there.min(range.end - range.start) as u32, Ordering::Relaxed);
        }
        Ok(true)
    }

    /// Discards all received bytes.
    pub fn reset(&self) -> io::Result<()> {
        self.file.set_len(0)?;
        let mut record = vec![0; HEAD as usize + 4 * self.there.len()];
        record[..8].copy_from_slice(MAGIC);
        record[8..16].copy_from_slice(&self.size.to_le_bytes());
        self.file.write_all_at(&record, self.record_at())?;
        self.there.iter().for_each(|there| there.store(0, Ordering::Relaxed));
        Ok(())
    }

    pub fn pieces(&self) -> usize {
        self.there.len()
    }

    /// The bytes of a piece.
    pub fn range(&self, no: usize) -> Range<u64> {
        let start = no as u64 * PIECE;
        start..(start + PIECE).min(self.size)
    }

    /// The number of bytes received of a piece.
    pub fn there(&self, no: usize) -> u64 {
        u64::from(self.there[no].load(Ordering::Acquire))
    }

    /// True if all bytes of a piece have been received.
    pub fn is_complete(&self, no: usize) -> bool {
        let range = self.range(no);
        self.there(no) == range.end - range.start
    }

    /// The number of bytes received.
    pub fn received(&self) -> u64 {
        (0..self.pieces()).map(|no| self.there(no)).sum()
    }

    /// Appends bytes to a piece. Only one thread at a time may do that for one piece. Bytes that do not fit into the piece are an
    /// error of the caller, and nothing is written beyond it.
    pub fn append(&self, no: usize, bytes: &[u8]) -> io::Result<()> {
        let (range, there) = (self.range(no), self.there(no));
        let after = there + bytes.len() as u64;
        if after > range.end - range.start {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.file.write_all_at(bytes, range.start + there)?;
        // In this order: the record never counts bytes that are not in the file.
        let record = (after as u32).to_le_bytes();
        self.file.write_all_at(&record, self.record_at() + HEAD + 4 * no as u64)?;
        self.there[no].store(after as u32, Ordering::Release);
        Ok(())
    }

    /// Makes it a complete file on disk: without the record.
    pub fn complete(&self) -> io::Result<()> {
        self.file.set_len(self.size)?;
        self.file.sync_all()
    }

    /// On a page of its own, so that pages of the file's bytes contain nothing else.
    fn record_at(&self) -> u64 {
        self.size.next_multiple_of(4096)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_received_is_there_for_the_next_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.incomplete");
        let size = 2 * PIECE + 5;
        let partial = Partial::open(&path, size).unwrap();
        assert_eq!((partial.pieces(), partial.received()), (3, 0));
        partial.append(2, b"wor").unwrap();
        partial.append(2, b"ld").unwrap();
        partial.append(0, b"hello").unwrap();
        assert!(partial.append(2, b"!").is_err(), "there is no room in the last piece");
        drop(partial);
        let partial = Partial::open(&path, size).unwrap();
        assert_eq!([0, 1, 2].map(|no| partial.there(no)), [5, 0, 5]);
        assert!(partial.is_complete(2) && !partial.is_complete(0));
        partial.complete().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, size);
        assert_eq!((&bytes[..5], &bytes[2 * PIECE as usize..]), (&b"hello"[..], &b"world"[..]));
    }

    #[test]
    fn a_record_that_does_not_fit_is_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.incomplete");
        Partial::open(&path, 100).unwrap().append(0, &[1; 60]).unwrap();
        assert_eq!(Partial::open(&path, 100).unwrap().received(), 60);
        assert_eq!(Partial::received_at(&path, 100).unwrap(), 60);
        assert_eq!(Partial::received_at(&path, 101).unwrap(), 0);
        assert_eq!(Partial::open(&path, 100).unwrap().received(), 60, "looking changes nothing");
        // Another size, a file of another program, a number that is too large.
        assert_eq!(Partial::open(&path, 101).unwrap().received(), 0);
        std::fs::write(&path, vec![7; 4096 + 20]).unwrap();
        assert_eq!(Partial::open(&path, 100).unwrap().received(), 0);
        let partial = Partial::open(&path, 100).unwrap();
        partial.file.write_all_at(&u32::MAX.to_le_bytes(), 4096 + HEAD).unwrap();
        assert_eq!(Partial::open(&path, 100).unwrap().received(), 100, "the hash says the rest");
        std::os::unix::fs::symlink("/dev/null", folder.path().join("link")).unwrap();
        assert!(Partial::open(&folder.path().join("link"), 5).is_err());
    }
}
