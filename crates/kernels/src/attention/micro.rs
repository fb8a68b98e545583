//! The inner product of both halves of attention: a few rows times a few vectors of columns, with all sums in registers.
//!
//! Scores are `Q[R][k_dim] · K[k_dim][positions]`, outputs `P[R][positions] · V[positions][v_dim]`: the same loop with other
//! strides, on f16 or bytes in place in the cache, or on f32. Each size is its own function; [`multiply`] covers a width with the
//! largest that fit the registers.
//!
//! A product is summed in up to four independent sums, for `k`, `k + 1` and so on, which keep the multipliers busy. Their number depends on the
//! number of rows, never on the width of vectors or on the column; vectors are as many as there are registers for.

use std::marker::PhantomData;

use super::{LINE, bytes, levels};
use crate::lanes::{Lanes, Outlined, WIDEST};

/// Elements of the right-hand matrix.
pub(super) trait Source {
    /// As stored.
    type E: Copy;
    /// True for f32.
    const WIDE: bool;
    /// Rows of the matrix that share a scale in each column: the scale is applied to their sum.
    const GROUP: usize = usize::MAX;
    /// The meaning of the two halves of an element, if it has two.
    const HALVES: Halves = Halves::None;
    /// True if each row has a scale, which must be multiplied into the left-hand matrix beforehand.
    const WEIGHTED: bool = false;
    /// The source of values that belongs to this source of keys.
    type Values: Source<E = Self::E>;
    /// # Safety
    /// As [`Lanes::load`].
    unsafe fn load<S: Lanes>(p: *const Self::E) -> S::V;
    /// # Safety
    /// As [`Lanes::load_n`].
    unsafe fn load_n<S: Lanes>(p: *const Self::E, n: usize) -> S::V;
    /// Both halves of elements that have two.
    ///
    /// # Safety
    /// As [`Lanes::load`].
    #[inline(always)]
    unsafe fn load_halves<S: Lanes>(_: *const Self::E) -> [S::V; 2] {
        unreachable!("its elements have no halves")
    }
}

/// The meaning of the two halves of an element of a [`Source`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Halves {
    /// It has none.
    None,
    /// Rows 2i and 2i + 1 of a column.
    Rows,
    /// Columns i and i + 16 of a row, of 32.
    Columns,
}

/// Bytes of keys.
pub(super) struct KeyBytes;
/// Bytes of values.
pub(super) struct ValueBytes;
/// Codes of keys, of two elements each.
pub(super) struct KeyLevels;
/// Codes of values, of two elements each.
pub(super) struct ValueLevels;
/// f16 bits, widened when loaded.
pub(super) struct F16;
/// f32, as stored.
pub(super) struct F32;

impl Source for KeyBytes {
    type E = i8;
    const WIDE: bool = false;
    const GROUP: usize = bytes::GROUP;
    type Values = ValueBytes;
    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const i8) -> S::V {
        // SAFETY: the caller's.
        unsafe { S::load_i8(p) }
    }
    #[inline(always)]
    unsafe fn load_n<S: Lanes>(_: *const i8, _: usize) -> S::V {
        unreachable!("keys and values of bytes are whole groups")
    }
}

impl Source for ValueBytes {
    type E = i8;
    const WIDE: bool = false;
    const WEIGHTED: bool = true;
    type Values = ValueBytes;
    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const i8) -> S::V {
        // SAFETY: the caller's.
        unsafe { S::load_i8(p) }
    }
    #[inline(always)]
    unsafe fn load_n<S: Lanes>(_: *const i8, _: usize) -> S::V {
        unreachable!("keys and values of bytes are whole groups")
    }
}

impl Source for KeyLevels {
    type E = i8;
    const WIDE: bool = false;
    const GROUP: usize = levels::GROUP;
    const HALVES: Halves = Halves::Rows;
    type Values = ValueLevels;
    #[inline(always)]
    unsafe fn load<S: Lanes>(_: *const i8) -> S::V {
        unreachable!("an element has two halves")
    }
    #[inline(always)]
    unsafe fn load_n<S: Lanes>(_: *const i8, _: usize) -> S::V {
        unreachable!("keys and values of levels are whole groups")
    }
    #[inline(always)]
    unsafe fn load_halves<S: Lanes>(p: *const i8) -> [S::V; 2] {
        // SAFETY: the caller's.
        unsafe { S::load_levels(p.cast()) }
    }
}

