//! Writes in large pieces.
//!
//! The page cache keeps data from small writes in small folios, and a file in small folios is mapped page by page: twenty times
//! slower than one written in megabytes. So bytes are gathered here until they reach a boundary of [`UNIT`] bytes in the file.
//!
//! Writeback of written bytes starts while the rest is made, so that the fsync at the end has little left to wait for.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Writes end at multiples of this many bytes in the file where possible.
const UNIT: u64 = 4 << 20;

/// Bytes gathered for one place in a file.
pub(crate) struct Sink<'f> {
    file: &'f File,
    /// Offset of `bytes` in the file.
    at: u64,
    bytes: Vec<u8>,
}

impl<'f> Sink<'f> {
    pub(crate) fn new(file: &'f File) -> Self {
        Sink { file, at: 0, bytes: Vec::new() }
    }

    /// Continues at byte `at` of the file.
    pub(crate) fn seek(&mut self, at: u64) -> io::Result<()> {
        if at != self.at + self.bytes.len() as u64 {
            self.flush()?;
            self.at = at;
        }
        Ok(())
    }

    /// Appends `len` bytes, which are zeroed and then filled by `fill`.
    pub(crate) fn put(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> io::Result<()> {
        let start = self.bytes.len();
        self.bytes.resize(start + len, 0);
        fill(&mut self.bytes[start..]);
        let end = self.at + self.bytes.len() as u64;
        let boundary = end - end % UNIT;
        if boundary > self.at {
            let whole = (boundary - self.at) as usize;
            self.write(whole)?;
            self.bytes.copy_within(whole.., 0);
            self.bytes.truncate(self.bytes.len() - whole);
            self.at = boundary;
        }
        Ok(())
    }

    /// Writes the remaining bytes.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.write(self.bytes.len())?;
        self.at += self.bytes.len() as u64;
        self.bytes.clear();
        Ok(())
    }

    /// Writes the first `len` of the bytes.
    fn write(&self, len: usize) -> io::Result<()> {
        self.file.write_all_at(&self.bytes[..len], self.at)?;
        alight_pages::start_writing(self.file, self.at..self.at + len as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_in_pieces_anywhere_lies_where_it_belongs() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let len = 3 * UNIT as usize + 777;
        let byte = |i: usize| (i * 31 % 251) as u8;
        let mut sink = Sink::new(file.as_file());
        // The second half first, then the first half; pieces of all sizes.
        for (start, end) in [(len / 2, len), (0, len / 2)] {
            sink.seek(start as u64).unwrap();
            let mut at = start;
            let mut piece = 1;
            while at < end {
                let n = piece.min(end - at);
                sink.seek(at as u64).unwrap();
                sink.put(n, |out| out.iter_mut().enumerate().for_each(|(i, o)| *o = byte(at + i)))
                    .unwrap();
                at += n;
                piece = piece * 3 + 1;
            }
        }
        sink.flush().unwrap();
        let found = std::fs::read(file.path()).unwrap();
        assert_eq!(found.len(), len);
        assert!(found.iter().enumerate().all(|(i, b)| *b == byte(i)));
    }
}
