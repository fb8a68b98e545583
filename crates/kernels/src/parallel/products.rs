//! Matrix products, cut into pieces of rows.

use super::{Cost, Cut, ProductScratch, Rows, Scratch, Threads, VALUES_PER_NS, cut_rows};
use crate::matmul::{ActivationFormats, Activations, Matrix, Output, Precision, RowCounts, matmul};
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

/// What so many rows of matrices take: to read the weights, or for several tokens to multiply them.
fn cost<'m>(products: impl Iterator<Item = (&'m Matrix<'m>, usize)>, tokens: RowCounts) -> Cost {
    let (mut bytes, mut weights) = (0, 0);
    for (matrix, rows) in products {
        bytes += rows * matrix.weight_type().row_bytes(matrix.cols()).unwrap_or(0);
        weights += rows * matrix.cols();
    }
    Cost::of(multiplying(weights, tokens).max(bytes / BYTES_PER_NS))
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

/// Products that a thread keeps until they are packed: 512 KiB, which the second-level cache has room for beside weights and activations.
const KEPT: usize = 128 * 1024;

/// What becomes of products before they are packed: `f(rows of the matrices, [their products, [tokens, rows]])` changes the first.
pub type JoinFn<'a, const M: usize> = dyn Fn(Range<usize>, [&mut [f32]; M]) + Sync + 'a;

/// Multiplies packed activations with matrices that have equally many rows, joins the products, and packs what the first have become
/// for the matrices that will be multiplied with them. A unit does all of that for its rows, so that the products of many tokens never
/// leave the cache.
///
/// Tokens of 16 bits have a scale for more values than a unit has rows. They are kept in `whole` `[their number, rows]`, and packed when all
/// units are done.
///
/// # Panics
/// As [`matmul`] and [`Activations::begin`], and if the matrices have different rows, or `whole` has less room.
pub fn multiply_and_pack<T: Threads<Scratch: ProductScratch>, const M: usize>(
    threads: &mut T,
    matrices: [&Matrix<'_>; M],
    x: &Activations,
    join: &JoinFn<'_, M>,
    (to, formats): (&mut Activations, ActivationFormats),
    whole: &mut [f32],
) {
    let width = matrices[0].rows();
    assert!(matrices.iter().all(|matrix| matrix.rows() == width), "matrices with different rows");
    let (tokens, all) = (x.rows(), x.rows().all());
    to.begin(x.isa(), tokens, width, formats);
    let slots = to.slots();
    let kept = Output::new(whole, width);
    let cost = cost(matrices.iter().map(|matrix| (*matrix, width)), tokens);
    threads.run(width.div_ceil(UNIT_ROWS), cost, &|units, scratch| {
        scratch.with_products(|scratch, products| {
            let step = (KEPT / (M * all * UNIT_ROWS)).max(1) * UNIT_ROWS;
            let end = width.min(units.end * UNIT_ROWS);
            for start in (units.start * UNIT_ROWS..end).step_by(step) {
                let rows = start..end.min(start + step);
                let mut parts = products.chunks_exact_mut(all * rows.len());
                let mut parts: [&mut [f32]; M] =
                    std::array::from_fn(|_| parts.next().expect("room for all matrices"));
                for (matrix, part) in matrices.iter().zip(&mut parts) {
                    let out = Output::starting_at(start, part, rows.len());
                    for (first, x) in x.parts() {
                        // SAFETY: the output is this thread's.
                        unsafe { matmul(matrix, rows.clone(), x, out.skipping(first), scratch) };
                    }
                }
                join(rows.clone(), parts.each_mut().map(|part| &mut **part));
                for (t, values) in parts[0].chunks_exact(rows.len()).enumerate() {
                    match tokens.precision(t) {
                        // SAFETY: units have different rows, and `whole` was borrowed exclusively.
                        Precision::Bits16 => unsafe {
                            kept.row_mut(t, rows.clone()).copy_from_slice(values);
                        },
                        // SAFETY: units have different rows.
                        Precision::Bits8 => unsafe { slots.put_columns(t, start, values) },
                    }
                }
            }
        });
    });
    if tokens.bits16 > 0 {
        let cost = tokens.bits16 * width / VALUES_PER_NS;
        let rows = [Rows::new(whole, width)];
        cut_rows(threads, tokens.bits16, Cut::default(), cost, rows, &|t, [row], _| {
            // SAFETY: each row is made once, by one thread.
            unsafe { slots.put(t, row) };
        });
    }
}
