//! AVX2 dot products: 16-bit weights against 16-bit activations with `vpmaddwd`, which cannot saturate here (|q − ZERO| ≤ 128,
//! |x| ≤ 32512). Four rows share each load of activations, or several tokens share the unpacked weights of two rows.

use super::scalar;
use crate::blocks::avx2_rows::{Eight, RowsAvx2};
use crate::blocks::{WeightType, with_block};
use crate::matmul::prefetch::RowsAhead;
use crate::matmul::{Matrix, Output, Tokens};
use std::arch::x86_64::*;
use std::ops::Range;

driver!("avx2,fma,f16c", RowsAvx2, 4, 2, 2);

/// Rows of floats.
///
/// # Safety
/// As for [`rows`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn floats(w: &Matrix<'_>, rows: Range<usize>, x: &Tokens<'_>, out: Output<'_>) {
    // SAFETY: by the caller's promise.
    unsafe {
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
    }
}

/// Expands `$body` for each number below `$n`, at most 4, which is a constant in each expansion.
macro_rules! each {
    ($n:expr, $i:ident => $body:expr) => {
        each!(@ $n, $i => $body; 0 1 2 3)
    };
    (@ $n:expr, $i:ident => $body:expr; $($k:literal)*) => {
        $(if $k < $n {
            let $i = $k;
            $body
        })*
    };
}

