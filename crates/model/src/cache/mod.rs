//! What sequences have computed: keys and values of attention, in pages of positions, and states of recurrent layers.
//!
//! Keys and values are f16. The memory of all pages is reserved and nothing of it is touched: the system gives it when a
//! position in it is first stored. Huge pages are declined, because one of them would hold many
//! positions of a head that are not used yet.

mod pages;
mod prefix;
mod states;
mod zeroed;

use alight_kernels::attention::{KvCache, KvShape};

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

pub(crate) use pages::POSITIONS;
use pages::Pages;
use prefix::PrefixIndex;
pub use prefix::reusable;
pub(crate) use prefix::{Found, NodeId, common};
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

    /// Whether prompts are kept.
    pub(crate) fn has_index(&self) -> bool {
        self.index.is_on()
    }

    /// Bytes that are kept of prompts.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.index.held()
    }

    /// Whether prompts are kept, and can be cut only where states of recurrent layers are kept as well.
    pub(crate) fn is_recurrent(&self) -> bool {
        self.index.is_on() && self.sequences.iter().any(|s| !s.states.is_empty())
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

    /// The state of a sequence in a layer.
    pub(crate) fn state(&mut self, layer: usize, sequence: usize) -> &mut [f32] {
        self.sequences[sequence].states.layer(layer)
    }

    /// Keys and values of a sequence in a layer that has some.
    pub(crate) fn kv(&self, layer: usize, sequence: usize) -> KvCache<'_> {
        self.pages.read(layer, &self.sequences[sequence].pages)
    }
}
