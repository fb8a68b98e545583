//! The strings of an array, by number, in place in the copy of a file's header.
//!
//! Opening a model waits for this, so nothing is copied, and memory is touched once per page: the offset of every sixteenth string
//! is recorded, and the others are found by walking from there.
//!
//! **Invariant:** the array was walked by the parser, and its bytes do not change, so a walk never leaves it.

use alight_formats::gguf::{Array, KeptArray};

/// The strings of one array.
pub(crate) struct StringArray {
    array: KeptArray,
    /// The offsets of strings 0, 16, 32, …: each begins with its length.
    marks: Vec<u32>,
    /// The number of bytes of the longest.
    longest: usize,
}

/// The number of strings from one mark to the next.
const STRIDE: usize = 16;

/// The array is too large for 32-bit offsets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLarge;

/// One of the strings.
#[derive(Clone, Copy)]
pub(crate) struct StringEntry<'t> {
    pub(crate) number: u32,
    /// The offset of its length; [`StringArray::at`] finds it there.
    pub(crate) at: u32,
    pub(crate) bytes: &'t [u8],
    pub(crate) beginning: Beginning,
}

/// The first eight bytes of a string, little-endian; a shorter one is followed by zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Beginning(pub(crate) u64);

impl Beginning {
    /// The beginning of `text`.
    #[inline]
    pub(crate) fn of(text: &[u8]) -> Beginning {
        Beginning(match text.first_chunk::<8>() {
            Some(first) => u64::from_le_bytes(*first),
            None => text.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
        })
    }

    /// The beginning cut to its first `len` bytes.
    #[inline]
    pub(crate) fn cut(self, len: usize) -> Beginning {
        Beginning(self.0 & u64::MAX.unbounded_shr(64 - 8 * len.min(8) as u32))
    }

    /// The beginning of the string without its first space: of the two sides of a merge, joined.
    #[inline]
    pub(crate) fn without_space(self) -> Beginning {
        const ONES: u64 = 0x0101_0101_0101_0101;
        let spaces = self.0 ^ (ONES * b' ' as u64);
        // The lowest zero byte has its highest bit set here.
        let zeros = spaces.wrapping_sub(ONES) & !spaces & (ONES << 7);
        if zeros == 0 {
            return self;
        }
        let before = (1u64 << (zeros.trailing_zeros() & !7)) - 1;
        Beginning(self.0 & before | self.0 >> 8 & !before)
    }
}

