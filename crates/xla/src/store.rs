//! Experts of a model that does not fit in memory, for `alight_experts`: read around the page cache when they are chosen, into
//! slots of `alight_pages`.
//!
//! A store is identified by its number, which is data of a program, like the places of matrices. So a program that is kept for
//! another process contains nothing of this one's stores, and an unknown number is an error of the call. Each rank of this process
//! has its own slots, for its own experts: a rank that waits for the disk does not delay the others.

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use alight_pages::slots::{SlotCounts, SlotOptions, SlotSizes, Slots, SlotsError, Span, join};

/// The locations of the matrices of a layer's experts, in one of three stacks: gates, ups or downs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Offset of the first matrix, in the file.
    pub offset: u64,
    /// Bytes of a matrix.
    pub bytes: u64,
    /// Bytes from one matrix to the next.
    pub stride: u64,
}

/// Experts in slots, for the ranks of this process.
pub struct Store {
    number: u64,
    /// By rank: its experts and their slots; `None` for ranks of other processes and those without experts.
    ranks: Vec<(Range<usize>, Option<Slots>)>,
    /// By layer: for gate, up and down, the span of an expert that contains it, and its offset in the span.
    places: Vec<[(usize, usize); 3]>,
}

/// All live stores.
static STORES: Mutex<Vec<(u64, Weak<Store>)>> = Mutex::new(Vec::new());

/// The last number used. Numbers start at 1 and are never reused.
static LAST: AtomicU64 = AtomicU64::new(0);

impl Store {
    /// Creates a store on the file, for layers with three stacks each. Rank `i` has the experts `ranks[i].0`, and slots if it is in
    /// this process (`ranks[i].1`). All slots together use at most `memory` bytes. Parts that alternate in the file, with fewer than
    /// `near` bytes in between, are read together.
    ///
    /// # Errors
    /// As for [`Slots::new`].
    pub fn new(
        file: (&File, PathBuf),
        layers: &[[Stack; 3]],
        ranks: &[(Range<usize>, bool)],
        near: u64,
        memory: u64,
        options: SlotOptions,
    ) -> Result<Arc<Store>, SlotsError> {
        let parts = |stacks: &[Stack; 3], expert: usize| {
            let parts = stacks.map(|stack| {
                let start = stack.offset + expert as u64 * stack.stride;
                let span = Span { file: 0, range: start..start + stack.bytes };
                (span, stack.stride != stack.bytes)
            });
            join(&parts, near)
        };
        // The same for all experts of a layer.
        let places = layers.iter().map(|stacks| {
            let (_, places) = parts(stacks, 0);
            [places[0], places[1], places[2]]
        });
        let own: usize = ranks.iter().filter(|(_, here)| *here).map(|(own, _)| own.len()).sum();
        let slots = |(own_of_rank, here): &(Range<usize>, bool)| {
            if !here || own_of_rank.is_empty() || layers.is_empty() {
                return Ok((own_of_rank.clone(), None));
            }
            let pieces =
                |stacks| own_of_rank.clone().map(|expert| parts(stacks, expert).0).collect();
            let groups = layers.iter().map(pieces).collect();
            let budget = (u128::from(memory) * own_of_rank.len() as u128 / own as u128) as u64;
            let slots = Slots::new(&[(file.0, file.1.clone())], &groups, budget, options)?;
            Ok((own_of_rank.clone(), Some(slots)))
        };
        let slots = ranks.iter().map(slots).collect::<Result<Vec<_>, SlotsError>>()?;
        let mut stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
        stores.retain(|(_, store)| store.strong_count() > 0);
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let store = Arc::new(Store { number, ranks: slots, places: places.collect() });
        stores.push((number, Arc::downgrade(&store)));
        Ok(store)
    }

    /// The store of that number, if it still exists.
    pub(crate) fn of(number: u64) -> Option<Arc<Store>> {
        let stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
        stores.iter().find(|(other, _)| *other == number).and_then(|(_, store)| store.upgrade())
    }

    /// Its number in programs.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The experts of a rank, and its slots.
    pub(crate) fn of_rank(&self, rank: usize) -> Option<(&Range<usize>, &Slots)> {
        let (own, slots) = self.ranks.get(rank)?;
        Some((own, slots.as_ref()?))
    }

    /// For gate, up and down of a layer, the span of an expert that contains it, and its offset in the span.
    pub(crate) fn places(&self, layer: usize) -> Option<&[(usize, usize); 3]> {
        self.places.get(layer)
    }

    /// The sizes of the slots and their counts, for each rank that has slots.
    pub fn report(&self) -> Vec<(SlotSizes, SlotCounts)> {
        let slots = self.ranks.iter().filter_map(|(_, slots)| slots.as_ref());
        slots.map(|slots| (slots.sizes(), slots.counts())).collect()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let mut stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
        stores.retain(|(number, _)| *number != self.number);
    }
}
