//! NEON dot products: codes against the planes of high and low bytes of 16-bit activations with `sdot`, whose sums of 32 products
//! are exact integers (|q − ZERO| ≤ 128, |x| ≤ 32512). Four rows share each load of activations, or several tokens share the
//! unpacked weights of two rows.
//!
//! Codes that fit a signed byte are multiplied as they are, and the sums begin at minus the zero point times the sum of the
//! activations. Nothing is prefetched: whether that helps has to be measured on a machine.

use super::scalar;
use crate::blocks::neon_rows::{Eight, RowsNeon, signed, too_large};
use crate::blocks::{WeightType, with_block};
use crate::lanes::{Lanes, Neon};
use crate::matmul::{Matrix, Output, Tokens};
use crate::sdot::sdot;
use std::arch::aarch64::*;
use std::ops::Range;

driver!("neon,dotprod", RowsNeon, 4, 2, 2);

/// Rows of floats.
///
/// # Safety
/// As for [`rows`].
#[target_feature(enable = "neon,dotprod")]
unsafe fn floats(w: &Matrix<'_>, rows: Range<usize>, x: &Tokens<'_>, out: Output<'_>) {
    // SAFETY: by the caller's promise.
    unsafe {
        match w.weight_type() {
            WeightType::F32 => float(rows, w, x, out, |p| Neon::load(p.cast())),
            WeightType::F16 => float(rows, w, x, out, |p| Neon::load_f16(p.cast())),
            _ => float(rows, w, x, out, |p| bf16(p)),
        }
    }
}

/// Eight bf16 as f32.
///
/// # Safety
/// `p` has 16 readable bytes; the CPU has NEON.
#[inline(always)]
pub(in crate::matmul) unsafe fn bf16(p: *const u8) -> [float32x4_t; 2] {
    // SAFETY: by the caller's promise.
    unsafe {
        let v = vld1q_u16(p.cast());
        let wide = [vmovl_u16(vget_low_u16(v)), vmovl_high_u16(v)];
        [
            vreinterpretq_f32_u32(vshlq_n_u32::<16>(wide[0])),
            vreinterpretq_f32_u32(vshlq_n_u32::<16>(wide[1])),
        ]
    }
}