impl StringArray {
    /// Takes the strings of `array`, and calls `each` with them in order.
    ///
    /// # Errors
    /// [`TooLarge`].
    pub(crate) fn new(
        array: KeptArray,
        mut each: impl FnMut(StringEntry<'_>),
    ) -> Result<StringArray, TooLarge> {
        let all = array.get();
        let count = all.len();
        if u32::try_from(all.bytes().len()).is_err() || count >= u32::MAX as usize / 2 {
            return Err(TooLarge);
        }
        let mut marks = Vec::with_capacity(count.div_ceil(STRIDE));
        let mut longest = 0;
        walk(all, |text| {
            if (text.number as usize).is_multiple_of(STRIDE) {
                marks.push(text.at);
            }
            longest = longest.max(text.bytes.len());
            each(text);
        });
        Ok(StringArray { array, marks, longest })
    }

    /// The number of strings.
    pub(crate) fn len(&self) -> usize {
        self.array.get().len()
    }

    /// The number of bytes of the longest.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// The string with this number.
    pub(crate) fn get(&self, number: u32) -> Option<&[u8]> {
        let number = number as usize;
        let mark = *self.marks.get(number / STRIDE).filter(|_| number < self.len())?;
        self.array.get().strings_from(mark as usize).nth(number % STRIDE)
    }

    /// The string whose length is stored at `at`.
    #[inline]
    pub(crate) fn at(&self, at: u32) -> &[u8] {
        self.array.get().strings_from(at as usize).next().unwrap_or_default()
    }

    /// Calls `each` with all of them in order.
    pub(crate) fn each(&self, each: impl FnMut(StringEntry<'_>)) {
        walk(self.array.get(), each);
    }

    /// All of them in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.array.get().strings_from(0)
    }
}

/// Calls `each` with the strings of `array`, in order. With a large vocabulary the time is spent here, waiting for one length after another.
#[inline]
fn walk<'a>(array: Array<'a>, mut each: impl FnMut(StringEntry<'a>)) {
    let (all, length) = (array.bytes(), array.length_bytes());
    let mut at = 0;
    for (number, bytes) in (0..).zip(array.strings_from(0)) {
        let start = at + length;
        // Reads eight bytes at once if available, although they may belong to the next string.
        let beginning = match all.get(start..).and_then(|rest| rest.first_chunk()) {
            Some(first) => Beginning(u64::from_le_bytes(*first)).cut(bytes.len()),
            None => Beginning::of(bytes),
        };
        // An offset is below 2^32, see `StringArray::new`.
        each(StringEntry { number, at: at as u32, bytes, beginning });
        at = start + bytes.len();
    }
}

#[cfg(test)]
impl StringArray {
    /// Creates an array of these strings.
    pub(crate) fn of(strings: &[impl AsRef<[u8]>]) -> StringArray {
        use alight_formats::gguf;

        let mut file = gguf::write::Builder::new();
        file.strs("strings", strings);
        let file = file.header();
        let array = gguf::parse(&file).unwrap().get_array("strings").unwrap().unwrap();
        StringArray::new(array.keep(&Default::default()), |_| {}).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use alight_formats::gguf;

    use super::*;

    #[test]
    fn strings_of_every_length_by_number_and_by_place() {
        let strings: Vec<Vec<u8>> = (0..100usize).map(|n| vec![n as u8 + 1; n * 7 % 23]).collect();
        let texts = StringArray::of(&strings);
        assert_eq!((texts.len(), texts.longest()), (100, 22));
        let mut seen = 0;
        texts.each(|text| {
            let expected = &strings[text.number as usize];
            assert_eq!((text.number, text.bytes), (seen, &expected[..]));
            assert_eq!(texts.at(text.at), expected);
            assert_eq!(texts.get(text.number), Some(&expected[..]));
            assert_eq!(text.beginning, Beginning::of(expected));
            seen += 1;
        });
        assert_eq!((seen, texts.get(100), texts.get(u32::MAX)), (100, None, None));
        assert!(texts.iter().eq(strings.iter().map(|text| &text[..])));
    }

    #[test]
    fn lengths_of_four_bytes_as_in_the_first_version() {
        let strings = ["", "a", "a longer one", "é", "", "the last"];
        let number = |n: usize| (n as u32).to_le_bytes();
        let mut file = b"GGUF".to_vec();
        // Version, tensors, entries; a key; the types array and string; the number of strings.
        for part in [1, 0, 1, 1] {
            file.extend(number(part));
        }
        file.extend(b"s");
        for part in [9, 8, strings.len()] {
            file.extend(number(part));
        }
        for text in strings {
            file.extend(number(text.len()));
            file.extend(text.as_bytes());
        }
        let array = gguf::parse(&file).unwrap().get_array("s").unwrap().unwrap();
        let mut seen = Vec::new();
        let each =
            |text: StringEntry<'_>| seen.push((text.at, text.bytes.to_vec(), text.beginning));
        let texts = StringArray::new(array.keep(&Default::default()), each).unwrap();
        for ((at, bytes, beginning), expected) in seen.iter().zip(strings) {
            assert_eq!((&bytes[..], texts.at(*at)), (expected.as_bytes(), expected.as_bytes()));
            assert_eq!(*beginning, Beginning::of(expected.as_bytes()));
        }
        assert!((0..).zip(strings).all(|(id, text)| texts.get(id) == Some(text.as_bytes())));
        assert_eq!((seen.len(), texts.len(), texts.longest()), (6, 6, 12));
    }

    #[test]
    fn beginnings_of_merges_are_of_both_sides_joined() {
        for text in
            ["a b", "ab c", "abcdefg h", "abcdefgh i", "a bcdefghij", "ab", " a", "a ", "  a"]
        {
            let joined =
                text.replacen(' ', "", usize::from(text.len() > 8 || text.find(' ') < Some(8)));
            let (space, found) = (text.find(' '), Beginning::of(text.as_bytes()).without_space());
            // Seven bytes if the space was among the first eight.
            let len = if space.is_some_and(|at| at < 8) { 7 } else { 8 };
            assert_eq!(found, Beginning::of(joined.as_bytes()).cut(len), "{text:?}");
        }
    }
}
