//! Matrix products, cut into pieces of rows.

use super::{Cost, Rows, Scratch, Threads};
use crate::matmul::best::{self, Finish, Greatest};
use crate::matmul::{
    Activations, MAX_K, MatmulScratch, Matrix, Output, RowCounts, Tokens, cut_at_multiples, matmul,
};
use crate::planes::HIGH;
use crate::{Isa, vec};
use std::ops::Range;

/// Rows of a matrix in one unit of work: the number that kernels unpack at a time.
pub const UNIT_ROWS: usize = 32;

/// Bytes of weights that a thread reads per nanosecond, approximately.
pub(super) const BYTES_PER_NS: usize = 12;

/// Products that a thread adds per nanosecond for one of several tokens, approximately.
pub(super) const PRODUCTS_PER_NS: usize = 100;

/// Products that a thread keeps at a time, if there are no more tokens than that: 512 KiB, which fit the second-level cache together with
/// weights and activations.
const KEPT: usize = 128 * 1024;

/// Products with at least this many columns are kept until they are complete. They are sums over more than two stretches of columns, each of
/// which reads and writes them, and in the output those of different tokens are far apart: often by whole pages, so that they displace each
/// other in the first-level cache.
const KEPT_FROM: usize = 2 * MAX_K + 1;

/// Rows that a thread takes at once where the first ones are to be computed first.
const FIRST_ROWS: usize = 2048;

/// Returns the maximum number of f32 elements in which a thread keeps up to `of_each_row` products of each row of a matrix, or of several: see
/// [`each_kept`].
pub fn room_for_products(of_each_row: usize) -> usize {
    KEPT.max(of_each_row * UNIT_ROWS)
}

/// Some rows of a matrix, and where their products are written; what is added to them.
pub struct Product<'a> {
    matrix: Matrix<'a>,
    rows: Range<usize>,
    out: Output<'a>,
    extras: Extras<'a>,
}

/// Adds something of its own to products: `f(token, rows of the matrix, their products)`.
pub type CorrectFn<'a> = dyn Fn(usize, Range<usize>, &mut [f32]) + Sync + 'a;

/// Additions to the products of a matrix `[rows, columns]` with a token.
#[derive(Clone, Copy, Default)]
pub struct Extras<'a> {
    /// `[rows]`
    pub bias: Option<&'a [f32]>,
    /// Called before the bias is added.
    pub correct: Option<&'a CorrectFn<'a>>,
}

impl Extras<'_> {
    /// Returns true if there is nothing to add.
    pub fn is_empty(&self) -> bool {
        self.bias.is_none() && self.correct.is_none()
    }

    /// Adds rows `rows` to the products of token `t`.
    ///
    /// # Panics
    /// If they are not as long as the matrix has rows.
    pub fn add(&self, isa: Isa, t: usize, rows: Range<usize>, products: &mut [f32]) {
        if let Some(correct) = self.correct {
            correct(t, rows.clone(), products);
        }
        if let Some(bias) = self.bias {
            vec::add_assign(isa, products, &bias[rows]);
        }
    }
}

