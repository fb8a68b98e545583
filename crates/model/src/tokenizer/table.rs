//! An open-addressing index from byte strings to their numbers, and the hash it uses.
//!
//! The strings themselves live elsewhere (one flat store); a slot holds 32 bits of the hash and
//! the number of the string, so that a probe touches the store only when the hash agrees.
//! Invariants: the number of slots is a power of two and at least twice the number of entries, so
//! probing always ends; the hash is keyed by a secret drawn at start, so that a file cannot be
//! made whose strings all fall into one chain.

use std::hash::{BuildHasher, Hasher, RandomState};

/// The key of the hash, two words drawn once per table.
#[derive(Clone, Copy)]
pub(crate) struct HashKey(u64, u64);

impl HashKey {
    /// Draws a key from the standard library's per-process randomness.
    pub(crate) fn random() -> HashKey {
        let state = RandomState::new();
        let word = |n: u64| {
            let mut hasher = state.build_hasher();
            hasher.write_u64(n);
            hasher.finish()
        };
        HashKey(word(1), word(2))
    }

    /// Hashes `bytes`. Short strings cost one 64×64→128 multiplication, longer ones one more for
    /// every 16 bytes (the "folded multiply" construction of wyhash and its relatives).
    #[inline]
    pub(crate) fn hash(self, bytes: &[u8]) -> u64 {
        let n = bytes.len();
        let (a, b) = if n >= 8 {
            let mut rest = bytes;
            let mut acc = self.1;
            while rest.len() > 16 {
                acc = fold(word64(rest) ^ acc, word64(&rest[8..]) ^ self.0);
                rest = &rest[16..];
            }
            // The last 8..=16 bytes, the two halves overlapping where there are fewer than 16.
            // With n >= 8 the last 8 bytes of the whole string always exist.
            let tail = word64(&bytes[n - 8..]);
            let head = if rest.len() >= 8 { word64(rest) } else { tail };
            (head ^ acc, tail)
        } else if n >= 4 {
            (word32(bytes) ^ self.1, word32(&bytes[n - 4..]))
        } else if n > 0 {
            let low = u64::from(bytes[0]) | u64::from(bytes[n / 2]) << 8;
            (low ^ self.1, u64::from(bytes[n - 1]))
        } else {
            (self.1, 0)
        };
        // The length enters multiplied by an odd constant so that strings of zeros differ.
        let len = (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        fold(a ^ len, b ^ self.0)
    }
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide as u64) ^ ((wide >> 64) as u64)
}

/// The first 8 bytes, little-endian; the caller has made sure that they exist.
#[inline]
fn word64(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |c| u64::from_le_bytes(*c))
}

/// The first 4 bytes, little-endian; the caller has made sure that they exist.
#[inline]
fn word32(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |c| u64::from(u32::from_le_bytes(*c)))
}

/// The index itself.
pub(crate) struct Index {
    /// `hash >> 32 << 32 | number + 1`; zero is an empty slot.
    slots: Vec<u64>,
    mask: usize,
}

const HIGH: u64 = 0xffff_ffff_0000_0000;

impl Index {
    /// An index with room for `entries` strings.
    pub(crate) fn with_room(entries: usize) -> Index {
        let slots = (entries.max(4) * 2).next_power_of_two();
        Index { slots: vec![0; slots], mask: slots - 1 }
    }

    /// Enters `number` under `hash` unless an equal string is there already; returns that one.
    /// `same` compares the string being entered with a stored one of the given number.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        number: u32,
        same: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let mut at = hash as usize & self.mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                self.slots[at] = (hash & HIGH) | (u64::from(number) + 1);
                return None;
            }
            if (slot ^ hash) & HIGH == 0 && same(slot as u32 - 1) {
                return Some(slot as u32 - 1);
            }
            at = (at + 1) & self.mask;
        }
    }

    /// The number entered under `hash` for which `same` holds.
    #[inline]
    pub(crate) fn find(&self, hash: u64, same: impl Fn(u32) -> bool) -> Option<u32> {
        let mut at = hash as usize & self.mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return None;
            }
            if (slot ^ hash) & HIGH == 0 && same(slot as u32 - 1) {
                return Some(slot as u32 - 1);
            }
            at = (at + 1) & self.mask;
        }
    }
}

