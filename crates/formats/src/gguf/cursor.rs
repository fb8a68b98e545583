//! A reading position in a header. Every step is checked against the bytes that are left, before anything is
//! computed from a number in the file.

use super::error::{GgufError, GgufField};
use crate::source::{Source, Window};

/// The header ends before something it announces; [`Cursor::at`] turns this into an error.
#[derive(Debug)]
pub(super) struct Short {
    what: &'static str,
    at: u64,
    needed: u64,
}

/// Reads little-endian numbers and strings from the front of a file.
pub(super) struct Cursor<'s, 'a> {
    /// The file, limited to the maximum header length.
    window: Window<'s, 'a>,
    /// That length in bytes.
    limit: u64,
    /// Bytes of the whole file.
    file_len: u64,
    /// Lengths and counts are u64 (from version 2 on) and not u32.
    pub(super) wide: bool,
}

impl<'s, 'a> Cursor<'s, 'a> {
    pub(super) fn new(file: &'s dyn Source<'a>, max_header: u64) -> Self {
        let file_len = file.len();
        let limit = file_len.min(max_header);
        Cursor { window: Window::new(file, limit), limit, file_len, wide: true }
    }

    pub(super) fn pos(&self) -> u64 {
        self.window.pos()
    }

    /// Bytes of the header that are left.
    pub(super) fn left(&self) -> u64 {
        self.window.left()
    }

    /// Turns running short into an error at `place`, which is called only if there is an error.
    pub(super) fn at<P: FnOnce() -> GgufField>(
        &self,
        place: P,
    ) -> impl FnOnce(Short) -> GgufError + use<P> {
        let (header, file) = (self.limit, self.file_len);
        move |short| {
            let place = place();
            let at = short.at;
            // If the whole file could have held it, the limit on headers is the cause.
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

    /// Returns the next `len` bytes.
    #[inline]
    pub(super) fn take(&mut self, len: u64, what: &'static str) -> Result<&'a [u8], Short> {
        let at = self.pos();
        self.window.take(len).ok_or(Short { what, at, needed: len })
    }

    #[inline]
    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Short> {
        let bytes = self.take(N as u64, what)?;
        // It has the requested length.
        Ok(bytes.first_chunk().copied().unwrap_or([0; N]))
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, Short> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, Short> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Reads a length or count: u64, in version 1 u32.
    #[inline]
    pub(super) fn size(&mut self, what: &'static str) -> Result<u64, Short> {
        if self.wide { self.u64(what) } else { self.u32(what).map(u64::from) }
    }

    /// Reads a length and that many bytes.
    #[inline]
    pub(super) fn string(&mut self, what: &'static str) -> Result<&'a [u8], Short> {
        let len = self.size(what)?;
        self.take(len, what)
    }

    /// Walks over `count` strings and returns their bytes, including the lengths. `count` has already been
    /// checked to fit if all strings are empty.
    pub(super) fn strings(&mut self, count: u64, what: &'static str) -> Result<&'a [u8], Short> {
        loop {
            let bytes = self.window.at_hand();
            let walked = if self.wide {
                walk(bytes, count, |head: [u8; 8]| u64::from_le_bytes(head))
            } else {
                walk(bytes, count, |head: [u8; 4]| u64::from(u32::from_le_bytes(head)))
            };
            let Walked { end, done, at, needed } = walked;
            if done == count {
                return self.take(end as u64, what);
            }
            let short = Short { what, at: self.pos() + at as u64, needed };
            // The length from the beginning of the array to the end of the missing part.
            let least = (at as u64).saturating_add(needed);
            if least > self.left() {
                return Err(short);
            }
            // The array continues after the buffered bytes. It has to be one piece, and a second read may
            // return other bytes than those that were walked over, so it is read again from its beginning. The
            // rest of the strings are assumed to be about as long as those so far, and excess bytes hold the
            // arrays that follow. But a file that only begins that way gets at most eight times the bytes it
            // has shown, or those of a long vocabulary if that is more.
            let end = end as u64;
            let guess = u128::from(end) * u128::from(count) / u128::from(done.max(1));
            let guess = u64::try_from(guess + guess / 2).unwrap_or(u64::MAX);
            let wanted =
                guess.clamp(2 * end, (8 * end).max(VOCABULARY)).max(least).min(self.left());
            if self.window.fill(wanted).is_none() {
                return Err(short);
            }
        }
    }
}

/// Bytes of a long vocabulary. Any file that begins as if it had one may use this much memory.
const VOCABULARY: u64 = if cfg!(any(fuzzing, miri)) { 64 } else { 8 << 20 };

/// The progress of a walk over strings.
struct Walked {
    /// The offset of the first incomplete string.
    end: usize,
    /// Number of strings before it.
    done: u64,
    /// The offset of the missing length or text, and its size in bytes.
    at: usize,
    needed: u64,
}

/// Walks over at most `count` strings in `bytes`, each preceded by its length.
fn walk<const N: usize>(bytes: &[u8], count: u64, len: impl Fn([u8; N]) -> u64) -> Walked {
    // Most of the time for a large vocabulary is spent in this loop: one load, one compare per string.
    let mut end = 0;
    for done in 0..count {
        let Some(head) = bytes[end..].first_chunk::<N>() else {
            return Walked { end, done, at: end, needed: N as u64 };
        };
        let len = len(*head);
        let left = bytes.len() - end - N;
        if len > left as u64 {
            return Walked { end, done, at: end + N, needed: len };
        }
        end += N + len as usize;
    }
    Walked { end, done: count, at: end, needed: 0 }
}