impl<'a> Product<'a> {
    /// A product of all rows; `out` has a row per token.
    pub fn new(matrix: Matrix<'a>, out: Rows<'a>) -> Product<'a> {
        let extras = Extras::default();
        Product { rows: 0..matrix.rows(), matrix, out: out.into_output().0, extras }
    }

    /// Adds `extras` to the products.
    pub fn with(self, extras: Extras<'a>) -> Product<'a> {
        Product { extras, ..self }
    }

    /// A product of rows `rows`, written to the first elements of the rows of `out` `[tokens, stride]`.
    pub fn of_rows(
        matrix: Matrix<'a>,
        rows: Range<usize>,
        out: &'a mut [f32],
        stride: usize,
    ) -> Product<'a> {
        let extras = Extras::default();
        Product { out: Output::starting_at(rows.start, out, stride), matrix, rows, extras }
    }

    /// Computes some of the rows.
    ///
    /// # Safety
    /// No other thread may access these elements of the output meanwhile.
    unsafe fn compute(&self, rows: &Range<usize>, x: &Activations, scratch: &mut impl Scratch) {
        let Product { matrix, out, .. } = self;
        if x.rows().bits8 == 0 || x.cols() < KEPT_FROM {
            scratch.with_products(0, |scratch, _| {
                // SAFETY: by the caller's promise.
                unsafe { multiply_parts(matrix, rows, x.parts(), *out, scratch) };
            });
            return;
        }
        each_kept(scratch, rows.clone(), x.rows().all(), |rows, buffer, scratch| {
            let [products] = products_of([matrix], &rows, x.parts(), buffer, scratch);
            for (t, products) in products.chunks_exact(rows.len()).enumerate() {
                // SAFETY: by the caller's promise.
                unsafe { out.row_mut(t, rows.clone()) }.copy_from_slice(products);
            }
        });
    }

    /// Returns the multiples of [`UNIT_ROWS`] that it has rows of.
    fn units(&self) -> Range<usize> {
        self.rows.start / UNIT_ROWS..self.rows.end.div_ceil(UNIT_ROWS)
    }
}

/// Processes products while they are in the cache: `f(token, rows of the matrices, [their products])`.
pub type ColumnsFn<'a, const M: usize> = dyn Fn(usize, Range<usize>, [&mut [f32]; M]) + Sync + 'a;

/// Returns the cost of rows of matrices: to read the weights, or for several tokens to multiply them.
pub(super) fn cost<'r, 'm: 'r>(
    products: impl Iterator<Item = (&'r Matrix<'m>, usize)>,
    tokens: RowCounts,
) -> Cost {
    let (mut bytes, mut weights) = (0, 0);
    for (matrix, rows) in products {
        bytes += rows * matrix.weight_type().row_bytes(matrix.cols()).unwrap_or(0);
        weights += rows * matrix.cols();
    }
    Cost::of(multiplying(weights, tokens).max(bytes / BYTES_PER_NS))
}

/// Returns the nanoseconds to multiply `weights` weights; a single token is multiplied while they are read.
pub(super) fn multiplying(weights: usize, rows: RowCounts) -> usize {
    // Tokens of 16 bits take about twice as long.
    let tokens = 2 * rows.bits16 + rows.bits8;
    if rows.all() > 1 { weights * tokens / PRODUCTS_PER_NS } else { 0 }
}

