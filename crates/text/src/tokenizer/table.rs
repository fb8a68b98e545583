//! An open-addressing index from the strings of an array to their numbers, and its hash.
//!
//! The strings stay in the array ([`StringArray`]); a slot of the index holds the number of a string and some bits
//! of its hash, so that a probe touches the array only when the hash matches. With 32 bits per slot, a table
//! of a quarter of a million strings is 2 MB, and most of the time of building one goes into the cache
//! misses and page faults of this table.
//! Invariants: the number of slots is a power of two and larger than the number of entries, so probing
//! always ends; the hash is keyed by a random secret, so that no file can be crafted whose strings all fall
//! into one chain.

use std::hash::{BuildHasher, Hasher, RandomState};

use super::texts::{StringArray, StringEntry};

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

/// The first 8 bytes, little-endian; the caller has ensured that they exist.
#[inline]
fn word64(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |c| u64::from_le_bytes(*c))
}

/// The first 4 bytes, little-endian; the caller has ensured that they exist.
#[inline]
fn word32(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |c| u64::from(u32::from_le_bytes(*c)))
}

/// The index itself. A slot holds the number of the string plus one in its low bits and as much of
/// the hash as fits in the others; zero is an empty slot.
struct Index {
    slots: Vec<u32>,
    /// The low bits of a hash, which choose the slot.
    mask: usize,
    /// The bits of a slot that hold the number.
    numbers: u32,
}

impl Index {
    /// Creates an index for `entries` strings: at least three slots for every two of them.
    fn with_capacity_for(entries: usize) -> Index {
        let slots = (entries.max(4) + entries / 2).next_power_of_two();
        let numbers = u32::try_from(entries).unwrap_or(u32::MAX);
        let mut zeros = vec![0; slots];
        // A page that is read first maps the system's zero page, and the write that follows has to remove that mapping on
        // all CPUs that run this process: this costs many times as much as a write that comes first.
        const PAGE: usize = 4096 / size_of::<u32>();
        zeros.iter_mut().step_by(PAGE).for_each(|slot| *slot = std::hint::black_box(0));
        Index {
            slots: zeros,
            mask: slots - 1,
            numbers: numbers.checked_next_power_of_two().map_or(u32::MAX, |n| 2 * n - 1),
        }
    }

    /// The bits of a string's slot other than its number.
    #[inline]
    fn tag(&self, hash: u64) -> u32 {
        (hash >> 32) as u32 & !self.numbers
    }

    /// Reads the slots at which the probes of these hashes begin, so that they are in the cache
    /// when they are needed in turn: the misses overlap instead of adding up.
    fn touch(&self, hashes: &[u64]) {
        let mut all = 0;
        for &hash in hashes {
            all |= self.slots[hash as usize & self.mask];
        }
        std::hint::black_box(all);
    }

    /// Enters `number` under `hash` unless an equal string is already present. `same` compares the
    /// string being entered with a stored one of the given number.
    #[inline]
    fn insert(&mut self, hash: u64, number: u32, same: impl Fn(u32) -> bool) {
        let tag = self.tag(hash);
        let mut at = hash as usize & self.mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                self.slots[at] = tag | (number + 1);
                return;
            }
            let other = slot & self.numbers;
            if slot ^ other == tag && same(other - 1) {
                return;
            }
            at = (at + 1) & self.mask;
        }
    }

    /// The number entered under `hash` for which `same` holds.
    #[inline]
    fn find(&self, hash: u64, same: impl Fn(u32) -> bool) -> Option<u32> {
        let tag = self.tag(hash);
        let mut at = hash as usize & self.mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return None;
            }
            let other = slot & self.numbers;
            if slot ^ other == tag && same(other - 1) {
                return Some(other - 1);
            }
            at = (at + 1) & self.mask;
        }
    }
}

/// Some or all strings of an array, found by their content. The default is empty.
pub(crate) struct Table {
    /// In the order of their numbers.
    entries: Vec<Entry>,
    index: Index,
    key: HashKey,
}

/// A string of the array.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    /// The offset of its length.
    at: u32,
    number: u32,
}

impl Entry {
    pub(crate) fn of(text: StringEntry<'_>) -> Entry {
        Entry { at: text.at, number: text.number }
    }
}

