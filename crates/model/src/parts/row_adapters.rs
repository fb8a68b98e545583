//! The adapters of the rows of a batch, and what they add to products.
//!
//! Invariant: what is added to a row depends on its own adapters alone. Nothing is allocated unless a sequence begins that has adapters.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use alight_kernels::matmul::{ActivationFormats, Activations};
use alight_kernels::parallel::{Place, SharedWork};
use alight_kernels::{Isa, Layout, WeightType, vec};
use alight_pages::MapError;

use super::batch::LogitRows;
use crate::adapters::{Adapter, AdapterSet, Change};
use crate::tensors::{LinearView, Projection};

/// Buffers for the products of first factors, as many as a part uses at the same time: those of a mixture's first matrices and of its shared network's.
const BUFFERS: usize = 6;

/// The number of a set that changes nothing.
const NONE: u32 = u32::MAX;

/// The adapters of the rows of a batch.
pub(crate) struct RowAdapters {
    /// By sequence of the cache.
    sets: Vec<AdapterSet>,
    /// By row: the sequence whose set it has, or [`NONE`]; and the same for the rows that are wanted.
    rows: Vec<u32>,
    wanted: Vec<u32>,
    /// True if some row has adapters.
    is_active: bool,
    /// True if only the wanted rows are left.
    only_wanted: AtomicBool,
    /// The row that is the first of the activations.
    first: AtomicUsize,
    /// The products of first factors with rows, by row and by projection: not in use.
    free: Mutex<Vec<Vec<f32>>>,
    /// The ranks that there are buffers for, and the number of products per rank.
    rank: usize,
    slots: usize,
}

/// No adapters.
pub(crate) static NO_ADAPTERS: RowAdapters = RowAdapters::none();

impl Default for RowAdapters {
    fn default() -> RowAdapters {
        RowAdapters::none()
    }
}

impl RowAdapters {
    const fn none() -> RowAdapters {
        RowAdapters {
            sets: Vec::new(),
            rows: Vec::new(),
            wanted: Vec::new(),
            is_active: false,
            only_wanted: AtomicBool::new(false),
            first: AtomicUsize::new(0),
            free: Mutex::new(Vec::new()),
            rank: 0,
            slots: 0,
        }
    }

    /// Creates an empty batch of up to `rows` rows, which parts multiply in up to `slots` places at once.
    pub(crate) fn new(rows: usize, slots: usize) -> RowAdapters {
        RowAdapters {
            rows: Vec::with_capacity(rows),
            wanted: Vec::with_capacity(rows),
            slots,
            ..RowAdapters::none()
        }
    }

    /// Gives a sequence of the cache its adapters.
    pub(crate) fn set(&mut self, sequence: usize, set: &AdapterSet) {
        if self.sets.len() <= sequence {
            if set.is_empty() {
                return;
            }
            self.sets.resize(sequence + 1, AdapterSet::default());
        }
        self.sets[sequence] = set.clone();
        if set.rank() > self.rank {
            self.rank = set.rank();
            // Memory of which nothing is touched before it is used.
            let buffer = || vec![0.0; (self.slots + BUFFERS * MAX_TOGETHER) * self.rank];
            let free = self.free.get_mut().unwrap_or_else(PoisonError::into_inner);
            *free = (0..BUFFERS).map(|_| buffer()).collect();
        }
    }

    /// Returns the adapters of a sequence of the cache.
    pub(crate) fn of_sequence(&self, sequence: usize) -> Option<&AdapterSet> {
        self.sets.get(sequence).filter(|set| !set.is_empty())
    }

