//! The panel product with AVX2: 8 rows × 4 tokens in registers, 16-bit products by `vpmaddubsw`.
//!
//! `vpmaddubsw` adds two products of an unsigned and a signed byte in 16 bits: activations up to
//! 255 and weights of a magnitude up to [`NARROW`] fit. Types whose codes reach further could
//! saturate, so there the activations are made signed again and the weights' sign is moved over to
//! them (|w| ≤ 128, 2·128·127 fits).

use super::{Panel, avx2_panel, scalar};
use crate::blocks::{BlockFormat, max_magnitude, with_block, with_tiles};
use crate::matmul::sizes::PANEL_ROWS;
use crate::matmul::{Matrix, Output, Tokens};
use crate::tiles::Layout;
use std::arch::x86_64::*;
use std::ops::Range;

/// Tokens of a full tile.
const TOKENS: usize = 4;

/// The largest weight of which two, times activations of 255, fit 16 bits.
const NARROW: i32 = i16::MAX as i32 / 2 / 255;

/// Whether products of this type could saturate.
const fn wide<Q: BlockFormat>() -> bool {
    max_magnitude::<Q>() > NARROW
}

/// # Safety
/// As for `gemm::rows`; the CPU has the level.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn panel(
    w: &Matrix<'_>,
    rows: Range<usize>,
    k: Range<usize>,
    x: &Tokens<'_>,
    out: Output<'_>,
    p: &mut Panel,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        with_block!(
            w.weight_type(),
            Q => {
                match w.layout() {
                    Layout::Rows => avx2_panel::fill_rows::<Q>(w, rows.clone(), k.clone(), p),
                    Layout::Tiles if avx2_panel::fits(&rows) => {
                        fill_tiles(w, rows.clone(), k.clone(), p);
                    }
                    Layout::Tiles => scalar::fill::<Q>(w, rows.clone(), k.clone(), p),
                }
                tokens::<Q>(rows, k, x, out, p);
            },
            {
                scalar::fill_float(w, rows.clone(), k.clone(), p);
                scalar::multiply_float(rows, k, x, out, p);
            }
        )
    }
}

/// # Safety
/// As for [`avx2_panel::fill_tiles`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
unsafe fn fill_tiles(w: &Matrix<'_>, rows: Range<usize>, k: Range<usize>, p: &mut Panel) {
    with_tiles!(
        w.weight_type(),
        // SAFETY: by the caller's promise.
        Q => unsafe { avx2_panel::fill_tiles::<Q>(w, rows, k, p) },
        unreachable!("floats have a panel of floats")
    )
}

#[inline(always)]
unsafe fn tokens<Q: BlockFormat>(
    rows: Range<usize>,
    k: Range<usize>,
    x: &Tokens<'_>,
    out: Output<'_>,
    p: &Panel,
) {
    let n = x.tokens();
    let mut t = 0;
    // SAFETY: by the caller's promise; t + C ≤ n in every call.
    unsafe {
        while t + TOKENS <= n {
            tile::<Q, TOKENS>(rows.clone(), k.clone(), x, t, out, p);
            t += TOKENS;
        }
        while t < n {
            tile::<Q, 1>(rows.clone(), k.clone(), x, t, out, p);
            t += 1;
        }
    }
}

#[inline(always)]
unsafe fn tile<Q: BlockFormat, const C: usize>(
    rows: Range<usize>,
    k: Range<usize>,
    x: &Tokens<'_>,
    t: usize,
    out: Output<'_>,
    p: &Panel,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        for part in 0..rows.len().div_ceil(8) {
            let acc = columns::<Q, C>(part, k.clone(), x, t, p);
            let first = rows.start + 8 * part;
            for (c, acc) in acc.iter().enumerate() {
                let out = out.row_mut(t + c, first..rows.end.min(first + 8));
                let mut sums = [0f32; 8];
                _mm256_storeu_ps(sums.as_mut_ptr(), *acc);
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = if k.start == 0 { sum } else { *out + sum };
                }
            }
        }
    }
}

/// The products of 8 rows with `C` tokens over all columns of the panel.
#[inline(always)]
unsafe fn columns<Q: BlockFormat, const C: usize>(
    part: usize,
    k: Range<usize>,
    x: &Tokens<'_>,
    t: usize,
    p: &Panel,
) -> [__m256; C] {
    let cols = x.cols();
    let groups = cols / 32;
    // Column groups that share a scale.
    let parts = Q::SCALES;
    // SAFETY: by the caller's promise.
    unsafe {
        let mut acc = [_mm256_setzero_ps(); C];
        for g in 0..k.len() / 32 {
            for h in 0..parts {
                let lines = 8 / parts;
                let at = (parts * g + h) * PANEL_ROWS + 8 * part;
                let start = if wide::<Q>() {
                    _mm256_setzero_si256()
                } else {
                    _mm256_load_si256(p.z.as_ptr().add(at).cast())
                };
                let mut sums = [start; C];
                for l in 0..lines {
                    let line = 8 * g + lines * h + l;
                    let w = p.q.as_ptr().add((line * PANEL_ROWS + 8 * part) * 4);
                    let w = _mm256_load_si256(w.cast());
                    for c in 0..C {
                        let x = x.q8().add((t + c) * cols + k.start + 4 * line).cast::<i32>();
                        let x = _mm256_set1_epi32(x.read_unaligned());
                        sums[c] = _mm256_add_epi32(sums[c], dot4::<Q>(w, x));
                    }
                }
                let d = _mm256_load_ps(p.d.as_ptr().add(at));
                for c in 0..C {
                    let at = (t + c) * groups + k.start / 32 + g;
                    let a = _mm256_mul_ps(d, _mm256_set1_ps(x.scale()[at]));
                    acc[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[c]), a, acc[c]);
                }
            }
            for h in 0..Q::OFFSETS {
                let at = (Q::OFFSETS * g + h) * PANEL_ROWS + 8 * part;
                let m = _mm256_load_ps(p.m.as_ptr().add(at));
                for c in 0..C {
                    let at = (t + c) * groups + k.start / 32 + g;
                    let s = x.sums_for(Q::OFFSETS)[Q::OFFSETS * at + h];
                    acc[c] = _mm256_fmadd_ps(m, _mm256_set1_ps(s), acc[c]);
                }
            }
        }
        acc
    }
}

/// Each lane: the sum of four products.
#[inline(always)]
unsafe fn dot4<Q: BlockFormat>(w: __m256i, x: __m256i) -> __m256i {
    // SAFETY: the callers' CPU has AVX2.
    unsafe {
        let pairs = if wide::<Q>() {
            let x = _mm256_xor_si256(x, _mm256_set1_epi8(-128));
            _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
        } else {
            _mm256_maddubs_epi16(x, w)
        };
        _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
    }
}
