//! AVX2 dot products: 16-bit weights against 16-bit activations by `vpmaddwd`, which cannot
//! saturate here (|q − ZERO| ≤ 128, |x| ≤ 32512). Four rows share each load of activations.

use super::scalar;
use crate::blocks::avx2_rows::RowsAvx2;
use crate::blocks::{WeightType, with_block};
use crate::matmul::{Matrix, Tokens};
use std::arch::x86_64::*;
use std::ops::Range;

/// # Safety
/// The CPU has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn rows(w: &Matrix<'_>, rows: Range<usize>, x: &Tokens<'_>, out: &mut [f32]) {
    // SAFETY: rows and activations have the lengths that `matmul` checked.
    unsafe {
        with_block!(
            w.weight_type(),
            Q => quantized::<Q>(w, rows, x, out),
            match w.weight_type() {
                WeightType::F32 => float(rows, w, x, out, |p| _mm256_loadu_ps(p.cast())),
                WeightType::F16 => {
                    float(rows, w, x, out, |p| _mm256_cvtph_ps(_mm_loadu_si128(p.cast())))
                }
                _ => float(rows, w, x, out, |p| {
                    let v = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(v))
                }),
            }
        )
    }
}

#[inline(always)]
unsafe fn quantized<Q: RowsAvx2>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &Tokens<'_>,
    out: &mut [f32],
) {
    // SAFETY: `four` and `one` read whole rows of w and the activations of one token.
    unsafe {
        let start = rows.start;
        let n = rows.len();
        let mut i = 0;
        while i + 4 <= n {
            let row = [0, 1, 2, 3].map(|j| w.row(start + i + j).as_ptr());
            out[i..i + 4].copy_from_slice(&dot::<Q, 4>(row, x));
            i += 4;
        }
        while i < n {
            out[i] = dot::<Q, 1>([w.row(start + i).as_ptr()], x)[0];
            i += 1;
        }
    }
}

#[inline(always)]
unsafe fn dot<Q: RowsAvx2, const R: usize>(row: [*const u8; R], x: &Tokens<'_>) -> [f32; R] {
    // SAFETY: the caller passes whole rows of x.cols() weights, a multiple of 32.
    unsafe {
        let (xq, sums, scale) = (x.q16(), x.sums_for(Q::OFFSETS), x.scale());
        let zero = _mm256_set1_epi16(Q::ZERO as i16);
        let count = xq.len() / 32;
        let mut total = [_mm256_setzero_ps(); R];
        let mut mins = [0f32; R];
        for g in 0..count.div_ceil(8) {
            let mut acc = [_mm256_setzero_ps(); R];
            let mut min = [0f32; R];
            for b in 8 * g..count.min(8 * g + 8) {
                let x0 = _mm256_loadu_si256(xq.as_ptr().add(32 * b).cast());
                let x1 = _mm256_loadu_si256(xq.as_ptr().add(32 * b + 16).cast());
                for r in 0..R {
                    let u = Q::group256(row[r], b);
                    let mut w0 = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(u.q));
                    let mut w1 = _mm256_cvtepu8_epi16(_mm256_extracti128_si256::<1>(u.q));
                    if Q::ZERO != 0 {
                        w0 = _mm256_sub_epi16(w0, zero);
                        w1 = _mm256_sub_epi16(w1, zero);
                    }
                    let p0 = _mm256_madd_epi16(w0, x0);
                    let p1 = _mm256_madd_epi16(w1, x1);
                    if Q::SCALES == 2 {
                        let f0 = _mm256_cvtepi32_ps(p0);
                        let f1 = _mm256_cvtepi32_ps(p1);
                        acc[r] = _mm256_fmadd_ps(f0, _mm256_set1_ps(u.d[0]), acc[r]);
                        acc[r] = _mm256_fmadd_ps(f1, _mm256_set1_ps(u.d[1]), acc[r]);
                    } else {
                        let f = _mm256_cvtepi32_ps(_mm256_add_epi32(p0, p1));
                        acc[r] = _mm256_fmadd_ps(f, _mm256_set1_ps(u.d[0]), acc[r]);
                    }
                    for h in 0..Q::OFFSETS {
                        min[r] += u.m[h] * sums[Q::OFFSETS * b + h];
                    }
                }
            }
            let a = _mm256_set1_ps(scale[g]);
            for r in 0..R {
                total[r] = _mm256_fmadd_ps(acc[r], a, total[r]);
                mins[r] += scale[g] * min[r];
            }
        }
        let mut out = mins;
        for r in 0..R {
            out[r] += sum(total[r]);
        }
        out
    }
}

#[inline(always)]
unsafe fn sum(v: __m256) -> f32 {
    // SAFETY: the callers' CPU has AVX2.
    unsafe {
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
    }
}

/// Float rows; `load` reads 8 weights.
#[inline(always)]
unsafe fn float(
    rows: Range<usize>,
    w: &Matrix<'_>,
    x: &Tokens<'_>,
    out: &mut [f32],
    load: impl Fn(*const u8) -> __m256,
) {
    let ty = w.weight_type();
    let size = ty.block_bytes();
    let x = x.float(0);
    for (r, out) in rows.zip(out) {
        let row = w.row(r);
        let mut acc = [0; 4].map(|_: i32| {
            // SAFETY: the callers' CPU has AVX2.
            unsafe { _mm256_setzero_ps() }
        });
        let whole = x.len() / 32 * 32;
        for k in (0..whole).step_by(32) {
            for (i, acc) in acc.iter_mut().enumerate() {
                // SAFETY: k + 8·i + 8 ≤ x.len(), the number of weights of the row.
                unsafe {
                    let v = load(row.as_ptr().add((k + 8 * i) * size));
                    let x = _mm256_loadu_ps(x.as_ptr().add(k + 8 * i));
                    *acc = _mm256_fmadd_ps(v, x, *acc);
                }
            }
        }
        // SAFETY: the callers' CPU has AVX2.
        *out = unsafe {
            sum(_mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), _mm256_add_ps(acc[2], acc[3])))
        } + scalar::float(ty, &row[whole * size..], &x[whole..]);
    }
}
