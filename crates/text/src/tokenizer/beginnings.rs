//! A small set of the string beginnings that occur in a text; it shows whether the text can contain a token at all.
//!
//! In a text of some hundred bytes, some hundred tokens of a vocabulary of a quarter of a million occur, and no others are ever looked
//! up while it is encoded. So a table of those is built, in a tenth of the time that a table of all tokens takes.

use super::texts::Beginning;

/// A set of beginnings of strings. It may report beginnings that were not added, but never misses one.
pub(crate) struct Beginnings {
    bits: Vec<u64>,
    /// The number of bits to shift out of a hash to obtain a bit's number.
    shift: u32,
}

impl Beginnings {
    /// Creates an empty set for texts with a total of `len` bytes.
    pub(crate) fn with_room_for(len: usize) -> Beginnings {
        // Each byte of a text is the start of up to eight beginnings. So at most one bit in thirty is set, and few strings are kept
        // needlessly; for a short text, which is where users wait for it, one in hundreds.
        let bits = (256 * len).clamp(1 << 17, 1 << 20).next_power_of_two();
        Beginnings { bits: vec![0; bits / 64], shift: 64 - bits.ilog2() }
    }

    /// Adds the beginnings of all strings that occur anywhere in `text`.
    pub(crate) fn add_within(&mut self, text: &[u8]) {
        for at in 0..text.len() {
            let first = Beginning::of(&text[at..]);
            for len in 1..=8.min(text.len() - at) {
                self.insert(first.cut(len));
            }
        }
    }

    /// Adds the beginning of `text` itself.
    pub(crate) fn add(&mut self, text: &[u8]) {
        self.insert(Beginning::of(text));
    }

    #[inline]
    fn insert(&mut self, beginning: Beginning) {
        let bit = self.bit(beginning);
        self.bits[bit / 64] |= 1 << (bit % 64);
    }

    /// Returns true if it may have been added.
    #[inline]
    pub(crate) fn may_have(&self, beginning: Beginning) -> bool {
        let bit = self.bit(beginning);
        self.bits[bit / 64] >> (bit % 64) & 1 == 1
    }

    #[inline]
    fn bit(&self, beginning: Beginning) -> usize {
        // An odd number without a pattern (from the golden ratio): the high bits of the product depend on all bits.
        (beginning.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_stands_in_a_text_may_be_there_and_little_else() {
        let text = "The quick brown fox jumps over the lazy dog. ∀x ∈ ℝ: ⌈x⌉ = −⌊−x⌋".as_bytes();
        let mut set = Beginnings::with_room_for(text.len());
        set.add_within(text);
        for from in 0..text.len() {
            for to in from + 1..=text.len() {
                assert!(set.may_have(Beginning::of(&text[from..to])), "{from}..{to}");
            }
        }
        let other = (0..10_000u32).filter(|i| set.may_have(Beginning::of(&i.to_le_bytes())));
        assert!(other.count() < 1000);
        let mut one = Beginnings::with_room_for(0);
        one.add(b"<|im_end|>");
        assert!(
            one.may_have(Beginning::of(b"<|im_end|>")) && one.may_have(Beginning::of(b"<|im_end"))
        );
        assert!(!one.may_have(Beginning::of(b"<|im")));
    }
}
