//! Answers of which a part is held to a grammar: what comes after a mark, up to the grammar's end. Before and after it the answer is free.

use std::fmt;
use std::sync::Arc;

use alight_text::Tokenizer;

use super::{Grammar, Mask};

/// The marks of an answer, and how far it is.
#[derive(Clone)]
pub(crate) struct Marks {
    /// Each with its grammar, of which nothing was written yet.
    all: Arc<[(Box<[u8]>, Grammar)]>,
    /// Bytes of the longest.
    longest: usize,
    /// The grammar of the mark that the answer is after, and how far that one is.
    now: Option<Grammar>,
    /// The end of the answer, while it is free: it has no mark, but may have the beginning of one.
    seen: Vec<u8>,
    tokenizer: &'static Tokenizer,
}

impl Marks {
    /// Of an answer in these tokens.
    pub(super) fn new(all: Vec<(String, Grammar)>, tokenizer: &'static Tokenizer) -> Marks {
        let all: Arc<[(Box<[u8]>, Grammar)]> =
            all.into_iter().map(|(mark, of)| (mark.into_bytes().into(), of)).collect();
        let longest = all.iter().map(|(mark, _)| mark.len()).max().unwrap_or(0);
        Marks { all, longest, now: None, seen: Vec::new(), tokenizer }
    }

    /// Adds a token to what was seen. Returns the grammar of the mark that it has completed, if it has.
    fn see(&mut self, token: u32) -> Option<Grammar> {
        self.tokenizer.decode_special(token, &mut self.seen);
        let end = |mark: &[u8]| {
            let at = self.seen.windows(mark.len()).position(|bytes| bytes == mark)?;
            Some(at + mark.len())
        };
        let found = self.all.iter().find_map(|(mark, of)| Some((of, end(mark)?)));
        let Some((grammar, end)) = found else {
            self.seen.drain(..self.seen.len().saturating_sub(self.longest));
            return None;
        };
        let mut grammar = grammar.clone();
        let begun = grammar.accept_text(&self.seen[end..]);
        self.seen.clear();
        // What the token has after the mark was chosen while the answer was free. If it is another thing, it stays so.
        begun.then_some(grammar)
    }

    pub(super) fn mask(&mut self) -> Result<Option<Mask>, Box<str>> {
        self.now.as_mut().map(Grammar::mask).transpose()
    }

    pub(super) fn accept(&mut self, token: u32) {
        match &mut self.now {
            Some(grammar) => grammar.accept(token),
            None => self.now = self.see(token),
        }
        if self.now.as_ref().is_some_and(Grammar::has_ended) {
            self.now = None;
        }
    }
}

impl fmt::Debug for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Marks").finish_non_exhaustive()
    }
}
