//! The states of recurrent layers, of one sequence.
//!
//! A state includes everything before its position, so it cannot be truncated as keys and values can. Copies of earlier states are kept instead, and
//! a truncated sequence goes back to the latest of them.

use std::ops::Range;

use super::CacheError;
use super::zeroed::Zeroed;

/// Number of earlier states that are kept.
const SNAPSHOTS: usize = 4;

/// The current states of all layers that have one, and those at some earlier positions.
pub(crate) struct States {
    /// By layer: the range of its state; empty: it has none.
    layers: Vec<Range<usize>>,
    /// Zeros at the start of a sequence.
    now: Zeroed<f32>,
    /// Ordered by position.
    snapshots: Vec<Snapshot>,
    /// Memory for further snapshots.
    spare: Vec<Zeroed<f32>>,
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

struct Snapshot {
    /// The number of tokens in it.
    position: usize,
    states: Zeroed<f32>,
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
        let spare = if end == 0 { 0 } else { SNAPSHOTS };
        Ok(States {
            layers,
            now: Zeroed::new(end)?,
            snapshots: Vec::with_capacity(SNAPSHOTS),
            spare: (0..spare).map(|_| Zeroed::new(end)).collect::<Result<_, _>>()?,
            drafts: Vec::new(),
        })
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
        let mut copy = Zeroed::new(self.now.get().len())?;
        copy.get_mut().copy_from_slice(self.now.get());
        Ok(Kept(copy))
    }

    /// The latest snapshot of at most `most` tokens: its bytes, and its number of tokens.
    pub(crate) fn snapshot(&self, most: usize) -> Option<(&[u8], usize)> {
        let snapshot = self.snapshots.iter().rfind(|snapshot| snapshot.position <= most)?;
        Some((snapshot.states.bytes(), snapshot.position))
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
        self.back_to(0);
        let filled = fill(self.now.bytes_mut());
        if filled.is_err() {
            self.back_to(0);
        }
        filled
    }

    /// Restores kept states, and drops all snapshots.
    pub(crate) fn restore(&mut self, kept: &Kept) {
        self.back_to(0);
        self.now.get_mut().copy_from_slice(kept.0.get());
    }

    /// The position of the latest snapshot; 0 without one.
    pub(crate) fn latest(&self) -> usize {
        self.snapshots.last().map_or(0, |snapshot| snapshot.position)
    }

    /// Saves a snapshot of the states, which include `position` tokens. If all snapshots are in use, the one whose neighbours are closest to each
    /// other is dropped; the latest earlier snapshot stays.
    pub(crate) fn save(&mut self, position: usize) {
        if self.is_empty() || position == self.latest() {
            return;
        }
        let mut states = self.spare.pop().unwrap_or_else(|| {
            let before = |i: usize| if i == 0 { 0 } else { self.snapshots[i - 1].position };
            let gap = |i: &usize| self.snapshots[i + 1].position - before(*i);
            let least = (0..SNAPSHOTS - 1).min_by_key(gap).expect("several snapshots");
            self.snapshots.remove(least).states
        });
        states.get_mut().copy_from_slice(self.now.get());
        self.snapshots.push(Snapshot { position, states });
    }

    /// Goes back to the latest snapshot of at most `most` tokens, or to the start, and returns that number of tokens.
    pub(crate) fn back_to(&mut self, most: usize) -> usize {
        while let Some(last) = self.snapshots.pop_if(|snapshot| snapshot.position > most) {
            self.spare.push(last.states);
        }
        match self.snapshots.last() {
            Some(snapshot) => self.now.get_mut().copy_from_slice(snapshot.states.get()),
            None => self.now.get_mut().fill(0.0),
        }
        self.latest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states() -> States {
        States::new([2, 0, 1].into_iter()).unwrap()
    }

    #[test]
    fn it_goes_back_to_the_latest_snapshot_that_is_early_enough() {
        let mut states = states();
        for position in [3, 8] {
            states.layer(0).fill(position as f32);
            states.layer(2).fill(-(position as f32));
            states.save(position);
        }
        states.layer(0).fill(9.0);
        assert_eq!(states.back_to(8), 8);
        assert_eq!((states.layer(0)[1], states.layer(2)[0]), (8.0, -8.0));
        assert_eq!(states.back_to(7), 3);
        assert_eq!((states.layer(0)[0], states.layer(2)[0]), (3.0, -3.0));
        assert!(states.layer(1).is_empty());
        assert_eq!(states.back_to(2), 0);
        assert_eq!((states.layer(0)[0], states.layer(2)[0]), (0.0, 0.0));
        assert_eq!(states.back_to(100), 0, "what came later is gone");
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

    #[test]
    fn when_there_are_too_many_the_closest_ones_go() {
        let mut states = states();
        for position in [100, 110, 300, 500, 900, 1000] {
            states.save(position);
        }
        let kept: Vec<usize> = states.snapshots.iter().map(|s| s.position).collect();
        assert_eq!(kept, [300, 500, 900, 1000], "{kept:?}");
        assert!(states.spare.is_empty());
    }
}
