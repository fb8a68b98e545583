//! The states of recurrent layers, of one sequence.
//!
//! A state includes everything before its position, so it cannot be truncated as keys and values can. Copies of earlier states are kept instead
//! ([`Places`](super::places::Places)), and a truncated sequence goes back to the latest of them.

use std::ops::Range;

use super::CacheError;
use super::zeroed::Zeroed;

/// The current states of all layers that have one.
pub(crate) struct States {
    /// By layer: the range of its state; empty: it has none.
    layers: Vec<Range<usize>>,
    /// Zeros at the start of a sequence.
    now: Zeroed<f32>,
    /// The states after each token of a draft except the last, if drafts are computed.
    drafts: Vec<Zeroed<f32>>,
}

/// A copy of the states at some position.
pub(crate) struct Kept(Zeroed<f32>);

impl Kept {
    /// Bytes of memory used.
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes().len()
    }

    /// All bytes.
    pub(crate) fn all(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl States {
    /// Creates the states of layers with these numbers of elements. Memory is allocated when it is first written.
    ///
    /// # Errors
    /// The system does not provide the address space.
    pub(crate) fn new(lens: impl Iterator<Item = usize>) -> Result<States, CacheError> {
        let mut end = 0usize;
        let layers = lens.map(|len| {
            let start = end;
            end = end.saturating_add(len);
            start..end
        });
        let layers = layers.collect();
        Ok(States { layers, now: Zeroed::new(end)?, drafts: Vec::new() })
    }

    /// Returns true if no layer has a state.
    pub(crate) fn is_empty(&self) -> bool {
        self.now.get().is_empty()
    }

    /// A layer's state.
    pub(crate) fn layer(&mut self, layer: usize) -> &mut [f32] {
        &mut self.now.get_mut()[self.layers[layer].clone()]
    }

    /// Prepares for drafts after which one of up to `most` earlier states may be restored. Memory is allocated when it is first written.
    ///
    /// # Errors
    /// The system does not provide the address space.
    pub(crate) fn get_ready_for_drafts(&mut self, most: usize) -> Result<(), CacheError> {
        while !self.is_empty() && self.drafts.len() < most {
            self.drafts.push(Zeroed::new(self.now.get().len())?);
        }
        Ok(())
    }

    /// Keeps the part of a layer's state after token `row` of a draft.
    pub(crate) fn keep_of_draft(&mut self, layer: usize, row: usize, part: Range<usize>) {
        let first = self.layers[layer].start;
        let part = first + part.start..first + part.end;
        self.drafts[row].get_mut()[part.clone()].copy_from_slice(&self.now.get()[part]);
    }

    /// Goes back to the states after token `row` of the last draft.
    pub(crate) fn back_to_draft(&mut self, row: usize) {
        if !self.is_empty() {
            std::mem::swap(&mut self.now, &mut self.drafts[row]);
        }
    }

    /// Copies the current states.
    ///
    /// # Errors
    /// The system does not provide the memory.
    pub(crate) fn kept(&self) -> Result<Kept, CacheError> {
        let mut kept = self.unsaved()?;
        self.save_to(&mut kept);
        Ok(kept)
    }

    /// The number of bytes of the states.
    pub(crate) fn bytes(&self) -> usize {
        self.now.bytes().len()
    }

    /// Overwrites the states with the bytes that `fill` writes.
    pub(crate) fn fill<E>(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let filled = fill(self.now.bytes_mut());
        if filled.is_err() {
            self.begin_again();
        }
        filled
    }

    /// Goes back to the start of a sequence.
    pub(crate) fn begin_again(&mut self) {
        self.now.get_mut().fill(0.0);
    }

    /// Restores kept states.
    pub(crate) fn restore(&mut self, kept: &Kept) {
        self.now.get_mut().copy_from_slice(kept.0.get());
    }

    /// Overwrites kept states with the current ones.
    pub(crate) fn save_to(&self, kept: &mut Kept) {
        kept.0.get_mut().copy_from_slice(self.now.get());
    }

    /// Creates memory for kept states, which is provided when they are saved.
    ///
    /// # Errors
    /// The system does not provide the address space.
    pub(crate) fn unsaved(&self) -> Result<Kept, CacheError> {
        Zeroed::new(self.now.get().len()).map(Kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states() -> States {
        States::new([2, 0, 1].into_iter()).unwrap()
    }

    #[test]
    fn kept_states_are_restored() {
        let mut states = states();
        states.layer(0).fill(3.0);
        states.layer(2).fill(-3.0);
        let mut kept = states.kept().unwrap();
        states.layer(0).fill(9.0);
        states.restore(&kept);
        assert_eq!((states.layer(0)[1], states.layer(2)[0]), (3.0, -3.0));
        states.begin_again();
        assert_eq!((states.layer(0)[1], states.layer(2)[0]), (0.0, 0.0));
        assert!(states.layer(1).is_empty());
        states.save_to(&mut kept);
        assert!(kept.all().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn it_goes_back_into_a_draft() {
        let mut states = states();
        states.get_ready_for_drafts(3).unwrap();
        for row in 0..4 {
            states.layer(0).copy_from_slice(&[row as f32, 10.0 + row as f32]);
            states.layer(2).fill(20.0 + row as f32);
            if row < 3 {
                states.keep_of_draft(0, row, 0..1);
                states.keep_of_draft(0, row, 1..2);
                states.keep_of_draft(2, row, 0..1);
            }
        }
        states.back_to_draft(1);
        assert_eq!(states.layer(0), [1.0, 11.0]);
        assert_eq!(states.layer(2), [21.0]);
        let mut none = States::new([0, 0].into_iter()).unwrap();
        none.get_ready_for_drafts(3).unwrap();
        none.back_to_draft(1);
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        let error = States::new([1 << 62, 1 << 62].into_iter()).err().unwrap();
        assert_eq!(error.bytes, usize::MAX);
    }
}
