//! An incomplete file: `ETAG.alight.incomplete` next to the final one, with the bytes at their final offsets, followed by a record
//! of which of them have been received. So received bytes are available to the next process, however this one ends.
//!
//! Hugging Face's tools do not modify it (theirs have other names), but count it among incomplete files and remove it with them.
//!
//! ```text
//! 0            the bytes of the file received so far
//! record_at    "alightP2", the size, and a bit for each block of 4096 bytes that was received, the lowest first; little-endian
//! ```
//! In the place of the bits, "alightP1" of earlier versions has the number of bytes received of each piece of 8 MiB (u32), from its
//! beginning. It is read, and becomes the other when the file is opened for writing.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use alight_pages::{BLOCK, Incoming, IncomingQueue, MapError, open_unfollowed};

use crate::HubError;

const MAGIC: &[u8; 8] = b"alightP2";
/// Of earlier versions.
const MAGIC_OF_PIECES: &[u8; 8] = b"alightP1";
const HEAD: u64 = 16;
/// Bytes of a piece; the last one may have fewer.
pub(crate) const PIECE: u64 = 8 << 20;

/// A file that is being received.
pub(crate) struct Partial {
    pub file: File,
    pub path: PathBuf,
    size: u64,
    /// The blocks that have been received.
    pub incoming: Arc<Incoming>,
    /// Held while a part of the record is written: two threads may have bits in the same byte.
    record: Mutex<()>,
}

impl Partial {
    /// Opens the file at `path`, or creates it. Readers of its map see it as `name`, and ask for its bytes in this queue.
    ///
    /// # Errors
    /// It cannot be opened or written, or is not a regular file.
    pub fn open(
        path: &Path,
        name: &Path,
        size: u64,
        queue: &Arc<IncomingQueue>,
    ) -> Result<Partial, HubError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        // A link planted there would lead elsewhere, and a pipe would wait for its other end.
        let (file, _) = open_unfollowed(path, &options).map_err(HubError::opening)?;
        let partial = Partial::of(file, path, name, size, queue);
        match partial.read_record().map_err(HubError::cache(path))? {
            Some(MAGIC) => {}
            Some(_) => partial.write_record().map_err(HubError::cache(path))?,
            None => partial.reset().map_err(HubError::cache(path))?,
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
        // Before there is memory for a record of the size that the hub claims.
        if file.metadata().map_or(0, |found| found.len()) < size {
            return Ok(0);
        }
        let partial = Partial::of(file, path, path, size, &Arc::default());
        let found = partial.read_record().unwrap_or(None);
        Ok(found.map_or(0, |_| partial.received()))
    }

    fn of(file: File, path: &Path, name: &Path, size: u64, queue: &Arc<IncomingQueue>) -> Partial {
        let incoming = Arc::new(Incoming::new(queue, name, size));
        Partial { file, path: path.to_owned(), size, incoming, record: Mutex::new(()) }
    }

