//! AVX-512 dot products with VNNI: unsigned weight bytes against the signed high and low bytes of
//! the 16-bit activations.
//!
//! Per 64 weights and row: unpack (3–5 operations), two `vpdpbusd` joined by a shift, one
//! conversion, one fused multiply-add. Four rows share each load of activations. The zero point
//! is taken from sums of four activations, once per step for all rows.

use super::scalar;
use crate::matmul::unpack::avx512::Unpack;
use crate::matmul::{Activations, Matrix};
use crate::quant;
use crate::types::WeightType;
use std::arch::x86_64::*;
use std::ops::Range;

/// Rows that are computed together.
const ROWS: usize = 4;

/// # Safety
/// The CPU has the AVX-512 tier.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma,f16c")]
pub(super) unsafe fn rows(w: &Matrix<'_>, rows: Range<usize>, x: &Activations, out: &mut [f32]) {
    // SAFETY: rows and activations have the lengths that `matmul` checked.
    unsafe {
        match w.weight_type() {
            WeightType::Q4_0 => quantized::<quant::Q4_0>(w, rows, x, out),
            WeightType::Q4_1 => quantized::<quant::Q4_1>(w, rows, x, out),
            WeightType::Q5_0 => quantized::<quant::Q5_0>(w, rows, x, out),
            WeightType::Q5_1 => quantized::<quant::Q5_1>(w, rows, x, out),
            WeightType::Q8_0 => quantized::<quant::Q8_0>(w, rows, x, out),
            WeightType::Q4_K => quantized::<quant::Q4K>(w, rows, x, out),
            WeightType::Q5_K => quantized::<quant::Q5K>(w, rows, x, out),
            WeightType::Q6_K => quantized::<quant::Q6K>(w, rows, x, out),
            WeightType::F32 => float(rows, w, x, out, |p| _mm512_loadu_ps(p.cast())),
            WeightType::F16 => {
                float(rows, w, x, out, |p| _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())))
            }
            WeightType::BF16 => float(rows, w, x, out, |p| {
                let v = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v))
            }),
        }
    }
}

#[inline(always)]
unsafe fn quantized<Q: Unpack>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &Activations,
    out: &mut [f32],
) {
    // SAFETY: `dot` reads whole rows of w and the activations of one token.
    unsafe {
        let (start, n) = (rows.start, rows.len());
        let mut i = 0;
        while i + ROWS <= n {
            let mut row = [std::ptr::null(); ROWS];
            for (j, p) in row.iter_mut().enumerate() {
                *p = w.row(start + i + j).as_ptr();
            }
            out[i..i + ROWS].copy_from_slice(&dot::<Q, ROWS>(row, w.row_bytes, x));
            i += ROWS;
        }
        while i < n {
            out[i] = dot::<Q, 1>([w.row(start + i).as_ptr()], w.row_bytes, x)[0];
            i += 1;
        }
    }
}

#[inline(always)]
unsafe fn dot<Q: Unpack, const R: usize>(
    row: [*const u8; R],
    row_bytes: usize,
    x: &Activations,
) -> [f32; R] {
    // SAFETY: the caller passes whole rows of x.cols() weights, a multiple of 32; the packed
    // activations are padded to whole steps.
    unsafe {
        let k = x.cols();
        let (q, s4, s32, scale) = (x.q8(), x.s4().as_ptr(), x.s32().as_ptr(), x.scale().as_ptr());
        let next = row[0].wrapping_add(R * row_bytes);
        let mut total = [_mm512_setzero_ps(); R];
        for g in 0..k / 256 {
            let group = begin::<Q, R>(&row, g);
            let mut acc = [_mm512_setzero_ps(); R];
            let (q, s4) = (q.add(512 * g), s4.add(64 * g));
            step::<Q, R, false>(&group, 0, q, s4, &mut acc);
            step::<Q, R, false>(&group, 1, q.add(128), s4.add(16), &mut acc);
            step::<Q, R, false>(&group, 2, q.add(256), s4.add(32), &mut acc);
            step::<Q, R, false>(&group, 3, q.add(384), s4.add(48), &mut acc);
            for r in 0..R {
                if let Some(a) = Q::add_offsets(&group[r], s32.add(8 * g), acc[r]) {
                    acc[r] = a;
                }
                total[r] = _mm512_fmadd_ps(acc[r], _mm512_set1_ps(*scale.add(g)), total[r]);
            }
            // The next rows are asked for in the order of the file, a few lines per group: measured
            // twice as fast as prefetching along each of the rows.
            let bytes = 256 / Q::BLOCK * Q::BYTES * R;
            prefetch(next.wrapping_add(g * bytes), bytes);
        }
        let rest = k % 256;
        if Q::BLOCK == 32 && rest != 0 {
            let g = k / 256;
            let whole = g * (256 / Q::BLOCK) * Q::BYTES * R;
            prefetch(next.wrapping_add(whole), (R * row_bytes).saturating_sub(whole));
            let group = begin::<Q, R>(&row, g);
            let mut acc = [_mm512_setzero_ps(); R];
            let (q, s4) = (q.add(512 * g), s4.add(64 * g));
            for j in 0..rest / 64 {
                step::<Q, R, false>(&group, j, q.add(128 * j), s4.add(16 * j), &mut acc);
            }
            if !rest.is_multiple_of(64) {
                let j = rest / 64;
                step::<Q, R, true>(&group, j, q.add(128 * j), s4.add(16 * j), &mut acc);
            }
            for r in 0..R {
                total[r] = _mm512_fmadd_ps(acc[r], _mm512_set1_ps(*scale.add(g)), total[r]);
            }
        }
        sums(total)
    }
}

