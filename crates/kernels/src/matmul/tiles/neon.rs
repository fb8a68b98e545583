//! Tiles with NEON, 16-bit tokens: lines of four codes of each row against the planes of high and low bytes of four activations
//! with `sdot`, four rows to a register. Up to four tokens share the unpacked weights; the operations of each token, and their
//! order, are the same as for one alone. The zero point is subtracted from the sums, as in `dot/neon.rs`.

use crate::blocks::neon_rows::signed;
use crate::blocks::neon_tiles::TilesNeon;
use crate::blocks::{WeightType, with_tiles};
use crate::lanes::{Lanes, Neon};
use crate::matmul::dot::neon::{bf16, joined, without_zero};
use crate::matmul::{Matrix, Output, Tokens};
use crate::sdot::sdot_lane;
use crate::tiles::TILE_ROWS;
use std::arch::aarch64::*;
use std::ops::Range;

/// Sums of 16 rows, `[half]`.
type HalfSums = [[float32x4_t; 2]; 2];

driver!();

/// The sums of all rows of tile `i`, which is read from front to back.
///
/// # Safety
/// As for [`rows`].
#[target_feature(enable = "neon,dotprod")]
unsafe fn quantized<Q: TilesNeon, const T: usize>(
    w: &Matrix<'_>,
    i: usize,
    x: &[Tokens<'_>; T],
    sums: &mut [[f32; TILE_ROWS]; T],
) {
    let tile = w.tile(i).as_ptr();
    let groups = x[0].cols() / 32;
    let per_unit = Q::BLOCK / 32;
    // SAFETY: by the caller's promise.
    unsafe {
        let mut total = [[[vdupq_n_f32(0.0); 2]; 2]; T];
        let mut acc = total;
        for b in 0..groups {
            let unit = tile.add(b / per_unit * TILE_ROWS * Q::BYTES);
            group::<Q, T>(unit, b, 0, x, &mut acc);
            group::<Q, T>(unit, b, 1, x, &mut acc);
            // The activations have one scale per 256.
            if b % 8 == 7 || b + 1 == groups {
                for t in 0..T {
                    let scale = x[t].scale()[b / 8];
                    for (half, i) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                        let total = &mut total[t][half][i];
                        *total = vfmaq_n_f32(*total, acc[t][half][i], scale);
                        acc[t][half][i] = vdupq_n_f32(0.0);
                    }
                }
            }
        }
        for (sums, [first, second]) in sums.iter_mut().zip(total) {
            Neon::store(sums.as_mut_ptr(), first);
            Neon::store(sums.as_mut_ptr().add(8), second);
        }
    }
}

/// Adds group `b` of the row, for rows `8·half ..`.
#[inline(always)]
unsafe fn group<Q: TilesNeon, const T: usize>(
    unit: *const u8,
    b: usize,
    half: usize,
    x: &[Tokens<'_>; T],
    acc: &mut [HalfSums; T],
) {
    let g = b % (Q::BLOCK / 32);
    // SAFETY: by the caller's promise.
    unsafe {
        let decoded = Q::begin(unit, g, half);
        let scales = Q::scales(unit, &decoded, g, half);
        let none = vdupq_n_s32(0);
        let (mut high, mut low) = ([[none; 2]; T], [[none; 2]; T]);
        for part in 0..2 {
            let mut planes = [[vdupq_n_s8(0); 2]; T];
            for t in 0..T {
                let at = x[t].q8().add(64 * b + 16 * part);
                planes[t] = [vld1q_s8(at), vld1q_s8(at.add(32))];
                if Q::SCALES == 2 || part == 0 {
                    (high[t], low[t]) = ([none; 2], [none; 2]);
                }
            }
            macro_rules! line {
                ($l:literal) => {
                    let w = Q::line(unit, &decoded, g, 4 * part + $l, half);
                    for i in 0..2 {
                        let w = signed::<Q>(w[i]);
                        for t in 0..T {
                            high[t][i] = sdot_lane::<$l>(high[t][i], w, planes[t][0]);
                            low[t][i] = sdot_lane::<$l>(low[t][i], w, planes[t][1]);
                        }
                    }
                };
            }
            line!(0);
            line!(1);
            line!(2);
            line!(3);
            if Q::SCALES == 2 || part == 1 {
                let d = scales.d[if Q::SCALES == 2 { part } else { 0 }];
                for t in 0..T {
                    let at = if Q::SCALES == 2 { 2 * b + part } else { b };
                    let of = x[t].sums_for(Q::SCALES)[at];
                    for i in 0..2 {
                        let acc = &mut acc[t][half][i];
                        let f = without_zero::<Q>(joined(high[t][i], low[t][i]), of);
                        *acc = vfmaq_f32(*acc, f, d[i]);
                    }
                }
            }
        }
        for h in 0..Q::OFFSETS {
            for t in 0..T {
                let sum = x[t].sums_for(Q::OFFSETS)[Q::OFFSETS * b + h];
                for i in 0..2 {
                    let acc = &mut acc[t][half][i];
                    *acc = vfmaq_n_f32(*acc, scales.m[h][i], sum);
                }
            }
        }
    }
}

/// The sums of all rows of tile `i`, for 16-bit floats.
///
/// # Safety
/// As for [`rows`].
#[target_feature(enable = "neon,dotprod")]
unsafe fn float(w: &Matrix<'_>, i: usize, x: &[f32], sums: &mut [f32; TILE_ROWS]) {
    let (ty, tile) = (w.weight_type(), w.tile(i).as_ptr());
    // SAFETY: by the caller's promise.
    unsafe {
        for half in 0..2 {
            // Independent sums hide the latency.
            let mut acc = [Neon::splat(0.0); 4];
            for (k, &x) in x.iter().enumerate() {
                let p = tile.add(2 * TILE_ROWS * k + 16 * half);
                let w = if ty == WeightType::F16 { Neon::load_f16(p.cast()) } else { bf16(p) };
                acc[k % 4] = Neon::fma(w, Neon::splat(x), acc[k % 4]);
            }
            let [a, b, c, d] = acc;
            let sum = Neon::add(Neon::add(a, b), Neon::add(c, d));
            Neon::store(sums.as_mut_ptr().add(8 * half), sum);
        }
    }
}
