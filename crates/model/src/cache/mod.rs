//! What sequences have computed: keys and values of attention, in pages of positions, and states of recurrent layers.
//!
//! Keys and values are f16. The memory of all pages is reserved and nothing of it is touched: the system gives it when a
//! position in it is first stored. Huge pages are declined, because one of them would hold many
//! positions of a head that are not used yet.

mod pages;
mod prefix;
mod states;
mod zeroed;

use std::ops::Range;

use alight_kernels::attention::{KvCache, KvShape};
use alight_pages::MapError;

use crate::positions::POSITIONS;
use crate::prompts::{Contents, Key, PromptFile, PromptFileError};

/// The system does not give the memory for what a sequence computes.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot reserve {bytes} bytes for keys, values and states: {source}; a smaller context (-c) needs less"
)]
pub struct CacheError {
    /// Bytes that were to be reserved.
    pub bytes: usize,
    /// Why.
    pub source: std::io::Error,
}

use pages::Pages;
use prefix::PrefixIndex;
pub use prefix::reusable;
pub(crate) use prefix::{Found, NodeId};
pub(crate) use states::States;

/// What some sequences have computed.
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

/// What one sequence has computed.
pub(crate) struct SequenceCache {
    /// Its pages, in the order of positions.
    pub(crate) pages: Vec<u32>,
    pub(crate) states: States,
}

impl Cache {
    /// Empty, with pages for `positions` positions of `sequences` sequences together, and for the prompts that an index of up to `kept`
    /// bytes holds. By layer: the shape of its keys and values in a page, if it has any, and the elements of its state.
    ///
    /// # Errors
    /// The system does not give the address space.
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

    /// Makes ready for positions `from..to` to be written: a sequence has the pages of its first `to` positions, and no others, and those
    /// pages that are to be written belong to it alone. Returns whether there were enough.
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

    /// Takes everything away from a sequence.
    pub(crate) fn clear(&mut self, sequence: usize) {
        let SequenceCache { pages, states } = &mut self.sequences[sequence];
        pages.drain(..).for_each(|page| self.pages.release(page));
        states.back_to(0);
        self.index.shrink(&mut self.pages);
    }

    /// Takes everything away from all sequences and from the index.
    pub(crate) fn forget(&mut self) {
        (0..self.sequences.len()).for_each(|sequence| self.clear(sequence));
        while self.index.give_up(&mut self.pages) {}
    }

    /// Gives a sequence what the index has of the beginning of `tokens`, if that is more than `least` of them.
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

    /// True if prompts are kept.
    pub(crate) fn has_index(&self) -> bool {
        self.index.is_on()
    }

    /// Bytes that are kept of prompts.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.index.held()
    }

    /// True if prompts are kept, and can be cut only where states of recurrent layers are kept as well.
    pub(crate) fn is_recurrent(&self) -> bool {
        self.index.is_on() && self.has_states()
    }

    /// True if there are recurrent layers.
    pub(crate) fn has_states(&self) -> bool {
        self.sequences.iter().any(|s| !s.states.is_empty())
    }

    /// Gets a sequence ready for drafts of up to `most` tokens.
    ///
    /// # Errors
    /// The system does not give the address space.
    pub(crate) fn get_ready_for_drafts(
        &mut self,
        sequence: usize,
        most: usize,
    ) -> Result<(), CacheError> {
        self.sequences[sequence].states.get_ready_for_drafts(most)
    }

    /// Takes what came after row `row` of the draft that a sequence has computed last out of its states.
    pub(crate) fn back_to_draft(&mut self, sequence: usize, row: usize) {
        self.sequences[sequence].states.back_to_draft(row);
    }

    /// How many tokens of a prompt the index would have if there were states of recurrent layers everywhere.
    pub(crate) fn attended(&mut self, salt: &str, tokens: &[u32]) -> usize {
        self.index.find(salt, tokens).attended
    }

    /// Adds to the index what a sequence has computed of `tokens`: whole pages, or the rest as well, which the sequence must not
    /// write to any more. It may get other pages, with the same in them.
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

    /// Keeps the states of a sequence's recurrent layers, of which all that was computed is in the index. Nothing is kept where the
    /// system gives no memory for it.
    pub(crate) fn keep_states(&mut self, sequence: usize, indexed: &Indexed) {
        let Some(node) = indexed.node.filter(|node| !self.index.has_states(*node)) else { return };
        if let Ok(kept) = self.sequences[sequence].states.kept() {
            self.index.keep_states(node, kept);
            self.index.shrink(&mut self.pages);
        }
    }

    /// Whether what was read from files can be relied on.
    ///
    /// # Errors
    /// One has become shorter, or cannot be read.
    pub(crate) fn check(&self) -> Result<(), MapError> {
        self.pages.check()
    }

    /// Bytes of memory that it takes: pages that were in use once, and states of sequences and of prompts.
    pub(crate) fn touched(&self) -> usize {
        let in_use = self.sequences.iter().filter(|sequence| !sequence.pages.is_empty());
        let states: usize = in_use.map(|sequence| sequence.states.bytes()).sum();
        self.pages.touched() + states + self.index.held_states()
    }

    /// Bytes of a page, and of a sequence's states.
    pub(crate) fn sizes(&self) -> [usize; 2] {
        [self.pages.stride(), self.sequences.first().map_or(0, |s| s.states.bytes())]
    }

    /// Maps the first `positions` positions of a prompt file of the same shape into a sequence. Returns `false` if too few pages of
    /// files are left.
    ///
    /// # Errors
    /// The file is damaged, or cannot be mapped. The sequence is empty then.
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
            // A model that has nothing but states.
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

    /// What a sequence has computed of the beginning of its prompt, to be written to a file.
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

    /// What the index has of the beginning of a prompt, to be written to a file.
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

    /// Gives up what the index has of the beginning of a prompt and no other has. Returns how many tokens that were.
    pub(crate) fn forget_prompt(&mut self, salt: &str, tokens: &[u32]) -> usize {
        self.index.forget(salt, tokens, &mut self.pages)
    }

    /// The state of a sequence in a layer.
    pub(crate) fn state(&mut self, layer: usize, sequence: usize) -> &mut [f32] {
        self.sequences[sequence].states.layer(layer)
    }

    /// A mixer has made a part of a layer's state what it is after a row of a sequence. It is kept, if the row is of a draft and later ones
    /// may have to be taken back.
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

    /// Keys and values of a sequence in a layer that has some.
    pub(crate) fn kv(&self, layer: usize, sequence: usize) -> KvCache<'_> {
        self.pages.read(layer, &self.sequences[sequence].pages)
    }
}
