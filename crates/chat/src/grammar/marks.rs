//! Answers of which only the text after a marker is held to a grammar, up to the grammar's end. Before and after it the answer is free.
//! In thinking, a marker is one only for models that call from there: others only think about calls.

use std::fmt;
use std::sync::Arc;

use alight_text::Tokenizer;
use alight_text::format::Notation;

use super::notation::StartMark;
use super::{Grammar, Mask};

/// The bytes before a marker that are looked at: blanks, or the opening of calls.
const MAX_BEFORE: usize = 24;

/// The markers of an answer, and its state.
#[derive(Clone)]
pub(crate) struct Marks {
    /// Each marker with its grammar in the initial state.
    all: Arc<[(StartMark, Grammar)]>,
    /// Bytes of the longest marker.
    longest: usize,
    /// The grammar of the marker that the answer is after, in its current state.
    now: Option<Grammar>,
    /// The end of the answer, while it is free: it contains no marker, but may contain the beginning of one.
    seen: Vec<u8>,
    notation: &'static Notation,
    /// The mark that ends the thinking that the answer is in.
    thinking: Option<&'static str>,
    /// Answer text has begun: it may mention thinking without beginning it.
    begun: bool,
    tokenizer: &'static Tokenizer,
}

impl Marks {
    /// Creates the markers for an answer in these tokens.
    pub(super) fn new(
        all: Vec<(StartMark, Grammar)>,
        notation: &'static Notation,
        tokenizer: &'static Tokenizer,
    ) -> Marks {
        let all: Arc<[(StartMark, Grammar)]> = all.into();
        let thinking = notation.thinking.iter().map(|pair| pair.open.len().max(pair.close.len()));
        let own = all.iter().map(|(mark, _)| mark.text.len() + MAX_BEFORE);
        let longest = own.chain(thinking).max().unwrap_or(0);
        let seen = Vec::new();
        Marks { all, longest, now: None, seen, notation, thinking: None, begun: false, tokenizer }
    }

    /// The same for an answer that begins in thinking, which ends with this mark.
    pub(super) fn in_thinking(self, close: &'static str) -> Marks {
        Marks { thinking: Some(close), ..self }
    }

    /// Adds a token to the text that was seen. Returns the grammar of the marker that the token completes, if any.
    fn see(&mut self, token: u32) -> Option<Grammar> {
        self.tokenizer.decode_special(token, &mut self.seen);
        loop {
            let end = |mark: &[u8]| {
                let at = self.seen.windows(mark.len()).position(|bytes| bytes == mark)?;
                Some((at, at + mark.len()))
            };
            let armed = self.thinking.is_none() || self.notation.calls.in_thinking;
            let calls = self.all.iter().filter(|_| armed);
            let place = |mark: &StartMark| {
                let found = end(mark.text.as_bytes())?;
                let before = self.seen[..found.0].trim_ascii_end();
                // Blanks that end a line are trimmed as well: then the line's end is among them.
                let blank = &self.seen[before.len()..found.0];
                let begins = blank.contains(&b'\n') || (before.is_empty() && !self.begun);
                let open = self.notation.calls.opens.iter();
                let marked = open.clone().any(|open| before.ends_with(open.as_bytes()));
                (!mark.begins_line || begins || marked).then_some(found)
            };
            let call =
                calls.filter_map(|(mark, of)| Some((place(mark)?, of))).min_by_key(|(at, _)| at.0);
            let (range, next) = match self.thinking {
                Some(close) => (end(close.as_bytes()), None),
                None => {
                    let may_think = !self.begun || self.notation.thinking_anywhere;
                    let pairs = self.notation.thinking.iter().filter(|_| may_think);
                    let found =
                        pairs.filter_map(|pair| Some((end(pair.open.as_bytes())?, pair.close)));
                    found
                        .min_by_key(|(at, _)| at.0)
                        .map_or((None, None), |(at, close)| (Some(at), Some(close)))
                }
            };
            match (range, call) {
                (Some((at, end)), call) if call.is_none_or(|((call, _), _)| at < call) => {
                    self.thinking = next;
                    self.begun = false;
                    self.seen.drain(..end);
                }
                (_, Some(((_, end), grammar))) => {
                    let mut grammar = grammar.clone();
                    let begun = grammar.accept_text(&self.seen[end..]);
                    self.seen.clear();
                    (self.thinking, self.begun) = (None, true);
                    // The rest of the token after the marker was chosen while the answer was free. If it does not match the grammar, the
                    // answer stays free.
                    return begun.then_some(grammar);
                }
                _ => {
                    let past = self.seen.len().saturating_sub(self.longest);
                    let text = self.seen.drain(..past).any(|byte| !byte.is_ascii_whitespace());
                    self.begun |= text && self.thinking.is_none();
                    return None;
                }
            }
        }
    }

    /// The size of all grammars as compiled.
    pub(super) fn bytes(&self) -> usize {
        self.all.iter().map(|(_, grammar)| grammar.bytes()).sum()
    }

    /// The keywords of their schemas that the grammars do not hold.
    pub(super) fn left_out(&self) -> impl Iterator<Item = &String> {
        self.all.iter().flat_map(|(_, grammar)| grammar.left_out())
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
