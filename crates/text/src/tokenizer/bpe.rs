//! Byte-level BPE: the merges, and how they turn a part of text into tokens.
//!
//! A merge is kept as the file writes it, `left right` with one space between; its number is its rank.
//! A pair is looked up by writing it the same way, which is exact because neither side can contain a
//! space: byte-level text has none, and raw text has U+2581 instead. A table of merges therefore takes
//! one hash for each, with no look-up of the tokens it names. Merges that name unknown tokens do no
//! harm, since a symbol without a token is split again at the end. A merge without a space, or a
//! duplicate, is never found, as in llama.cpp.
//!
//! Merging takes O(n log n) for a part of n symbols: a heap of candidate pairs, a linked list of
//! symbols, and candidates that no longer fit are skipped when they come up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::alphabet;
use super::stop::StopCheck;
use super::symbols::{NONE, Symbol, char_len, cut, join};
use super::table::Table;
use super::texts::StringArray;
use super::vocab::{Lookup, spell_byte};

/// The merges that a text can need, by rank.
#[derive(Clone, Copy)]
pub(crate) struct Merges<'m> {
    pub(crate) texts: &'m StringArray,
    pub(crate) table: &'m Table,
}

impl Merges<'_> {
    #[inline]
    fn rank(self, left: &[u8], right: &[u8], scratch: &mut Vec<u8>) -> Option<u32> {
        scratch.clear();
        scratch.extend_from_slice(left);
        scratch.push(b' ');
        scratch.extend_from_slice(right);
        self.table.find(self.texts, scratch)
    }
}

/// A pair that could be merged. Ordered by rank, then from left to right.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: u32,
    right: u32,
    /// Total bytes of both symbols when the pair was entered: the pair is stale if they differ.
    len: u32,
}

/// The buffers of one call of encode.
#[derive(Default)]
pub(crate) struct Bpe {
    encoded: Vec<u8>,
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<Candidate>>,
    scratch: Vec<u8>,
    /// Once stopped, nothing is appended any more.
    pub(crate) check: StopCheck,
}

/// The rules for turning a part into symbols.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    pub(crate) raw_bytes: bool,
    pub(crate) ignore_merges: bool,
    pub(crate) newlines_whole: bool,
}

impl Bpe {
    pub(crate) fn new(check: StopCheck) -> Bpe {
        Bpe { check, ..Bpe::default() }
    }

    /// Appends the tokens of one part (as the pre-tokeniser cut it) to `out`.
    pub(crate) fn encode_part(
        &mut self,
        part: &str,
        vocab: Lookup<'_>,
        merges: Merges<'_>,
        manner: Manner,
        out: &mut Vec<u32>,
    ) {
        if self.check.step() {
            return;
        }
        self.encoded.clear();
        if manner.raw_bytes {
            self.encoded.extend_from_slice(part.as_bytes());
        } else {
            for byte in part.bytes() {
                alphabet::push_encoded(byte, &mut self.encoded);
            }
        }
        let whole =
            manner.ignore_merges || (manner.newlines_whole && part.bytes().all(|b| b == b'\n'));
        if whole && let Some(id) = vocab.plain_id(&self.encoded) {
            out.push(id);
            return;
        }

        cut(&self.encoded, &mut self.symbols);
        for right in 1..self.symbols.len() as u32 {
            self.consider(right - 1, right, merges);
        }
        while let Some(Reverse(found)) = self.heap.pop() {
            if self.check.step() {
                return self.heap.clear();
            }
            let joined = join(&mut self.symbols, found.left, found.right, found.len);
            if let Some((prev, next)) = joined {
                self.consider(prev, found.left, merges);
                self.consider(found.left, next, merges);
            }
        }

        let mut at = if self.symbols.is_empty() { NONE } else { 0 };
        while at != NONE {
            let symbol = self.symbols[at as usize];
            let text = &self.encoded[symbol.start as usize..][..symbol.len as usize];
            match vocab.plain_id(text) {
                Some(id) => out.push(id),
                None => fall_apart(text, vocab, manner, out),
            }
            at = symbol.next;
        }
    }

    fn consider(&mut self, left: u32, right: u32, merges: Merges<'_>) {
        if left == NONE || right == NONE {
            return;
        }
        let text = |i: u32| {
            let symbol = self.symbols[i as usize];
            &self.encoded[symbol.start as usize..][..symbol.len as usize]
        };
        let (l, r) = (text(left), text(right));
        let len = (l.len() + r.len()) as u32;
        if let Some(rank) = merges.rank(l, r, &mut self.scratch) {
            self.heap.push(Reverse(Candidate { rank, left, right, len }));
        }
    }
}

/// Splits a symbol that is no token into its characters, or into its bytes where the vocabulary
/// spells bytes. Parts without a token are left out, as in llama.cpp and Hugging Face: the unknown
/// token of such vocabularies is often the end of the text. (SmolLM2 lacks some control
/// characters.)
fn fall_apart(text: &[u8], vocab: Lookup<'_>, manner: Manner, out: &mut Vec<u32>) {
    if manner.raw_bytes {
        for &byte in text {
            out.extend(vocab.id(&spell_byte(byte)));
        }
        return;
    }
    let mut at = 0;
    while at < text.len() {
        let len = char_len(text[at]).min(text.len() - at);
        out.extend(vocab.plain_id(&text[at..at + len]));
        at += len;
    }
}
