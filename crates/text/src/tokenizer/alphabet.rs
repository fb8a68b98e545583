//! The byte alphabet of byte-level BPE: every byte is represented by one printable character.
//!
//! Bytes that are printable in Latin-1 (`!`–`~`, `¡`–`¬`, `®`–`ÿ`) represent themselves; the other
//! 68 map to the characters from U+0100 on, in order (GPT-2's `bytes_to_unicode`). So every byte is
//! one or two bytes of UTF-8, and vocabularies never contain a raw space or control character.

const fn is_itself(byte: u32) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

/// The character of every byte.
const TO_CHAR: [u16; 256] = {
    let mut table = [0u16; 256];
    let mut byte = 0;
    let mut next = 256;
    while byte < 256 {
        if is_itself(byte as u32) {
            table[byte] = byte as u16;
        } else {
            table[byte] = next;
            next += 1;
        }
        byte += 1;
    }
    table
};

/// The byte of every character below U+0144; 256 if there is none.
const TO_BYTE: [u16; 324] = {
    let mut table = [256u16; 324];
    let mut byte = 0;
    while byte < 256 {
        table[TO_CHAR[byte] as usize] = byte as u16;
        byte += 1;
    }
    table
};

/// Appends the character that represents `byte`, as UTF-8.
#[inline]
pub(crate) fn push_encoded(byte: u8, out: &mut Vec<u8>) {
    let c = TO_CHAR[byte as usize];
    if c < 0x80 {
        out.push(c as u8);
    } else {
        out.push(0xc0 | (c >> 6) as u8);
        out.push(0x80 | (c & 0x3f) as u8);
    }
}

/// Appends the bytes that `text` represents. Characters outside the alphabet are appended unchanged.
pub(crate) fn push_decoded(text: &[u8], out: &mut Vec<u8>) {
    let mut at = 0;
    while at < text.len() {
        let (c, len) = match text[at] {
            b @ 0..=0x7f => (u16::from(b), 1),
            // Two-byte sequences reach U+07FF; the alphabet ends at U+0143.
            b @ 0xc2..=0xdf if at + 1 < text.len() => {
                (u16::from(b & 0x1f) << 6 | u16::from(text[at + 1] & 0x3f), 2)
            }
            _ => (u16::MAX, 1),
        };
        match TO_BYTE.get(c as usize) {
            Some(&byte) if byte < 256 => out.push(byte as u8),
            _ => out.extend_from_slice(&text[at..at + len]),
        }
        at += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_comes_back() {
        for byte in 0..=255u8 {
            let mut encoded = Vec::new();
            push_encoded(byte, &mut encoded);
            assert!(std::str::from_utf8(&encoded).is_ok_and(|s| s.chars().count() == 1));
            let mut decoded = Vec::new();
            push_decoded(&encoded, &mut decoded);
            assert_eq!(decoded, [byte]);
        }
    }

    #[test]
    fn the_known_corners() {
        let encode = |byte| {
            let mut out = Vec::new();
            push_encoded(byte, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(encode(b' '), "Ġ");
        assert_eq!(encode(b'\n'), "Ċ");
        assert_eq!(encode(b'\t'), "ĉ");
        assert_eq!(encode(0), "Ā");
        assert_eq!(encode(0xad), "Ń");
    }

    #[test]
    fn foreign_characters_pass_through() {
        let mut out = Vec::new();
        push_decoded("aĠ▁\u{2028}日".as_bytes(), &mut out);
        assert_eq!(out, "a ▁\u{2028}日".as_bytes());
        out.clear();
        push_decoded(&[0xff, 0xc3], &mut out);
        assert_eq!(out, [0xff, 0xc3]);
    }
}
