//! Turns the bytes of tokens into text that can be shown at once: only whole UTF-8 characters are returned.
//!
//! A character may span several tokens, so its first bytes (at most three) are kept here until the
//! rest has arrived. Bytes that can no longer become a character are returned as U+FFFD.

/// Holds back the incomplete end of a stream of bytes.
#[derive(Debug, Default, Clone)]
pub struct StreamDecoder {
    /// The bytes not yet returned; after `push`, an incomplete character.
    bytes: Vec<u8>,
    /// The text returned by the last call.
    text: String,
}

impl StreamDecoder {
    /// Creates a decoder with buffers for pieces of the usual size, so that it does not allocate per token.
    pub fn new() -> StreamDecoder {
        StreamDecoder {
            bytes: Vec::with_capacity(1024),
            // A byte that is not UTF-8 becomes three.
            text: String::with_capacity(3 * 1024),
        }
    }

    /// The buffer to append the bytes of the next token to (see
    /// [`Tokenizer::decode_bytes`](super::Tokenizer::decode_bytes)); then call [`take`](Self::take).
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends `bytes` and returns the text that is complete now.
    pub fn push(&mut self, bytes: &[u8]) -> &str {
        self.bytes.extend_from_slice(bytes);
        self.take()
    }

    /// Returns the text that is complete now; an incomplete character at the end remains.
    pub fn take(&mut self) -> &str {
        self.drain(false)
    }

    /// Returns the rest of the stream: an incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> &str {
        self.drain(true)
    }

    fn drain(&mut self, to_the_end: bool) -> &str {
        self.text.clear();
        let mut at = 0;
        while at < self.bytes.len() {
            match std::str::from_utf8(&self.bytes[at..]) {
                Ok(valid) => {
                    self.text.push_str(valid);
                    at = self.bytes.len();
                }
                Err(error) => {
                    let valid = at + error.valid_up_to();
                    // Validated above; the fallback is never used.
                    self.text.push_str(std::str::from_utf8(&self.bytes[at..valid]).unwrap_or(""));
                    match error.error_len() {
                        Some(bad) => {
                            self.text.push(char::REPLACEMENT_CHARACTER);
                            at = valid + bad;
                        }
                        None if to_the_end => {
                            self.text.push(char::REPLACEMENT_CHARACTER);
                            at = self.bytes.len();
                        }
                        None => {
                            at = valid;
                            break;
                        }
                    }
                }
            }
        }
        self.bytes.drain(..at);
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_by_byte_gives_the_same_text() {
        let text = "aé日👩‍💻\u{0}z";
        let mut decoder = StreamDecoder::new();
        let mut got = String::new();
        for byte in text.bytes() {
            let piece = decoder.push(&[byte]);
            assert!(piece.chars().count() <= 1);
            got.push_str(piece);
        }
        got.push_str(decoder.finish());
        assert_eq!(got, text);
    }

    #[test]
    fn an_incomplete_end_waits_then_becomes_one_replacement() {
        let mut decoder = StreamDecoder::new();
        assert_eq!(decoder.push(b"a\xf0\x9f\x91"), "a");
        assert_eq!(decoder.push(b""), "");
        assert_eq!(decoder.finish(), "\u{fffd}");
        assert_eq!(decoder.finish(), "");
    }

    #[test]
    fn broken_bytes_do_not_hold_back_what_follows() {
        let mut decoder = StreamDecoder::new();
        assert_eq!(decoder.push(b"\xf0\x9f"), "");
        assert_eq!(decoder.push(b"x\xffy"), "\u{fffd}x\u{fffd}y");
        assert_eq!(decoder.push(b"\x80"), "\u{fffd}");
    }

    #[test]
    fn agrees_with_the_standard_library_on_any_bytes() {
        let mut state = 1u32;
        for _ in 0..2000 {
            let bytes: Vec<u8> = (0..24)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    b"a\xc3\xa9\xe2\x96\x81\xf0\x9f\x91\xff\x80"[(state >> 24) as usize % 11]
                })
                .collect();
            let mut decoder = StreamDecoder::new();
            let mut got = String::new();
            for part in bytes.chunks(3) {
                got.push_str(decoder.push(part));
            }
            got.push_str(decoder.finish());
            assert_eq!(got, String::from_utf8_lossy(&bytes));
        }
    }
}
