//! The pages of layers with a window: those of positions that a later row may still see, and no others.
//!
//! A layer with a window needs no position that no later row sees. So its keys and values are in a pool of their own, and a sequence
//! gives back a page of it once no row sees any position of the page. Invariant: a row that is computed sees no page that was given back
//! ([`Cache::prepare`](super::Cache::prepare) refuses to compute one).

use std::ops::Range;

use super::pages::Pages;

/// In the place of a page that was given back. It is outside the memory, so reading it would panic.
const GIVEN_BACK: u32 = u32::MAX;

/// The pages of one sequence for layers with a window.
#[derive(Debug, Default)]
pub(crate) struct WindowPages {
    /// In the order of positions; those before `first` were given back.
    table: Vec<u32>,
    first: usize,
}

impl WindowPages {
    /// No pages yet, with memory for `most`.
    pub(crate) fn with_capacity(most: usize) -> WindowPages {
        WindowPages { table: Vec::with_capacity(most), first: 0 }
    }

    /// All pages, in the order of positions.
    pub(crate) fn table(&self) -> &[u32] {
        &self.table
    }

    /// The same, to be extended and to have pages replaced.
    pub(crate) fn table_mut(&mut self) -> &mut Vec<u32> {
        &mut self.table
    }

    /// The pages that it has.
    pub(crate) fn held(&self) -> &[u32] {
        &self.table[self.first.min(self.table.len())..]
    }

    /// The first page that it has.
    pub(crate) fn first(&self) -> usize {
        self.first
    }

    /// The page with this index, if it has that.
    pub(crate) fn page(&self, index: usize) -> Option<u32> {
        self.table.get(index).copied().filter(|_| index >= self.first)
    }

    /// Gives back the pages before `first`.
    pub(crate) fn give_back(&mut self, first: usize, pool: &mut Pages) {
        while self.first < first.min(self.table.len()) {
            pool.release(std::mem::replace(&mut self.table[self.first], GIVEN_BACK));
            self.first += 1;
        }
    }

    /// Gives back all pages.
    pub(crate) fn clear(&mut self, pool: &mut Pages) {
        self.table.drain(self.first.min(self.table.len())..).for_each(|page| pool.release(page));
        self.table.clear();
        self.first = 0;
    }

    /// Lets an empty table begin with page `first`.
    pub(crate) fn begin_at(&mut self, first: usize) {
        debug_assert!(self.table.is_empty(), "no pages");
        self.table.resize(first, GIVEN_BACK);
        self.first = first;
    }

    /// Replaces all pages by those of `other` in a range, which then have another user.
    pub(crate) fn share(&mut self, other: &WindowPages, range: Range<usize>, pool: &mut Pages) {
        let end = range.end.min(other.table.len());
        let range = range.start.max(other.first).min(end)..end;
        other.table[range.clone()].iter().for_each(|page| pool.share(*page));
        self.clear(pool);
        self.begin_at(range.start);
        self.table.extend_from_slice(&other.table[range]);
    }

    /// Takes back those of its earlier pages that `other` still has.
    pub(crate) fn share_before(&mut self, other: &WindowPages, pool: &mut Pages) {
        while let Some(page) = self.first.checked_sub(1).and_then(|before| other.page(before)) {
            pool.share(page);
            self.first -= 1;
            self.table[self.first] = page;
        }
    }
}
