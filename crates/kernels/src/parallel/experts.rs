//! Products of many matrices of one shape, each with its own tokens: the experts of a mixture.
//!
//! Tokens are sorted by their matrix, so that each matrix is read once for all of its tokens. The first half ([`multiply_banks`]) cuts
//! every matrix into rows. The second ([`multiply_and_sum`]) cuts the output: a unit computes the same rows of all matrices, keeps the
//! product of each token with each of its matrices separate, and sums them in the order in which the token lists them. So the result
//! of a token depends neither on the threads nor on the other tokens.
//!
//! Where matrices are processed one after another, [`multiply_banks`] computes those products too, into memory that keeps all of them,
//! and [`sum`] sums them: by the same operations in the same order.

use super::pack_products::Packing;
use super::products::{BYTES_PER_NS, each_kept, multiplying};
use super::{Cost, Rows, Scratch, Threads, UNIT_ROWS};
use crate::matmul::{Activations, MatmulScratch, Matrix, Output, RowCounts, matmul};
use crate::{Isa, vec};
use std::ops::Range;

/// The slots, of one precision, that go through a matrix. There may be none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The matrix.
    pub matrix: usize,
    /// The first slot.
    pub first: usize,
    /// Number of slots.
    pub slots: usize,
}

impl Place {
    /// Returns the range of slots.
    pub fn range(&self) -> Range<usize> {
        self.first..self.first + self.slots
    }

    /// Returns the one of `places`, which are in order, that a slot is in; none if it is between them.
    pub fn of(slot: usize, places: &[Place]) -> Option<&Place> {
        let place = places.get(places.partition_point(|place| place.range().end <= slot))?;
        (place.first <= slot).then_some(place)
    }
}

/// `M` stacks of matrices, each with `rows` rows. Slot `i` is token `i` of `x`; it is multiplied with the matrices of its place.
pub struct Bank<'a, const M: usize> {
    /// Rows of each matrix.
    rows: usize,
    matrices: &'a (dyn Fn(usize) -> [Matrix<'a>; M] + Sync),
    x: &'a Activations,
    places: &'a [Place],
}

impl<'a, const M: usize> Bank<'a, M> {
    /// Creates a bank. `matrices(e)` returns those of place `e`, with `rows` rows each.
    ///
    /// # Panics
    /// If places overlap or are not consecutive.
    pub fn new(
        rows: usize,
        matrices: &'a (dyn Fn(usize) -> [Matrix<'a>; M] + Sync),
        x: &'a Activations,
        places: &'a [Place],
    ) -> Bank<'a, M> {
        let apart = |pair: &[Place]| pair[0].range().end <= pair[1].first;
        assert!(places.windows(2).all(apart), "slots of two places");
        Bank { rows, matrices, x, places }
    }

    /// Returns the number of slots, used or not.
    fn slots(&self) -> usize {
        self.places.last().map_or(0, |place| place.range().end)
    }

    /// Returns the number of units of each matrix.
    fn units(&self) -> usize {
        self.rows.div_ceil(UNIT_ROWS)
    }

    /// Returns the estimated time: for reading the weights, or for several tokens for multiplying them.
    fn nanoseconds(&self) -> usize {
        let Some(place) = self.places.first() else { return 0 };
        let row_bytes = |m: &Matrix<'_>| m.weight_type().row_bytes(m.cols()).unwrap_or(0);
        let bytes: usize = (self.matrices)(place.matrix).iter().map(row_bytes).sum();
        let cost = |place: &Place| {
            if place.slots == 0 {
                return 0;
            }
            let rows = RowCounts::new(self.x.rows().precision(place.first), place.slots);
            self.rows * multiplying(M * self.x.cols(), rows).max(bytes / BYTES_PER_NS)
        };
        self.places.iter().map(cost).sum()
    }
}

/// Processes products while they are in the cache: `f(bank, slot, matrix, rows, [their products])`.
pub type SlotFn<'a> = dyn Fn(usize, usize, usize, Range<usize>, &mut [f32]) + Sync + 'a;

