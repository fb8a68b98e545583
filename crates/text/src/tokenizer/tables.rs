//! The tables that encode a text: of the whole vocabulary, or of the strings that this text may need.
//!
//! Building a table of a quarter of a million tokens takes longer than a small model takes to read a short prompt. Every string that
//! encoding looks up is in the text as the vocabulary spells it, or spells one of its bytes. So for a short text, one pass over the
//! strings of the file keeps those that begin like something in the text, and a table of these gives the same tokens. Callers that
//! encode often or long texts get the complete tables, once.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::beginnings::Beginnings;
use super::finder::Finder;
use super::table::Table;
use super::texts::{Beginning, StringArray};
use super::vocab::{Vocab, spell_byte};

/// Tables of tokens and of merges; only some models have merges.
pub(crate) struct Tables {
    pub(crate) tokens: Table,
    pub(crate) merges: Table,
}

impl Tables {
    /// Tables of all strings.
    fn complete(vocab: &Vocab, merges: Option<&StringArray>) -> Tables {
        let tokens = || Table::complete(vocab.texts());
        let Some(merges) = merges else {
            return Tables { tokens: tokens(), merges: Table::default() };
        };
        // The two do not depend on each other.
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("alight-merges".into());
            let other = thread.spawn_scoped(scope, || Table::complete(merges));
            let tokens = tokens();
            let merges = match other {
                // A panic there would be a bug here: propagate it.
                Ok(other) => other.join().unwrap_or_else(|p| std::panic::resume_unwind(p)),
                // The system refuses another thread.
                Err(_) => Table::complete(merges),
            };
            Tables { tokens, merges }
        })
    }

    /// Tables of the strings whose beginnings are in `needed`.
    fn within(vocab: &Vocab, merges: Option<&StringArray>, needed: &Beginnings) -> Tables {
        let tokens = Table::select(vocab.texts(), |text| needed.may_have(text.beginning));
        let within = |text: Beginning| needed.may_have(text.without_space());
        let merges = merges.map(|all| Table::select(all, |text| within(text.beginning)));
        Tables { tokens, merges: merges.unwrap_or_default() }
    }
}

/// Longer texts get the complete object at once.
const SHORT: usize = 4096;
/// The cost of a complete object, in the unit of the next two.
const WHOLE: u64 = 64;
/// The minimum cost of tables for one text: a pass over all strings.
const PASS: u64 = WHOLE / 8;
/// The minimum cost of searching one text for special tokens: a pass over those.
const SEARCH: u64 = 1;

/// A complete object, made once smaller ones for single texts have cost as much. So their total cost is at most a few times the minimum,
/// whatever the vocabulary.
struct Complete<T> {
    made: OnceLock<T>,
    spent: AtomicU64,
}

impl<T> Default for Complete<T> {
    fn default() -> Complete<T> {
        Complete { made: OnceLock::new(), spent: AtomicU64::new(0) }
    }
}

impl<T> Complete<T> {
    /// The complete object for a text of `len` bytes, if it exists or is worth making.
    fn if_it_pays(&self, len: usize, make: impl FnOnce() -> T) -> Option<&T> {
        let pays = || len > SHORT || self.spent.load(Ordering::Relaxed) >= WHOLE;
        match self.made.get() {
            Some(made) => Some(made),
            None => pays().then(|| self.made.get_or_init(make)),
        }
    }

    /// Records that a smaller object was made, which cost at least `least` and has `part` of the `all` entries.
    fn spend(&self, least: u64, part: usize, all: usize) {
        let cost = least + WHOLE * part as u64 / all.max(1) as u64;
        self.spent.fetch_add(cost, Ordering::Relaxed);
    }
}

/// Tables, and searches for special tokens, made as texts need them.
#[derive(Default)]
pub(crate) struct OnDemand {
    tables: Complete<Tables>,
    finder: Complete<Finder>,
}

impl OnDemand {
    /// Calls `with` with tables that have all strings that a text of `len` bytes needs: those whose beginnings are in `needed()`.
    pub(crate) fn with_tables<R>(
        &self,
        vocab: &Vocab,
        merges: Option<&StringArray>,
        len: usize,
        needed: impl FnOnce() -> Beginnings,
        with: impl FnOnce(&Tables) -> R,
    ) -> R {
        if let Some(tables) = self.tables.if_it_pays(len, || Tables::complete(vocab, merges)) {
            return with(tables);
        }
        let tables = Tables::within(vocab, merges, &needed());
        let all = vocab.len() + merges.map_or(0, StringArray::len);
        self.tables.spend(PASS, tables.tokens.len() + tables.merges.len(), all);
        with(&tables)
    }

    /// Returns the complete tables, making them if necessary.
    pub(crate) fn complete(&self, vocab: &Vocab, merges: Option<&StringArray>) -> &Tables {
        self.tables.made.get_or_init(|| Tables::complete(vocab, merges))
    }

    /// Returns the complete tables if they have been made.
    pub(crate) fn made(&self) -> Option<&Tables> {
        self.tables.made.get()
    }

    /// Calls `with` with a search for all special tokens that `text` can spell.
    pub(crate) fn with_finder<R>(
        &self,
        vocab: &Vocab,
        text: &str,
        with: impl FnOnce(&Finder) -> R,
    ) -> R {
        let complete = || Finder::new(vocab, vocab.special());
        if let Some(finder) = self.finder.if_it_pays(text.len(), complete) {
            return with(finder);
        }
        let mut within = Beginnings::with_room_for(text.len());
        within.add_within(text.as_bytes());
        let (mut part, mut all) = (0, 0);
        let possible = vocab.special().filter(|(_, text)| {
            let possible = within.may_have(Beginning::of(text));
            all += text.len();
            part += if possible { text.len() } else { 0 };
            possible
        });
        let finder = Finder::new(vocab, possible);
        self.finder.spend(SEARCH, part, all);
        with(&finder)
    }
}

/// Creates a set for texts with a total of `len` bytes that contains only the spellings of byte tokens.
pub(crate) fn needed_for(len: usize) -> Beginnings {
    let mut needed = Beginnings::with_room_for(len);
    (0..=255).for_each(|byte| needed.add(&spell_byte(byte)));
    needed
}
