//! The computed state of sequences: keys and values of attention, in pages of positions, and states of recurrent layers.
//!
//! Keys and values are f16. The address space of all pages is reserved and not touched: the system provides memory when a position in it is first
//! stored. Huge pages are declined, because one of them would hold many positions of a head that are not used yet.

mod pages;
mod prefix;
mod states;
mod zeroed;

use std::ops::Range;

use alight_kernels::attention::{KvCache, KvShape};
use alight_pages::MapError;

use crate::positions::POSITIONS;
use crate::prompts::{Contents, Key, PromptFile, PromptFileError};

/// The system does not provide the memory for the computed state of a sequence.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot reserve {} for keys, values and states: {source}; a smaller context (-c) needs less",
    alight_types::units::bytes(*.bytes as u64)
)]
pub struct CacheError {
    /// The number of bytes to be reserved.
    pub bytes: usize,
    /// The reason.
    pub source: std::io::Error,
}

use pages::Pages;
use prefix::PrefixIndex;
pub use prefix::reusable;
pub(crate) use prefix::{Found, NodeId};
pub(crate) use states::States;

/// The computed state of several sequences.
pub(crate) struct Cache {
    pub(crate) pages: Pages,
    pub(crate) sequences: Vec<SequenceCache>,
    index: PrefixIndex,
}

/// The part of a prompt that is in the index: whole pages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Indexed {
    node: Option<NodeId>,
    pages: usize,
}

/// The computed state of one sequence.
pub(crate) struct SequenceCache {
    /// Its pages, in the order of positions.
    pub(crate) pages: Vec<u32>,
    pub(crate) states: States,
}

impl Cache {
    /// Creates an empty cache, with pages for `positions` positions of `sequences` sequences together, and for the prompts in an index of up to
    /// `kept` bytes. By layer: the shape of its keys and values in a page, if it has any, and the number of elements of its state.
    ///
    /// # Errors
    /// The system does not provide the address space.
    pub(crate) fn new(
        positions: usize,
        sequences: usize,
        kept: usize,
        shapes: &[Option<KvShape>],
        states: &[usize],
    ) -> Result<Cache, CacheError> {
        let pages = Pages::new(positions, kept, shapes)?;
        let sequence = || -> Result<SequenceCache, CacheError> {
            let pages = Vec::with_capacity(positions.div_ceil(POSITIONS));
            Ok(SequenceCache { pages, states: States::new(states.iter().copied())? })
        };
        let sequences = (0..sequences).map(|_| sequence()).collect::<Result<Vec<_>, _>>()?;
        let recurrent = states.iter().any(|len| *len > 0);
        let index = PrefixIndex::new(kept, pages.count(), recurrent);
        Ok(Cache { pages, sequences, index })
    }

    /// Prepares positions `from..to` for writing: the sequence has exactly the pages of its first `to` positions, and the pages to be written belong
    /// to it alone. Returns false if there were not enough pages.
    pub(crate) fn prepare(&mut self, sequence: usize, from: usize, to: usize) -> bool {
        let table = &mut self.sequences[sequence].pages;
        let count = to.div_ceil(POSITIONS);
        for page in table.drain(count.min(table.len())..) {
            self.pages.release(page);
        }
        for i in from / POSITIONS..count {
            let shared = table.get(i).copied();
            if shared.is_some_and(|page| self.pages.is_writable(page)) {
                continue;
            }
            let page = loop {
                match self.pages.take() {
                    Some(page) => break page,
                    None if self.index.give_up(&mut self.pages) => {}
                    None => return false,
                }
            };
            let Some(shared) = shared else {
                table.push(page);
                continue;
            };
            if i * POSITIONS < from {
                self.pages.copy(shared, page);
            }
            self.pages.release(shared);
            table[i] = page;
        }
        true
    }

    /// Removes everything that a sequence has.
    pub(crate) fn clear(&mut self, sequence: usize) {
        let SequenceCache { pages, states } = &mut self.sequences[sequence];
        pages.drain(..).for_each(|page| self.pages.release(page));
        states.back_to(0);
        self.index.shrink(&mut self.pages);
    }

    /// Removes everything that the sequences and the index have.
    pub(crate) fn forget(&mut self) {
        (0..self.sequences.len()).for_each(|sequence| self.clear(sequence));
        while self.index.give_up(&mut self.pages) {}
    }