/// Transforms products before they are packed: `f(bank, place, rows, [their products, [slots of the place, rows]])` changes the first.
pub type PlaceFn<'a, const M: usize> =
    dyn Fn(usize, &Place, Range<usize>, [&mut [f32]; M]) + Sync + 'a;

/// Processes rows of a place of a bank.
type RowsFn<'a, S> = dyn Fn(usize, &Place, Range<usize>, &mut S) + Sync + 'a;

/// Calls `f` for all rows of all places of all banks that have slots, in one region.
fn each_place<'r, 'b: 'r, T: Threads, const M: usize>(
    threads: &mut T,
    banks: impl Iterator<Item = &'r Bank<'b, M>> + Clone + Sync,
    f: &RowsFn<'_, T::Scratch>,
) {
    let units = banks.clone().map(|bank| bank.places.len() * bank.units()).sum();
    let cost = Cost::of(banks.clone().map(Bank::nanoseconds).sum());
    threads.run(units, cost, &|range, scratch| {
        let mut base = 0;
        for (b, bank) in banks.clone().enumerate() {
            for place in bank.places {
                let (first, end) = (base, base + bank.units());
                base = end;
                let (from, to) = (range.start.max(first), range.end.min(end));
                if from < to && place.slots > 0 {
                    let end = bank.rows.min((to - first) * UNIT_ROWS);
                    f(b, place, (from - first) * UNIT_ROWS..end, scratch);
                }
            }
        }
    });
}

