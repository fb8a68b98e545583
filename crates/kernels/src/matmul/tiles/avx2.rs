//! Tiles with AVX2, 16-bit tokens: lines of eight rows and four columns against four broadcast activations.
//! [`avx_vnni`](super::avx_vnni) shares everything except the integer sums ([`ByteSums`]).
//!
//! Codes are multiplied with the high and with the low bytes of the activations with `vpmaddubsw`. As many of these sums of two
//! products as are guaranteed to fit 16 bits are added there before they are widened, all of 32 columns for four-bit types. If
//! not even one fits (codes above 127), codes are widened, and multiplied with the activations as they are with `vpmaddwd`.
//!
//! All integer sums are exact, so both ways, and both levels, have the same bits. Up to four tokens share the unpacked weights;
//! the operations of each token, and their order, are the same as for one alone.

use crate::blocks::avx2_tiles::TilesAvx2;
use crate::blocks::{WeightType, with_tiles};
use crate::matmul::gemm::avx2::{four_columns, lines_together};
use crate::matmul::prefetch::{self, PrefetchAddress};
use crate::matmul::{Matrix, Output, Tokens};
use crate::tiles::TILE_ROWS;
use std::arch::x86_64::*;
use std::ops::Range;

/// Prefetch distance, in bytes of the tiles' columns.
pub(super) const AHEAD: usize = 8192;

driver!();

/// The `quantized` that [`driver`] calls, with the features of a level and its [`ByteSums`], and the same for units that are packed from rows.
macro_rules! quantized_with {
    ($features:literal, $sums:ty) => {
        /// The sums of all rows of tile `i`.
        ///
        /// # Safety
        /// As for [`rows`].
        #[target_feature(enable = $features)]
        unsafe fn quantized<Q: TilesAvx2, const T: usize>(
            w: &Matrix<'_>,
            i: usize,
            x: &[Tokens<'_>; T],
            sums: &mut [[f32; TILE_ROWS]; T],
        ) {
            // A copy, so that its parts stay in registers.
            let x = *x;
            let tile = w.tile(i).as_ptr();
            let ahead = PrefetchAddress::of_tile(w, tile, AHEAD);
            let mut ahead = |unit: *const u8, bytes, at| {
                prefetch::far(ahead.of(unit).wrapping_add(at), bytes);
            };
            let groups = 0..x[0].cols() / 32;
            // SAFETY: by the caller's promise.
            unsafe { both_halves::<$sums, Q, T>(tile, groups, &x, sums, &mut ahead) }
        }
    };
}
pub(super) use quantized_with;

quantized_with!("avx2,fma,f16c", Narrow);

/// Adds the products of `groups`, which begin with a multiple of eight, to the sums of sixteen rows; `units` are those of these columns. `ahead` prefetches
/// the given number of bytes for those at a place of a unit.
///
/// A half is a constant in its code. Both halves share the loaded activations, as long as there are registers for the sums of both.
///
/// # Safety
/// The units are whole, the tokens have these columns, the CPU has AVX2, FMA and F16C and what `S` needs.
#[inline(always)]
pub(in crate::matmul) unsafe fn both_halves<S: ByteSums, Q: TilesAvx2, const T: usize>(
    units: *const u8,
    groups: Range<usize>,
    x: &[Tokens<'_>; T],
    sums: &mut [[f32; TILE_ROWS]; T],
    ahead: &mut impl FnMut(*const u8, usize, usize),
) {
    // SAFETY: by the caller's promise.
    unsafe {
        if T <= 2 {
            halves::<S, Q, T, 2, 0>(units, groups, x, sums, ahead);
        } else {
            halves::<S, Q, T, 1, 0>(units, groups.clone(), x, sums, ahead);
            // For the second half the tile is already in the cache.
            halves::<S, Q, T, 1, 1>(units, groups, x, sums, &mut |_, _, _| {});
        }
    }
}

/// The difference between the levels: the addition of products of bytes.
pub(in crate::matmul) trait ByteSums {
    /// The number of lines, among those that share a scale, that are added before the sums of high and of low bytes are joined; 0
    /// if this number of tokens is multiplied by words instead.
    fn together<Q: TilesAvx2>(tokens: usize) -> usize;

    /// Adds a line's codes times the four bytes that are the same for every row.
    ///
    /// # Safety
    /// The CPU has the level.
    unsafe fn add(sum: __m256i, w: __m256i, x: __m256i) -> __m256i;

    /// 256 times the sums of high bytes plus those of low bytes, for each row.
    ///
    /// # Safety
    /// The CPU has the level.
    unsafe fn join(high: __m256i, low: __m256i) -> __m256i;
}

/// The lines of a group of a unit, of `H` times eight rows starting at half `first`.
pub(super) struct UnitLines<Q: TilesAvx2, const H: usize> {
    unit: *const u8,
    g: usize,
    first: usize,
    /// For the first and the last half.
    decoded: [Q::Group; 2],
}

impl<Q: TilesAvx2, const H: usize> UnitLines<Q, H> {
    /// Lines that share a scale.
    pub(super) const EACH: usize = 8 / Q::SCALES;

    /// Line `j` of half `first + h`.
    #[inline(always)]
    pub(super) unsafe fn at(&self, j: usize, h: usize) -> __m256i {
        // SAFETY: by the caller's promise.
        unsafe { Q::line(self.unit, &self.decoded[h], self.g, j, self.first + h) }
    }
}

/// With `vpmaddubsw`, or with words if that is impossible or does not pay.
pub(in crate::matmul) struct Narrow;

/// The largest magnitude of a low or a high byte of an activation.
pub(in crate::matmul) const LOW_BYTE: i32 = 128;

impl ByteSums for Narrow {
    fn together<Q: TilesAvx2>(tokens: usize) -> usize {
        match lines_together::<Q>(LOW_BYTE) {
            // Joining sums after each two lines pays only if few tokens share the widened codes.
            1 | 2 if tokens > 2 => 0,
            lines => lines,
        }
    }

    #[inline(always)]
    unsafe fn add(sum: __m256i, w: __m256i, x: __m256i) -> __m256i {
        // SAFETY: by the caller's promise.
        unsafe { _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, x)) }
    }

    #[inline(always)]
    unsafe fn join(high: __m256i, low: __m256i) -> __m256i {
        // SAFETY: by the caller's promise.
        unsafe {
            let high = _mm256_madd_epi16(high, _mm256_set1_epi16(256));
            _mm256_add_epi32(high, _mm256_madd_epi16(low, _mm256_set1_epi16(1)))
        }
    }
}

