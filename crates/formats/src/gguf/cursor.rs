//! A reading position in a header. Every step is checked against the bytes that are left; nothing
//! is computed from a number in the file before that.

use super::error::{GgufError, Place};

/// The header ends before something that it announces; [`Cursor::at`] makes an error of it.
#[derive(Debug)]
pub(super) struct Short {
    what: &'static str,
    at: usize,
    needed: u64,
}

/// Reads little-endian numbers and strings from the front of a file.
pub(super) struct Cursor<'a> {
    /// The file, cut at the longest header that is accepted.
    bytes: &'a [u8],
    pos: usize,
    /// Bytes of the whole file.
    file_len: usize,
    /// Lengths and counts are u64 (from version 2 on) and not u32.
    pub(super) wide: bool,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(file: &'a [u8], max_header: usize) -> Self {
        let bytes = &file[..file.len().min(max_header)];
        Cursor { bytes, pos: 0, file_len: file.len(), wide: true }
    }

    pub(super) fn pos(&self) -> usize {
        self.pos
    }

    /// Bytes that are left of the header.
    pub(super) fn left(&self) -> u64 {
        (self.bytes.len() - self.pos) as u64
    }

    /// The error of having run short at `place`, which is asked only if there is an error.
    pub(super) fn at<P: FnOnce() -> Place>(
        &self,
        place: P,
    ) -> impl FnOnce(Short) -> GgufError + use<P> {
        let (header, file) = (self.bytes.len() as u64, self.file_len as u64);
        move |short| {
            let place = place();
            let at = short.at as u64;
            // Would the whole file have held it? Then the limit on headers is what stopped us.
            if header < file && short.needed <= file - at {
                GgufError::HeaderTooLarge { place, limit: header }
            } else {
                let available = file - at;
                GgufError::Truncated {
                    place,
                    what: short.what,
                    at,
                    needed: short.needed,
                    available,
                }
            }
        }
    }

    /// The next `len` bytes.
    #[inline]
    pub(super) fn take(&mut self, len: u64, what: &'static str) -> Result<&'a [u8], Short> {
        if len > self.left() {
            return Err(Short { what, at: self.pos, needed: len });
        }
        // `len` fits: it is at most the length of a slice.
        let end = self.pos + len as usize;
        let taken = &self.bytes[self.pos..end];
        self.pos = end;
        Ok(taken)
    }

    #[inline]
    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Short> {
        match self.bytes[self.pos..].first_chunk::<N>() {
            Some(chunk) => {
                self.pos += N;
                Ok(*chunk)
            }
            None => Err(Short { what, at: self.pos, needed: N as u64 }),
        }
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, Short> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, Short> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A length or count: u64, in version 1 u32.
    #[inline]
    pub(super) fn size(&mut self, what: &'static str) -> Result<u64, Short> {
        if self.wide { self.u64(what) } else { self.u32(what).map(u64::from) }
    }

    /// A length and that many bytes.
    #[inline]
    pub(super) fn string(&mut self, what: &'static str) -> Result<&'a [u8], Short> {
        let len = self.size(what)?;
        self.take(len, what)
    }

    /// Walks over `count` strings and returns the bytes they occupy, lengths included. `count` has
    /// been checked to fit, at least with empty strings.
    pub(super) fn strings(&mut self, count: u64, what: &'static str) -> Result<&'a [u8], Short> {
        let start = self.pos;
        if self.wide {
            // The loop that a large vocabulary spends its time in: one load, one compare each.
            let bytes = self.bytes;
            let mut pos = start;
            for _ in 0..count {
                let Some(head) = bytes[pos..].first_chunk::<8>() else {
                    return Err(Short { what, at: pos, needed: 8 });
                };
                let len = u64::from_le_bytes(*head);
                pos += 8;
                if len > (bytes.len() - pos) as u64 {
                    return Err(Short { what, at: pos, needed: len });
                }
                pos += len as usize;
            }
            self.pos = pos;
        } else {
            for _ in 0..count {
                self.string(what)?;
            }
        }
        Ok(&self.bytes[start..self.pos])
    }
}