/// `R` rows for `T` tokens. The operations of each row and token, and their order, are the same for any `R` and `T`.
#[inline(always)]
unsafe fn dot<Q: RowsNeon, const R: usize, const T: usize>(
    row: [*const u8; R],
    _: &Matrix<'_>,
    x: &[Tokens<'_>; T],
) -> [[f32; R]; T] {
    // SAFETY: the caller passes whole rows of x.cols() weights, a multiple of 32, and tokens of 16 bits.
    unsafe {
        let sums: [&[f32]; T] = std::array::from_fn(|t| x[t].sums_for(Q::OFFSETS));
        let count = x[0].cols() / 32;
        let none = vdupq_n_s32(0);
        let mut total = [[vdupq_n_f32(0.0); R]; T];
        let mut mins = [[0f32; R]; T];
        for g in 0..count.div_ceil(8) {
            let mut acc = [[vdupq_n_f32(0.0); R]; T];
            let mut min = [[0f32; R]; T];
            // In loops: closures passed to the standard library are not compiled for the level.
            let mut eight = [Eight::NONE; R];
            if Q::EIGHT {
                for r in 0..R {
                    eight[r] = Q::eight(row[r], g);
                }
            }
            // Blocks of 256 weights are whole.
            let last = if Q::EIGHT { 8 } else { count.min(8 * g + 8) - 8 * g };
            for i in 0..last {
                let b = 8 * g + i;
                let mut first = [[none; 2]; T];
                if Q::ZERO != 0 && !too_large::<Q>() {
                    for t in 0..T {
                        let zeros = |sum: f32| vsetq_lane_s32::<0>(-Q::ZERO * sum as i32, none);
                        first[t] = match Q::SCALES {
                            1 => [zeros(x[t].s32()[b]), none],
                            _ => [zeros(x[t].s16()[2 * b]), zeros(x[t].s16()[2 * b + 1])],
                        };
                    }
                }
                for r in 0..R {
                    let mut u = Q::group128(row[r], b);
                    if Q::EIGHT {
                        let d = &eight[r].d[Q::SCALES * i..][..Q::SCALES];
                        (u.d, u.m) = ([d[0], d[Q::SCALES - 1]], [eight[r].m[i]; 2]);
                    }
                    let w = [signed::<Q>(u.q[0]), signed::<Q>(u.q[1])];
                    for t in 0..T {
                        let planes = x[t].q8().add(64 * b);
                        // The sums of 16 products, high bytes and low.
                        let (mut high, mut low) = ([none; 2], first[t]);
                        for h in 0..2 {
                            high[h] = sdot(high[h], w[h], vld1q_s8(planes.add(16 * h)));
                            low[h] = sdot(low[h], w[h], vld1q_s8(planes.add(32 + 16 * h)));
                        }
                        let acc = &mut acc[t][r];
                        if Q::SCALES == 2 {
                            for h in 0..2 {
                                let f = whole(high[h], low[h]);
                                *acc = vfmaq_n_f32(*acc, f, u.d[h]);
                            }
                        } else {
                            let f = whole(vaddq_s32(high[0], high[1]), vaddq_s32(low[0], low[1]));
                            *acc = vfmaq_n_f32(*acc, f, u.d[0]);
                        }
                        for h in 0..Q::OFFSETS {
                            min[t][r] += u.m[h] * sums[t][Q::OFFSETS * b + h];
                        }
                    }
                }
            }
            for t in 0..T {
                let scale = x[t].scale()[g];
                for r in 0..R {
                    total[t][r] = vfmaq_n_f32(total[t][r], acc[t][r], scale);
                    mins[t][r] += scale * min[t][r];
                }
            }
        }
        let mut out = mins;
        for t in 0..T {
            for r in 0..R {
                out[t][r] += vaddvq_f32(total[t][r]);
            }
        }
        out
    }
}

/// Joins sums with high bytes and with low ones, as floats: 32 products with at most 16 bits, so that the integers are exact.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
pub(in crate::matmul) unsafe fn whole(high: int32x4_t, low: int32x4_t) -> float32x4_t {
    // SAFETY: by the caller's promise.
    unsafe { vcvtq_f32_s32(vaddq_s32(vshlq_n_s32::<8>(high), low)) }
}

/// Float rows; `load` reads 8 weights.
#[inline(always)]
unsafe fn float(
    rows: Range<usize>,
    w: &Matrix<'_>,
    x: &Tokens<'_>,
    out: Output<'_>,
    load: impl Fn(*const u8) -> [float32x4_t; 2],
) {
    let ty = w.weight_type();
    let size = ty.block_bytes();
    for (t, r) in (0..x.tokens()).flat_map(|t| rows.clone().map(move |r| (t, r))) {
        let (x, row) = (x.float(t), w.row(r));
        let whole = x.len() / 32 * 32;
        // SAFETY: k + 8·i + 8 ≤ x.len(), the number of weights of the row; the callers' CPU has NEON, and the element is
        // ours by their promise.
        unsafe {
            let mut acc = [Neon::splat(0.0); 4];
            for k in (0..whole).step_by(32) {
                for (i, acc) in acc.iter_mut().enumerate() {
                    let v = load(row.as_ptr().add((k + 8 * i) * size));
                    *acc = Neon::fma(v, Neon::load(x.as_ptr().add(k + 8 * i)), *acc);
                }
            }
            let [a, b, c, d] = acc;
            let all = Neon::sum(Neon::add(Neon::add(a, b), Neon::add(c, d)));
            let rest = scalar::float(ty, &row[whole * size..], &x[whole..]);
            out.row_mut(t, r..r + 1)[0] = all + rest;
        }
    }
}
