//! The tables by which a text is encoded: of the whole vocabulary, or of what this text can need.
//!
//! A table of a quarter of a million tokens takes longer to make than a small model takes to read a short prompt. Whatever encoding
//! looks up stands in the text as the vocabulary spells it, or spells one of its bytes. So for a short text, one pass over the strings
//! of the file keeps those that begin like something in the text, and a table of these gives the same tokens. Who encodes often or
//! much gets the complete tables, once.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

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

/// Longer texts get the complete tables at once.
const SHORT: usize = 4096;
/// So many texts are encoded without the complete tables: by then those would have been as cheap.
const MOST_SHORT: u32 = 8;
/// The same of searches for special tokens, each of which looks at those only.
const MOST_SEARCHES: u32 = 64;

/// Something complete that is made when it pays.
struct Complete<T> {
    made: OnceLock<T>,
    /// How often something smaller was made instead.
    without: AtomicU32,
}

impl<T> Default for Complete<T> {
    fn default() -> Complete<T> {
        Complete { made: OnceLock::new(), without: AtomicU32::new(0) }
    }
}

impl<T> Complete<T> {
    /// For a text of `len` bytes, if it is there or from now on pays; else there have been fewer than `most` short texts.
    fn if_it_pays(&self, len: usize, most: u32, make: impl FnOnce() -> T) -> Option<&T> {
        let pays = || len > SHORT || self.without.fetch_add(1, Ordering::Relaxed) >= most;
        match self.made.get() {
            Some(made) => Some(made),
            None => pays().then(|| self.made.get_or_init(make)),
        }
    }
}

/// The complete tables and the search for all special tokens, once they are made.
#[derive(Default)]
pub(crate) struct Kept {
    tables: Complete<Tables>,
    finder: Complete<Finder>,
}

impl Kept {
    /// Calls `with` with tables that have all that a text of `len` bytes needs: what begins like something in `needed()`.
    pub(crate) fn with_tables<R>(
        &self,
        vocab: &Vocab,
        merges: Option<&Texts>,
        len: usize,
        needed: impl FnOnce() -> Beginnings,
        with: impl FnOnce(&Tables) -> R,
    ) -> R {
        match self.tables.if_it_pays(len, MOST_SHORT, || Tables::complete(vocab, merges)) {
            Some(complete) => with(complete),
            None => with(&Tables::within(vocab, merges, &needed())),
        }
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
        if let Some(finder) = self.finder.if_it_pays(text.len(), MOST_SEARCHES, complete) {
            return with(finder);
        }
        let mut within = Beginnings::with_room_for(text.len());
        within.add_within(text.as_bytes());
        let possible = |text: &[u8]| within.may_have(Beginning::of(text));
        with(&Finder::new(vocab, vocab.special().filter(|(_, text)| possible(text))))
    }
}

/// An empty set for texts of `len` bytes together, but for what stands for a byte that no other token spells.
pub(crate) fn needed_for(len: usize) -> Beginnings {
    let mut needed = Beginnings::with_room_for(len);
    (0..=255).for_each(|byte| needed.add(&spell_byte(byte)));
    needed
}
