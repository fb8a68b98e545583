//! The source of a parser's bytes: memory, or a file from which the requested pieces are copied.
//!
//! A file that other processes can write to changes while it is read, and so does a map of it. Bytes that are
//! checked and then used have to be the same both times: text that was UTF-8 when it was checked, but no longer
//! is, causes undefined behaviour; a length that fitted then, but no longer does, causes a read outside the
//! slice. So parsers never get a shared map. They get a [`Header`], which copies every piece once, when it is
//! requested; a catalog borrows only from those copies. Bytes of tensors are not copied, since none of their
//! contents are checked (`docs/explanation/architecture.md`).
//!
//! Memory is proportional to the requests, and parsers request at most twice the header that they read.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// The bytes of a file, which a parser requests by range.
#[allow(clippy::len_without_is_empty)] // an empty file is an error like any other that is too short
pub trait Source<'a> {
    /// Number of bytes of the file.
    fn len(&self) -> u64;

    /// Returns the bytes in `range`, which do not change from then on. A second request may return other bytes.
    /// `None` if the file does not extend that far, or cannot be read.
    fn get(&self, range: Range<u64>) -> Option<&'a [u8]>;

    /// Fills `to` with the bytes from `at` on, for one-time use. Returns false where `get` returns `None`.
    fn read(&self, at: u64, to: &mut [u8]) -> bool;
}

/// Memory that nothing else writes to. Nothing is copied.
impl<'a> Source<'a> for &'a [u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn get(&self, range: Range<u64>) -> Option<&'a [u8]> {
        let (start, end) = (range.start.try_into().ok()?, range.end.try_into().ok()?);
        <[u8]>::get(self, Range::<usize> { start, end })
    }

    fn read(&self, at: u64, to: &mut [u8]) -> bool {
        let end = at.checked_add(to.len() as u64);
        let found = end.and_then(|end| Source::get(self, at..end));
        found.map(|found| to.copy_from_slice(found)).is_some()
    }
}

/// Implements it as for a slice.
macro_rules! as_a_slice {
    ([$($generic:tt)*] $type:ty) => {
        impl<'a, $($generic)*> Source<'a> for &'a $type {
            fn len(&self) -> u64 {
                Source::len(&&self[..])
            }

            fn get(&self, range: Range<u64>) -> Option<&'a [u8]> {
                Source::get(&&self[..], range)
            }

            fn read(&self, at: u64, to: &mut [u8]) -> bool {
                Source::read(&&self[..], at, to)
            }
        }
    };
}

as_a_slice! { [] Vec<u8> }
as_a_slice! { [const N: usize] [u8; N] }

/// Fills a buffer with bytes of a file from an offset on; returns false if it could not fill all of it.
type Read<'f> = dyn Fn(&mut [u8], u64) -> bool + 'f;

/// Memory for the copy of one piece of a file.
pub trait Memory: Send + Sync {
    /// The whole memory.
    fn bytes(&self) -> &[u8];

    /// The whole memory, to be filled.
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl Memory for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// Allocates memory of a size in bytes, if possible.
type Allocate<'f> = dyn Fn(usize) -> Option<Box<dyn Memory>> + 'f;

/// The header of a file: copies of the pieces that a parser has requested, as they were at that moment. They
/// stay in place as long as this lives, and a catalog that borrows from them stays valid.
pub struct Header<'f> {
    len: u64,
    read: Box<Read<'f>>,
    allocate: Box<Allocate<'f>>,
    pieces: Shelf,
}

impl<'f> Header<'f> {
    /// The header of a file of `len` bytes. `read` fills a buffer with the bytes from an offset on, and returns
    /// true if it succeeded; the caller has to record the reason of a failure.
    pub fn new(len: u64, read: impl Fn(&mut [u8], u64) -> bool + 'f) -> Header<'f> {
        let allocate = |len| Some(Box::new(vec![0u8; len]) as _);
        Header { len, read: Box::new(read), allocate: Box::new(allocate), pieces: Shelf::default() }
    }

    /// The same, with pieces in memory from `allocate`, which is called with the size in bytes.
    pub fn with_memory(
        self,
        allocate: impl Fn(usize) -> Option<Box<dyn Memory>> + 'f,
    ) -> Header<'f> {
        Header { allocate: Box::new(allocate), ..self }
    }

    /// Number of bytes copied so far.
    pub fn copied(&self) -> u64 {
        self.pieces.bytes.get()
    }

    /// The pieces copied so far, from which parts can be kept after the header is dropped.
    pub fn pieces(&self) -> Pieces {
        Pieces(self.pieces.iter().cloned().collect())
    }
}

/// The copied pieces of a header. The default has none.
#[derive(Clone, Default)]
pub struct Pieces(Vec<Arc<dyn Memory>>);