    /// Assigns to a sequence the indexed beginning of `tokens`, if that is more than `least` of them.
    pub(crate) fn adopt(
        &mut self,
        sequence: usize,
        salt: &str,
        tokens: &[u32],
        least: usize,
    ) -> Option<(Found, Indexed)> {
        let found = self.index.find(salt, tokens);
        if found.positions <= least {
            return None;
        }
        self.clear(sequence);
        let SequenceCache { pages: table, states } = &mut self.sequences[sequence];
        self.index.pages_of(&found, table);
        table.iter().for_each(|page| self.pages.share(*page));
        if let Some(kept) = self.index.states_of(&found) {
            states.restore(kept);
        }
        Some((found, Indexed { node: found.node, pages: found.positions / POSITIONS }))
    }

    /// Returns true if prompts are kept.
    pub(crate) fn has_index(&self) -> bool {
        self.index.is_on()
    }

    /// Bytes used by kept prompts.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.index.held()
    }

    /// Returns true if prompts are kept, and can be split only where states of recurrent layers are kept as well.
    pub(crate) fn is_recurrent(&self) -> bool {
        self.index.is_on() && self.has_states()
    }

    /// Returns true if there are recurrent layers.
    pub(crate) fn has_states(&self) -> bool {
        self.sequences.iter().any(|s| !s.states.is_empty())
    }

    /// Prepares a sequence for drafts of up to `most` tokens.
    ///
    /// # Errors
    /// The system does not provide the address space.
    pub(crate) fn get_ready_for_drafts(
        &mut self,
        sequence: usize,
        most: usize,
    ) -> Result<(), CacheError> {
        self.sequences[sequence].states.get_ready_for_drafts(most)
    }

    /// Reverts the states of a sequence to those after row `row` of its last draft.
    pub(crate) fn back_to_draft(&mut self, sequence: usize, row: usize) {
        self.sequences[sequence].states.back_to_draft(row);
    }

    /// The number of tokens of a prompt that the index would have if recurrent states were available everywhere.
    pub(crate) fn attended(&mut self, salt: &str, tokens: &[u32]) -> usize {
        self.index.find(salt, tokens).attended
    }

    /// Adds the computed part of `tokens` of a sequence to the index: whole pages, or the rest as well, which the sequence must not write to any
    /// more. It may be assigned other pages with the same contents.
    pub(crate) fn add(
        &mut self,
        sequence: usize,
        salt: &str,
        tokens: &[u32],
        rest: bool,
        indexed: &mut Indexed,
    ) {
        if !self.index.is_on() {
            return;
        }
        let table = &mut self.sequences[sequence].pages;
        for tokens in tokens.chunks(POSITIONS).skip(indexed.pages) {
            if tokens.len() < POSITIONS && !rest {
                break;
            }
            let own = &mut table[indexed.pages];
            let (node, page) = self.index.add(salt, indexed.node, tokens, *own, &mut self.pages);
            if page != *own && tokens.len() == POSITIONS {
                self.pages.share(page);
                self.pages.release(std::mem::replace(own, page));
            }
            *indexed = Indexed { node: Some(node), pages: indexed.pages + 1 };
        }
        self.index.shrink(&mut self.pages);
    }

    /// Keeps the recurrent states of a sequence, all of whose computed tokens are in the index. Nothing is kept if the system provides no memory for
    /// it.
    pub(crate) fn keep_states(&mut self, sequence: usize, indexed: &Indexed) {
        let Some(node) = indexed.node.filter(|node| !self.index.has_states(*node)) else { return };
        if let Ok(kept) = self.sequences[sequence].states.kept() {
            self.index.keep_states(node, kept);
            self.index.shrink(&mut self.pages);
        }
    }

    /// Checks that the data read from files is reliable.
    ///
    /// # Errors
    /// A file has become shorter, or cannot be read.
    pub(crate) fn check(&self) -> Result<(), MapError> {
        self.pages.check()
    }

    /// Bytes of memory in use: pages that have been used at least once, and states of sequences and of prompts.
    pub(crate) fn touched(&self) -> usize {
        let in_use = self.sequences.iter().filter(|sequence| !sequence.pages.is_empty());
        let states: usize = in_use.map(|sequence| sequence.states.bytes()).sum();
        self.pages.touched() + states + self.index.held_states()
    }

    /// The bytes of a page, and of a sequence's states.
    pub(crate) fn sizes(&self) -> [usize; 2] {
        [self.pages.stride(), self.sequences.first().map_or(0, |s| s.states.bytes())]
    }

    /// Maps the first `positions` positions of a prompt file of the same shape into a sequence. Returns `false` if there are not enough pages left
    /// for files.
    ///
    /// # Errors
    /// The file is damaged, or cannot be mapped. The sequence is then empty.
    pub(crate) fn restore(
        &mut self,
        sequence: usize,
        file: &PromptFile,
        positions: usize,
    ) -> Result<bool, PromptFileError> {
        self.clear(sequence);
        let SequenceCache { pages: table, states } = &mut self.sequences[sequence];
        if !states.is_empty() {
            states.fill(|bytes| file.read_states(bytes))?;
        }
        let bytes = file.pages(positions.div_ceil(POSITIONS));
        if bytes.is_empty() {
            // The model has only states.
            return Ok(true);
        }
        let Some(pages) = self.pages.put(&file.map, bytes)? else {
            states.back_to(0);
            return Ok(false);
        };
        table.extend(pages.clone());
        let wrong = pages
            .clone()
            .find(|page| !file.is_page((page - pages.start) as usize, self.pages.bytes_of(*page)));
        if wrong.is_some() {
            self.clear(sequence);
            let what = "the checksum of a page is wrong".to_owned();
            return Err(PromptFileError::Damaged { what });
        }
        Ok(true)
    }

    /// The computed beginning of a sequence's prompt, to be written to a file.
    pub(crate) fn contents<'c>(
        &'c self,
        sequence: usize,
        key: Key,
        name: &'c str,
        tokens: &'c [u32],
    ) -> Option<Contents<'c>> {
        let SequenceCache { pages: table, states } = &self.sequences[sequence];
        let pages = table.get(..tokens.len().div_ceil(POSITIONS))?;
        let pages = pages.iter().map(|page| self.pages.bytes_of(*page)).collect();
        // The last token of a prompt is always computed.
        let kept = match states.is_empty() {
            true => None,
            false => Some(states.snapshot(tokens.len().saturating_sub(1))?),
        };
        Some(Contents { key, name, tokens, pages, states: kept })
    }

    /// The indexed beginning of a prompt, to be written to a file.
    pub(crate) fn indexed_contents<'c>(
        &'c mut self,
        salt: &str,
        key: Key,
        name: &'c str,
        tokens: &'c [u32],
    ) -> Option<Contents<'c>> {
        let found = self.index.find(salt, tokens);
        let mut table = Vec::new();
        self.index.pages_of(&found, &mut table);
        let pages = table.iter().map(|page| self.pages.bytes_of(*page)).collect();
        let kept = self.index.states_of(&found);
        let states = kept.map(|kept| (kept.all(), found.positions));
        let tokens = &tokens[..found.positions];
        (!tokens.is_empty()).then_some(Contents { key, name, tokens, pages, states })
    }

    /// Drops the indexed beginning of a prompt, except for what other prompts share with it. Returns the number of tokens dropped.
    pub(crate) fn forget_prompt(&mut self, salt: &str, tokens: &[u32]) -> usize {
        self.index.forget(salt, tokens, &mut self.pages)
    }

    /// The state of a sequence in a layer.
    pub(crate) fn state(&mut self, layer: usize, sequence: usize) -> &mut [f32] {
        self.sequences[sequence].states.layer(layer)
    }

    /// Called when a mixer has updated a part of a layer's state after a row of a sequence. The part is kept if the row belongs to a draft and later
    /// rows may have to be taken back.
    pub(crate) fn keep_of_draft(
        &mut self,
        layer: usize,
        (sequence, row): (usize, Option<usize>),
        part: Range<usize>,
    ) {
        if let Some(row) = row {
            self.sequences[sequence].states.keep_of_draft(layer, row, part);
        }
    }

    /// The keys and values of a sequence in a layer that has them.
    pub(crate) fn kv(&self, layer: usize, sequence: usize) -> KvCache<'_> {
        self.pages.read(layer, &self.sequences[sequence].pages)
    }
}