impl Source for ValueLevels {
    type E = i8;
    const WIDE: bool = false;
    const HALVES: Halves = Halves::Columns;
    const WEIGHTED: bool = true;
    type Values = ValueLevels;
    #[inline(always)]
    unsafe fn load<S: Lanes>(_: *const i8) -> S::V {
        unreachable!("an element has two halves")
    }
    #[inline(always)]
    unsafe fn load_n<S: Lanes>(_: *const i8, _: usize) -> S::V {
        unreachable!("keys and values of levels are whole groups")
    }
    #[inline(always)]
    unsafe fn load_halves<S: Lanes>(p: *const i8) -> [S::V; 2] {
        // SAFETY: the caller's.
        unsafe { S::load_levels(p.cast()) }
    }
}

impl Source for F16 {
    type E = u16;
    const WIDE: bool = false;
    type Values = F16;
    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const u16) -> S::V {
        // SAFETY: the caller's.
        unsafe { S::load_f16(p) }
    }
    #[inline(always)]
    unsafe fn load_n<S: Lanes>(p: *const u16, n: usize) -> S::V {
        // SAFETY: the caller's.
        unsafe { S::load_f16_n(p, n) }
    }
}

impl Source for F32 {
    type E = f32;
    const WIDE: bool = true;
    type Values = F32;
    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const f32) -> S::V {
        // SAFETY: the caller's.
        unsafe { S::load(p) }
    }
    #[inline(always)]
    unsafe fn load_n<S: Lanes>(p: *const f32, n: usize) -> S::V {
        // SAFETY: the caller's.
        unsafe { S::load_n(p, n) }
    }
}

/// A matrix read by broadcasts: element `(r, k)` at `p + r * row + k`.
#[derive(Clone, Copy)]
pub(super) struct Left {
    pub p: *const f32,
    pub row: usize,
}

/// A matrix read by vectors: element `(k, c)` at `p + k * step + c / 16 * line + c % 16`.
pub(super) struct Right<E> {
    pub p: *const E,
    pub step: usize,
    pub line: usize,
    /// f16 scales where elements are bytes: for every column, one per [`Source::GROUP`] rows in order, or one for every row. Those
    /// of the next line are as far away as its elements.
    pub scales: *const u16,
    /// Distance in elements to the data that is read later and is prefetched on the way. 0: no prefetch.
    pub ahead: isize,
}

impl<E> Clone for Right<E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for Right<E> {}

impl<E> Right<E> {
    /// Returns the matrix without its first `n` lines.
    #[inline(always)]
    pub(super) fn skip_lines(self, n: usize) -> Right<E> {
        let scales = self.scales.wrapping_byte_add(n * self.line * size_of::<E>());
        Right { p: self.p.wrapping_add(n * self.line), scales, ..self }
    }
}

/// Destination of the product: `(r, c)` at `p + r * row + c`.
#[derive(Clone, Copy)]
pub(super) struct Destination {
    pub p: *mut f32,
    pub row: usize,
    /// `None`: overwritten. `Some`: multiplied by these factors, one per row, then added to.
    pub rescale: Option<*const f32>,
}

/// `R` rows times `NV` vectors of columns. With `LINES`, columns of a line are stored together, else all.
struct MicroProduct<B: Source, const R: usize, const NV: usize, const LINES: bool> {
    left: Left,
    right: Right<B::E>,
    k: usize,
    /// If `NV` is 1: number of lanes to read, 0 for all.
    tail: usize,
    sums: Destination,
    source: PhantomData<B>,
}

/// The most independent sums of a product.
const MAX_SUMS: usize = 4;

impl<B: Source, const R: usize, const NV: usize, const LINES: bool> MicroProduct<B, R, NV, LINES> {
    /// Independent sums: of every `k`, every second or every fourth one.
    const SUMS: usize = match (LINES, R) {
        (true, 1) => 4,
        (true, 2 | 3) | (false, 1) => 2,
        _ => 1,
    };

    /// True if [`multiply`] and [`multiply_lines`] call it at this level. Whichever branch a constant takes, the compiler makes the functions of both.
    const fn is_used<S: Lanes>() -> bool {
        match (LINES, S::N == WIDEST) {
            (true, true) => NV == 1 || R > 1,
            (true, false) => NV == 2,
            (false, true) => true,
            (false, false) => NV < 4 || R <= 2,
        }
    }

