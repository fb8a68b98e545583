//! The panel product with AVX2: 16 rows × 3 tokens in registers, 16-bit products with `vpmaddubsw`. [`avx_vnni`](super::avx_vnni)
//! shares everything except the integer sums ([`ByteProducts`]).
//!
//! `vpmaddubsw` adds two products of an unsigned and a signed byte in 16 bits. Codes are the unsigned bytes, activations the
//! signed ones. As many of these sums as are guaranteed to fit 16 bits ([`lines_together`]) are added there before they are
//! widened: all of 32 columns for four-bit types. The zero point is subtracted from the integer sum at the end of a group, times
//! the sum of the activations.
//!
//! Codes above 128 could saturate. For these the panel holds codes minus their zero point, and the weights' sign is moved to the
//! activations (|w| ≤ 128, 2·128·127 fits).
//!
//! The order of floating-point operations for a row and a token is the same for any number of rows and tokens, and at both
//! levels: the integer sums are exact, so both have the same bits.

use super::{Panel, avx2_panel, scalar};
use crate::blocks::{BlockFormat, Formula, with_block, with_formula, with_tiles};
use crate::lanes::avx2::in_order;
use crate::matmul::sizes::PANEL_ROWS;
use crate::matmul::{Matrix, Output, Tokens};
use crate::tiles::{Layout, TILE_ROWS};
use std::arch::x86_64::*;
use std::ops::Range;

/// Rows and tokens whose sums are in registers at the same time: 12 sums of 16 bits and 12 of floats would not fit.
pub(super) const ROWS: usize = 16;
pub(super) const TOKENS: usize = 3;

/// The largest magnitude of an activation.
const ACTIVATION: i32 = 127;

/// True if two products with unsigned codes do not fit 16 bits, so that the panel has codes minus their zero point.
pub(super) const fn signed<Q: BlockFormat>() -> bool {
    lines_together::<Q>(ACTIVATION) == 0
}

/// The number of lines of four columns, among those that share a scale, that can be added in 16 bits if the largest activation is
/// `activation`: 0 if not even one fits.
pub(in crate::matmul) const fn lines_together<Q: BlockFormat>(activation: i32) -> usize {
    let fit = i16::MAX as i32 / (2 * activation * Q::MAX_CODE);
    let mut lines = 8 / Q::SCALES;
    while lines > fit as usize {
        lines /= 2;
    }
    lines
}

/// The difference between the levels: the multiplication of bytes.
pub(super) trait ByteProducts<F: Formula> {
    /// True if the panel has codes minus their zero point, so that nothing has to be subtracted from the sums.
    const SIGNED: bool;

    /// Σ w·x over the columns that share a scale, of 16 rows and `C` tokens: exact in any order.
    ///
    /// # Safety
    /// `w` is the panel's first line of these columns, from the first row on; `x` are the tokens' bytes of them. The CPU has the level.
    unsafe fn sums<const C: usize>(w: *const i8, x: [*const i8; C]) -> [[__m256i; 2]; C];
}

/// A formula, and the number of lines that are added in 16 bits. All types with the same values share the code of the products.
trait Narrowing: Formula {
    /// [`lines_together`] for activations; 0 if the panel has codes minus their zero point.
    const LINES: usize;
}

struct NarrowingOf<F, const LINES: usize>(std::marker::PhantomData<F>);

impl<F: Formula, const LINES: usize> Formula for NarrowingOf<F, LINES> {
    const SCALES: usize = F::SCALES;
    const OFFSETS: usize = F::OFFSETS;
    const ZERO: bool = F::ZERO;
}

impl<F: Formula, const LINES: usize> Narrowing for NarrowingOf<F, LINES> {
    const LINES: usize = LINES;
}

/// As [`with_formula!`], with `$f` as the [`Narrowing`].
macro_rules! with_narrowing {
    ($q:ty, $f:ident => $body:expr) => {
        with_narrowing!(@ $q, $f => $body; 0 1 2 4 8)
    };
    (@ $q:ty, $f:ident => $body:expr; $($lines:literal)*) => {
        with_formula!($q, Shared => match const { lines_together::<$q>(ACTIVATION) } {
            $($lines => {
                type $f = NarrowingOf<Shared, $lines>;
                $body
            })*
            _ => unreachable!("lines are a power of two"),
        })
    };
}

/// With `vpmaddubsw`.
struct Maddubs;

impl<F: Narrowing> ByteProducts<F> for Maddubs {
    const SIGNED: bool = F::LINES == 0;

    #[inline(always)]
    unsafe fn sums<const C: usize>(w: *const i8, x: [*const i8; C]) -> [[__m256i; 2]; C] {
        // Signed codes fit only once.
        let together = F::LINES.max(1);
        // SAFETY: by the caller's promise.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let mut sums = [[_mm256_setzero_si256(); 2]; C];
            for some in 0..8 / F::SCALES / together {
                let mut narrow = [[_mm256_setzero_si256(); 2]; C];
                for l in 0..together {
                    let line = together * some + l;
                    let w = two_vectors(w, line);
                    for c in 0..C {
                        let x = four_columns(x[c], line);
                        for i in 0..2 {
                            let two = products::<F>(w[i], x);
                            // In this order: the compiler would otherwise compute one sum after the other, and have no registers
                            // left for the weights of all lines.
                            narrow[c][i] = in_order(match l {
                                0 => two,
                                _ => _mm256_add_epi16(narrow[c][i], two),
                            });
                        }
                    }
                }
                for c in 0..C {
                    for i in 0..2 {
                        let four = _mm256_madd_epi16(narrow[c][i], ones);
                        sums[c][i] = _mm256_add_epi32(sums[c][i], four);
                    }
                }
            }
            sums
        }
    }
}

