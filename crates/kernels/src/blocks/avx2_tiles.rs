//! Reads tiles with AVX2: half lines of 8 rows × 4 unsigned codes, and their scales; also code shared by several types.

use super::BlockFormat;
use super::avx2_rows::fifth_bits;
use crate::fields::TILE_ROWS;
use std::arch::x86_64::*;

/// The scales and offsets that turn the sums of a group of 32 weights into floats, for each of 8 rows.
pub(crate) struct Scales {
    /// Scales of the first and of the second 16 weights; the same if the type has one per 32.
    pub d: [__m256; 2],
    /// The offsets, likewise; zeros if the type has none.
    pub m: [__m256; 2],
}

/// A block type's units; `half` are rows 0 to 7 or 8 to 15.
///
/// # Safety
/// For all functions: `unit` points to a whole unit, the groups and lines exist, and the CPU has AVX2, FMA and F16C.
pub(crate) trait TilesAvx2: BlockFormat {
    /// Data computed once per group; `()` if lines are read as they are.
    type Group;

    /// Called before the other functions for group `g`.
    unsafe fn begin(unit: *const u8, g: usize, half: usize) -> Self::Group;

    /// The scales and offsets of group `g`.
    unsafe fn scales(unit: *const u8, group: &Self::Group, g: usize, half: usize) -> Scales;

    /// Weights `32g + 4j .. 32g + 4j + 4` of the rows, as unsigned codes.
    unsafe fn line(
        unit: *const u8,
        group: &Self::Group,
        g: usize,
        j: usize,
        half: usize,
    ) -> __m256i;
}

/// 8 f16 at `p`.
#[inline(always)]
pub(super) unsafe fn halves(p: *const u8) -> __m256 {
    // SAFETY: inside the caller's unit.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
}

/// Bits `from .. from + 4` of line `l` of `lines`.
#[inline(always)]
pub(super) unsafe fn nibbles(lines: *const u8, l: usize, half: usize, from: usize) -> __m256i {
    // SAFETY: inside the caller's unit.
    unsafe { _mm256_and_si256(bits(lines, l, half, from), _mm256_set1_epi8(15)) }
}

/// Line `l` shifted right by `by` (into the neighbouring byte, too).
#[inline(always)]
pub(super) unsafe fn bits(lines: *const u8, l: usize, half: usize, by: usize) -> __m256i {
    // SAFETY: inside the caller's unit.
    unsafe {
        let v = _mm256_loadu_si256(lines.add(64 * l + 32 * half).cast());
        _mm256_srl_epi16(v, _mm_cvtsi32_si128(by as i32))
    }
}

/// Line `j` of group `g` of a field of bit pairs, see `pairs` in `shared`.
#[inline(always)]
pub(super) unsafe fn pairs(lines: *const u8, g: usize, j: usize, half: usize) -> __m256i {
    // SAFETY: inside the caller's unit.
    unsafe {
        let v = bits(lines, 8 * (g / 4) + j, half, 2 * (g % 4));
        _mm256_and_si256(v, _mm256_set1_epi8(3))
    }
}

/// Adds fifth bits: mask `i` of `masks`.
#[inline(always)]
pub(super) unsafe fn with_fifth(q: __m256i, masks: *const u8, i: usize, half: usize) -> __m256i {
    // SAFETY: inside the caller's unit.
    unsafe { _mm256_or_si256(q, fifth_bits(masks.add(8 * i + 4 * half))) }
}

/// The scales of a type with one per block of 32, and one offset if it has any.
#[inline(always)]
pub(super) unsafe fn one_scale<Q: BlockFormat>(unit: *const u8, half: usize) -> Scales {
    // SAFETY: inside the caller's unit.
    unsafe {
        let d = halves(unit.add(16 * half));
        let m = match Q::OFFSETS {
            0 => _mm256_setzero_ps(),
            _ => halves(unit.add(32 + 16 * half)),
        };
        Scales { d: [d; 2], m: [m; 2] }
    }
}

/// Scales and offsets of group `g` of a Q4_K or Q5_K unit.
#[inline(always)]
pub(super) unsafe fn scales_k(unit: *const u8, g: usize, half: usize) -> Scales {
    // SAFETY: inside the caller's unit.
    unsafe {
        // Byte i of the twelve, for 8 rows: see `scale_min_k` in `shared` for the bits.
        let at = |i: usize| _mm_loadl_epi64(unit.add(64 + TILE_ROWS * i + 8 * half).cast());
        let (six, four) = (_mm_set1_epi8(63), _mm_set1_epi8(15));
        let upper = |v| _mm_and_si128(_mm_srli_epi16::<2>(v), _mm_set1_epi8(0x30));
        let (sc, min) = if g < 4 {
            (_mm_and_si128(at(g), six), _mm_and_si128(at(g + 4), six))
        } else {
            let v = at(g + 4);
            let high = _mm_and_si128(_mm_srli_epi16::<4>(v), four);
            let low = _mm_and_si128(v, four);
            (_mm_or_si128(low, upper(at(g - 4))), _mm_or_si128(high, upper(at(g))))
        };
        let floats = |v| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(v));
        let d = _mm256_mul_ps(halves(unit.add(16 * half)), floats(sc));
        let m = _mm256_mul_ps(halves(unit.add(32 + 16 * half)), floats(min));
        let m = _mm256_sub_ps(_mm256_setzero_ps(), m);
        Scales { d: [d; 2], m: [m; 2] }
    }
}