/// Multiplies the slots of all banks with their matrices, in one region: each output has a row per slot.
///
/// # Panics
/// As [`matmul`], and if an output has fewer rows.
pub fn multiply_banks<T: Threads, const B: usize>(
    threads: &mut T,
    banks: [Bank<'_, 1>; B],
    outputs: [Rows<'_>; B],
    then: &SlotFn<'_>,
) {
    let outputs = outputs.map(|rows| rows.into_output().0);
    each_place(threads, banks.iter(), &|b, place, rows, scratch| {
        let (bank, out) = (&banks[b], outputs[b]);
        let ([matrix], x) = ((bank.matrices)(place.matrix), bank.x.tokens_in(place.range()));
        // SAFETY: units have different rows or different places, whose slots are different, and outputs were borrowed exclusively.
        scratch.with_products(0, |scratch, _| unsafe {
            matmul(&matrix, rows.clone(), x, out.skipping(place.first), scratch);
        });
        for slot in place.range() {
            // SAFETY: as above; `matmul` has returned.
            let products = unsafe { out.row_mut(slot, rows.clone()) };
            then(b, slot, place.matrix, rows.clone(), products);
        }
    });
}

/// Multiplies the slots of the banks that are present with their matrices, joins the products, and packs the first of each slot after
/// that, as [`multiply_and_pack`](super::multiply_and_pack) does.
///
/// # Panics
/// As [`matmul`], and if the packed set does not have the slots and rows of its bank.
pub fn multiply_banks_and_pack<T: Threads, const M: usize, const B: usize>(
    threads: &mut T,
    banks: [Option<(Bank<'_, M>, Packing<'_>)>; B],
    join: &PlaceFn<'_, M>,
) {
    let both = || banks.iter().flatten();
    // Otherwise values of different tokens would share a place.
    assert!(
        both().all(|(bank, packing)| packing.suits(bank.x, bank.rows)),
        "activations of another shape"
    );
    each_place(threads, both().map(|(bank, _)| bank), &|b, place, rows, scratch| {
        let (bank, packing) = both().nth(b).expect("a bank that there is");
        let (matrices, x) = ((bank.matrices)(place.matrix), bank.x.tokens_in(place.range()));
        let (slots, part) = ((place.first, place.slots), std::iter::once((0, x)));
        let join = |rows: Range<usize>, products: [&mut [f32]; M]| join(b, place, rows, products);
        // SAFETY: units have different rows or different places, whose slots are different.
        unsafe { packing.compute(matrices.each_ref(), rows, slots, part, &join, scratch) };
    });
    for (bank, packing) in both() {
        packing.end(threads, &|slot| Place::of(slot, bank.places).is_some());
    }
}

/// A term of a token's sum: the product of a slot, times a weight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Term {
    /// The slot. Numbers of a second bank continue from the end of the first.
    pub slot: usize,
    /// The factor.
    pub weight: f32,
}

/// Multiplies the slots of all banks with their matrices, which all have `rows` rows, and sums for each token the products that
/// `terms` `[tokens, per token]` lists, in that order, in one region: `out` `[tokens, rows]`. `then` may change products before that.
///
/// # Panics
/// As [`matmul`]; if banks have different rows, `out` has fewer tokens, or a term's slot does not exist.
pub fn multiply_and_sum<T: Threads, const B: usize>(
    threads: &mut T,
    isa: Isa,
    banks: [Bank<'_, 1>; B],
    then: &SlotFn<'_>,
    (terms, per_token): (&[Term], usize),
    out: Rows<'_>,
) {
    let rows = banks.first().map_or(0, |bank| bank.rows);
    assert!(banks.iter().all(|bank| bank.rows == rows), "matrices with different rows");
    let slots: usize = banks.iter().map(Bank::slots).sum();
    let (out, _) = out.into_output();
    let cost = Cost::of(banks.iter().map(Bank::nanoseconds).sum());
    threads.run(rows.div_ceil(UNIT_ROWS), cost, &|units, scratch| {
        let rows = units.start * UNIT_ROWS..rows.min(units.end * UNIT_ROWS);
        each_kept(scratch, rows, slots, |rows, products, scratch| {
            let width = rows.len();
            keep_apart(&banks, &rows, then, scratch, products);
            for (token, terms) in terms.chunks_exact(per_token).enumerate() {
                // SAFETY: units have different rows, and the output was borrowed exclusively.
                let out = unsafe { out.row_mut(token, rows.clone()) };
                out.fill(0.0);
                for term in terms {
                    let product = &products[term.slot * width..][..width];
                    vec::add_times(isa, out, product, term.weight);
                }
            }
        });
    });
}

/// Sums for each token the products `[slots, width]` that `terms` `[tokens, per token]` lists, in that order: `out` `[tokens, width]`.
///
/// # Panics
/// If `out` has fewer tokens, or a term's slot does not exist.
pub fn sum<T: Threads>(
    threads: &mut T,
    isa: Isa,
    products: &[f32],
    (terms, per_token): (&[Term], usize),
    out: Rows<'_>,
) {
    let width = out.width();
    let (out, _) = out.into_output();
    let cost = Cost::of(terms.len() * width * size_of::<f32>() / BYTES_PER_NS);
    threads.run(width.div_ceil(UNIT_ROWS), cost, &|units, _| {
        let columns = units.start * UNIT_ROWS..width.min(units.end * UNIT_ROWS);
        for (token, terms) in terms.chunks_exact(per_token).enumerate() {
            // SAFETY: units have different columns, and the output was borrowed exclusively.
            let out = unsafe { out.row_mut(token, columns.clone()) };
            out.fill(0.0);
            for term in terms {
                let product = &products[term.slot * width..][..width][columns.clone()];
                vec::add_times(isa, out, product, term.weight);
            }
        }
    });
}

/// Computes `rows` of the products of every slot, `[slots, rows]`, kept separate.
fn keep_apart<const B: usize>(
    banks: &[Bank<'_, 1>; B],
    rows: &Range<usize>,
    then: &SlotFn<'_>,
    scratch: &mut MatmulScratch,
    mut sums: &mut [f32],
) {
    let width = rows.len();
    for (b, bank) in banks.iter().enumerate() {
        let (own, rest) = std::mem::take(&mut sums).split_at_mut(bank.slots() * width);
        sums = rest;
        for place in bank.places.iter().filter(|place| place.slots > 0) {
            let products = &mut own[place.first * width..][..place.slots * width];
            let out = Output::starting_at(rows.start, products, width);
            let [matrix] = (bank.matrices)(place.matrix);
            let x = bank.x.tokens_in(place.range());
            // SAFETY: the output is this thread's.
            unsafe { matmul(&matrix, rows.clone(), x, out, scratch) };
            for (slot, products) in place.range().zip(products.chunks_exact_mut(width)) {
                then(b, slot, place.matrix, rows.clone(), products);
            }
        }
    }
}
