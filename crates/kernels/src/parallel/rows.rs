//! Rows of floats, one per token, and operations row by row.

use std::ops::Range;

use super::{Cost, Threads};
use crate::Isa;
use crate::matmul::{ActivationFormats, Activations, Output, RowCounts};

/// Rows that a thread takes at once.
const ROWS_PER_TAKE: usize = 16;

/// Values that a thread packs, normalises or adds per nanosecond, approximately.
pub(super) const VALUES_PER_NS: usize = 2;

/// Packed values that a thread copies per nanosecond, approximately.
const COPIED_PER_NS: usize = 10;

/// Rows of `width` elements in a buffer that is borrowed for writing: row `i` begins at `i · width`.
pub struct Rows<'a> {
    buffer: &'a mut [f32],
    width: usize,
}

impl<'a> Rows<'a> {
    /// All whole rows of `buffer`.
    pub fn new(buffer: &'a mut [f32], width: usize) -> Rows<'a> {
        Rows { buffer, width }
    }

    /// The rows from row `first` on.
    ///
    /// # Panics
    /// If the buffer ends before it.
    pub fn starting_at(buffer: &'a mut [f32], width: usize, first: usize) -> Rows<'a> {
        Rows { buffer: &mut buffer[first * width..], width }
    }

    /// Copies row `from` to row `to`.
    ///
    /// # Panics
    /// If a row does not exist.
    pub fn copy(&mut self, from: usize, to: usize) {
        let width = self.width;
        self.buffer.copy_within(from * width..(from + 1) * width, to * width);
    }

    /// Returns the elements of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the output that the kernels write through, and the width.
    pub(super) fn into_output(self) -> (Output<'a>, usize) {
        (Output::new(self.buffer, self.width), self.width)
    }
}

/// How rows are cut into units.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// Rows of a unit.
    pub rows: usize,
    /// Rows by which the first unit is shorter.
    pub skipped: usize,
    /// Maximum number of units that a thread takes at once.
    pub take: usize,
}

impl Default for Cut {
    /// Row by row.
    fn default() -> Cut {
        Cut { rows: 1, skipped: 0, take: ROWS_PER_TAKE }
    }
}

/// Processes a row: `f(row, [that row of each buffer], the thread's scratch)`.
pub type RowFn<'a, S, const N: usize> = dyn Fn(usize, [&mut [f32]; N], &mut S) + Sync + 'a;

/// As [`RowFn`]; passes its finished row to its last argument, which packs it.
pub type PackFn<'a, S, const N: usize> =
    dyn Fn(usize, [&mut [f32]; N], &mut S, &dyn Fn(&[f32])) + Sync + 'a;

/// Calls `f` for each of `n` rows.
///
/// # Panics
/// If a buffer has fewer rows.
pub fn each_row<T: Threads, const N: usize>(
    threads: &mut T,
    n: usize,
    cut: Cut,
    buffers: [Rows<'_>; N],
    f: &RowFn<'_, T::Scratch, N>,
) {
    let values = buffers.iter().map(Rows::width).sum::<usize>();
    cut_rows(threads, n, cut, n * values / VALUES_PER_NS, buffers, f);
}

/// [`each_row`] with a given cut and a total of `nanoseconds` of work.
///
/// # Panics
/// As [`each_row`], and if a unit has no rows, or more are skipped than a unit has.
pub fn cut_rows<T: Threads, const N: usize>(
    threads: &mut T,
    n: usize,
    cut: Cut,
    nanoseconds: usize,
    buffers: [Rows<'_>; N],
    f: &RowFn<'_, T::Scratch, N>,
) {
    // Otherwise two units would have the same rows.
    assert!(cut.skipped < cut.rows, "{} rows of units of {} are skipped", cut.skipped, cut.rows);
    let buffers = buffers.map(Rows::into_output);
    let cost = Cost { take: cut.take, ..Cost::of(nanoseconds) };
    let count = (cut.skipped + n).div_ceil(cut.rows);
    threads.run(count, cost, &|units: Range<usize>, scratch| {
        let first = (units.start * cut.rows).saturating_sub(cut.skipped);
        let last = (units.end * cut.rows - cut.skipped).min(n);
        for row in first..last {
            // SAFETY: the buffers are distinct, being borrowed exclusively; a row belongs to one unit, a unit runs
            // once, and no two rows of a buffer overlap.
            let rows = buffers.map(|(buffer, width)| unsafe { buffer.row_mut(row, 0..width) });
            f(row, rows, scratch);
        }
    });
}

/// Packs `n` rows of `cols` activations for the matrices that will be multiplied with them: `f` computes each row from
/// its rows in the buffers, and passes it to its last argument. It may leave rows out.
///
/// # Panics
/// As [`Activations::begin`], and if a buffer has fewer rows.
pub fn pack<T: Threads, const N: usize>(
    threads: &mut T,
    isa: Isa,
    (n, cols): (RowCounts, usize),
    buffers: [Rows<'_>; N],
    (activations, formats): (&mut Activations, ActivationFormats),
    f: &PackFn<'_, T::Scratch, N>,
) {
    activations.begin(isa, n, cols, formats);
    let slots = activations.slots();
    let cost = n.all() * cols / VALUES_PER_NS;
    cut_rows(threads, n.all(), Cut::default(), cost, buffers, &|row, rows, scratch| {
        // SAFETY: each row is packed once, by one thread.
        f(row, rows, scratch, &|values| unsafe { slots.put(row, values) });
    });
}

/// Creates a set of `n` tokens from another set: token `i` is a copy of `source(i)`, if that is a token. `formats` are
/// those of the other set that the copies need.
///
/// # Panics
/// As [`Activations::begin`], and if the other set has no such token of the same precision, or lacks these formats.
pub fn gather<T: Threads>(
    threads: &mut T,
    from: &Activations,
    (to, formats): (&mut Activations, ActivationFormats),
    n: RowCounts,
    source: &(dyn Fn(usize) -> Option<usize> + Sync),
) {
    let cols = from.cols();
    to.begin_copies(from, n, formats);
    let slots = to.slots();
    let cost = n.all() * cols / COPIED_PER_NS;
    cut_rows(threads, n.all(), Cut::default(), cost, [], &|row, [], _| {
        if let Some(token) = source(row) {
            // SAFETY: each row is copied once, by one thread.
            unsafe { slots.copy(row, from, token) };
        }
    });
}
