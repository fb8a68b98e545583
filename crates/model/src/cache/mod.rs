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
pub use prefix::reusable;
pub(crate) use states::States;

/// What some sequences have computed.
pub(crate) struct Cache {
    pub(crate) pages: Pages,
    pub(crate) sequences: Vec<SequenceCache>,
}

/// What one sequence has computed.
pub(crate) struct SequenceCache {
    /// Its pages, in the order of positions.
    pub(crate) pages: Vec<u32>,
    pub(crate) states: States,
}

impl Cache {
    /// Empty, with pages for `positions` positions of `sequences` sequences together. By layer: the shape of its keys and values
    /// in a page, if it has any, and the elements of its state.
    ///
    /// # Errors
    /// The system does not give the address space.
    pub(crate) fn new(
        positions: usize,
        sequences: usize,
        shapes: &[Option<KvShape>],
        states: &[usize],
    ) -> Result<Cache, CacheError> {
        let pages = Pages::new(positions, shapes)?;
        let sequence = || -> Result<SequenceCache, CacheError> {
            let pages = Vec::with_capacity(positions.div_ceil(POSITIONS));
            Ok(SequenceCache { pages, states: States::new(states.iter().copied())? })
        };
        let sequences = (0..sequences).map(|_| sequence()).collect::<Result<_, _>>()?;
        Ok(Cache { pages, sequences })
    }

    /// Gives a sequence the pages of its first `positions` positions, and takes away others. Returns whether there were enough.
    pub(crate) fn resize(&mut self, sequence: usize, positions: usize) -> bool {
        let table = &mut self.sequences[sequence].pages;
        let count = positions.div_ceil(POSITIONS);
        for page in table.drain(count.min(table.len())..) {
            self.pages.release(page);
        }
        while table.len() < count {
            let Some(page) = self.pages.take() else { return false };
            table.push(page);
        }
        true
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
