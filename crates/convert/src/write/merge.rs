//! Adds the changes of adapters to rows of weights.

use std::ops::Range;

use alight_kernels::{Isa, vec};

/// The changes of a tensor by adapters, in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Merge {
    pub(crate) terms: Vec<Term>,
}

/// The change of a tensor by one adapter.
#[derive(Clone, Debug)]
pub(crate) enum Term {
    /// Adds a product of low rank to matrices.
    LowRank(LowRank),
    /// Adds `scale` times these numbers to a vector.
    Delta { values: Vec<f32>, scale: f32 },
}

/// A product of low rank, for rows of the tensor.
#[derive(Clone, Debug)]
pub(crate) struct LowRank {
    /// `[count][rank, columns]`
    pub(crate) a: Vec<f32>,
    /// `[count][rows, rank]`
    pub(crate) b: Vec<f32>,
    pub(crate) rank: usize,
    /// Rows of each matrix of the tensor.
    pub(crate) rows: usize,
    /// Those that it is for.
    pub(crate) of: Range<usize>,
    /// On the product.
    pub(crate) scale: f32,
    /// The norms of the changed rows (DoRA).
    pub(crate) dora: Option<Dora>,
}

/// The norms of rows, and the scale at which they are those. A row is multiplied by what brings it there: by all of that at a scale of 1 of the
/// caller's, and by nothing at 0, as in the engine.
#[derive(Clone, Debug)]
pub(crate) struct Dora {
    /// `[rows]`
    pub(crate) magnitudes: Vec<f32>,
    pub(crate) scale: f32,
    /// The caller's.
    pub(crate) strength: f32,
}

/// Buffers of one thread.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    before: Vec<f32>,
    product: Vec<f32>,
}

impl Merge {
    /// Changes one whole row, the `index`-th of the tensor. Norms are those of the base's weights, whatever other terms add.
    pub(crate) fn apply(&self, isa: Isa, index: u64, row: &mut [f32], scratch: &mut Scratch) {
        scratch.before.clear();
        scratch.before.extend_from_slice(row);
        for term in &self.terms {
            match term {
                Term::Delta { values, scale } => vec::add_times(isa, row, values, *scale),
                Term::LowRank(term) => term.apply(isa, index as usize, row, scratch),
            }
        }
    }
}

impl LowRank {
    fn apply(&self, isa: Isa, index: usize, row: &mut [f32], scratch: &mut Scratch) {
        let (matrix, of_matrix) = (index / self.rows.max(1), index % self.rows.max(1));
        if !self.of.contains(&of_matrix) {
            return;
        }
        let own = of_matrix - self.of.start;
        let Scratch { before, product } = scratch;
        product.clear();
        product.resize(row.len(), 0.0);
        let a = &self.a[matrix * self.rank * row.len()..][..self.rank * row.len()];
        let b = &self.b[(matrix * self.of.len() + own) * self.rank..][..self.rank];
        for (a, b) in a.chunks_exact(row.len().max(1)).zip(b) {
            vec::add_times(isa, product, a, *b);
        }
        vec::add_times(isa, row, product, self.scale);
        let Some(Dora { magnitudes, scale, strength }) = &self.dora else { return };
        let changed = |(w, p): (&f32, &f32)| f64::from(*w) + f64::from(*scale) * f64::from(*p);
        let norm = before.iter().zip(&*product).map(changed).map(|w| w * w).sum::<f64>().sqrt();
        let gain = f64::from(magnitudes[own]) / norm - 1.0;
        vec::scale(isa, row, (1.0 + f64::from(*strength) * gain) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_that_of_the_definition() {
        let (rows, columns, rank, count) = (4, 5, 2, 3);
        let some = |n: usize, seed: usize| -> Vec<f32> {
            (0..n).map(|i| ((i * 7 + seed * 13) % 11) as f32 - 5.0).collect()
        };
        // The first two rows of each matrix.
        let (a, b) = (some(count * rank * columns, 1), some(count * 2 * rank, 2));
        let term =
            LowRank { a: a.clone(), b: b.clone(), rank, rows, of: 0..2, scale: 0.5, dora: None };
        let merge = Merge { terms: vec![Term::LowRank(term.clone())] };
        let weights = some(count * rows * columns, 3);
        let at = |m: usize, row: usize, column: usize| weights[(m * rows + row) * columns + column];
        let product = |m: usize, row: usize, column: usize| -> f32 {
            (0..rank)
                .map(|k| b[(m * 2 + row) * rank + k] * a[(m * rank + k) * columns + column])
                .sum()
        };
        let merged = |merge: &Merge, m: usize, row: usize| {
            let mut values: Vec<f32> = (0..columns).map(|column| at(m, row, column)).collect();
            merge.apply(Isa::best(), (m * rows + row) as u64, &mut values, &mut Scratch::default());
            values
        };
        for m in 0..count {
            for row in 0..rows {
                let own = row < 2;
                let expected: Vec<f32> = (0..columns)
                    .map(|column| {
                        at(m, row, column) + if own { 0.5 * product(m, row, column) } else { 0.0 }
                    })
                    .collect();
                assert_eq!(merged(&merge, m, row), expected);
            }
        }
        // With norms of the rows.
        let one = LowRank { a: a[..rank * columns].to_vec(), b: b[..2 * rank].to_vec(), ..term };
        let dora = Some(Dora { magnitudes: vec![3.0, 4.0], scale: 0.5, strength: 1.0 });
        let merge = Merge { terms: vec![Term::LowRank(LowRank { dora, ..one })] };
        for row in 0..2 {
            let found = merged(&merge, 0, row);
            let changed: Vec<f32> = (0..columns)
                .map(|column| at(0, row, column) + 0.5 * product(0, row, column))
                .collect();
            let norm = changed.iter().map(|w| w * w).sum::<f32>().sqrt();
            for (found, changed) in found.iter().zip(changed) {
                let expected = changed * [3.0, 4.0][row] / norm;
                assert!((found - expected).abs() < 1e-5, "{found} instead of {expected}");
            }
        }
        let merge = Merge { terms: vec![Term::Delta { values: vec![1.0; columns], scale: 2.0 }] };
        assert_eq!(
            merged(&merge, 0, 0),
            (0..columns).map(|column| at(0, 0, column) + 2.0).collect::<Vec<_>>()
        );
    }
}
