//! Experts of a model that memory cannot hold, for `alight_experts`: read around the page cache when they are chosen, into slots of
//! `alight_pages`.
//!
//! A store is told by its number, which is data of a program, like the places of matrices. So a program that is kept for another process
//! says nothing of this one's stores, and a number that is of none is an error of the call. Each rank of this process has slots of its
//! own, for its own experts: a rank that waits for the disk keeps no other from its own.

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use alight_pages::slots::{SlotCounts, SlotOptions, SlotSizes, Slots, SlotsError, Span, join};

/// Where the matrices of a layer's experts are, in one of three stacks: gates, ups or downs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Of the first matrix, in the file.
    pub offset: u64,
    /// Bytes of a matrix.
    pub bytes: u64,
    /// From a matrix to the next.
    pub stride: u64,
}

/// Experts in slots, for the ranks of this process.
pub struct Store {
    number: u64,
    /// By rank: which experts it has, and their slots; `None` for ranks of other processes and those without experts.
    ranks: Vec<(Range<usize>, Option<Slots>)>,
    /// By layer: of gate, up and down, which span of an expert they are in, and where in it.
    places: Vec<[(usize, usize); 3]>,
}

/// Those that there are.
static STORES: Mutex<Vec<(u64, Weak<Store>)>> = Mutex::new(Vec::new());

/// The last number. They begin at 1 and go on, so that none is of another store later.
static LAST: AtomicU64 = AtomicU64::new(0);

impl Store {
    /// Of the file, for layers with three stacks each; of rank `i` for its experts `spans[i]`, if it is of this process (`true`). All slots
    /// together take `memory` bytes at most. What lies side by side in the file has fewer than `near` bytes in between.
    ///
    /// # Errors
    /// As of [`Slots::new`].
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
        // Those of all experts of a layer are alike.
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

    /// The store of that number, if it is still there.
    pub(crate) fn of(number: u64) -> Option<Arc<Store>> {
        let stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
        stores.iter().find(|(other, _)| *other == number).and_then(|(_, store)| store.upgrade())
    }

    /// What programs call it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The slots of a rank, and the first of its experts.
    pub(crate) fn of_rank(&self, rank: usize) -> Option<(&Range<usize>, &Slots)> {
        let (own, slots) = self.ranks.get(rank)?;
        Some((own, slots.as_ref()?))
    }

    /// Which span of an expert the gate, the up and the down of a layer are in, and where in it.
    pub(crate) fn places(&self, layer: usize) -> Option<&[(usize, usize); 3]> {
        self.places.get(layer)
    }

    /// How many slots there are for each rank that has some, and what has happened in them.
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