/// Σ w·x over part `part` of group `g` of a unit, of `H` times eight rows and `T` tokens: exact in any order. A part is the
/// columns that share a scale; the group is number `b` of the tokens.
///
/// # Safety
/// The unit is whole, the tokens have these columns, the CPU has the level.
#[inline(always)]
unsafe fn sums<S: ByteSums, Q: TilesAvx2, const T: usize, const H: usize>(
    lines: &UnitLines<Q, H>,
    x: &[Tokens<'_>; T],
    b: usize,
    part: usize,
) -> [[__m256i; H]; T] {
    // SAFETY: by the caller's promise.
    unsafe {
        let together = S::together::<Q>(T);
        if together == 0 {
            return words(lines, x, b, part);
        }
        let each = UnitLines::<Q, H>::EACH;
        let mut sums = [[_mm256_setzero_si256(); H]; T];
        for some in 0..each / together {
            // Sums with the high and with the low bytes.
            let mut s = [[[_mm256_setzero_si256(); 2]; H]; T];
            for l in 0..together {
                let j = each * part + together * some + l;
                for h in 0..H {
                    let w = lines.at(j, h);
                    for t in 0..T {
                        for (plane, s) in s[t][h].iter_mut().enumerate() {
                            let x = four_columns(x[t].planes(b).add(32 * plane), j);
                            *s = S::add(*s, w, x);
                        }
                    }
                }
            }
            for t in 0..T {
                for h in 0..H {
                    let [high, low] = s[t][h];
                    sums[t][h] = _mm256_add_epi32(sums[t][h], S::join(high, low));
                }
            }
        }
        sums
    }
}

/// Codes widened to 16 bits, times activations as they are.
#[inline(always)]
unsafe fn words<Q: TilesAvx2, const T: usize, const H: usize>(
    lines: &UnitLines<Q, H>,
    x: &[Tokens<'_>; T],
    b: usize,
    part: usize,
) -> [[__m256i; H]; T] {
    // SAFETY: by the caller's promise.
    unsafe {
        let each = UnitLines::<Q, H>::EACH;
        let mut s = [[[_mm256_setzero_si256(); 2]; H]; T];
        for j in each * part..each * (part + 1) {
            for h in 0..H {
                let w = lines.at(j, h);
                let w = [
                    _mm256_cvtepu8_epi16(_mm256_castsi256_si128(w)),
                    _mm256_cvtepu8_epi16(_mm256_extracti128_si256::<1>(w)),
                ];
                for t in 0..T {
                    let four = x[t].q16().as_ptr().add(32 * b + 4 * j).cast::<i64>();
                    let x = _mm256_set1_epi64x(four.read_unaligned());
                    for (s, w) in s[t][h].iter_mut().zip(w) {
                        *s = _mm256_add_epi32(*s, _mm256_madd_epi16(w, x));
                    }
                }
            }
        }
        let mut sums = [[_mm256_setzero_si256(); H]; T];
        for t in 0..T {
            for h in 0..H {
                // Each row is a pair of lanes: rows 0 1 4 5, 2 3 6 7 after the addition.
                let rows = _mm256_hadd_epi32(s[t][h][0], s[t][h][1]);
                sums[t][h] = _mm256_permute4x64_epi64::<0b11_01_10_00>(rows);
            }
        }
        sums
    }
}

/// As [`both_halves`], for `H` times eight rows, starting at half `FIRST`.
#[inline(always)]
unsafe fn halves<S: ByteSums, Q: TilesAvx2, const T: usize, const H: usize, const FIRST: usize>(
    units: *const u8,
    groups: Range<usize>,
    x: &[Tokens<'_>; T],
    sums: &mut [[f32; TILE_ROWS]; T],
    ahead: &mut impl FnMut(*const u8, usize, usize),
) {
    let per_unit = Q::BLOCK / 32;
    // SAFETY: by the caller's promise.
    unsafe {
        let mut total = [[_mm256_setzero_ps(); H]; T];
        for (total, sums) in total.iter_mut().zip(&*sums) {
            for (h, total) in total.iter_mut().enumerate() {
                *total = _mm256_loadu_ps(sums.as_ptr().add(8 * (FIRST + h)));
            }
        }
        let mut acc = [[_mm256_setzero_ps(); H]; T];
        let last = groups.end - 1;
        for b in groups.clone() {
            let unit = units.add((b - groups.start) / per_unit * TILE_ROWS * Q::BYTES);
            let bytes = TILE_ROWS * Q::BYTES / per_unit;
            ahead(unit, bytes, b % per_unit * bytes);
            group::<S, Q, T, H, FIRST>(unit, b, x, &mut acc);
            // The activations have one scale per 256.
            if b % 8 == 7 || b == last {
                for t in 0..T {
                    let scale = _mm256_set1_ps(x[t].scale()[b / 8]);
                    for h in 0..H {
                        total[t][h] = _mm256_fmadd_ps(acc[t][h], scale, total[t][h]);
                        acc[t][h] = _mm256_setzero_ps();
                    }
                }
            }
        }
        for (sums, total) in sums.iter_mut().zip(total) {
            for (h, total) in total.into_iter().enumerate() {
                _mm256_storeu_ps(sums.as_mut_ptr().add(8 * (FIRST + h)), total);
            }
        }
    }
}

/// Adds group `b` of the row, which is in `unit`.
#[inline(always)]
unsafe fn group<S: ByteSums, Q: TilesAvx2, const T: usize, const H: usize, const FIRST: usize>(
    unit: *const u8,
    b: usize,
    x: &[Tokens<'_>; T],
    acc: &mut [[__m256; H]; T],
) {
    let g = b % (Q::BLOCK / 32);
    // SAFETY: by the caller's promise.
    unsafe {
        let decoded = [Q::begin(unit, g, FIRST), Q::begin(unit, g, FIRST + H - 1)];
        let lines = UnitLines::<Q, H> { unit, g, first: FIRST, decoded };
        let zero = _mm256_set1_ps(Q::ZERO as f32);
        for part in 0..Q::SCALES {
            let sums = sums::<S, Q, T, H>(&lines, x, b, part);
            for h in 0..H {
                let scales = Q::scales(unit, &lines.decoded[h], g, FIRST + h);
                for t in 0..T {
                    let mut f = _mm256_cvtepi32_ps(sums[t][h]);
                    if Q::ZERO != 0 {
                        let of = x[t].sums_for(Q::SCALES);
                        let s = _mm256_set1_ps(of[Q::SCALES * b + part]);
                        f = _mm256_fnmadd_ps(zero, s, f);
                    }
                    acc[t][h] = _mm256_fmadd_ps(f, scales.d[part], acc[t][h]);
                }
            }
        }
        for h in 0..H {
            let scales = Q::scales(unit, &lines.decoded[h], g, FIRST + h);
            for t in 0..T {
                for o in 0..Q::OFFSETS {
                    let s = _mm256_set1_ps(x[t].sums_for(Q::OFFSETS)[Q::OFFSETS * b + o]);
                    acc[t][h] = _mm256_fmadd_ps(scales.m[o], s, acc[t][h]);
                }
            }
        }
    }
}

/// The sums of all rows of tile `i`, for 16-bit floats.
///
/// # Safety
/// As for [`rows`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn float(w: &Matrix<'_>, i: usize, x: &[f32], sums: &mut [f32; TILE_ROWS]) {
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