/// Asks for `bytes` from `p` on, which may point anywhere.
#[inline(always)]
unsafe fn prefetch(p: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: a prefetch never faults; the callers' CPU has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(64 * line).cast()) };
    }
}

/// Group `g` of every row. (A loop, not a closure: closures do not inherit the tier.)
#[inline(always)]
unsafe fn begin<Q: Unpack, const R: usize>(row: &[*const u8; R], g: usize) -> [Q::Group; R] {
    // SAFETY: as for `dot`.
    unsafe {
        let mut group = [Q::begin(row[0], g); R];
        for r in 1..R {
            group[r] = Q::begin(row[r], g);
        }
        group
    }
}

/// Adds 64 weights (`HALF`: 32) of each row. `q` is 64 high and 64 low bytes, `s4` their sums of
/// four.
#[inline(always)]
unsafe fn step<Q: Unpack, const R: usize, const HALF: bool>(
    group: &[Q::Group; R],
    j: usize,
    q: *const i8,
    s4: *const i32,
    acc: &mut [__m512; R],
) {
    // SAFETY: whole steps of padded activations; see `dot`.
    unsafe {
        let hi = _mm512_load_si512(q.cast());
        let lo = _mm512_load_si512(q.add(64).cast());
        let s4 = _mm512_loadu_si512(s4.cast());
        let zero = _mm512_mullo_epi32(s4, _mm512_set1_epi32(Q::ZERO));
        for r in 0..R {
            let w = Q::step::<HALF>(&group[r], j);
            let p = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w.q, hi);
            let p = _mm512_dpbusd_epi32(_mm512_slli_epi32::<8>(p), w.q, lo);
            let p = if Q::ZERO != 0 { _mm512_sub_epi32(p, zero) } else { p };
            acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(p), w.d, acc[r]);
            if Q::MIN && Q::BLOCK == 32 {
                acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s4), w.m, acc[r]);
            }
        }
    }
}

/// The sum of the lanes of each register.
#[inline(always)]
unsafe fn sums<const R: usize>(v: [__m512; R]) -> [f32; R] {
    // SAFETY: the callers' CPU has the tier.
    unsafe {
        let mut out = [0f32; R];
        // 16 → 8 → 4 lanes each, then neighbours: the same order for any R, so that a row's result
        // does not depend on which rows it was computed with.
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
    x: &Activations,
    out: &mut [f32],
    load: impl Fn(*const u8) -> __m512,
) {
    let ty = w.weight_type();
    let size = ty.block_bytes();
    let x = x.float(0);
    for (r, out) in rows.zip(out) {
        let row = w.row(r);
        let whole = x.len() / 64 * 64;
        // SAFETY: k + 16·i + 16 ≤ x.len(), the number of weights of the row; the caller's CPU has
        // the tier.
        *out = unsafe {
            let mut acc = [_mm512_setzero_ps(); 4];
            for k in (0..whole).step_by(64) {
                for (i, acc) in acc.iter_mut().enumerate() {
                    let v = load(row.as_ptr().add((k + 16 * i) * size));
                    let x = _mm512_loadu_ps(x.as_ptr().add(k + 16 * i));
                    *acc = _mm512_fmadd_ps(v, x, *acc);
                }
            }
            let [a, b, c, d] = acc;
            _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d)))
        } + scalar::float(ty, &row[whole * size..], &x[whole..]);
    }
}