impl Pieces {
    /// Keeps `part` by sharing the piece that contains it, or as a copy if no piece does.
    pub fn keep(&self, part: &[u8]) -> Kept {
        let found = self.0.iter().find_map(|piece| {
            // Both are addresses; a part of the piece is no further from its beginning than its end is.
            let start = part.as_ptr().addr().checked_sub(piece.bytes().as_ptr().addr())?;
            let range = start..start.checked_add(part.len())?;
            piece.bytes().get(range.clone())?;
            Some(Kept { memory: Arc::clone(piece), range })
        });
        found.unwrap_or_else(|| Kept { memory: Arc::new(part.to_vec()), range: 0..part.len() })
    }
}

/// Bytes of a header's copy, which stay as long as this lives.
#[derive(Clone)]
pub struct Kept {
    memory: Arc<dyn Memory>,
    /// Within the memory.
    range: Range<usize>,
}

impl Deref for Kept {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory.bytes()[self.range.clone()]
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kept[{} bytes]", self.range.len())
    }
}

impl<'a> Source<'a> for &'a Header<'_> {
    fn len(&self) -> u64 {
        self.len
    }

    fn get(&self, range: Range<u64>) -> Option<&'a [u8]> {
        let len = range.end.checked_sub(range.start)?;
        if range.end > self.len {
            return None;
        }
        let len = usize::try_from(len).ok()?;
        let mut piece = (self.allocate)(len)?;
        let read = (self.read)(piece.bytes_mut().get_mut(..len)?, range.start);
        if read { self.pieces.put(piece, len).get(..len) } else { None }
    }

    fn read(&self, at: u64, to: &mut [u8]) -> bool {
        let end = at.checked_add(to.len() as u64);
        end.is_some_and(|end| end <= self.len) && (self.read)(to, at)
    }
}

/// Slots for pieces.
type Row = Box<[OnceCell<Arc<dyn Memory>>]>;

/// Pieces that do not move: rows of slots, each twice as long as the one before.
#[derive(Default)]
struct Shelf {
    rows: [OnceCell<Row>; 32],
    /// Number of occupied slots.
    count: Cell<usize>,
    bytes: Cell<u64>,
}

impl Shelf {
    /// Number of slots in the first row.
    const FIRST: usize = 16;

    /// `len` is the number of bytes of it that are used.
    fn put(&self, piece: Box<dyn Memory>, len: usize) -> &[u8] {
        let index = self.count.replace(self.count.get() + 1);
        self.bytes.set(self.bytes.get() + len as u64);
        let row = (index / Self::FIRST + 1).ilog2() as usize;
        let places = self.rows[row]
            .get_or_init(|| (0..Self::FIRST << row).map(|_| OnceCell::new()).collect());
        let place = &places[index - Self::FIRST * ((1 << row) - 1)];
        place.get_or_init(|| piece.into()).bytes()
    }

    fn iter(&self) -> impl Iterator<Item = &Arc<dyn Memory>> {
        let rows = self.rows.iter().map_while(OnceCell::get);
        rows.flatten().map_while(OnceCell::get)
    }
}

/// A reading position in a source, with a buffered piece of it. Every step is checked against the bytes that are left.
pub(crate) struct Window<'s, 'a> {
    source: &'s dyn Source<'a>,
    /// The buffered piece, and its offset in the file.
    bytes: &'a [u8],
    start: u64,
    /// The position in the buffered piece.
    at: usize,
    /// The end of reading: the end of the file, or the maximum length of a header.
    end: u64,
    /// Minimum number of bytes to read next.
    step: u64,
}

impl<'s, 'a> Window<'s, 'a> {
    /// The size of the first read, and the maximum that is read ahead without a request. Small for fuzzing and
    /// Miri, which read small files.
    const STEP: Range<u64> = if cfg!(any(fuzzing, miri)) { 16..64 } else { 128 << 10..1 << 20 };

    /// Creates a position at the beginning of the bytes before `end`, at most all of `source`.
    pub(crate) fn new(source: &'s dyn Source<'a>, end: u64) -> Window<'s, 'a> {
        let end = end.min(source.len());
        Window { source, bytes: &[], start: 0, at: 0, end, step: Self::STEP.start }
    }

    /// The position, in bytes from the start of the file.
    #[inline]
    pub(crate) fn pos(&self) -> u64 {
        self.start + self.at as u64
    }

    /// Number of bytes that are left.
    #[inline]
    pub(crate) fn left(&self) -> u64 {
        self.end - self.pos()
    }

    /// The buffered bytes from the position on.
    #[inline]
    pub(crate) fn at_hand(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// Buffers at least `len` bytes, if that many are left.
    #[inline]
    pub(crate) fn fill(&mut self, len: u64) -> Option<&'a [u8]> {
        if len > self.at_hand().len() as u64 {
            self.slide(len)?;
        }
        Some(self.at_hand())
    }

