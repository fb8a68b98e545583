//! Tiles with AVX2, tokens of 16 bits: eight rows at a time, their bytes widened to 16 bits, against four
//! broadcast 16-bit activations by `vpmaddwd`, which cannot saturate here (q ≤ 255, |x| ≤ 32512). Up to four tokens share what
//! is made of the weights; the operations of each, and their order, are those of one alone.

use crate::blocks::avx2_tiles::TilesAvx2;
use crate::blocks::{WeightType, with_tiles};
use crate::matmul::prefetch::{self, Ahead};
use crate::matmul::{Matrix, Output, Tokens};
use crate::tiles::TILE_ROWS;
use std::arch::x86_64::*;
use std::ops::Range;

/// How far ahead of its use memory is asked for, in bytes of the tiles' columns.
const AHEAD: usize = 8192;

driver!();

/// The sums of all rows of tile `i`.
///
/// # Safety
/// As for [`rows`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quantized<Q: TilesAvx2, const T: usize>(
    w: &Matrix<'_>,
    i: usize,
    x: &[Tokens<'_>; T],
    sums: &mut [[f32; TILE_ROWS]; T],
) {
    let tile = w.tile(i).as_ptr();
    let ahead = Ahead::new(tile, AHEAD, TILE_ROWS * w.row_bytes, TILE_ROWS * w.gap());
    // A copy, whose parts stay in registers. A half is a constant in the code of each.
    let x = *x;
    // SAFETY: by the caller's promise.
    unsafe {
        half::<Q, T, 0>(tile, &ahead, &x, sums);
        half::<Q, T, 1>(tile, &ahead, &x, sums);
    }
}

/// The sums of rows `8·HALF ..`.
#[inline(always)]
unsafe fn half<Q: TilesAvx2, const T: usize, const HALF: usize>(
    tile: *const u8,
    ahead: &Ahead,
    x: &[Tokens<'_>; T],
    sums: &mut [[f32; TILE_ROWS]; T],
) {
    let groups = x[0].q16().len() / 32;
    let per_unit = Q::BLOCK / 32;
    // SAFETY: by the caller's promise.
    unsafe {
        let mut total = [_mm256_setzero_ps(); T];
        let mut acc = [_mm256_setzero_ps(); T];
        for b in 0..groups {
            let unit = tile.add(b / per_unit * TILE_ROWS * Q::BYTES);
            if HALF == 0 {
                // The second half finds the tile in the cache.
                let group = TILE_ROWS * Q::BYTES / per_unit;
                prefetch::far(ahead.of(unit).wrapping_add(b % per_unit * group), group);
            }
            group::<Q, T>(unit, b, HALF, x, &mut acc);
            // The activations have one scale per 256.
            if b % 8 == 7 || b + 1 == groups {
                for t in 0..T {
                    total[t] =
                        _mm256_fmadd_ps(acc[t], _mm256_set1_ps(x[t].scale()[b / 8]), total[t]);
                    acc[t] = _mm256_setzero_ps();
                }
            }
        }
        for (sums, total) in sums.iter_mut().zip(total) {
            _mm256_storeu_ps(sums.as_mut_ptr().add(8 * HALF), total);
        }
    }
}

#[inline(always)]
unsafe fn group<Q: TilesAvx2, const T: usize>(
    unit: *const u8,
    b: usize,
    half: usize,
    x: &[Tokens<'_>; T],
    acc: &mut [__m256; T],
) {
    let g = b % (Q::BLOCK / 32);
    // SAFETY: by the caller's promise.
    unsafe {
        let decoded = Q::begin(unit, g, half);
        let scales = Q::scales(unit, &decoded, g, half);
        let mut sums = [[_mm256_setzero_si256(); 2]; T];
        for part in 0..2 {
            let mut s = [[_mm256_setzero_si256(); 2]; T];
            for j in 4 * part..4 * part + 4 {
                let w = Q::line(unit, &decoded, g, j, half);
                let w0 = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(w));
                let w1 = _mm256_cvtepu8_epi16(_mm256_extracti128_si256::<1>(w));
                for t in 0..T {
                    let four = x[t].q16().as_ptr().add(32 * b + 4 * j).cast::<i64>();
                    let x = _mm256_set1_epi64x(four.read_unaligned());
                    s[t][0] = _mm256_add_epi32(s[t][0], _mm256_madd_epi16(w0, x));
                    s[t][1] = _mm256_add_epi32(s[t][1], _mm256_madd_epi16(w1, x));
                }
            }
            for t in 0..T {
                // Pairs of lanes are a row's: rows 0 1 4 5, 2 3 6 7 after the addition.
                let rows = _mm256_hadd_epi32(s[t][0], s[t][1]);
                sums[t][part] = _mm256_permute4x64_epi64::<0b11_01_10_00>(rows);
            }
        }
        let zero = _mm256_set1_ps(Q::ZERO as f32);
        for (t, acc) in acc.iter_mut().enumerate() {
            let (x, sums) = (&x[t], sums[t]);
            if Q::SCALES == 2 {
                for part in 0..2 {
                    let s = _mm256_set1_ps(x.s16()[2 * b + part]);
                    let mut f = _mm256_cvtepi32_ps(sums[part]);
                    if Q::ZERO != 0 {
                        f = _mm256_fnmadd_ps(zero, s, f);
                    }
                    *acc = _mm256_fmadd_ps(f, scales.d[part], *acc);
                }
            } else {
                let s = _mm256_set1_ps(x.s32()[b]);
                let mut f = _mm256_cvtepi32_ps(_mm256_add_epi32(sums[0], sums[1]));
                if Q::ZERO != 0 {
                    f = _mm256_fnmadd_ps(zero, s, f);
                }
                *acc = _mm256_fmadd_ps(f, scales.d[0], *acc);
            }
            for h in 0..Q::OFFSETS {
                let s = _mm256_set1_ps(x.sums_for(Q::OFFSETS)[Q::OFFSETS * b + h]);
                *acc = _mm256_fmadd_ps(scales.m[h], s, *acc);
            }
        }
    }
}

/// The sums of all rows of tile `i`, of 16-bit floats.
///
/// # Safety
/// As for [`rows`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn float(w: &Matrix<'_>, i: usize, x: &[f32], sums: &mut [f32; TILE_ROWS]) {
    let (ty, tile) = (w.weight_type(), w.tile(i).as_ptr());
    for (half, sums) in sums.chunks_exact_mut(8).enumerate() {
        // SAFETY: by the caller's promise.
        unsafe {
            // Independent sums hide the latency.
            let mut acc = [_mm256_setzero_ps(); 4];
            for (k, &x) in x.iter().enumerate() {
                let v = _mm_loadu_si128(tile.add(2 * TILE_ROWS * k + 16 * half).cast());
                let w = if ty == WeightType::F16 {
                    _mm256_cvtph_ps(v)
                } else {
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(v)))
                };
                acc[k % 4] = _mm256_fmadd_ps(w, _mm256_set1_ps(x), acc[k % 4]);
            }
            let [a, b, c, d] = acc;
            let sum = _mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d));
            _mm256_storeu_ps(sums.as_mut_ptr(), sum);
        }
    }
}
