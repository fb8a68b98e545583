//! SentencePiece-style merging: the adjacent symbols whose joint text is the token with the highest
//! score are merged first, until no two adjacent symbols make a token.
//!
//! The algorithm is that of BPE (heap, linked list, stale candidates skipped), but with the score of
//! the merged token in place of a rank, and the whole text as one part. Among equal scores the leftmost
//! goes first. Characters that end up in no token become byte tokens `<0xHH>`.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::stop::StopCheck;
use super::symbols::{NONE, Symbol, cut, join};
use super::vocab::{Lookup, spell_byte};

/// A pair that makes a token. The greatest is merged next.
#[derive(Clone, Copy)]
struct TokenPair {
    score: f32,
    left: u32,
    right: u32,
    len: u32,
}

impl Ord for TokenPair {
    fn cmp(&self, other: &TokenPair) -> Ordering {
        // Scores are neither NaN nor −0 (see `Vocab::score`), so this order is the usual one.
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for TokenPair {
    fn partial_cmp(&self, other: &TokenPair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for TokenPair {
    fn eq(&self, other: &TokenPair) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for TokenPair {}

/// The buffers of one call of encode.
#[derive(Default)]
pub(crate) struct Spm {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<TokenPair>,
    pub(crate) check: StopCheck,
}

impl Spm {
    pub(crate) fn new(check: StopCheck) -> Spm {
        Spm { check, ..Spm::default() }
    }

    /// Appends the tokens of `text` (spaces already U+2581) to `out`. A byte without a token
    /// becomes `unknown`, or nothing if there is none.
    pub(crate) fn encode(
        &mut self,
        text: &str,
        vocab: Lookup<'_>,
        unknown: Option<u32>,
        out: &mut Vec<u32>,
    ) {
        let text = text.as_bytes();
        cut(text, &mut self.symbols);
        for right in 1..self.symbols.len() as u32 {
            self.consider(text, right - 1, right, vocab);
        }
        while let Some(found) = self.heap.pop() {
            if self.check.step() {
                return self.heap.clear();
            }
            let joined = join(&mut self.symbols, found.left, found.right, found.len);
            if let Some((prev, next)) = joined {
                self.consider(text, prev, found.left, vocab);
                self.consider(text, found.left, next, vocab);
            }
        }

        let mut at = if self.symbols.is_empty() { NONE } else { 0 };
        while at != NONE {
            let symbol = self.symbols[at as usize];
            let piece = &text[symbol.start as usize..][..symbol.len as usize];
            if let Some(id) = vocab.plain_id(piece) {
                out.push(id);
            } else {
                for &byte in piece {
                    let id = vocab.id(&spell_byte(byte)).or_else(|| vocab.plain_id(&[byte]));
                    out.extend(id.or(unknown));
                }
            }
            at = symbol.next;
        }
    }

    fn consider(&mut self, text: &[u8], left: u32, right: u32, vocab: Lookup<'_>) {
        if left == NONE || right == NONE {
            return;
        }
        let (l, r) = (self.symbols[left as usize], self.symbols[right as usize]);
        let len = l.len + r.len;
        // Symbols that are adjacent in the list are adjacent in the text.
        let joint = &text[l.start as usize..][..len as usize];
        if let Some(id) = vocab.plain_id(joint) {
            self.heap.push(TokenPair { score: vocab.score(id), left, right, len });
        }
    }
}