    /// Returns the next `len` bytes.
    #[inline]
    pub(crate) fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        // At least `len` bytes are buffered.
        let taken = &self.fill(len)?[..len as usize];
        self.at += taken.len();
        Some(taken)
    }

    /// Skips `len` bytes without looking at them; there is likely little to read after them.
    pub(crate) fn skip(&mut self, len: u64) -> Option<()> {
        if len > self.left() {
            return None;
        }
        if len <= self.at_hand().len() as u64 {
            self.at += len as usize;
        } else {
            self.start = self.pos() + len;
            (self.bytes, self.at, self.step) = (&[], 0, 256);
        }
        Some(())
    }

    #[cold]
    fn slide(&mut self, len: u64) -> Option<()> {
        if len > self.left() {
            return None;
        }
        let pos = self.pos();
        let end = pos + len.max(self.step).min(self.left());
        self.bytes = self.source.get(pos..end)?;
        (self.start, self.at) = (pos, 0);
        self.step = (self.step * 2).min(Self::STEP.end);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_stay_where_they_are() {
        let shelf = Shelf::default();
        let pieces: Vec<&[u8]> =
            (0..5000u32).map(|i| shelf.put(Box::new(i.to_le_bytes().to_vec()), 4)).collect();
        assert!(pieces.iter().enumerate().all(|(i, piece)| *piece == (i as u32).to_le_bytes()));
        assert_eq!((shelf.count.get(), shelf.bytes.get()), (5000, 20_000));
    }

    #[test]
    fn parts_are_kept_with_their_piece_or_copied() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
        let header = Header::new(1000, |to, at| (&bytes).read(at, to));
        let (first, second) = ((&header).get(0..300).unwrap(), (&header).get(200..1000).unwrap());
        let pieces = header.pieces();
        let places =
            [&first[10..20], &second[700..], &second[..0], &bytes[5..9]].map(<[u8]>::as_ptr);
        let kept =
            [&first[10..20], &second[700..], &second[..0], &bytes[5..9]].map(|p| pieces.keep(p));
        drop(header);
        assert_eq!(kept.each_ref().map(|k| k.as_ptr() == places[0]), [true, false, false, false]);
        assert_eq!(kept.each_ref().map(|k| k.as_ptr() == places[1]), [false, true, false, false]);
        assert_eq!(kept.each_ref().map(|k| k.as_ptr() == places[3]), [false; 4]);
        assert_eq!((&*kept[0], &*kept[1]), (&bytes[10..20], &bytes[900..]));
        assert_eq!((&*kept[2], &*kept[3]), (&[][..], &bytes[5..9]));
        assert_eq!(&*Pieces::default().keep(b"any"), b"any");
    }

    #[test]
    fn a_window_slides_over_all_bytes_and_not_beyond() {
        let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        let header = Header::new(bytes.len() as u64, |to, at| (&bytes).read(at, to));
        let source = &header;
        let mut window = Window::new(&source, u64::MAX);
        let mut found = Vec::new();
        for len in [1, 100_000, 7, 0, 300_000, 1_500_000, 12].into_iter().cycle() {
            let len = len.min(window.left());
            found.extend_from_slice(window.take(len).unwrap());
            if window.left() == 0 {
                break;
            }
        }
        assert!(found == bytes);
        assert_eq!((window.pos(), window.take(1), window.skip(1)), (3_000_000, None, None));
        assert!(header.copied() < 2 * bytes.len() as u64 + (1 << 20), "{}", header.copied());

        let mut window = Window::new(&source, 2_000_000);
        window.take(5).unwrap();
        window.skip(1_000_000).unwrap();
        assert_eq!(window.take(3), Some(&bytes[1_000_005..1_000_008]));
        assert_eq!(window.skip(1_000_000), None);
        assert_eq!(window.left(), 999_992);
    }

    #[test]
    fn what_cannot_be_read_is_not_there() {
        let broken = Header::new(100, |_, _| false);
        assert_eq!((&&broken).get(0..10), None);
        let fine = Header::new(100, |to, _| {
            to.fill(1);
            true
        });
        let fine = &fine;
        assert_eq!(fine.get(90..100), Some(&[1; 10][..]));
        assert_eq!((fine.get(90..101), fine.get(u64::MAX..u64::MAX)), (None, None));
        #[allow(clippy::reversed_empty_ranges)]
        let backwards = fine.get(10..9);
        assert_eq!(backwards, None);
        let mut to = [0; 10];
        assert!(fine.read(90, &mut to) && !fine.read(91, &mut to) && !fine.read(u64::MAX, &mut to));
    }
}
