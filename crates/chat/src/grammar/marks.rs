//! Answers of which only the text after a marker is held to a grammar, up to the grammar's end. Before and after it the answer is free.

use std::fmt;
use std::sync::Arc;

use alight_text::Tokenizer;

use super::{Grammar, Mask};

/// The markers of an answer, and its state.
#[derive(Clone)]
pub(crate) struct Marks {
    /// Each marker with its grammar in the initial state.
    all: Arc<[(Box<[u8]>, Grammar)]>,
    /// Bytes of the longest marker.
    longest: usize,
    /// The grammar of the marker that the answer is after, in its current state.
    now: Option<Grammar>,
    /// The end of the answer, while it is free: it contains no marker, but may contain the beginning of one.
    seen: Vec<u8>,
    tokenizer: &'static Tokenizer,
}

impl Marks {
    /// Creates the markers for an answer in these tokens.
    pub(super) fn new(all: Vec<(String, Grammar)>, tokenizer: &'static Tokenizer) -> Marks {
        let all: Arc<[(Box<[u8]>, Grammar)]> =
            all.into_iter().map(|(mark, of)| (mark.into_bytes().into(), of)).collect();
        let longest = all.iter().map(|(mark, _)| mark.len()).max().unwrap_or(0);
        Marks { all, longest, now: None, seen: Vec::new(), tokenizer }
    }

    /// Adds a token to the text that was seen. Returns the grammar of the marker that the token completes, if any.
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
        // The rest of the token after the marker was chosen while the answer was free. If it does not match the grammar, the answer stays free.
        begun.then_some(grammar)
    }

    /// The size of all grammars as compiled.
    pub(super) fn bytes(&self) -> usize {
        self.all.iter().map(|(_, grammar)| grammar.bytes()).sum()
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