/// Multiplies packed activations with groups of matrices, in one region. A unit computes the same rows of all matrices of a group, which have
/// the same number of rows, adds their [`Extras`], and then calls `then` on its products of each token.
///
/// # Panics
/// As [`matmul`], and if the matrices of a group have different rows.
pub fn multiply<T: Threads, const M: usize>(
    threads: &mut T,
    groups: &[[Product<'_>; M]],
    x: &Activations,
    then: Option<&ColumnsFn<'_, M>>,
) {
    let same = |group: &[Product<'_>; M]| group.iter().all(|p| p.rows == group[0].rows);
    assert!(groups.iter().all(same), "matrices with different rows");
    let units = groups.iter().map(|group| group[0].units().len()).sum();
    let all = groups.as_flattened().iter().map(|p| (&p.matrix, p.rows.len()));
    threads.run(units, cost(all, x.rows()), &|range, scratch| {
        let mut base = 0;
        for group in groups {
            let first = &group[0];
            let (units, rows) = (first.units(), first.rows.clone());
            let end = base + units.len();
            let (from, to) = (range.start.max(base), range.end.min(end));
            if from < to {
                let unit = |n: usize| (units.start + n - base) * UNIT_ROWS;
                let rows = rows.start.max(unit(from))..rows.end.min(unit(to));
                for product in group {
                    // SAFETY: units have different rows, and products different outputs, which were borrowed exclusively.
                    unsafe { product.compute(&rows, x, scratch) };
                }
                let extras = group.iter().any(|product| !product.extras.is_empty());
                let tokens = if extras || then.is_some() { x.rows().all() } else { 0 };
                for t in 0..tokens {
                    let part = |i: usize| {
                        // SAFETY: as above; `matmul` has returned.
                        unsafe { group[i].out.row_mut(t, rows.clone()) }
                    };
                    let mut parts = std::array::from_fn(part);
                    if extras {
                        let products = group.iter().zip(parts.iter_mut());
                        products.for_each(|(p, part)| p.extras.add(x.isa(), t, rows.clone(), part));
                    }
                    if let Some(then) = then {
                        then(t, rows.clone(), parts);
                    }
                }
            }
            base = end;
        }
    });
}

/// Finds the rows with the greatest products, in one region: `greatest` has an entry for each token, and [`best::begin`] has returned true.
///
/// # Panics
/// As [`best::rows`].
pub fn multiply_greatest<T: Threads>(
    threads: &mut T,
    matrix: &Matrix<'_>,
    x: &Activations,
    greatest: &[Greatest],
    (out, finish): (Rows<'_>, Finish<'_>),
) {
    let (all, out) = (matrix.rows(), out.into_output().0);
    let bytes = all * matrix.cols() / 32 * HIGH;
    let nanoseconds = multiplying(all * matrix.cols(), x.rows()).max(bytes / BYTES_PER_NS);
    // All threads begin with the first rows, which are of frequent tokens: what they find leaves fewer of the others.
    let cost = Cost { take: FIRST_ROWS / UNIT_ROWS, ..Cost::of(nanoseconds) };
    threads.run(all.div_ceil(UNIT_ROWS), cost, &|units, scratch| {
        let rows = units.start * UNIT_ROWS..all.min(units.end * UNIT_ROWS);
        scratch.with_products(0, |scratch, _| {
            // SAFETY: units have different rows, and the output was borrowed exclusively.
            unsafe { best::rows(matrix, rows, x, greatest, (out, finish), scratch) };
        });
    });
}

/// Multiplies rows of a matrix with some tokens; each part of these comes with the number of its first row of the output.
///
/// # Safety
/// No other thread may access these elements of the output meanwhile.
unsafe fn multiply_parts<'t>(
    matrix: &Matrix<'_>,
    rows: &Range<usize>,
    parts: impl Iterator<Item = (usize, Tokens<'t>)>,
    out: Output<'_>,
    scratch: &mut MatmulScratch,
) {
    for (first, x) in parts {
        // SAFETY: by the caller's promise; parts have different tokens.
        unsafe { matmul(matrix, rows.clone(), x, out.skipping(first), scratch) };
    }
}

/// Cuts rows into pieces whose products a thread can keep, if there are `of_each_row` of each, and calls `f` with a buffer for these products.
pub(super) fn each_kept(
    scratch: &mut impl Scratch,
    rows: Range<usize>,
    of_each_row: usize,
    mut f: impl FnMut(Range<usize>, &mut [f32], &mut MatmulScratch),
) {
    let step = (KEPT / (of_each_row.max(1) * UNIT_ROWS)).max(1) * UNIT_ROWS;
    scratch.with_products(of_each_row * step.min(rows.len()), |scratch, buffer| {
        for rows in cut_at_multiples(rows, step) {
            let len = of_each_row * rows.len();
            f(rows, &mut buffer[..len], scratch);
        }
    });
}

/// Computes the products `[tokens, rows]` of some tokens with each of the matrices, which together fill the buffer. As [`multiply_parts`].
pub(super) fn products_of<'b, 't, const M: usize>(
    matrices: [&Matrix<'_>; M],
    rows: &Range<usize>,
    parts: impl Iterator<Item = (usize, Tokens<'t>)> + Clone,
    buffer: &'b mut [f32],
    scratch: &mut MatmulScratch,
) -> [&'b mut [f32]; M] {
    let mut buffers = buffer.chunks_exact_mut(buffer.len() / M);
    matrices.map(|matrix| {
        let products = buffers.next().expect("one of as many as there are matrices");
        let out = Output::starting_at(rows.start, products, rows.len());
        // SAFETY: the buffer was borrowed exclusively.
        unsafe { multiply_parts(matrix, rows, parts.clone(), out, scratch) };
        products
    })
}
