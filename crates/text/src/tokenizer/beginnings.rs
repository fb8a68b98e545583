//! What begins somewhere in a text: a small set that says of a token whether the text can contain it at all.
//!
//! Of a text of some hundred bytes, a vocabulary of a quarter of a million tokens has some hundred that occur in it, and nothing else is
//! ever looked up while it is encoded. So a table of those is made, in a tenth of the time that a table of all takes.

use super::texts::Beginning;

/// A set of beginnings of strings. It may claim to have ones that it has not, never the other way round.
pub(crate) struct Beginnings {
    bits: Vec<u64>,
    /// Bits that a hash has to lose to be the number of a bit.
    shift: u32,
}

impl Beginnings {
    /// An empty set, for texts of `len` bytes together.
    pub(crate) fn with_room_for(len: usize) -> Beginnings {
        // Each byte of a text begins up to eight. One bit in thirty or fewer is set then, and so few strings are kept for nothing; of a
        // short text, which is what people wait for, one in hundreds.
        let bits = (256 * len).clamp(1 << 17, 1 << 20).next_power_of_two();
        Beginnings { bits: vec![0; bits / 64], shift: 64 - bits.ilog2() }
    }

    /// Adds the beginnings of all that stands anywhere in `text`.
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

    /// True if it may have been added.
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