    /// Removes all rows.
    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.wanted.clear();
        self.is_active = false;
        *self.only_wanted.get_mut() = false;
        *self.first.get_mut() = 0;
    }

    /// Adds rows of a sequence, of which `want` are wanted.
    pub(crate) fn push(&mut self, sequence: usize, rows: usize, want: LogitRows) {
        let number = match self.of_sequence(sequence) {
            Some(_) => sequence as u32,
            None => NONE,
        };
        self.is_active |= number != NONE;
        let wanted = match want {
            LogitRows::Nothing => 0,
            LogitRows::First | LogitRows::Last => 1,
            LogitRows::All => rows,
        };
        self.rows.extend(std::iter::repeat_n(number, rows));
        self.wanted.extend(std::iter::repeat_n(number, wanted));
    }

    /// Notes that only the wanted rows are left.
    pub(crate) fn keep_wanted(&self) {
        self.only_wanted.store(true, Ordering::Relaxed);
    }

    /// Checks that the files of all adapters of sequences are as long as they were.
    ///
    /// # Errors
    /// One has become shorter.
    pub(crate) fn check(&self) -> Result<(), MapError> {
        match self.is_active {
            true => self.sets.iter().flat_map(AdapterSet::iter).try_for_each(|(a, _)| a.check()),
            false => Ok(()),
        }
    }

    /// Makes row 0 of activations be this row.
    pub(crate) fn begin_at(&self, row: usize) {
        self.first.store(row, Ordering::Relaxed);
    }

    /// The set of a row, if it has adapters.
    fn set_of(&self, row: usize) -> Option<&AdapterSet> {
        let rows = match self.only_wanted.load(Ordering::Relaxed) {
            true => &self.wanted,
            false => &self.rows,
        };
        let row = row + self.first.load(Ordering::Relaxed);
        let set = rows.get(row).filter(|number| **number != NONE);
        set.and_then(|number| self.sets.get(*number as usize))
    }

    /// The adapters of a row, and their scales.
    pub(crate) fn of_row(&self, row: usize) -> impl Iterator<Item = (&Adapter, f32)> {
        let set = self.set_of(row).into_iter().flat_map(AdapterSet::iter);
        set.map(|(adapter, scale)| (&**adapter, scale))
    }

    /// Returns true if some row has adapters that change this projection.
    pub(crate) fn changes(&self, number: usize) -> bool {
        self.is_active
            && self
                .sets
                .iter()
                .flat_map(AdapterSet::iter)
                .any(|(a, _)| !a.changes(number).is_empty())
    }

    /// Changes the embedding of the token of a row as its adapters do.
    pub(crate) fn change_embedding(&self, isa: Isa, row: usize, token: usize, x: &mut [f32]) {
        for (adapter, scale) in self.of_row(row) {
            if let Some(embedding) = &adapter.embedding {
                embedding.apply(isa, (&adapter.map, scale), token, x);
            }
        }
    }

    /// Adds to the embedding `x` `[hidden]` of a row what its adapters add to that of its segment.
    pub(crate) fn change_segment(&self, isa: Isa, row: usize, segment: usize, x: &mut [f32]) {
        for (adapter, scale) in self.of_row(row) {
            if let Some(segments) = &adapter.segments {
                let last = segments.len() / x.len() - 1;
                let added = &segments[segment.min(last) * x.len()..][..x.len()];
                vec::add_times(isa, x, added, scale);
            }
        }
    }

    /// Adds to `formats` the one that factors are multiplied with, if some row has adapters.
    pub(crate) fn formats(&self, formats: ActivationFormats) -> ActivationFormats {
        match self.is_active {
            true => formats.and(ActivationFormats::of([(WeightType::F32, Layout::Rows)])),
            false => formats,
        }
    }
}

impl RowAdapters {
    /// Adds to `y` `[cols]` what the adapters of a row add to the product of the transpose of projection `index` of those with a number, with `x`, which
    /// is for its first rows.
    pub(crate) fn add_transposed(
        &self,
        isa: Isa,
        (row, number, index): (usize, usize, usize),
        x: &[f32],
        y: &mut [f32],
    ) {
        for (adapter, scale) in self.of_row(row) {
            for change in adapter.changes(number) {
                change.add_transposed(isa, (&adapter.map, scale), index, x, y);
            }
        }
    }
}

/// The row of a batch that a row of packed activations is of, if there is one.
pub(crate) type RowOf<'c> = dyn Fn(usize) -> Option<usize> + Sync + 'c;

/// The projections that activations are multiplied with.
#[derive(Clone, Copy)]
pub(crate) enum Multiplied<'c, 'l> {
    /// Each of these, with all rows.
    All(&'c [&'c LinearView<'l>]),
    /// The one of its place, with each slot.
    Placed(&'c (dyn Fn(usize) -> Projection<'l> + Sync + 'c), &'c [Place]),
}

impl Multiplied<'_, '_> {
    fn len(&self) -> usize {
        match self {
            Multiplied::All(linears) => linears.len(),
            Multiplied::Placed(..) => 1,
        }
    }

    /// Number and index of projection `i` of those of a slot.
    fn number(&self, slot: usize, i: usize) -> Option<(usize, usize)> {
        match self {
            Multiplied::All(linears) => Some(linears[i].number()),
            Multiplied::Placed(projection, places) => {
                Some(projection(Place::of(slot, places)?.matrix).number())
            }
        }
    }