    /// Returns the first column of vector `v`: those of two halves follow each other.
    const fn column<S: Lanes>(v: usize) -> usize {
        match B::HALVES {
            Halves::Columns => v / 2 * S::N + v % 2 * LINE,
            _ => v * S::N,
        }
    }

    /// Multiplies with rows `from..end` of the right-hand matrix.
    ///
    /// # Safety
    /// The elements exist, and the CPU has the features of `S`.
    #[inline(always)]
    unsafe fn part<S: Lanes>(&self, from: usize, end: usize) -> [[S::V; NV]; R] {
        let MicroProduct { left, right, tail, .. } = *self;
        // Elements of a cache line.
        let asked = 64 / size_of::<B::E>();
        // SAFETY: the caller's.
        unsafe {
            let mut sums = [[[S::splat(0.0); NV]; R]; MAX_SUMS];
            let rows: [*const f32; R] = std::array::from_fn(|r| left.p.wrapping_add(r * left.row));
            let offsets: [usize; NV] =
                std::array::from_fn(|v| v * S::N / LINE * right.line + v * S::N % LINE);
            let stored = if B::HALVES == Halves::Rows { from / 2 } else { from };
            let mut b = right.p.wrapping_add(stored * right.step);
            let mut k = from;
            macro_rules! step {
                ($phase:expr) => {{
                    let mut columns = [S::splat(0.0); NV];
                    if B::HALVES == Halves::Columns {
                        for (v, both) in columns.as_chunks_mut().0.iter_mut().enumerate() {
                            let p = b.add(v * S::N);
                            if v == 0 && $phase * LINE % asked == 0 {
                                S::prefetch(p.wrapping_offset(right.ahead).cast());
                            }
                            *both = B::load_halves::<S>(p);
                        }
                    } else {
                        for (v, column) in columns.iter_mut().enumerate() {
                            let p = b.add(offsets[v]);
                            // A line is prefetched once, where a step is a part of one.
                            let (at, step) = match LINES {
                                true => (v * S::N % LINE, LINE),
                                false => (v * S::N, S::N * NV),
                            };
                            if !B::WIDE && at % asked == 0 && $phase * step % asked == 0 {
                                S::prefetch(p.wrapping_offset(right.ahead).cast());
                            }
                            *column = if NV == 1 && tail != 0 {
                                B::load_n::<S>(p, tail)
                            } else {
                                B::load::<S>(p)
                            };
                        }
                    }
                    for (sums, row) in sums[$phase].iter_mut().zip(rows) {
                        let x = S::splat(*row.add(k));
                        for (sum, column) in sums.iter_mut().zip(columns) {
                            *sum = S::fma(x, column, *sum);
                        }
                    }
                    // Past the end after the last round, hence wrapping.
                    b = b.wrapping_add(right.step);
                    k += 1;
                }};
            }
            if B::HALVES == Halves::Rows {
                // Groups are whole: no row is left over.
                while k < end {
                    for pair in 0..Self::SUMS.div_ceil(2) {
                        let mut columns = [[S::splat(0.0); 2]; NV];
                        for (v, column) in columns.iter_mut().enumerate() {
                            let p = b.add(offsets[v]);
                            if v * S::N % LINE == 0 && pair == 0 {
                                S::prefetch(p.wrapping_offset(right.ahead).cast());
                            }
                            *column = B::load_halves::<S>(p);
                        }
                        for half in 0..2 {
                            let sums = &mut sums[(2 * pair + half) % Self::SUMS];
                            for (sums, row) in sums.iter_mut().zip(rows) {
                                let x = S::splat(*row.add(k));
                                for (sum, column) in sums.iter_mut().zip(columns) {
                                    *sum = S::fma(x, column[half], *sum);
                                }
                            }
                            k += 1;
                        }
                        b = b.wrapping_add(right.step);
                    }
                }
            }
            while k + Self::SUMS <= end {
                for phase in 0..Self::SUMS {
                    step!(phase);
                }
            }
            while k < end {
                step!(0);
            }
            let mut joined = sums[0];
            for other in &sums[1..Self::SUMS] {
                for (joined, other) in joined.iter_mut().zip(other) {
                    for (joined, other) in joined.iter_mut().zip(other) {
                        *joined = S::add(*joined, *other);
                    }
                }
            }
            joined
        }
    }
}