impl Default for Table {
    fn default() -> Table {
        Table { entries: Vec::new(), index: Index::with_capacity_for(0), key: HashKey::random() }
    }
}

impl Table {
    /// Creates a table of all strings in `texts`.
    pub(crate) fn complete(texts: &StringArray) -> Table {
        let mut entries = Vec::with_capacity(texts.len());
        texts.each(|text| entries.push(Entry::of(text)));
        Table::new(texts, entries)
    }

    /// Creates a table of those strings in `texts` for which `keep` returns true.
    pub(crate) fn select(texts: &StringArray, keep: impl Fn(StringEntry<'_>) -> bool) -> Table {
        let mut entries = Vec::new();
        texts.each(|text| {
            if keep(text) {
                entries.push(Entry::of(text));
            }
        });
        Table::new(texts, entries)
    }

    /// Creates a table of these strings in `texts`, in the order of their numbers. Of equal strings
    /// the first is found.
    pub(crate) fn new(texts: &StringArray, entries: Vec<Entry>) -> Table {
        // The number of strings entered together; see `Index::touch`.
        const BATCH: usize = 32;
        let mut index = Index::with_capacity_for(entries.len());
        let key = HashKey::random();
        let mut hashes = [0; BATCH];
        for (batch, first) in entries.chunks(BATCH).zip((0..).step_by(BATCH)) {
            for (entry, hash) in batch.iter().zip(&mut hashes) {
                *hash = key.hash(texts.at(entry.at));
            }
            index.touch(&hashes[..batch.len()]);
            for ((entry, hash), place) in batch.iter().zip(hashes).zip(first..) {
                let text = texts.at(entry.at);
                index.insert(hash, place, |other| texts.at(entries[other as usize].at) == text);
            }
        }
        Table { entries, index, key }
    }

    /// The number of the first string that is `text`.
    #[inline]
    pub(crate) fn find(&self, texts: &StringArray, text: &[u8]) -> Option<u32> {
        if text.len() > texts.longest() {
            return None;
        }
        let same = |place: u32| texts.at(self.entries[place as usize].at) == text;
        let place = self.index.find(self.key.hash(text), same)?;
        Some(self.entries[place as usize].number)
    }

    /// The number of strings in the table.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Its strings, with their numbers, in order.
    pub(crate) fn iter<'t>(&self, texts: &'t StringArray) -> impl Iterator<Item = (u32, &'t [u8])> {
        self.entries.iter().map(|entry| (entry.number, texts.at(entry.at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_found_again_and_nothing_else() {
        let text: Vec<u8> = (0..600u32).map(|i| (i * 7 % 251) as u8).collect();
        let texts = StringArray::of(&(0..600).map(|n| &text[..n]).collect::<Vec<_>>());
        let table = Table::complete(&texts);
        for n in 0..600 {
            assert_eq!(table.find(&texts, &text[..n]), Some(n as u32));
            let mut other = text[..n].to_vec();
            if let Some(last) = other.last_mut() {
                *last ^= 1;
                assert_eq!(table.find(&texts, &other), None);
            }
        }
        assert_eq!(table.find(&texts, &text), None);
    }

    #[test]
    fn tables_of_every_size_hold_what_they_promise() {
        for count in 0..300u32 {
            let texts = StringArray::of(&(0..count).map(u32::to_le_bytes).collect::<Vec<_>>());
            let (all, even) =
                (Table::complete(&texts), Table::select(&texts, |text| text.number % 2 == 0));
            for n in 0..count {
                assert_eq!(all.find(&texts, &n.to_le_bytes()), Some(n));
                assert_eq!(even.find(&texts, &n.to_le_bytes()), Some(n).filter(|n| n % 2 == 0));
            }
            assert_eq!(all.find(&texts, &count.to_le_bytes()), None);
            let numbers = even
                .iter(&texts)
                .map(|(n, text)| (n, u32::from_le_bytes(text.try_into().unwrap())));
            assert!(numbers.eq((0..count).step_by(2).map(|n| (n, n))));
        }
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
    fn of_equal_strings_the_first_is_found() {
        let texts = StringArray::of(&["a", "b", "a", "a"]);
        assert_eq!(Table::complete(&texts).find(&texts, b"a"), Some(0));
        assert_eq!(Table::select(&texts, |text| text.number > 0).find(&texts, b"a"), Some(2));
    }
}
