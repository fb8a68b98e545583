//! An open-addressing index from byte strings to their numbers, and the hash it uses.
//!
//! The strings are one flat store; a slot of the index holds the number of a string and some bits
//! of its hash, so that a probe touches the store only when the hash agrees. 32 bits a slot: a
//! table of a quarter of a million strings is 2 MB, and most of the time of building one goes into
//! the cache misses and page faults of this table.
//! Invariants: the number of slots is a power of two and larger than the number of entries, so
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

/// The index itself. A slot is the number of the string plus one in its low bits and as much of
/// the hash as fits in the others; zero is an empty slot.
struct Index {
    slots: Vec<u32>,
    /// The low bits of a hash, which choose the slot.
    mask: usize,
    /// The bits of a slot that hold the number.
    numbers: u32,
}

impl Index {
    /// An index for `entries` strings: three slots or more for every two of them.
    fn with_capacity_for(entries: usize) -> Index {
        let slots = (entries.max(4) + entries / 2).next_power_of_two();
        let numbers = u32::try_from(entries).unwrap_or(u32::MAX);
        let mut zeros = vec![0; slots];
        // A page that is read first shows the system's page of zeros, and the write that follows has to take that away from
        // all CPUs that run this process: many times what a write costs that comes first.
        const PAGE: usize = 4096 / size_of::<u32>();
        zeros.iter_mut().step_by(PAGE).for_each(|slot| *slot = std::hint::black_box(0));
        Index {
            slots: zeros,
            mask: slots - 1,
            numbers: numbers.checked_next_power_of_two().map_or(u32::MAX, |n| 2 * n - 1),
        }
    }

    /// What the slot of a string says besides its number.
    #[inline]
    fn tag(&self, hash: u64) -> u32 {
        (hash >> 32) as u32 & !self.numbers
    }

    /// Reads the slots where these hashes begin to look, so that they are in the cache when they
    /// are needed in turn: the misses overlap instead of adding up.
    fn touch(&self, hashes: &[u64]) {
        let mut all = 0;
        for &hash in hashes {
            all |= self.slots[hash as usize & self.mask];
        }
        std::hint::black_box(all);
    }

    /// Enters `number` under `hash` unless an equal string is there already; returns that one.
    /// `same` compares the string being entered with a stored one of the given number.
    #[inline]
    fn insert(&mut self, hash: u64, number: u32, same: impl Fn(u32) -> bool) -> Option<u32> {
        let tag = self.tag(hash);
        let mut at = hash as usize & self.mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                self.slots[at] = tag | (number + 1);
                return None;
            }
            let other = slot & self.numbers;
            if slot ^ other == tag && same(other - 1) {
                return Some(other - 1);
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

/// Contiguous byte strings, found by number or by content.
pub(crate) struct Strings {
    bytes: Vec<u8>,
    /// Where string `i` begins; one more entry than strings.
    starts: Vec<u32>,
    index: Index,
    key: HashKey,
}

/// The strings take more bytes than 32-bit offsets can count.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLarge;

impl Strings {
    /// Takes the first `count` strings. Of equal ones a search finds the first; the others are
    /// told to `repeated` as (first, other, text).
    pub(crate) fn new<'a>(
        count: usize,
        strings: impl Iterator<Item = &'a [u8]>,
        mut repeated: impl FnMut(u32, u32, &[u8]),
    ) -> Result<Strings, TooLarge> {
        // Strings entered together; see `Index::touch`.
        const BATCH: usize = 32;
        if count >= u32::MAX as usize / 2 {
            return Err(TooLarge);
        }
        let mut all = Strings {
            // Tokens and merges have some eight bytes; where they have more, the buffer grows.
            bytes: Vec::with_capacity(count * 8),
            starts: Vec::with_capacity(count + 1),
            index: Index::with_capacity_for(count),
            key: HashKey::random(),
        };
        all.starts.push(0);
        let mut strings = strings.take(count).fuse();
        let mut hashes = [0; BATCH];
        loop {
            let first = all.len();
            let mut taken = 0;
            while taken < BATCH
                && let Some(text) = strings.next()
            {
                all.bytes.extend_from_slice(text);
                all.starts.push(u32::try_from(all.bytes.len()).map_err(|_| TooLarge)?);
                hashes[taken] = all.key.hash(text);
                taken += 1;
            }
            if taken == 0 {
                return Ok(all);
            }
            all.index.touch(&hashes[..taken]);
            for (number, &hash) in (first as u32..).zip(&hashes[..taken]) {
                let (bytes, starts) = (&all.bytes, &all.starts);
                let text = piece(bytes, starts, number);
                let same = |other| piece(bytes, starts, other) == text;
                if let Some(other) = all.index.insert(hash, number, same) {
                    repeated(other, number, text);
                }
            }
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

    /// The length of the longest.
    pub(crate) fn longest(&self) -> usize {
        self.starts.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0) as usize
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
        let text: Vec<u8> = (0..600u32).map(|i| (i * 7 % 251) as u8).collect();
        let strings = Strings::new(600, (0..600).map(|n| &text[..n]), |_, _, _| panic!()).unwrap();
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
        assert_eq!(strings.len(), 600);
    }

    #[test]
    fn tables_of_every_size_hold_what_they_promise() {
        for count in 0..300u32 {
            let texts: Vec<[u8; 4]> = (0..count).map(u32::to_le_bytes).collect();
            let all =
                Strings::new(count as usize, texts.iter().map(|t| &t[..]), |_, _, _| panic!());
            let all = all.unwrap();
            assert!((0..count).all(|n| all.find(&n.to_le_bytes()) == Some(n)));
            assert_eq!(all.find(&count.to_le_bytes()), None);
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
    fn a_repeated_string_names_the_first() {
        let mut repeated = Vec::new();
        let texts: [&[u8]; 4] = [b"a", b"b", b"a", b"a"];
        let strings = Strings::new(4, texts.into_iter(), |a, b, _| repeated.push((a, b))).unwrap();
        assert_eq!(repeated, [(0, 2), (0, 3)]);
        assert_eq!(strings.find(b"a"), Some(0));
        assert_eq!(strings.get(3), Some(&b"a"[..]));
    }
}