/// Byte strings one after the other, found again by number or by content.
pub(crate) struct Strings {
    bytes: Vec<u8>,
    /// Where string `i` begins; one more entry than strings.
    starts: Vec<u32>,
    index: Index,
    key: HashKey,
}

impl Strings {
    /// Room for `count` strings of `bytes` bytes together (both are hints for the first size of
    /// the buffers, only `count` is also the limit of the index).
    pub(crate) fn with_room(count: usize, bytes: usize) -> Strings {
        let mut starts = Vec::with_capacity(count + 1);
        starts.push(0);
        Strings {
            bytes: Vec::with_capacity(bytes),
            starts,
            index: Index::with_room(count),
            key: HashKey::random(),
        }
    }

    /// Appends a string. `Err(Some(first))`: an equal one, number `first`, is there already; the
    /// new one is stored under its number but a search keeps finding the first. `Err(None)`: the
    /// bytes would exceed 32-bit offsets; nothing was stored.
    #[inline]
    pub(crate) fn push(&mut self, text: &[u8]) -> Result<(), Option<u32>> {
        let end = self.bytes.len() + text.len();
        if end > u32::MAX as usize {
            return Err(None);
        }
        let number = self.starts.len() as u32 - 1;
        self.bytes.extend_from_slice(text);
        self.starts.push(end as u32);
        let (bytes, starts) = (&self.bytes, &self.starts);
        let hash = self.key.hash(text);
        match self.index.insert(hash, number, |other| piece(bytes, starts, other) == text) {
            Some(first) => Err(Some(first)),
            None => Ok(()),
        }
    }

    #[inline]
    pub(crate) fn find(&self, text: &[u8]) -> Option<u32> {
        self.index
            .find(self.key.hash(text), |other| piece(&self.bytes, &self.starts, other) == text)
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&[u8]> {
        let at = number as usize;
        let end = *self.starts.get(at + 1)?;
        Some(&self.bytes[self.starts[at] as usize..end as usize])
    }

    pub(crate) fn len(&self) -> usize {
        self.starts.len() - 1
    }
}

#[inline]
fn piece<'a>(bytes: &'a [u8], starts: &[u32], number: u32) -> &'a [u8] {
    let at = number as usize;
    &bytes[starts[at] as usize..starts[at + 1] as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_found_again_and_nothing_else() {
        let mut strings = Strings::with_room(600, 0);
        let text: Vec<u8> = (0..600u32).map(|i| (i * 7 % 251) as u8).collect();
        for n in 0..600 {
            assert_eq!(strings.push(&text[..n]), Ok(()));
        }
        for n in 0..600 {
            assert_eq!(strings.find(&text[..n]), Some(n as u32));
            assert_eq!(strings.get(n as u32), Some(&text[..n]));
            let mut other = text[..n].to_vec();
            if let Some(last) = other.last_mut() {
                *last ^= 1;
                assert_eq!(strings.find(&other), None);
            }
        }
        assert_eq!(strings.get(600), None);
    }

    #[test]
    fn zeros_of_every_length_hash_apart() {
        let key = HashKey::random();
        let zeros = [0u8; 64];
        let mut seen: Vec<u64> = (0..=64).map(|n| key.hash(&zeros[..n])).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 65);
    }

    #[test]
    fn a_repeated_string_names_the_first() {
        let mut strings = Strings::with_room(3, 0);
        assert_eq!(strings.push(b"a"), Ok(()));
        assert_eq!(strings.push(b"b"), Ok(()));
        assert_eq!(strings.push(b"a"), Err(Some(0)));
        assert_eq!(strings.find(b"a"), Some(0));
    }
}