impl<B: Source, const R: usize, const NV: usize, const LINES: bool> Outlined
    for MicroProduct<B, R, NV, LINES>
{
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Lanes>(self) {
        if !Self::is_used::<S>() {
            unreachable!("its callers take another size");
        }
        let to = self.sums;
        // SAFETY: the elements exist and the CPU has the features, as required by `multiply`.
        unsafe {
            let sums = if B::GROUP == usize::MAX {
                self.part::<S>(0, self.k)
            } else {
                let mut sums = [[S::splat(0.0); NV]; R];
                for (g, k) in (0..self.k).step_by(B::GROUP).enumerate() {
                    let part = self.part::<S>(k, k + B::GROUP);
                    for (sums, part) in sums.iter_mut().zip(part) {
                        for (v, (sum, part)) in sums.iter_mut().zip(part).enumerate() {
                            let scales = self.right.skip_lines(v * S::N / LINE).scales;
                            let scales = scales.add(g * LINE + v * S::N % LINE);
                            *sum = S::fma(S::load_f16(scales), part, *sum);
                        }
                    }
                }
                sums
            };
            for (r, sums) in sums.into_iter().enumerate() {
                for (v, mut sum) in sums.into_iter().enumerate() {
                    let p = to.p.add(r * to.row + Self::column::<S>(v));
                    if let Some(factors) = to.rescale {
                        sum = S::fma(S::load(p), S::splat(*factors.add(r)), sum);
                    }
                    S::store(p, sum);
                }
            }
        }
    }
}

/// [`multiply`] with keys in the cache: one or two lines of 16 positions after another, so that memory is read sequentially. (Four lines
/// at a time, as in `multiply`, halve the data rate that the hardware prefetcher reaches from DRAM.) There are four independent sums for one row, two
/// for two or three, and one for more.
///
/// # Safety
/// As for [`multiply`]; `width` must be a multiple of 16.
#[inline(always)]
pub(super) unsafe fn multiply_lines<S: Lanes, B: Source, const R: usize>(
    left: Left,
    right: Right<B::E>,
    k: usize,
    width: usize,
    sums: Destination,
) {
    let mut c = 0;
    macro_rules! go {
        ($nv:literal) => {{
            // SAFETY: columns c.. exist; the rest is the caller's.
            unsafe {
                S::outline(MicroProduct::<B, R, $nv, true> {
                    left,
                    right: right.skip_lines(c / LINE),
                    k,
                    tail: 0,
                    sums: Destination { p: sums.p.add(c), ..sums },
                    source: PhantomData,
                });
            }
            c += $nv * S::N;
        }};
    }
    while c < width {
        // Of one row a line has enough sums.
        if S::N == WIDEST && (R == 1 || width - c == LINE) { go!(1) } else { go!(2) }
    }
}

/// `sums[R][0..width] (+)= left[R][k] · right[k][0..width]`, in two independent sums for one row, and in one for more.
///
/// # Safety
/// The elements exist, and the CPU has the features of `S`. Sums are written in whole vectors: there must be space for `width`
/// rounded up to 16.
#[inline(always)]
pub(super) unsafe fn multiply<S: Lanes, B: Source, const R: usize>(
    left: Left,
    right: Right<B::E>,
    k: usize,
    width: usize,
    sums: Destination,
) {
    let mut c = 0;
    macro_rules! go {
        ($nv:literal, $tail:expr) => {{
            // SAFETY: columns c.. exist; the rest is the caller's.
            unsafe {
                let p = right.p.add(c / LINE * right.line + c % LINE);
                S::outline(MicroProduct::<B, R, $nv, false> {
                    left,
                    right: Right { p, ..right },
                    k,
                    tail: $tail,
                    sums: Destination { p: sums.p.add(c), ..sums },
                    source: PhantomData,
                });
            }
            c += if B::HALVES == Halves::Columns { $nv / 2 * S::N } else { $nv * S::N };
        }};
    }
    if B::HALVES == Halves::Columns {
        // The elements of 16 bytes, as many vectors at a time as below.
        while c < LINE {
            if S::N == WIDEST || R > 2 { go!(2, 0) } else { go!(4, 0) }
        }
        return;
    }
    // Sums take at most 24 of 32 registers, or 12 of 16; at least 8 keep two multipliers busy.
    let four = S::N == WIDEST || R <= 2;
    while c < width {
        let rest = width - c;
        if four && rest >= 4 * S::N {
            go!(4, 0)
        } else if rest >= 2 * S::N {
            go!(2, 0)
        } else if rest >= S::N {
            go!(1, 0)
        } else {
            go!(1, rest)
        }
    }
}