    /// Reads the record from the file. Returns its magic number if there is a matching one.
    fn read_record(&self) -> io::Result<Option<&'static [u8; 8]>> {
        let length = self.file.metadata()?.len().checked_sub(self.record_at());
        let Some(length) = length.filter(|length| *length >= HEAD) else { return Ok(None) };
        let (bits, counts) = (self.size.div_ceil(BLOCK).div_ceil(8), 4 * self.pieces() as u64);
        if ![HEAD + bits, HEAD + counts].contains(&length) {
            return Ok(None);
        }
        let mut record = vec![0; length as usize];
        self.file.read_exact_at(&mut record, self.record_at())?;
        if record[8..16] != self.size.to_le_bytes() {
            return Ok(None);
        }
        let body = &record[HEAD as usize..];
        if record.starts_with(MAGIC) && body.len() as u64 == bits {
            self.incoming.restore(body);
            return Ok(Some(MAGIC));
        }
        if record.starts_with(MAGIC_OF_PIECES) && body.len() as u64 == counts {
            for (no, bytes) in body.as_chunks::<4>().0.iter().enumerate() {
                let range = self.range(no);
                let there = u64::from(u32::from_le_bytes(*bytes));
                self.incoming.received(range.start..range.end.min(range.start + there));
            }
            return Ok(Some(MAGIC_OF_PIECES));
        }
        Ok(None)
    }

    /// Writes the whole record.
    fn write_record(&self) -> io::Result<()> {
        let mut record = Vec::from(*MAGIC);
        record.extend(self.size.to_le_bytes());
        record.extend(self.incoming.bits(&(0..self.size)).1);
        self.file.write_all_at(&record, self.record_at())?;
        self.file.set_len(self.record_at() + record.len() as u64)
    }

    /// Discards all received bytes. No map of the file may be in use.
    pub fn reset(&self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.incoming.reset();
        self.write_record()
    }

    pub fn pieces(&self) -> usize {
        self.size.div_ceil(PIECE) as usize
    }

    /// The bytes of a piece.
    pub fn range(&self, no: usize) -> Range<u64> {
        let start = no as u64 * PIECE;
        start..(start + PIECE).min(self.size)
    }

    /// True if all bytes of a piece have been received.
    pub fn is_complete(&self, no: usize) -> bool {
        self.incoming.is_here(&self.range(no))
    }

    /// The number of bytes received.
    pub fn received(&self) -> u64 {
        self.size - self.incoming.missing()
    }

    /// Writes bytes at `at`, and returns how many bytes count as received because of that: those of whole blocks. The same thread must
    /// have written the part of a block that is before them. Bytes past the end are an error of the caller, and nothing is
    /// written there.
    pub fn write(&self, at: u64, bytes: &[u8]) -> io::Result<u64> {
        let range = at..at + bytes.len() as u64;
        if range.end > self.size {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.file.write_all_at(bytes, at)?;
        // In this order: the record never counts bytes that are not in the file.
        let new = self.incoming.received(range.clone());
        if new > 0 {
            let _held = self.record.lock().unwrap_or_else(PoisonError::into_inner);
            let (first, bits) = self.incoming.bits(&range);
            self.file.write_all_at(&bits, self.record_at() + HEAD + first as u64)?;
        }
        Ok(new)
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

    fn open(path: &Path, size: u64) -> Partial {
        Partial::open(path, path, size, &Arc::default()).unwrap()
    }

    #[test]
    fn what_was_received_is_there_for_the_next_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.incomplete");
        let size = 2 * PIECE + 5;
        let partial = open(&path, size);
        assert_eq!((partial.pieces(), partial.received()), (3, 0));
        assert_eq!(partial.write(2 * PIECE, b"wor").unwrap(), 0);
        assert_eq!(partial.write(2 * PIECE + 3, b"ld").unwrap(), 5);
        assert_eq!(partial.write(0, &[b'h'; 9000]).unwrap(), 8192);
        assert_eq!(partial.write(PIECE + 8192, &[b'i'; 4096]).unwrap(), 4096);
        assert!(partial.write(size, b"!").is_err(), "the file ends before");
        drop(partial);
        let partial = open(&path, size);
        assert_eq!(partial.received(), 8192 + 4096 + 5);
        assert!(partial.is_complete(2) && !partial.is_complete(0));
        let missing = partial.incoming.first_missing(&(PIECE..2 * PIECE));
        assert_eq!(missing, Some(PIECE..PIECE + 8192), "a file may have holes");
        partial.complete().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, size);
        assert_eq!((&bytes[..3], &bytes[2 * PIECE as usize..]), (&b"hhh"[..], &b"world"[..]));
    }

    #[test]
    fn what_an_earlier_version_has_received_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.incomplete");
        let size = PIECE + 10_000;
        let file = File::create(&path).unwrap();
        file.write_all_at(&[7; 9000], 0).unwrap();
        file.write_all_at(&[8; 10_000], PIECE).unwrap();
        let mut record = Vec::from(*MAGIC_OF_PIECES);
        record.extend(size.to_le_bytes());
        record.extend([9000u32, u32::MAX].map(u32::to_le_bytes).concat());
        file.write_all_at(&record, size.next_multiple_of(4096)).unwrap();
        assert_eq!(Partial::received_at(&path, size).unwrap(), 8192 + 10_000);
        drop(open(&path, size));
        let partial = open(&path, size);
        assert_eq!(partial.received(), 8192 + 10_000);
        assert_eq!(partial.read_record().unwrap(), Some(MAGIC));
    }

    #[test]
    fn a_record_that_does_not_fit_is_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.incomplete");
        open(&path, 9000).write(0, &[1; 5000]).unwrap();
        assert_eq!(open(&path, 9000).received(), 4096);
        assert_eq!(Partial::received_at(&path, 9000).unwrap(), 4096);
        assert_eq!(Partial::received_at(&path, 9001).unwrap(), 0);
        assert_eq!(Partial::received_at(&path, 1 << 44).unwrap(), 0);
        assert_eq!(open(&path, 9000).received(), 4096, "looking changes nothing");
        // Another size, a file of another program, bits of blocks that do not exist.
        assert_eq!(open(&path, 9001).received(), 0);
        std::fs::write(&path, vec![7; 12288 + 17]).unwrap();
        assert_eq!(open(&path, 9000).received(), 0);
        let partial = open(&path, 9000);
        partial.file.write_all_at(&[0xff], 12288 + HEAD).unwrap();
        assert_eq!(open(&path, 9000).received(), 9000, "the hash says the rest");
        std::os::unix::fs::symlink("/dev/null", folder.path().join("link")).unwrap();
        assert!(Partial::open(&folder.path().join("link"), &path, 5, &Arc::default()).is_err());
    }
}
