//! SentencePiece's normalisation of text before it is tokenized: a map from strings to their replacements, as SentencePiece
//! compiles it into `tokenizer.ggml.precompiled_charsmap`.
//!
//! The bytes are a length (u32, little-endian), a double array of that many bytes, and the replacements, each followed by a zero.
//! The double array is that of darts-clone, with units of 32 bits. The low eight bits are the byte that leads to the unit. Bit 8
//! marks that a string ends there. Bits 10 to 30, times 256 if bit 9 is set, are combined by XOR with the unit's own number and
//! with the next byte to find the next unit. Where a string ends, the unit found without a byte is a value: bit 31 is set, and
//! the others are the offset of the replacement.
//!
//! Invariants: every index is checked against the size, so an invalid map replaces less, or something else; a replaced string is
//! no longer than [`MAX_KEY`], and a replacement no longer than [`MAX_REPLACEMENT`], so normalising takes time and memory
//! proportional to the text.

use super::error::TokenizerError;

/// Maximum bytes of a string that is looked up. (Unicode's have at most 18.)
const MAX_KEY: usize = 256;

/// Maximum bytes of a replacement. (Unicode's have at most 33.)
const MAX_REPLACEMENT: usize = 256;

/// Bit 31 of a unit: it is a value.
const VALUE: u32 = 1 << 31;

/// A map of strings to their replacements.
pub(crate) struct CharsMap {
    units: Vec<u32>,
    replacements: Vec<u8>,
}

impl CharsMap {
    /// Reads a map.
    ///
    /// # Errors
    /// [`TokenizerError::CharsMap`]: lengths that do not match the bytes, a value without a replacement, or replacements that
    /// are too long or unterminated.
    pub(crate) fn parse(bytes: &[u8]) -> Result<CharsMap, TokenizerError> {
        let wrong = |problem: String| Err(TokenizerError::CharsMap { problem });
        let Some((length, rest)) = bytes.split_first_chunk::<4>() else {
            return wrong(format!("it has {} bytes, expected a length of 4", bytes.len()));
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 || !length.is_multiple_of(4) || length > rest.len() {
            return wrong(format!(
                "its double array has {length} bytes, expected a multiple of 4 of at most {}",
                rest.len()
            ));
        }
        let (array, replacements) = rest.split_at(length);
        let units: Vec<u32> =
            array.as_chunks::<4>().0.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        if replacements.last().is_some_and(|last| *last != 0) {
            return wrong("its last replacement does not end with a zero".into());
        }
        let longest = replacements.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0);
        if longest > MAX_REPLACEMENT {
            return wrong(format!(
                "a replacement has {longest} bytes, expected at most {MAX_REPLACEMENT}"
            ));
        }
        let values = units.iter().filter(|unit| **unit & VALUE != 0).map(|unit| unit & !VALUE);
        if let Some(most) = values.max().filter(|most| *most as usize >= replacements.len()) {
            return wrong(format!(
                "a replacement at byte {most}, where there are {} bytes of them",
                replacements.len()
            ));
        }
        Ok(CharsMap { units, replacements: replacements.to_vec() })
    }

    /// Finds the longest replaced string that `text` begins with: its length in bytes, and the replacement.
    pub(crate) fn longest(&self, text: &[u8]) -> Option<(usize, &[u8])> {
        let base = |unit: u32| unit >> 10 << ((unit & 1 << 9) >> 6);
        let unit = |number: u32| self.units.get(number as usize).copied();
        let mut number = base(unit(0)?);
        let mut found = None;
        for (read, &byte) in text.iter().take(MAX_KEY).take_while(|byte| **byte != 0).enumerate() {
            number ^= u32::from(byte);
            // Values are not children.
            let Some(child) = unit(number).filter(|unit| unit & (VALUE | 0xff) == u32::from(byte))
            else {
                break;
            };
            number ^= base(child);
            if child & 1 << 8 != 0
                && let Some(value) = unit(number).filter(|unit| unit & VALUE != 0)
            {
                found = Some((read + 1, value & !VALUE));
            }
        }
        let (length, start) = found?;
        let rest = self.replacements.get(start as usize..)?;
        Some((length, rest.split(|byte| *byte == 0).next()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Units and replacements.
    type Parts = (Vec<u32>, Vec<u8>);

    /// A map from "ab" to "xyz" and from "a" to nothing.
    fn made() -> Parts {
        let mut units = vec![0u32; 1024];
        let leaf = 1 << 8;
        // From the root by XOR with 256; then by XOR with 512; then by XOR with 768.
        units[0] = 256 << 10;
        let a = 256 ^ u32::from(b'a');
        units[a as usize] = 512 << 10 | leaf | u32::from(b'a');
        units[(a ^ 512) as usize] = VALUE | 4;
        let b = a ^ 512 ^ u32::from(b'b');
        units[b as usize] = 768 << 10 | leaf | u32::from(b'b');
        units[(b ^ 768) as usize] = VALUE;
        (units, b"xyz\0\0".to_vec())
    }

    fn bytes((units, replacements): &Parts) -> Vec<u8> {
        let mut out = (4 * units.len() as u32).to_le_bytes().to_vec();
        units.iter().for_each(|unit| out.extend(unit.to_le_bytes()));
        out.extend(replacements);
        out
    }

    #[test]
    fn the_longest_is_found() {
        let map = CharsMap::parse(&bytes(&made())).unwrap();
        assert_eq!(map.longest(b"abc"), Some((2, &b"xyz"[..])));
        assert_eq!(map.longest(b"ac"), Some((1, &b""[..])));
        assert_eq!(map.longest(b"a"), Some((1, &b""[..])));
        assert_eq!(map.longest(b"b"), None);
        assert_eq!(map.longest(b""), None);
        assert_eq!(map.longest(b"\0a"), None);
    }

    #[test]
    fn what_cannot_be_is_an_error() {
        let wrong = |bytes: &[u8]| CharsMap::parse(bytes).err().unwrap().to_string();
        assert!(wrong(b"").contains("it has 0 bytes"));
        assert!(wrong(&[0; 8]).contains("its double array has 0 bytes"));
        assert!(wrong(&[2, 0, 0, 0, 0, 0]).contains("has 2 bytes, expected a multiple of 4"));
        assert!(wrong(&[255; 40]).contains("has 4294967295 bytes"));
        let with = |change: &dyn Fn(&mut Parts)| {
            let mut all = made();
            change(&mut all);
            bytes(&all)
        };
        assert!(wrong(&with(&|all| all.1.push(b'x'))).contains("does not end with a zero"));
        let long = with(&|all| all.1.splice(0..0, [b'x'; 254]).for_each(drop));
        assert!(wrong(&long).contains("a replacement has 257 bytes, expected at most 256"));
        let outside = with(&|all| all.0[7] = VALUE | 5);
        assert!(wrong(&outside).contains("at byte 5, where there are 5 bytes"));
        // Units that lead outside, in a circle, or to a unit that is no value, replace nothing.
        for unit in [u32::MAX >> 1, 256 << 10, 97 << 10 | 1 << 8 | 97] {
            for at in [0, 256 ^ usize::from(b'a')] {
                let map = CharsMap::parse(&with(&|all| all.0[at] = unit)).unwrap();
                let text = [b'a'; 1000];
                assert!(map.longest(&text).is_none_or(|(read, _)| read <= MAX_KEY));
            }
        }
    }
}
