//! Products that become the activations of the next matrices in the unit that computes them. So the products of many tokens, which would fill
//! more than a cache, exist only in their thread's memory, and are read while they are in its cache.

use std::ops::Range;

use super::products::{cost, each_kept, products_of};
use super::rows::VALUES_PER_NS;
use super::{Cut, Scratch, Threads, UNIT_ROWS, cut_rows};
use crate::matmul::{
    ActSlots, ActivationFormats, Activations, Matrix, Output, Precision, RowCounts, Tokens,
};

/// The set of activations that units pack.
///
/// A token of 16 bits has one scale for more values than a unit has rows. So its values are kept unpacked until all units are done.
pub struct Packing<'a> {
    slots: ActSlots<'a>,
    tokens: RowCounts,
    width: usize,
    /// `[tokens of 16 bits, width]`
    unpacked: Output<'a>,
}

impl<'a> Packing<'a> {
    /// Begins a set of as many tokens as another has, with `width` values each, in `formats`. The values of tokens of 16 bits are kept in
    /// `unpacked` `[tokens of 16 bits, width]`.
    ///
    /// # Panics
    /// As [`Activations::begin`].
    pub fn new(
        of: &Activations,
        width: usize,
        (to, formats): (&'a mut Activations, ActivationFormats),
        unpacked: &'a mut [f32],
    ) -> Packing<'a> {
        let tokens = of.rows();
        to.begin(of.isa(), tokens, width, formats);
        Packing { slots: to.slots(), tokens, width, unpacked: Output::new(unpacked, width) }
    }

    /// Returns true if it is for the products of these tokens with `rows` rows.
    pub(super) fn suits(&self, x: &Activations, rows: usize) -> bool {
        (self.tokens, self.width) == (x.rows(), rows)
    }

    /// Multiplies `rows` of matrices with `count` tokens, which consist of `parts`, joins the products, and packs the first after that. `first`
    /// is the number of the first token in the packed set.
    ///
    /// # Safety
    /// No two threads may pack the same values.
    pub(super) unsafe fn compute<'t, const M: usize>(
        &self,
        matrices: [&Matrix<'_>; M],
        rows: Range<usize>,
        (first, count): (usize, usize),
        parts: impl Iterator<Item = (usize, Tokens<'t>)> + Clone,
        join: &JoinFn<'_, M>,
        scratch: &mut impl Scratch,
    ) {
        each_kept(scratch, rows, M * count, |rows, buffer, scratch| {
            let mut products = products_of(matrices, &rows, parts.clone(), buffer, scratch);
            join(rows.clone(), products.each_mut().map(|products| &mut **products));
            // SAFETY: by the caller's promise.
            unsafe { self.put(first, &rows, products[0]) };
        });
    }

    /// Packs or keeps values `rows` of tokens from `first` on, `[tokens, rows]`.
    ///
    /// # Safety
    /// No two threads may put the same values.
    unsafe fn put(&self, first: usize, rows: &Range<usize>, values: &[f32]) {
        for (t, values) in (first..).zip(values.chunks_exact(rows.len())) {
            // SAFETY: by the caller's promise.
            unsafe {
                match self.tokens.precision(t) {
                    Precision::Bits16 => {
                        self.unpacked.row_mut(t, rows.clone()).copy_from_slice(values);
                    }
                    Precision::Bits8 => self.slots.put_columns(t, rows.start, values),
                }
            }
        }
    }

    /// Packs the tokens that were kept, if they are `wanted`.
    pub(super) fn end<T: Threads>(&self, threads: &mut T, wanted: &(dyn Fn(usize) -> bool + Sync)) {
        let tokens = self.tokens.bits16;
        if tokens == 0 {
            return;
        }
        let cost = tokens * self.width / VALUES_PER_NS;
        cut_rows(threads, tokens, Cut::default(), cost, [], &|t, [], _| {
            if wanted(t) {
                // SAFETY: each token is packed once, by one thread, and no unit writes any more.
                unsafe { self.slots.put(t, self.unpacked.row_mut(t, 0..self.width)) };
            }
        });
    }
}

/// Transforms products before they are packed: `f(rows of the matrices, [their products, [tokens, rows]])` changes the first.
pub type JoinFn<'a, const M: usize> = dyn Fn(Range<usize>, [&mut [f32]; M]) + Sync + 'a;

/// Multiplies packed activations with matrices that have the same number of rows, joins the products, and packs the first after that for the
/// matrices that will be multiplied with them. A unit does all of that for its rows.
///
/// # Panics
/// As [`matmul`](crate::matmul::matmul), and if the packed set does not have the tokens of `x` or the rows of each matrix.
pub fn multiply_and_pack<T: Threads, const M: usize>(
    threads: &mut T,
    matrices: [&Matrix<'_>; M],
    x: &Activations,
    join: &JoinFn<'_, M>,
    to: &Packing<'_>,
) {
    let suits = matrices.iter().all(|matrix| to.suits(x, matrix.rows()));
    assert!(suits, "activations of another shape");
    let cost = cost(matrices.iter().map(|matrix| (*matrix, to.width)), x.rows());
    threads.run(to.width.div_ceil(UNIT_ROWS), cost, &|units, scratch| {
        let rows = units.start * UNIT_ROWS..to.width.min(units.end * UNIT_ROWS);
        let tokens = (0, x.rows().all());
        // SAFETY: units have different rows.
        unsafe { to.compute(matrices, rows, tokens, x.parts(), join, scratch) };
    });
    to.end(threads, &|_| true);
}
