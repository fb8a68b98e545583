//! Answers to a prompt that has opened thinking: free up to the mark that ends it, and held from there on.

use std::fmt;

use alight_text::Tokenizer;

/// Thinking that the prompt has opened.
#[derive(Clone)]
pub(crate) struct Thought {
    close: &'static [u8],
    /// The end of the text so far.
    seen: Vec<u8>,
    ended: bool,
    tokenizer: &'static Tokenizer,
}

impl Thought {
    /// Creates it for thinking that ends with this mark.
    pub(super) fn new(close: &'static str, tokenizer: &'static Tokenizer) -> Thought {
        Thought { close: close.as_bytes(), seen: Vec::new(), ended: false, tokenizer }
    }

    /// True after the mark.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Takes a token of the thinking. Returns the text after the mark if the token completes it, without the blanks before an answer.
    pub(super) fn accept(&mut self, token: u32) -> Option<Vec<u8>> {
        self.tokenizer.decode_special(token, &mut self.seen);
        let found = self.seen.windows(self.close.len()).position(|bytes| bytes == self.close);
        match found {
            Some(at) => {
                self.ended = true;
                let rest = self.seen.split_off(at + self.close.len());
                self.seen = Vec::new();
                Some(rest.trim_ascii_start().to_vec())
            }
            None => {
                let past = self.seen.len().saturating_sub(self.close.len());
                self.seen.drain(..past);
                None
            }
        }
    }
}

impl fmt::Debug for Thought {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Thought").finish_non_exhaustive()
    }
}
