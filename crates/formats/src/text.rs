//! Makes text from a file safe for an error message: short, and without control characters (a hostile name must
//! not be able to write escape sequences to a terminal).

use std::fmt::Write;

/// Maximum bytes of a name that an error message repeats.
const SHOWN: usize = 96;

/// `bytes` as a quoted, escaped string, truncated after [`SHOWN`] bytes.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(SHOWN)];
    let mut out = String::with_capacity(cut.len() + 8);
    out.push('"');
    for chunk in cut.utf8_chunks() {
        out.extend(chunk.valid().chars().flat_map(char::escape_debug));
        for byte in chunk.invalid() {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out.push('"');
    if cut.len() < bytes.len() {
        let _ = write!(out, "… ({} bytes)", bytes.len());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn control_characters_and_bad_utf8_are_escaped_and_long_text_is_cut() {
        assert_eq!(shown(b"blk.0.attn_q"), "\"blk.0.attn_q\"");
        assert_eq!(shown(b"a\x1b[31m\0\xff"), r#""a\u{1b}[31m\0\xff""#);
        let long = shown(&[b'x'; 70_000]);
        assert!(long.len() < 140 && long.ends_with("(70000 bytes)"), "{long}");
    }
}