/// `R` rows for `T` tokens. The operations of each row and token, and their order, are the same for any `R` and `T`.
#[inline(always)]
unsafe fn dot<Q: RowsAvx2, const R: usize, const T: usize>(
    row: [*const u8; R],
    w: &Matrix<'_>,
    x: &[Tokens<'_>; T],
) -> [[f32; R]; T] {
    // SAFETY: the caller passes whole rows of x.cols() weights, a multiple of 32.
    unsafe {
        let xq: [&[i16]; T] = std::array::from_fn(|t| x[t].q16());
        let of: [&[f32]; T] = std::array::from_fn(|t| x[t].sums_for(Q::OFFSETS));
        let count = xq[0].len() / 32;
        assert!(of.iter().all(|of| of.len() >= Q::OFFSETS * count));
        let mut total = [[_mm256_setzero_ps(); R]; T];
        let mut mins = [[0f32; R]; T];
        let mut ahead = RowsAhead::new(row[0], R, w, 32 * count);
        for g in 0..count.div_ceil(8) {
            ahead.ask(R * 256 / Q::BLOCK * Q::BYTES);
            let mut sums = RowSums { acc: [[_mm256_setzero_ps(); R]; T], min: [[0f32; R]; T] };
            if Q::EIGHT && 8 * g + 8 <= count {
                // In loops: closures passed to the standard library are not compiled for AVX2.
                let mut eight = [Eight::NONE; R];
                for r in 0..R {
                    eight[r] = Q::eight(row[r], g);
                }
                // Scales are broadcast as they are loaded, which needs no vector unit.
                in_memory(&eight);
                for first in (0..8).step_by(Q::PHASES) {
                    // Each has its own code: the bits that a group uses of its bytes are a constant.
                    each!(Q::PHASES / Q::TOGETHER, part => {
                        let first = first + Q::TOGETHER * part;
                        each!(R, r => {
                            for i in first..first + Q::TOGETHER {
                                sums.add::<Q>(r, row[r], 8 * g + i, &xq, &of, Some((&eight[r], i)));
                            }
                        });
                        // The next iteration reads values again from the first-level cache: there are not enough registers to
                        // keep them.
                        in_memory(&eight);
                    });
                }
            } else {
                for b in 8 * g..count.min(8 * g + 8) {
                    for r in 0..R {
                        sums.add::<Q>(r, row[r], b, &xq, &of, None);
                    }
                }
            }
            for t in 0..T {
                let scale = x[t].scale()[g];
                let a = _mm256_set1_ps(scale);
                for r in 0..R {
                    total[t][r] = _mm256_fmadd_ps(sums.acc[t][r], a, total[t][r]);
                    mins[t][r] += scale * sums.min[t][r];
                }
            }
        }
        let mut out = mins;
        for t in 0..T {
            for r in 0..R {
                out[t][r] += sum(total[t][r]);
            }
        }
        out
    }
}

/// Sums of at most 256 weights of each row with each token, before the token's scale is applied.
struct RowSums<const R: usize, const T: usize> {
    /// Sums of products, in eight parts.
    acc: [[__m256; R]; T],
    /// Sums of offsets.
    min: [[f32; R]; T],
}

impl<const R: usize, const T: usize> RowSums<R, T> {
    /// Adds group `b` of row `r`, times the integers `x` of the tokens, and offsets times their sums `of`. `eight`: precomputed
    /// scales of eight groups, and the position of this group among them.
    #[inline(always)]
    unsafe fn add<Q: RowsAvx2>(
        &mut self,
        r: usize,
        row: *const u8,
        b: usize,
        x: &[&[i16]; T],
        of: &[&[f32]; T],
        eight: Option<(&Eight, usize)>,
    ) {
        // SAFETY: by the caller's promise; tokens have as many sums as groups.
        unsafe {
            let w = Q::words(row, b);
            let (d, m) = match eight {
                Some((Eight { d, m }, i)) => {
                    ([d[Q::SCALES * i], d[Q::SCALES * i + Q::SCALES - 1]], [m[i]; 2])
                }
                None => {
                    let group = Q::group256(row, b);
                    (group.d, group.m)
                }
            };
            for t in 0..T {
                let at = x[t].as_ptr().add(32 * b);
                let p0 = _mm256_madd_epi16(w[0], _mm256_loadu_si256(at.cast()));
                let p1 = _mm256_madd_epi16(w[1], _mm256_loadu_si256(at.add(16).cast()));
                let acc = &mut self.acc[t][r];
                if Q::SCALES == 2 {
                    let f0 = _mm256_cvtepi32_ps(p0);
                    let f1 = _mm256_cvtepi32_ps(p1);
                    *acc = _mm256_fmadd_ps(f0, _mm256_set1_ps(d[0]), *acc);
                    *acc = _mm256_fmadd_ps(f1, _mm256_set1_ps(d[1]), *acc);
                } else {
                    let f = _mm256_cvtepi32_ps(_mm256_add_epi32(p0, p1));
                    *acc = _mm256_fmadd_ps(f, _mm256_set1_ps(d[0]), *acc);
                }
                for h in 0..Q::OFFSETS {
                    self.min[t][r] += m[h] * of[t].get_unchecked(Q::OFFSETS * b + h);
                }
            }
        }
    }
}

/// Keeps a value in memory: the compiler must assume that it may have changed.
#[inline(always)]
fn in_memory<V>(v: &V) {
    // SAFETY: no instruction, and nothing is changed.
    unsafe { std::arch::asm!("/* {0} */", in(reg) v, options(nostack, preserves_flags)) }
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
    out: Output<'_>,
    load: impl Fn(*const u8) -> __m256,
) {
    let ty = w.weight_type();
    let size = ty.block_bytes();
    for (t, r) in (0..x.tokens()).flat_map(|t| rows.clone().map(move |r| (t, r))) {
        let (x, row) = (x.float(t), w.row(r));
        let whole = x.len() / 32 * 32;
        // SAFETY: k + 8·i + 8 ≤ x.len(), the number of weights of the row; the callers' CPU has AVX2, and the element is
        // ours by their promise.
        unsafe {
            let mut acc = [_mm256_setzero_ps(); 4];
            for k in (0..whole).step_by(32) {
                for (i, acc) in acc.iter_mut().enumerate() {
                    let v = load(row.as_ptr().add((k + 8 * i) * size));
                    let x = _mm256_loadu_ps(x.as_ptr().add(k + 8 * i));
                    *acc = _mm256_fmadd_ps(v, x, *acc);
                }
            }
            let [a, b, c, d] = acc;
            let all = sum(_mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d)));
            let rest = scalar::float(ty, &row[whole * size..], &x[whole..]);
            out.row_mut(t, r..r + 1)[0] = all + rest;
        }
    }
}
