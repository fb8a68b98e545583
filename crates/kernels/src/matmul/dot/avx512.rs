//! AVX-512 dot products with VNNI: unsigned weight bytes against the signed high and low bytes of
//! the 16-bit activations.
//!
//! Per 64 weights and row: unpack (4–5 operations), two `vpdpbusd` joined by a shift, one
//! conversion, one permutation for the scales, one fused multiply-add. Zero points and offsets
//! cost one more per 256 weights, from sums of the activations. Four rows share each load of
//! activations.

use super::scalar;
use crate::blocks::avx512_rows::{Group256, Offsets, RowsAvx512, lane_scales};
use crate::blocks::{WeightType, per_16, with_block};
use crate::matmul::prefetch::RowsAhead;
use crate::matmul::{Matrix, Output, Tokens};
use std::arch::x86_64::*;
use std::ops::Range;

driver!("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma,f16c", RowsAvx512, 4, 4, 2);

/// Rows of floats.
///
/// # Safety
/// As for [`rows`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma,f16c")]
unsafe fn floats(w: &Matrix<'_>, rows: Range<usize>, x: &Tokens<'_>, out: Output<'_>) {
    // SAFETY: by the caller's promise.
    unsafe {
        match w.weight_type() {
            WeightType::F32 => float(rows, w, x, out, |p| _mm512_loadu_ps(p.cast())),
            WeightType::F16 => {
                float(rows, w, x, out, |p| _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())))
            }
            _ => float(rows, w, x, out, |p| {
                let v = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v))
            }),
        }
    }
}

