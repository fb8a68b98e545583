//! The tables by which a text is encoded: of the whole vocabulary, or of what this text can need.
//!
//! A table of a quarter of a million tokens takes longer to make than a small model takes to read a short prompt. Whatever encoding
//! looks up stands in the text as the vocabulary spells it, or spells one of its bytes. So for a short text, one pass over the strings
//! of the file keeps those that begin like something in the text, and a table of these gives the same tokens. Who encodes often or
//! much gets the complete tables, once.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::beginnings::Beginnings;
use super::finder::Finder;
use super::table::Table;
use super::texts::{Beginning, Texts};
use super::vocab::{Vocab, spell_byte};

/// Tables of tokens, and of merges, which only some models have.
pub(crate) struct Tables {
    pub(crate) tokens: Table,
    pub(crate) merges: Table,
}

impl Tables {
    /// Of everything.
    fn complete(vocab: &Vocab, merges: Option<&Texts>) -> Tables {
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
                // A panic there would be a defect of ours: let it be seen.
                Ok(other) => other.join().unwrap_or_else(|p| std::panic::resume_unwind(p)),
                // The system gives no more threads.
                Err(_) => Table::complete(merges),
            };
            Tables { tokens, merges }
        })
    }

    /// Of what begins like something in `needed`.
    fn within(vocab: &Vocab, merges: Option<&Texts>, needed: &Beginnings) -> Tables {
        let tokens = Table::select(vocab.texts(), |text| needed.may_have(text.beginning));
        let within = |text: Beginning| needed.may_have(text.without_space());
        let merges = merges.map(|all| Table::select(all, |text| within(text.beginning)));
        Tables { tokens, merges: merges.unwrap_or_default() }
    }
}

/// Longer texts get what is complete at once.
const SHORT: usize = 4096;
/// What a complete thing costs, in the unit of the next two.
const WHOLE: u64 = 64;
/// What it costs at least to make tables for one text: a pass over all strings.
const PASS: u64 = WHOLE / 8;
/// What it costs at least to search one text for special tokens: a pass over those.
const SEARCH: u64 = 1;

/// Something complete, made when smaller ones for single texts have cost as much. So all of them together cost a few times what they have
/// to at most, whatever the vocabulary is.
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
    /// For a text of `len` bytes, if it is there or is worth making.
    fn if_it_pays(&self, len: usize, make: impl FnOnce() -> T) -> Option<&T> {
        let pays = || len > SHORT || self.spent.load(Ordering::Relaxed) >= WHOLE;
        match self.made.get() {
            Some(made) => Some(made),
            None => pays().then(|| self.made.get_or_init(make)),
        }
    }

    /// Something smaller was made, which cost `least` and has `part` of all that the complete one has.
    fn spend(&self, least: u64, part: usize, all: usize) {
        let cost = least + WHOLE * part as u64 / all.max(1) as u64;
        self.spent.fetch_add(cost, Ordering::Relaxed);
    }
}

/// Tables, and searches for special tokens, as texts ask for them.
#[derive(Default)]
pub(crate) struct OnDemand {
    tables: Complete<Tables>,
    finder: Complete<Finder>,
}

impl OnDemand {
    /// Calls `with` with tables that have all that a text of `len` bytes needs: what begins like something in `needed()`.
    pub(crate) fn with_tables<R>(
        &self,
        vocab: &Vocab,
        merges: Option<&Texts>,
        len: usize,
        needed: impl FnOnce() -> Beginnings,
        with: impl FnOnce(&Tables) -> R,
    ) -> R {
        if let Some(tables) = self.tables.if_it_pays(len, || Tables::complete(vocab, merges)) {
            return with(tables);
        }
        let tables = Tables::within(vocab, merges, &needed());
        let all = vocab.len() + merges.map_or(0, Texts::len);
        self.tables.spend(PASS, tables.tokens.len() + tables.merges.len(), all);
        with(&tables)
    }

    /// The complete tables.
    pub(crate) fn complete(&self, vocab: &Vocab, merges: Option<&Texts>) -> &Tables {
        self.tables.made.get_or_init(|| Tables::complete(vocab, merges))
    }

    /// The same, if they have been made.
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

/// An empty set for texts of `len` bytes together, except for what stands for a byte that no other token spells.
pub(crate) fn needed_for(len: usize) -> Beginnings {
    let mut needed = Beginnings::with_room_for(len);
    (0..=255).for_each(|byte| needed.add(&spell_byte(byte)));
    needed
}
