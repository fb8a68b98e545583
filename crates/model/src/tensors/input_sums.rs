//! Sums of squares of what a projection is multiplied with, for importance matrices.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use alight_kernels::matmul::Activations;

/// The sums of the inputs of a projection, or of each of a stack. The thread that computes a step adds to them, row by row, so that they
/// depend neither on the number of threads nor on how a text was cut.
#[derive(Debug)]
pub(crate) struct InputSums {
    columns: usize,
    sums: Mutex<Sums>,
}

/// The sums so far.
#[derive(Clone, Debug)]
pub(crate) struct Sums {
    /// `[count][columns]`: of the squares.
    pub(crate) squares: Vec<f64>,
    /// `[count]`: the rows.
    pub(crate) counts: Vec<u64>,
}

impl InputSums {
    /// Sums of `count` projections of inputs of `columns` elements, of which there have been none.
    pub(crate) fn new(count: usize, columns: usize) -> InputSums {
        let sums = Sums { squares: vec![0.0; count * columns], counts: vec![0; count] };
        InputSums { columns, sums: Mutex::new(sums) }
    }

    /// Adds rows of a set, which has them as floats, to those of projection `index`.
    pub(crate) fn add(&self, index: usize, acts: &Activations, rows: Range<usize>) {
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let Sums { squares, counts } = &mut *sums;
        let squares = &mut squares[index * self.columns..][..self.columns];
        counts[index] += rows.len() as u64;
        for row in rows {
            for (sum, x) in squares.iter_mut().zip(acts.float(row)) {
                *sum += f64::from(*x) * f64::from(*x);
            }
        }
    }

    /// The sums so far.
    pub(crate) fn sums(&self) -> Sums {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
