//! Products that become the activations of the next matrices in the unit that computes them. So those of many tokens, which would fill
//! more than a cache, are in memory of their thread only, and are read while they are in its cache.

use std::ops::Range;

use super::products::{cost, keep, rows_kept};
use super::rows::VALUES_PER_NS;
use super::{Cut, Scratch, Threads, UNIT_ROWS, cut_rows};
use crate::matmul::{
    ActSlots, ActivationFormats, Activations, Matrix, Output, Precision, RowCounts,
    cut_at_multiples,
};

/// Where units pack what they make of products.
///
/// Tokens of 16 bits have a scale for more values than a unit has rows. They are kept unpacked until all units are done.
pub struct Packing<'a> {
    slots: ActSlots<'a>,
    tokens: RowCounts,
    width: usize,
    /// `[tokens of 16 bits, width]`
    unpacked: Output<'a>,
}

impl<'a> Packing<'a> {
    /// Begins a set of as many tokens as another has, with `width` values each, in `formats`. Those of 16 bits are kept in `room`
    /// `[their number, width]`.
    ///
    /// # Panics
    /// As [`Activations::begin`].
    pub fn new(
        of: &Activations,
        width: usize,
        (to, formats): (&'a mut Activations, ActivationFormats),
        room: &'a mut [f32],
    ) -> Packing<'a> {
        let tokens = of.rows();
        to.begin(of.isa(), tokens, width, formats);
        Packing { slots: to.slots(), tokens, width, unpacked: Output::new(room, width) }
    }

    /// Whether it is for the products of these tokens with so many rows.
    pub(super) fn suits(&self, x: &Activations, rows: usize) -> bool {
        (self.tokens, self.width) == (x.rows(), rows)
    }

    /// Packs or keeps values `rows` of tokens from `first` on, `[tokens, rows]`.
    ///
    /// # Safety
    /// No two threads may put the same values.
    pub(super) unsafe fn put(&self, first: usize, rows: &Range<usize>, values: &[f32]) {
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

/// What becomes of products before they are packed: `f(rows of the matrices, [their products, [tokens, rows]])` changes the first.
pub type JoinFn<'a, const M: usize> = dyn Fn(Range<usize>, [&mut [f32]; M]) + Sync + 'a;

/// Multiplies packed activations with matrices that have equally many rows, joins the products, and packs what the first have become
/// for the matrices that will be multiplied with them. A unit does all of that for its rows.
///
/// # Panics
/// As [`matmul`](crate::matmul::matmul), and if what is packed has not the tokens of `x` or the rows of each matrix.
pub fn multiply_and_pack<T: Threads, const M: usize>(
    threads: &mut T,
    matrices: [&Matrix<'_>; M],
    x: &Activations,
    join: &JoinFn<'_, M>,
    to: &Packing<'_>,
) {
    let suits = matrices.iter().all(|matrix| to.suits(x, matrix.rows()));
    assert!(suits, "activations of another shape");
    let (tokens, step) = (x.rows().all(), rows_kept(M * x.rows().all()));
    let cost = cost(matrices.iter().map(|matrix| (*matrix, to.width)), x.rows());
    threads.run(to.width.div_ceil(UNIT_ROWS), cost, &|units, scratch| {
        let rows = units.start * UNIT_ROWS..to.width.min(units.end * UNIT_ROWS);
        scratch.with_products(M * tokens * step.min(rows.len()), |scratch, room| {
            for rows in cut_at_multiples(rows, step) {
                let mut products = keep(matrices, &rows, tokens, x.parts(), room, scratch);
                join(rows.clone(), products.each_mut().map(|products| &mut **products));
                // SAFETY: units have different rows.
                unsafe { to.put(0, &rows, products[0]) };
            }
        });
    });
    to.end(threads, &|_| true);
}
