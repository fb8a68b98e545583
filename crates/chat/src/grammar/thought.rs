//! Answers to a prompt that has opened thinking: free up to the mark that ends it, and held from there on.

use std::fmt;

use super::{Grammar, Mask};
use crate::thinking::VocabularyHandle;

/// The maximum number of blanks before an answer, and after the mark before it.
const MAX_BLANKS: usize = 8;

/// Thinking that the prompt has opened.
#[derive(Clone)]
pub(crate) struct Thought {
    close: &'static str,
    /// The marks that may precede an answer.
    opens: Vec<&'static [u8]>,
    /// The end of the thinking so far, or all text after it.
    seen: Vec<u8>,
    place: Place,
    vocabulary: VocabularyHandle,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Thinking,
    /// After its end: blanks and marks that belong to the notation may come, and so may the answer.
    Between,
    Answer,
}

impl Thought {
    /// Creates it for thinking that ends with `close`, before an answer that one of the marks `opens` may precede.
    pub(super) fn new(
        close: &'static str,
        opens: impl Iterator<Item = &'static str>,
        vocabulary: VocabularyHandle,
    ) -> Thought {
        let opens = opens.map(str::as_bytes).collect();
        Thought { close, opens, seen: Vec::new(), place: Place::Thinking, vocabulary }
    }

    /// The mark that ends the thinking.
    pub(super) fn close(&self) -> &'static str {
        self.close
    }

    /// The tokens that may come next, where `grammar` holds the answer.
    pub(super) fn mask(&self, grammar: &mut Grammar) -> Result<Option<Mask>, Box<str>> {
        match self.place {
            Place::Thinking => Ok(grammar.free()),
            Place::Answer => grammar.mask().map(Some),
            Place::Between => {
                let mask = match self.is_in_mark() {
                    true => grammar.nothing(),
                    false => Some(grammar.mask()?),
                };
                Ok(mask.map(|mut mask| {
                    let (mut text, tokenizer) = (Vec::new(), &self.vocabulary.tokenizer);
                    for id in 0..tokenizer.vocab_size() as u32 {
                        text.clear();
                        tokenizer.decode_special(id, &mut text);
                        let mut begins =
                            || self.answer_in(&text).filter(|answer| grammar.takes_text(answer));
                        if !text.is_empty() && (self.goes_on_with(&text) || begins().is_some()) {
                            mask.allow(id);
                        }
                    }
                    mask
                }))
            }
        }
    }

    /// Takes a token; those of the answer are the grammar's.
    pub(super) fn accept(&mut self, token: u32, grammar: &mut Grammar) {
        match self.place {
            Place::Thinking => {
                if let Some(rest) = self.think(token) {
                    self.end_thinking(rest, grammar);
                }
            }
            Place::Between => {
                let mut text = Vec::new();
                self.vocabulary.tokenizer.decode_special(token, &mut text);
                // A grammar may begin with blanks of its own.
                let begins = !self.is_in_mark() && grammar.takes(token);
                if !begins && self.goes_on_with(&text) {
                    self.seen.extend(text);
                    return;
                }
                self.place = Place::Answer;
                match self.answer_in(&text).filter(|_| !begins) {
                    Some(answer) => drop(grammar.accept_text(&answer)),
                    None => grammar.accept(token),
                }
            }
            Place::Answer => grammar.accept(token),
        }
    }

    /// Takes the text that follows the thinking in the token that ends it: blanks, a mark or its beginning, an answer's beginning.
    fn end_thinking(&mut self, rest: Vec<u8>, grammar: &mut Grammar) {
        let mut answer = rest.trim_ascii_start();
        self.seen.clear();
        if answer.is_empty() || !grammar.takes_text(answer) {
            if self.goes_on_with(&rest) {
                (self.place, self.seen) = (Place::Between, rest);
                return;
            }
            let after = self.opens.iter().find_map(|open| answer.strip_prefix(*open));
            answer = after.map_or(answer, <[u8]>::trim_ascii_start);
        }
        self.place = Place::Answer;
        // If it fails, so does the next mask.
        grammar.accept_text(answer);
    }

    /// Takes a token of the thinking. Returns the text after the mark if the token completes it.
    fn think(&mut self, token: u32) -> Option<Vec<u8>> {
        self.vocabulary.tokenizer.decode_special(token, &mut self.seen);
        let close = self.close.as_bytes();
        let found = self.seen.windows(close.len()).position(|bytes| bytes == close);
        if let Some(at) = found {
            return Some(self.seen.split_off(at + self.close.len()));
        }
        let past = self.seen.len().saturating_sub(self.close.len());
        self.seen.drain(..past);
        None
    }

    /// Returns the beginning of the answer in a token whose text begins with what comes before it: blanks, or the rest of a mark.
    fn answer_in(&self, more: &[u8]) -> Option<Vec<u8>> {
        let text = [&self.seen, more].concat();
        let rest = text.trim_ascii_start();
        let answer = match self.opens.iter().find_map(|open| rest.strip_prefix(*open)) {
            Some(after) => after.trim_ascii_start(),
            None if self.is_in_mark() => return None,
            None => rest,
        };
        let is_part = !answer.is_empty() && answer.len() < more.len();
        (is_part && text.len() - rest.len() <= MAX_BLANKS).then(|| answer.to_vec())
    }

    /// True if the text between thinking and answer ends within a mark.
    fn is_in_mark(&self) -> bool {
        let rest = self.seen.trim_ascii_start();
        !rest.is_empty() && !self.opens.iter().any(|open| rest.starts_with(open))
    }

    /// True if the text between thinking and answer may go on like this.
    fn goes_on_with(&self, more: &[u8]) -> bool {
        let text = [&self.seen, more].concat();
        let rest = text.trim_ascii_start();
        let is_blank = |text: &[u8]| text.trim_ascii().is_empty() && text.len() <= MAX_BLANKS;
        let marked =
            |open: &&[u8]| open.starts_with(rest) || rest.strip_prefix(*open).is_some_and(is_blank);
        text.len() - rest.len() <= MAX_BLANKS && (rest.is_empty() || self.opens.iter().any(marked))
    }
}

impl fmt::Debug for Thought {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Thought").finish_non_exhaustive()
    }
}
