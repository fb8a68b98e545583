//! NEON dot products: codes against the planes of high and low bytes of 16-bit activations with `sdot`, whose sums of 32 products
//! are exact integers. Four rows at a time: the lanes of each row's sums are added in integers, so that four rows are one register, like rows of a
//! tile. Tokens share the unpacked weights.
//!
//! Codes that do not fit a signed byte are multiplied without their zero point, which is then added again times the sum of the activations. Nothing is
//! prefetched: whether that helps has to be measured on a machine.

use super::scalar;
use crate::blocks::neon_rows::{Eight, RowsNeon, signed, too_large};
use crate::blocks::{BlockFormat, WeightType, with_block};
use crate::matmul::{Matrix, Output, Tokens};
use crate::sdot::sdot;
use std::arch::aarch64::*;
use std::ops::Range;

driver!("neon,dotprod", RowsNeon, 4);

/// Rows of floats.
///
/// # Safety
/// As for [`rows`].
#[target_feature(enable = "neon,dotprod")]
unsafe fn floats(w: &Matrix<'_>, rows: Range<usize>, x: &Tokens<'_>, out: Output<'_>) {
    // SAFETY: by the caller's promise.
    unsafe {
        match w.weight_type() {
            WeightType::F32 => float(rows, w, x, out, |p| vld1q_f32(p.cast())),
            WeightType::F16 => {
                float(rows, w, x, out, |p| vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p.cast()))))
            }
            _ => float(rows, w, x, out, |p| {
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(vld1_u16(p.cast()))))
            }),
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

/// `R` rows for `T` tokens. The operations of each row and token, and their order, are the same for any `T`, and those of tiles.
#[inline(always)]
unsafe fn dot<Q: RowsNeon, const R: usize, const T: usize>(
    row: [*const u8; R],
    _: &Matrix<'_>,
    x: &[Tokens<'_>; T],
) -> [[f32; R]; T] {
    const { assert!(R == 4) };
    // SAFETY: the caller passes whole rows of x.cols() weights, a multiple of 32, and tokens of 16 bits.
    unsafe {
        let count = x[0].cols() / 32;
        let mut total = [vdupq_n_f32(0.0); T];
        for g in 0..count.div_ceil(8) {
            let mut acc = [vdupq_n_f32(0.0); T];
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
                let mut codes = [[vdupq_n_s8(0); 2]; R];
                // `[part][row]`
                let (mut d, mut m) = ([[0f32; R]; 2], [[0f32; R]; 2]);
                for r in 0..R {
                    let mut u = Q::group128(row[r], b);
                    if Q::EIGHT {
                        let d = &eight[r].d[Q::SCALES * i..][..Q::SCALES];
                        (u.d, u.m) = ([d[0], d[Q::SCALES - 1]], [eight[r].m[i]; 2]);
                    }
                    codes[r] = [signed::<Q>(u.q[0]), signed::<Q>(u.q[1])];
                    for h in 0..2 {
                        (d[h][r], m[h][r]) = (u.d[h], u.m[h]);
                    }
                }
                for t in 0..T {
                    let sums = parts_of_rows::<Q, R>(&codes, x[t].q8().add(64 * b));
                    for part in 0..Q::SCALES {
                        let of = x[t].sums_for(Q::SCALES)[Q::SCALES * b + part];
                        let f = without_zero::<Q>(sums[part], of);
                        acc[t] = vfmaq_f32(acc[t], f, vld1q_f32(d[part].as_ptr()));
                    }
                    for h in 0..Q::OFFSETS {
                        let of = x[t].sums_for(Q::OFFSETS)[Q::OFFSETS * b + h];
                        acc[t] = vfmaq_n_f32(acc[t], vld1q_f32(m[h].as_ptr()), of);
                    }
                }
            }
            for t in 0..T {
                total[t] = vfmaq_n_f32(total[t], acc[t], x[t].scale()[g]);
            }
        }
        let mut out = [[0.0; R]; T];
        for t in 0..T {
            vst1q_f32(out[t].as_mut_ptr(), total[t]);
        }
        out
    }
}