/// Line `line` of 16 rows, counted from `w`.
#[inline(always)]
pub(super) unsafe fn two_vectors(w: *const i8, line: usize) -> [__m256i; 2] {
    // SAFETY: inside the panel, by the caller's promise.
    unsafe {
        let w = w.add(line * PANEL_ROWS * 4).cast();
        [_mm256_load_si256(w), _mm256_load_si256(w.add(1))]
    }
}

/// The activations of a line's four columns, for every row.
#[inline(always)]
pub(in crate::matmul) unsafe fn four_columns(x: *const i8, line: usize) -> __m256i {
    // SAFETY: inside the token's bytes, by the caller's promise.
    unsafe { _mm256_set1_epi32(x.add(4 * line).cast::<i32>().read_unaligned()) }
}

driver!("avx2,fma,f16c", avx2_panel, Narrowing, with_narrowing);

/// The `columns` that [`driver`] calls, with the features of a level and its [`ByteProducts`].
macro_rules! columns_with {
    ($features:literal, $formula:ident, $sums:ty) => {
        /// # Safety
        /// As for [`columns_by`].
        #[target_feature(enable = $features)]
        unsafe fn columns<F: $formula, const C: usize>(
            row: usize,
            k: &Range<usize>,
            x: &Tokens<'_>,
            t: usize,
            p: &Panel,
            out: &mut [[f32; ROWS]; C],
        ) {
            // SAFETY: by the caller's promise.
            unsafe { columns_by::<$sums, F, C>(row, k, x, t, p, out) }
        }
    };
}
pub(super) use columns_with;

columns_with!("avx2,fma,f16c", Narrowing, Maddubs);

/// Adds the products of [`ROWS`] rows, starting at the panel's row `row`, with `C` tokens over all columns of the panel.
///
/// # Safety
/// The panel has the rows and the columns, the tokens exist, and the CPU has AVX2, FMA and F16C, and the features that `S` needs.
#[inline(always)]
pub(super) unsafe fn columns_by<S: ByteProducts<F>, F: Formula, const C: usize>(
    row: usize,
    k: &Range<usize>,
    x: &Tokens<'_>,
    t: usize,
    p: &Panel,
    out: &mut [[f32; ROWS]; C],
) {
    let (cols, groups) = (x.cols(), x.cols() / 32);
    let (scales, offsets) = (F::SCALES, F::OFFSETS);
    assert!((t + C) * groups <= x.scale().len());
    // SAFETY: by the caller's promise, and as asserted: all buffers of a token have this many groups.
    unsafe {
        let xq: [*const i8; C] = std::array::from_fn(|c| x.q8().add((t + c) * cols + k.start));
        let first: [usize; C] = std::array::from_fn(|c| (t + c) * groups + k.start / 32);
        // −ZERO for the sum of the activations of both halves of a group, or of one half.
        let zero = -p.zero as i16;
        let zero = match scales {
            1 => [_mm256_set1_epi16(zero); 2],
            _ => [zero as u16 as i32, i32::from(zero) << 16].map(|pair| _mm256_set1_epi32(pair)),
        };
        let mut acc = [[_mm256_setzero_ps(); 2]; C];
        if k.start != 0 {
            for c in 0..C {
                let out = out[c].as_ptr();
                acc[c] = [_mm256_loadu_ps(out), _mm256_loadu_ps(out.add(8))];
            }
        }
        for g in 0..k.len() / 32 {
            for h in 0..scales {
                let line = 8 * g + 8 / scales * h;
                let mut four = xq;
                for x in &mut four {
                    *x = x.add(4 * line);
                }
                let w = p.q.as_ptr().add((line * PANEL_ROWS + row) * 4);
                let mut sums = S::sums::<C>(w, four);
                let d = p.d.as_ptr().add((scales * g + h) * PANEL_ROWS + row);
                let d = [_mm256_load_ps(d), _mm256_load_ps(d.add(8))];
                for c in 0..C {
                    let at = first[c] + g;
                    if F::ZERO && !S::SIGNED {
                        let z = _mm256_madd_epi16(_mm256_set1_epi32(x.pair(at)), zero[h]);
                        for sum in &mut sums[c] {
                            *sum = _mm256_add_epi32(*sum, z);
                        }
                    }
                    let scale = _mm256_set1_ps(*x.scale().get_unchecked(at));
                    for i in 0..2 {
                        let a = _mm256_mul_ps(d[i], scale);
                        acc[c][i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[c][i]), a, acc[c][i]);
                    }
                }
            }
            for h in 0..offsets {
                let m = p.m.as_ptr().add((offsets * g + h) * PANEL_ROWS + row);
                let m = [_mm256_load_ps(m), _mm256_load_ps(m.add(8))];
                for c in 0..C {
                    let sums = x.sums_for(offsets);
                    let s = _mm256_set1_ps(*sums.get_unchecked(offsets * (first[c] + g) + h));
                    for i in 0..2 {
                        acc[c][i] = _mm256_fmadd_ps(m[i], s, acc[c][i]);
                    }
                }
            }
        }
        for (out, acc) in out.iter_mut().zip(acc) {
            _mm256_storeu_ps(out.as_mut_ptr(), acc[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), acc[1]);
        }
    }
}

/// 16-bit sums of two products each.
#[inline(always)]
unsafe fn products<F: Narrowing>(w: __m256i, x: __m256i) -> __m256i {
    // SAFETY: the callers' CPU has AVX2.
    unsafe {
        if F::LINES == 0 {
            _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
        } else {
            _mm256_maddubs_epi16(w, x)
        }
    }
}
