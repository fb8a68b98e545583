//! The adapters of the rows of a batch, and what they add to products.
//!
//! Invariant: what is added to a row depends on its own adapters alone. Nothing is allocated unless a sequence begins that has adapters.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use alight_kernels::matmul::{ActivationFormats, Activations};
use alight_kernels::parallel::{Rows, Threads, each_token};
use alight_kernels::{Isa, vec};
use alight_kernels::{Layout, WeightType};
use alight_pages::MapError;

use super::batch::LogitRows;
use crate::adapters::{Adapter, AdapterSet, Change};
use crate::tensors::Projection;

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
            let buffer = || vec![0.0; self.slots * self.rank];
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

    /// The adapters of a row, and their scales.
    pub(crate) fn of_row(&self, row: usize) -> impl Iterator<Item = (&Adapter, f32)> {
        let rows = match self.only_wanted.load(Ordering::Relaxed) {
            true => &self.wanted,
            false => &self.rows,
        };
        let row = row + self.first.load(Ordering::Relaxed);
        let set = rows.get(row).filter(|number| **number != NONE);
        let set = set.and_then(|number| self.sets.get(*number as usize));
        set.into_iter().flat_map(AdapterSet::iter).map(|(adapter, scale)| (&**adapter, scale))
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

/// The row of a batch that a row of packed activations is of, if there is one; and the projection that multiplies it.
pub(crate) type RowOf<'c> = dyn Fn(usize) -> Option<usize> + Sync + 'c;

/// The additions of adapters to the products of some projections with packed activations.
pub(crate) struct Corrections<'c> {
    adapters: &'c RowAdapters,
    /// The row of the batch that a row of activations is of.
    row_of: &'c RowOf<'c>,
    isa: Isa,
    x: &'c Activations,
    /// `[rows, projections, rank]`: the products of the first factors of each row's adapters, one adapter's after the other's. Empty if nothing is added.
    ax: Vec<f32>,
    projections: usize,
}

impl<'c> Corrections<'c> {
    /// Multiplies the first factors for each row of activations. `part(row, i)` is number and index of projection `i` of its `projections` for a row.
    pub(crate) fn new<T: Threads>(
        (adapters, row_of): (&'c RowAdapters, &'c RowOf<'c>),
        threads: &mut T,
        projections: usize,
        part: &(dyn Fn(usize, usize) -> Option<(usize, usize)> + Sync),
        x: &'c Activations,
    ) -> Corrections<'c> {
        let isa = x.isa();
        let mut made = Corrections { adapters, row_of, isa, x, ax: Vec::new(), projections };
        let (rows, rank) = (x.rows().all(), adapters.rank);
        if !adapters.is_active {
            return made;
        }
        let len = rows * projections * rank;
        made.ax =
            adapters.free.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        if made.ax.len() < len.max(1) {
            made.ax.resize(len.max(1), 0.0);
        }
        if rank == 0 {
            return made;
        }
        let out = Rows::new(&mut made.ax[..len], projections * rank);
        each_token(threads, x, out, &|slot, x, ax| {
            let Some(row) = row_of(slot) else { return };
            for (i, ax) in ax.chunks_exact_mut(rank).enumerate() {
                let Some((number, index)) = part(slot, i) else { continue };
                let mut rest = ax;
                for (adapter, _) in adapters.of_row(row) {
                    for change in adapter.changes(number) {
                        let (ax, after) = rest.split_at_mut(change.rank());
                        change.first_products(isa, &adapter.map, index, x, ax);
                        rest = after;
                    }
                }
            }
        });
        made
    }

    /// Returns true if nothing is added to any row.
    pub(crate) fn is_empty(&self) -> bool {
        self.ax.is_empty()
    }

    /// Adds to the products of rows `first`, `first + step`, … of projection `i`, which has this number and index, with row `slot` of the activations.
    pub(crate) fn add(
        &self,
        (slot, i): (usize, usize),
        (number, index): (usize, usize),
        rows: (usize, usize),
        products: &mut [f32],
    ) {
        if self.is_empty() {
            return;
        }
        let Some(row) = (self.row_of)(slot) else { return };
        let rank = self.adapters.rank;
        let mut ax = &self.ax[(slot * self.projections + i) * rank..][..rank];
        for (adapter, scale) in self.adapters.of_row(row) {
            for change in adapter.changes(number) {
                let (own, rest) = ax.split_at(change.rank());
                let of = (&*adapter.map, scale);
                match change {
                    Change::Replace(matrix) => {
                        let x = self.x.float_row(slot);
                        matrix.replace(self.isa, of, x, rows, products);
                    }
                    _ => change.add(self.isa, of, (index, own), rows, products),
                }
                ax = rest;
            }
        }
    }
}

impl Drop for Corrections<'_> {
    /// Gives the buffer back.
    fn drop(&mut self) {
        if !self.ax.is_empty() {
            let ax = std::mem::take(&mut self.ax);
            let mut free = self.adapters.free.lock().unwrap_or_else(PoisonError::into_inner);
            // There is capacity for as many as were taken.
            free.push(ax);
        }
    }
}

impl Projection<'_> {
    /// Adds what adapters add to the products from row `row` on with row `slot` of the activations.
    pub(crate) fn correct(
        &self,
        corrections: &Corrections<'_>,
        slot: usize,
        row: usize,
        products: &mut [f32],
    ) {
        corrections.add((slot, 0), self.number(), self.rows_from(row), products);
    }
}