/// `R` rows for `T` tokens. The operations of each row and token, and their order, are the same for any `R` and `T`.
#[inline(always)]
unsafe fn dot<Q: RowsAvx512, const R: usize, const T: usize>(
    row: [*const u8; R],
    w: &Matrix<'_>,
    x: &[Tokens<'_>; T],
) -> [[f32; R]; T] {
    // SAFETY: the caller passes whole rows of x.cols() weights, a multiple of 32; the packed
    // activations are padded to whole steps.
    unsafe {
        let k = x[0].cols();
        let mut ahead = RowsAhead::new(row[0], R, w, k);
        let mut total = [[_mm512_setzero_ps(); R]; T];
        for g in 0..k / 256 {
            ahead.ask(256 / Q::BLOCK * Q::BYTES * R);
            let group = begin::<Q, R>(&row, g, 8);
            let mut acc = offsets::<Q, R, T>(&group, g, x);
            step::<Q, R, T, false>(&group, g, 0, x, &mut acc);
            step::<Q, R, T, false>(&group, g, 1, x, &mut acc);
            step::<Q, R, T, false>(&group, g, 2, x, &mut acc);
            step::<Q, R, T, false>(&group, g, 3, x, &mut acc);
            scale(&acc, g, x, &mut total);
        }
        let rest = k % 256;
        if Q::BLOCK < 256 && rest != 0 {
            let g = k / 256;
            let whole = g * (256 / Q::BLOCK) * Q::BYTES * R;
            ahead.ask((R * w.row_bytes).saturating_sub(whole));
            let group = begin::<Q, R>(&row, g, rest / 32);
            let mut acc = offsets::<Q, R, T>(&group, g, x);
            for j in 0..rest / 64 {
                step::<Q, R, T, false>(&group, g, j, x, &mut acc);
            }
            if Q::BLOCK == 32 && !rest.is_multiple_of(64) {
                step::<Q, R, T, true>(&group, g, rest / 64, x, &mut acc);
            }
            scale(&acc, g, x, &mut total);
        }
        let mut out = [[0.0; R]; T];
        for t in 0..T {
            out[t] = sums(total[t]);
        }
        out
    }
}

/// Adds a group's sums, times the scale of its activations.
#[inline(always)]
unsafe fn scale<const R: usize, const T: usize>(
    acc: &[[__m512; R]; T],
    g: usize,
    x: &[Tokens<'_>; T],
    total: &mut [[__m512; R]; T],
) {
    // SAFETY: the callers' CPU has the level.
    unsafe {
        for t in 0..T {
            let a = _mm512_set1_ps(x[t].scale()[g]);
            for r in 0..R {
                total[t][r] = _mm512_fmadd_ps(acc[t][r], a, total[t][r]);
            }
        }
    }
}

/// The contribution of zero points and offsets for a whole group: scales × sums of activations, in any lanes.
#[inline(always)]
unsafe fn offsets<Q: RowsAvx512, const R: usize, const T: usize>(
    group: &[Group256<Q::Offsets>; R],
    g: usize,
    x: &[Tokens<'_>; T],
) -> [[__m512; R]; T] {
    // SAFETY: the sums are padded to whole groups; the callers' CPU has the level.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); R]; T];
        for (acc, x) in acc.iter_mut().zip(x) {
            if per_16::<Q>() {
                let s16 = _mm512_loadu_ps(x.s16().as_ptr().add(16 * g));
                let zero = _mm512_mul_ps(s16, _mm512_set1_ps(-Q::ZERO as f32));
                for r in 0..R {
                    acc[r] = match (Q::ZERO, Q::OFFSETS) {
                        (_, 0) => _mm512_mul_ps(group[r].scales, zero),
                        (0, _) => _mm512_mul_ps(group[r].offsets.lanes(), s16),
                        _ => {
                            let offsets = _mm512_mul_ps(group[r].offsets.lanes(), s16);
                            _mm512_fmadd_ps(group[r].scales, zero, offsets)
                        }
                    };
                }
                continue;
            }
            // The factor of each of the group's eight scales and eight offsets.
            let s32 = _mm256_loadu_ps(x.s32().as_ptr().add(8 * g));
            let zero = _mm256_mul_ps(s32, _mm256_set1_ps(-Q::ZERO as f32));
            let factor = match (Q::ZERO, Q::OFFSETS) {
                (_, 0) => _mm512_zextps256_ps512(zero),
                (0, _) => _mm512_maskz_broadcast_f32x8(0xff00, s32),
                _ => _mm512_insertf32x8::<1>(_mm512_castps256_ps512(zero), s32),
            };
            for r in 0..R {
                acc[r] = _mm512_mul_ps(group[r].scales, factor);
            }
        }
        acc
    }
}

/// Group `g` of every row. (A loop, not a closure: closures do not inherit the level's features.)
#[inline(always)]
unsafe fn begin<Q: RowsAvx512, const R: usize>(
    row: &[*const u8; R],
    g: usize,
    count: usize,
) -> [Group256<Q::Offsets>; R] {
    // SAFETY: as for `dot`.
    unsafe {
        let mut group = [Q::begin(row[0], g, count); R];
        for r in 1..R {
            group[r] = Q::begin(row[r], g, count);
        }
        group
    }
}

/// Adds 64 weights (`HALF`: 32) of each row, those of step `j` of group `g`, for each token. The activations of a step are 64
/// high and 64 low bytes.
#[inline(always)]
unsafe fn step<Q: RowsAvx512, const R: usize, const T: usize, const HALF: bool>(
    group: &[Group256<Q::Offsets>; R],
    g: usize,
    j: usize,
    x: &[Tokens<'_>; T],
    acc: &mut [[__m512; R]; T],
) {
    // SAFETY: whole steps of padded activations; see `dot`.
    unsafe {
        let mut q = [[_mm512_setzero_si512(); 2]; T];
        for t in 0..T {
            let at = x[t].q8().add(512 * g + 128 * j);
            q[t] = [_mm512_load_si512(at.cast()), _mm512_load_si512(at.add(64).cast())];
        }
        for r in 0..R {
            let w = Q::quants::<HALF>(group[r].at, j);
            let d = lane_scales::<Q>(group[r].scales, j);
            for t in 0..T {
                let [high, low] = q[t];
                let p = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w, high);
                let p = _mm512_dpbusd_epi32(_mm512_slli_epi32::<8>(p), w, low);
                acc[t][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(p), d, acc[t][r]);
            }
        }
    }
}

/// The sum of the lanes of each register.
#[inline(always)]
unsafe fn sums<const R: usize>(v: [__m512; R]) -> [f32; R] {
    // SAFETY: the callers' CPU has the level.
    unsafe {
        let mut out = [0f32; R];
        // 16 → 8 → 4 lanes each, then neighbours: the same order for any R, so that a row's result does not depend on the rows
        // computed with it.
        let mut h = [_mm_setzero_ps(); R];
        for r in 0..R {
            let v = _mm256_add_ps(_mm512_castps512_ps256(v[r]), _mm512_extractf32x8_ps::<1>(v[r]));
            h[r] = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        }
        if R == 4 {
            let s = _mm_hadd_ps(_mm_hadd_ps(h[0], h[1]), _mm_hadd_ps(h[2], h[3]));
            _mm_storeu_ps(out.as_mut_ptr(), s);
        } else {
            for r in 0..R {
                let s = _mm_hadd_ps(h[r], h[r]);
                out[r] = _mm_cvtss_f32(_mm_hadd_ps(s, s));
            }
        }
        out
    }
}

/// Float rows; `load` reads 16 weights.
#[inline(always)]
unsafe fn float(
    rows: Range<usize>,
    w: &Matrix<'_>,
    x: &Tokens<'_>,
    out: Output<'_>,
    load: impl Fn(*const u8) -> __m512,
) {
    let ty = w.weight_type();
    let size = ty.block_bytes();
    for (t, r) in (0..x.tokens()).flat_map(|t| rows.clone().map(move |r| (t, r))) {
        let (x, row) = (x.float(t), w.row(r));
        let whole = x.len() / 64 * 64;
        // SAFETY: k + 16·i + 16 ≤ x.len(), the number of weights of the row; the caller's CPU has
        // the level, and the element is ours by its promise.
        unsafe {
            let mut acc = [_mm512_setzero_ps(); 4];
            for k in (0..whole).step_by(64) {
                for (i, acc) in acc.iter_mut().enumerate() {
                    let v = load(row.as_ptr().add((k + 16 * i) * size));
                    let x = _mm512_loadu_ps(x.as_ptr().add(k + 16 * i));
                    *acc = _mm512_fmadd_ps(v, x, *acc);
                }
            }
            let [a, b, c, d] = acc;
            let sum = _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d)));
            let rest = scalar::float(ty, &row[whole * size..], &x[whole..]);
            out.row_mut(t, r..r + 1)[0] = sum + rest;
        }
    }
}