/// The sums of four rows over a group, a register for each part that shares a scale.
///
/// # Safety
/// 64 bytes of planes; the CPU has the level.
#[inline(always)]
unsafe fn parts_of_rows<Q: RowsNeon, const R: usize>(
    codes: &[[int8x16_t; 2]; R],
    planes: *const i8,
) -> [int32x4_t; 2] {
    // SAFETY: by the caller's promise.
    unsafe {
        let none = vdupq_n_s32(0);
        let mut parts = [none; 2];
        for part in 0..Q::SCALES {
            let mut of_row = [none; R];
            for r in 0..R {
                let (mut high, mut low) = (none, none);
                let halves = if Q::SCALES == 2 { part..part + 1 } else { 0..2 };
                for h in halves {
                    high = sdot(high, codes[r][h], vld1q_s8(planes.add(16 * h)));
                    low = sdot(low, codes[r][h], vld1q_s8(planes.add(32 + 16 * h)));
                }
                of_row[r] = joined(high, low);
            }
            let [first, last] =
                [vpaddq_s32(of_row[0], of_row[1]), vpaddq_s32(of_row[2], of_row[3])];
            parts[part] = vpaddq_s32(first, last);
        }
        parts
    }
}

/// Sums with high bytes and with low ones: 32 products with at most 16 bits, so that they are exact.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
pub(in crate::matmul) unsafe fn joined(high: int32x4_t, low: int32x4_t) -> int32x4_t {
    // SAFETY: by the caller's promise.
    unsafe { vaddq_s32(vshlq_n_s32::<8>(high), low) }
}

/// The float of sums of [`signed`] codes times activations, whose sum is `of`: of the codes themselves, rounded, minus the zero point times `of`.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
pub(in crate::matmul) unsafe fn without_zero<Q: BlockFormat>(
    sums: int32x4_t,
    of: f32,
) -> float32x4_t {
    // SAFETY: by the caller's promise.
    unsafe {
        if Q::ZERO == 0 {
            return vcvtq_f32_s32(sums);
        }
        let sums = match too_large::<Q>() {
            true => vaddq_s32(sums, vdupq_n_s32(Q::ZERO * of as i32)),
            false => sums,
        };
        vfmsq_f32(vcvtq_f32_s32(sums), vdupq_n_f32(Q::ZERO as f32), vdupq_n_f32(of))
    }
}

/// Rows of floats that are multiplied together: their sums keep the multipliers busy.
const FLOAT_ROWS: usize = 4;

/// Float rows: four sums over every fourth column, as in tiles; `load` reads 4 weights.
#[inline(always)]
unsafe fn float(
    rows: Range<usize>,
    w: &Matrix<'_>,
    x: &Tokens<'_>,
    out: Output<'_>,
    load: impl Fn(*const u8) -> float32x4_t,
) {
    let ty = w.weight_type();
    let size = ty.block_bytes();
    let whole = w.cols() / 4 * 4;
    for first in rows.clone().step_by(FLOAT_ROWS) {
        let end = rows.end.min(first + FLOAT_ROWS);
        for t in 0..x.tokens() {
            let x = x.float(t);
            // SAFETY: k + 4 ≤ x.len(), the number of weights of each row; the callers' CPU has NEON, and the elements are ours by their promise.
            unsafe {
                let mut row = [std::ptr::null(); FLOAT_ROWS];
                for (i, row) in row.iter_mut().enumerate() {
                    *row = w.row(end.min(first + i + 1) - 1).as_ptr();
                }
                let mut acc = [vdupq_n_f32(0.0); FLOAT_ROWS];
                for k in (0..whole).step_by(4) {
                    let x = vld1q_f32(x.as_ptr().add(k));
                    for (acc, row) in acc.iter_mut().zip(row) {
                        *acc = vfmaq_f32(*acc, load(row.add(k * size)), x);
                    }
                }
                for (i, out) in out.row_mut(t, first..end).iter_mut().enumerate() {
                    let mut sums = [0f32; 4];
                    vst1q_f32(sums.as_mut_ptr(), acc[i]);
                    let rest = &w.row(first + i)[whole * size..];
                    *out = scalar::finish_float(ty, rest, &x[whole..], &mut sums, f32::mul_add);
                }
            }
        }
    }
}
