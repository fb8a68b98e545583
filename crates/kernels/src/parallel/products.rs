//! Matrix products, cut into pieces of rows.

use super::{Cost, Rows, Scratch, Threads};
use crate::matmul::{Activations, Matrix, Output, RowCounts, matmul};
use std::ops::Range;

/// Rows of a matrix in one unit of work: what the kernels unpack at a time.
pub const UNIT_ROWS: usize = 32;

/// Bytes of weights that a thread reads in a nanosecond, about.
pub(super) const BYTES_PER_NS: usize = 12;

/// Products of a token of several that a thread adds in a nanosecond, about.
pub(super) const PRODUCTS_PER_NS: usize = 100;

/// Some rows of a matrix, and where their products go.
pub struct Product<'a> {
    matrix: Matrix<'a>,
    rows: Range<usize>,
    out: Output<'a>,
}

impl<'a> Product<'a> {
    /// All rows; `out` has a row per token.
    pub fn new(matrix: Matrix<'a>, out: Rows<'a>) -> Product<'a> {
        Product { rows: 0..matrix.rows(), matrix, out: out.into_output().0 }
    }

    /// Rows `rows`, whose products are the first elements of the rows of `out` `[tokens, stride]`.
    pub fn of_rows(
        matrix: Matrix<'a>,
        rows: Range<usize>,
        out: &'a mut [f32],
        stride: usize,
    ) -> Product<'a> {
        Product { out: Output::starting_at(rows.start, out, stride), matrix, rows }
    }

    /// Which multiples of [`UNIT_ROWS`] it has rows of.
    fn units(&self) -> Range<usize> {
        self.rows.start / UNIT_ROWS..self.rows.end.div_ceil(UNIT_ROWS)
    }
}

/// What is done to products while they are in the cache: `f(token, rows of the matrices, [their products])`.
pub type ColumnsFn<'a, const M: usize> = dyn Fn(usize, Range<usize>, [&mut [f32]; M]) + Sync + 'a;

/// What all of it takes: reading the weights, or for several tokens multiplying them.
fn cost<const M: usize>(groups: &[[Product<'_>; M]], rows: RowCounts) -> Cost {
    let bytes = |p: &Product<'_>| {
        p.rows.len() * p.matrix.weight_type().row_bytes(p.matrix.cols()).unwrap_or(0)
    };
    let all = groups.as_flattened();
    let bytes: usize = all.iter().map(bytes).sum();
    let products: usize = all.iter().map(|p| p.rows.len() * p.matrix.cols()).sum();
    Cost::of(multiplying(products, rows).max(bytes / BYTES_PER_NS))
}

/// What it takes to multiply so many weights, in nanoseconds; a single token is multiplied while they are read.
pub(super) fn multiplying(weights: usize, rows: RowCounts) -> usize {
    // Tokens of 16 bits take some twice as long.
    let tokens = 2 * rows.bits16 + rows.bits8;
    if rows.all() > 1 { weights * tokens / PRODUCTS_PER_NS } else { 0 }
}

/// Multiplies packed activations with groups of matrices, in one region. A unit computes the same rows
/// of all matrices of a group, which have equally many, and then calls `then` on what it has computed
/// for each token.
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
    threads.run(units, cost(groups, x.rows()), &|range, scratch| {
        let mut base = 0;
        for group in groups {
            let first = &group[0];
            let (units, rows) = (first.units(), first.rows.clone());
            let end = base + units.len();
            let (from, to) = (range.start.max(base), range.end.min(end));
            if from < to {
                let unit = |n: usize| (units.start + n - base) * UNIT_ROWS;
                let rows = rows.start.max(unit(from))..rows.end.min(unit(to));
                scratch.with_matmul(|scratch| {
                    for Product { matrix, out, .. } in group {
                        for (first, x) in x.parts() {
                            // SAFETY: units have different rows, products different outputs, which were borrowed
                            // exclusively, and parts different tokens.
                            unsafe {
                                matmul(matrix, rows.clone(), x, out.skipping(first), scratch)
                            };
                        }
                    }
                });
                let Some(then) = then else {
                    base = end;
                    continue;
                };
                for t in 0..x.rows().all() {
                    let part = |i: usize| {
                        // SAFETY: as above; `matmul` has returned.
                        unsafe { group[i].out.row_mut(t, rows.clone()) }
                    };
                    then(t, rows.clone(), std::array::from_fn(part));
                }
            }
            base = end;
        }
    });
}