    /// Returns true if some row's adapters change one of them.
    fn are_changed(&self, adapters: &RowAdapters) -> bool {
        match self {
            Multiplied::All(linears) => {
                linears.iter().any(|linear| adapters.changes(linear.number().0))
            }
            Multiplied::Placed(projection, places) => {
                places.iter().any(|place| adapters.changes(projection(place.matrix).number().0))
            }
        }
    }
}

/// Slots of which a thread computes the products of first factors at once: more of one adapter are faster together, and few should be enough for all threads.
const FEW_SLOTS: usize = 32;
const MAX_TOGETHER: usize = 8;

/// The additions of adapters to the products of some projections with packed activations. The products of first factors are computed by the threads of
/// the region that needs them, when the first of them does.
pub(crate) struct Corrections<'c, 'l> {
    adapters: &'c RowAdapters,
    /// The row of the batch that a row of activations is of.
    row_of: &'c RowOf<'c>,
    x: &'c Activations,
    multiplied: Multiplied<'c, 'l>,
    /// `[projections, slots, rank]`: the products of the first factors of each slot's adapters, one adapter's after the other's; `None` if nothing is
    /// added.
    work: Option<SharedWork>,
    slots: usize,
    /// Slots of a piece of the work, and pieces of each projection.
    together: usize,
    pieces: usize,
}

impl<'c, 'l> Corrections<'c, 'l> {
    pub(crate) fn new(
        (adapters, row_of): (&'c RowAdapters, &'c RowOf<'c>),
        multiplied: Multiplied<'c, 'l>,
        x: &'c Activations,
    ) -> Corrections<'c, 'l> {
        let slots = x.rows().all();
        let together = if slots <= FEW_SLOTS { 1 } else { MAX_TOGETHER };
        let pieces = slots.div_ceil(together);
        let mut made =
            Corrections { adapters, row_of, x, multiplied, work: None, slots, together, pieces };
        if adapters.is_active && multiplied.are_changed(adapters) {
            let (all, piece) = (multiplied.len() * pieces, together * adapters.rank);
            let mut buffer = adapters.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let buffer = buffer.get_or_insert_default();
            if buffer.len() < all * piece {
                buffer.resize(all * piece, 0.0);
            }
            made.work = Some(SharedWork::new(std::mem::take(buffer), all, piece));
        }
        made
    }

    /// Returns true if nothing is added to any row.
    pub(crate) fn is_empty(&self) -> bool {
        self.work.is_none()
    }

    /// Computes the products of first factors of the slots of a piece.
    fn first_products(&self, piece: usize, ax: &mut [f32]) {
        let (i, first) = (piece / self.pieces, piece % self.pieces * self.together);
        let end = self.slots.min(first + self.together);
        let of = |slot: usize| {
            let (row, number) = ((self.row_of)(slot)?, self.multiplied.number(slot, i)?);
            Some((self.adapters.set_of(row)?, number))
        };
        let (isa, rank) = (self.x.isa(), self.adapters.rank);
        let mut slot = first;
        while slot < end {
            let Some((set, (number, index))) = of(slot) else {
                slot += 1;
                continue;
            };
            let alike = |other: &usize| {
                of(*other).is_some_and(|(other, place)| {
                    place == (number, index) && other.has_adapters_of(set)
                })
            };
            let count = 1 + (slot + 1..end).take_while(alike).count();
            let mut x: [&[f32]; MAX_TOGETHER] = [&[]; MAX_TOGETHER];
            x.iter_mut().take(count).enumerate().for_each(|(j, x)| *x = self.x.float_row(slot + j));
            let mut at = (slot - first) * rank;
            for (adapter, _) in set.iter() {
                for change in adapter.changes(number) {
                    let ax = (&mut ax[at..], rank);
                    change.first_products(isa, &adapter.map, index, &x[..count], ax);
                    at += change.rank();
                }
            }
            slot += count;
        }
    }

    /// Adds to the products of rows `first`, `first + step`, … of projection `i`, which has this number and index, with row `slot` of the activations.
    pub(crate) fn add(
        &self,
        (slot, i): (usize, usize),
        (number, index): (usize, usize),
        rows: (usize, usize),
        products: &mut [f32],
    ) {
        let Some(work) = &self.work else { return };
        let Some(row) = (self.row_of)(slot) else { return };
        let all = work.get(&|piece, ax| self.first_products(piece, ax));
        let (isa, rank) = (self.x.isa(), self.adapters.rank);
        let mut ax = &all[(i * self.pieces * self.together + slot) * rank..][..rank];
        for (adapter, scale) in self.adapters.of_row(row) {
            for change in adapter.changes(number) {
                let (own, rest) = ax.split_at(change.rank());
                let of = (&*adapter.map, scale);
                match change {
                    Change::Replace(matrix) => {
                        matrix.replace(isa, of, self.x.float_row(slot), rows, products);
                    }
                    _ => change.add(isa, of, (index, own), rows, products),
                }
                ax = rest;
            }
        }
    }
}

impl Drop for Corrections<'_, '_> {
    /// Gives the buffer back.
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            let mut free = self.adapters.free.lock().unwrap_or_else(PoisonError::into_inner);
            // There is capacity for as many as were taken.
            free.push(work.into_buffer());
        }
    }
}

impl Projection<'_> {
    /// Adds what adapters add to the products from row `row` on with row `slot` of the activations.
    pub(crate) fn correct(
        &self,
        corrections: &Corrections<'_, '_>,
        slot: usize,
        row: usize,
        products: &mut [f32],
    ) {
        corrections.add((slot, 0), self.number(), self.rows_from(row), products);
    }
}
