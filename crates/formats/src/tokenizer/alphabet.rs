//! The alphabet of byte-level models: one printable character represents each byte, so that a vocabulary
//! contains neither spaces nor control characters.
//!
//! Printable bytes of Latin-1 represent themselves, the other 68 use the characters from U+0100 on, in order:
//! `bytes_to_unicode` of GPT-2's `encoder.py`.

/// The character that represents `byte`.
pub fn character(byte: u8) -> char {
    let code = u32::from(byte);
    let other = match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => return char::from(byte),
        0..=0x20 => code,
        0x7f..=0xa0 => 33 + code - 0x7f,
        0xad => 67,
    };
    // U+0100 to U+0143 are characters.
    char::from_u32(256 + other).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// `bytes` in that alphabet.
pub fn spell(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| character(*byte)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character() {
        let mut all: Vec<char> = (0..=255).map(character).collect();
        assert_eq!(all[..3], ['Ā', 'ā', 'Ă']);
        assert_eq!((all[0x20], all[0x0a], all[0x41], all[0x7f]), ('Ġ', 'Ċ', 'A', 'ġ'));
        assert_eq!((all[0xa0], all[0xad], all[0xff]), ('ł', 'Ń', 'ÿ'));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 256);
        assert_eq!(spell("é ".as_bytes()), "Ã©Ġ");
    }
}
