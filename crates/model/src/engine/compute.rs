//! Kernels over the threads of the pool: how the work on rows and on matrices is cut into units.
//!
//! Every unit has rows, or columns of rows, of its own, and each thread has scratch of its own: that is proved here once,
//! for all parts of the network. The cut follows from shapes and positions, never from the number of threads, so neither
//! do the results. Nothing here allocates.

use std::ops::Range;

use alight_kernels::Isa;
use alight_kernels::matmul::{ActivationFormats, Activations, Matrix, matmul};

use super::buffers::Scratch;
use super::rows::Rows;
use crate::pool::{PerThread, Pool};

/// Rows of a matrix in one unit of work: what the kernels unpack at a time.
const UNIT_ROWS: usize = 32;
/// Rows that a thread takes at once in the steps that go row by row.
const ROWS_PER_TAKE: usize = 16;

/// The kernels' SIMD level, and the threads that they run on.
#[derive(Clone, Copy)]
pub(crate) struct Compute<'m> {
    pub(crate) pool: &'m Pool,
    pub(crate) isa: Isa,
}

/// How rows are cut into units.
#[derive(Clone, Copy)]
pub(crate) struct Cut {
    /// Rows of a unit.
    pub(crate) rows: usize,
    /// Rows by which the first unit is shorter.
    pub(crate) skipped: usize,
    /// Units that a thread takes at once, at most.
    pub(crate) take: usize,
    /// Whether the calling thread computes all of them.
    pub(crate) alone: bool,
}

impl Default for Cut {
    /// Row by row.
    fn default() -> Cut {
        Cut { rows: 1, skipped: 0, take: ROWS_PER_TAKE, alone: false }
    }
}

/// What is done to a row: `f(row, [that row of each buffer], the thread's scratch)`.
pub(crate) type RowFn<'a, const N: usize> =
    dyn Fn(usize, [&mut [f32]; N], &mut Scratch) + Sync + 'a;

/// As [`RowFn`]; hands the row that it makes to its last argument, which packs it.
pub(crate) type PackFn<'a, const N: usize> =
    dyn Fn(usize, [&mut [f32]; N], &mut Scratch, &dyn Fn(&[f32])) + Sync + 'a;

/// What is done to products while they are in the cache: `f(row, columns, [these columns of each output])`.
pub(crate) type ColumnsFn<'a, const M: usize> =
    dyn Fn(usize, Range<usize>, [&mut [f32]; M]) + Sync + 'a;

impl Compute<'_> {
    /// Calls `f` for each of `n` rows.
    pub(crate) fn each_row<const N: usize>(
        &self,
        n: usize,
        cut: Cut,
        buffers: [Rows<'_>; N],
        threads: &PerThread<Scratch>,
        f: &RowFn<'_, N>,
    ) {
        let buffers = buffers.map(Rows::into_output);
        let units = |units: Range<usize>, thread: usize| {
            let first = (units.start * cut.rows).saturating_sub(cut.skipped);
            let last = (units.end * cut.rows - cut.skipped).min(n);
            for row in first..last {
                // SAFETY: a row is one unit's, a unit runs once, and no two rows of a buffer overlap. A thread runs
                // one unit at a time, and nothing of its scratch outlives the call of `f`.
                unsafe {
                    let rows = buffers.map(|(buffer, width)| buffer.row_mut(row, 0..width));
                    f(row, rows, threads.get(thread));
                }
            }
        };
        let count = (cut.skipped + n).div_ceil(cut.rows);
        match cut.alone {
            true => units(0..count, 0),
            false => self.pool.run(count, cut.take, &units),
        }
    }

    /// Packs `n` rows of `cols` activations for the matrices that will be multiplied with them: `f` makes each row of
    /// its rows in the buffers, and hands it to its last argument.
    #[allow(clippy::too_many_arguments)] // Sizes, inputs, output, and what it is done with.
    pub(crate) fn pack<const N: usize>(
        &self,
        n: usize,
        cols: usize,
        buffers: [Rows<'_>; N],
        acts: &mut Activations,
        formats: ActivationFormats,
        threads: &PerThread<Scratch>,
        f: &PackFn<'_, N>,
    ) {
        acts.begin(self.isa, n, cols, formats);
        let slots = acts.slots();
        self.each_row(n, Cut::default(), buffers, threads, &|row, rows, scratch| {
            // SAFETY: `each_row` calls this once for a row, from one thread.
            f(row, rows, scratch, &|values| unsafe { slots.put(row, values) });
        });
    }

    /// Packs `n` rows as they are in a buffer.
    pub(crate) fn pack_rows(
        &self,
        n: usize,
        rows: Rows<'_>,
        acts: &mut Activations,
        formats: ActivationFormats,
        threads: &PerThread<Scratch>,
    ) {
        let width = rows.width();
        self.pack(n, width, [rows], acts, formats, threads, &|_, [row], _, put| put(row));
    }

    /// Multiplies the packed activations with groups of matrices, in one region. A unit computes the same rows of all
    /// matrices of a group, which have equally many, and then calls `then` on what it has computed for each token.
    pub(crate) fn multiply<const G: usize, const M: usize>(
        &self,
        groups: [[&Matrix<'_>; M]; G],
        outputs: [[Rows<'_>; M]; G],
        acts: &Activations,
        threads: &PerThread<Scratch>,
        then: Option<&ColumnsFn<'_, M>>,
    ) {
        let outputs = outputs.map(|group| group.map(|rows| rows.into_output().0));
        let units = |group: &[&Matrix<'_>; M]| group[0].rows().div_ceil(UNIT_ROWS);
        let total = groups.iter().map(units).sum();
        self.pool.run(total, usize::MAX, &|range, thread| {
            let mut base = 0;
            for (group, outputs) in groups.iter().zip(&outputs) {
                let end = base + units(group);
                let (from, to) = (range.start.max(base), range.end.min(end));
                if from < to {
                    let last = ((to - base) * UNIT_ROWS).min(group[0].rows());
                    let rows = (from - base) * UNIT_ROWS..last;
                    // SAFETY: the units of a region are disjoint, and so are their rows of a matrix, which are columns
                    // of its output; each output is one matrix's. A thread runs one unit at a time.
                    unsafe {
                        let scratch = &mut threads.get(thread).matmul;
                        for (w, out) in group.iter().zip(outputs) {
                            matmul(w, rows.clone(), acts, *out, scratch);
                        }
                        if let Some(then) = then {
                            for t in 0..acts.tokens() {
                                let columns = outputs.map(|out| out.row_mut(t, rows.clone()));
                                then(t, rows.clone(), columns);
                            }
                        }
                    }
                }
                base = end;
            }
        });
    }

    /// Multiplies the packed activations with one matrix.
    pub(crate) fn project(
        &self,
        w: &Matrix<'_>,
        out: Rows<'_>,
        acts: &Activations,
        threads: &PerThread<Scratch>,
    ) {
        self.multiply([[w]], [[out]], acts, threads, None);
    }
}
