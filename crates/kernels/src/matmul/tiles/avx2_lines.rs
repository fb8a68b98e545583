//! How AVX2 reads each format's units: half lines of 8 rows × 4 unsigned bytes, and their scales.

use crate::matmul::unpack::avx2::fifth_bits;
use crate::quant::{self, Quant};
use crate::tiles::TILE_ROWS;
use std::arch::x86_64::*;

/// What turns the sums of a group of 32 weights into floats, for each of 8 rows.
pub(in crate::matmul) struct Scales {
    /// Of the first and of the second 16 weights: the same, but for Q6_K.
    pub d: [__m256; 2],
    /// The offset; zeros where the format has none.
    pub m: __m256,
}

/// A format's unit; `half` are rows 0 to 7 or 8 to 15.
///
/// # Safety
/// Of all functions: `unit` points to a whole unit, groups and lines exist, the CPU has AVX2, FMA
/// and F16C.
pub(in crate::matmul) trait Lines: Quant {
    /// Of group `g`.
    unsafe fn scales(unit: *const u8, g: usize, half: usize) -> Scales;

    /// Weights `32g + 4j .. 32g + 4j + 4` of the rows, as unsigned bytes.
    unsafe fn line(unit: *const u8, g: usize, j: usize, half: usize) -> __m256i;
}

/// 8 f16 at `p`.
#[inline(always)]
unsafe fn halves(p: *const u8) -> __m256 {
    // SAFETY: inside the caller's unit.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
}

/// Bits `from .. from + 4` of line `l` of those at `lines`.
#[inline(always)]
unsafe fn nibbles(lines: *const u8, l: usize, half: usize, from: usize) -> __m256i {
    // SAFETY: inside the caller's unit.
    unsafe { _mm256_and_si256(bits(lines, l, half, from), _mm256_set1_epi8(15)) }
}

/// Line `l` shifted right by `by` (into the neighbouring byte, too).
#[inline(always)]
unsafe fn bits(lines: *const u8, l: usize, half: usize, by: usize) -> __m256i {
    // SAFETY: inside the caller's unit.
    unsafe {
        let v = _mm256_loadu_si256(lines.add(64 * l + 32 * half).cast());
        _mm256_srl_epi16(v, _mm_cvtsi32_si128(by as i32))
    }
}

/// Adds fifth bits, which are mask `i` of those at `masks`.
#[inline(always)]
unsafe fn with_fifth(q: __m256i, masks: *const u8, i: usize, half: usize) -> __m256i {
    // SAFETY: inside the caller's unit.
    unsafe { _mm256_or_si256(q, fifth_bits(masks.add(8 * i + 4 * half))) }
}

/// A format of blocks of 32, whose groups are its units.
macro_rules! blocks_of_32 {
    ($($name:ident: |$unit:ident, $j:ident, $half:ident| $line:expr;)*) => {$(
        impl Lines for quant::$name {
            #[inline(always)]
            unsafe fn scales(unit: *const u8, _: usize, half: usize) -> Scales {
                // SAFETY: by the trait's contract.
                unsafe {
                    let d = halves(unit.add(16 * half));
                    let m = match Self::MIN {
                        true => halves(unit.add(32 + 16 * half)),
                        false => _mm256_setzero_ps(),
                    };
                    Scales { d: [d; 2], m }
                }
            }

            #[inline(always)]
            unsafe fn line($unit: *const u8, _: usize, $j: usize, $half: usize) -> __m256i {
                // SAFETY: by the trait's contract.
                unsafe { $line }
            }
        }
    )*};
}

blocks_of_32! {
    Q4_0: |unit, j, half| nibbles(unit.add(32), j % 4, half, j / 4 * 4);
    Q4_1: |unit, j, half| nibbles(unit.add(64), j % 4, half, j / 4 * 4);
    Q5_0: |unit, j, half| {
        let q = nibbles(unit.add(96), j % 4, half, j / 4 * 4);
        with_fifth(q, unit.add(32), 2 * (j % 4) + j / 4, half)
    };
    Q5_1: |unit, j, half| {
        let q = nibbles(unit.add(128), j % 4, half, j / 4 * 4);
        with_fifth(q, unit.add(64), 2 * (j % 4) + j / 4, half)
    };
    Q8_0: |unit, j, half| _mm256_loadu_si256(unit.add(32 + 64 * j + 32 * half).cast());
}

/// Scales and offsets of group `g` of a Q4_K or Q5_K unit.
#[inline(always)]
unsafe fn scales_k(unit: *const u8, g: usize, half: usize) -> Scales {
    // SAFETY: inside the caller's unit.
    unsafe {
        // Byte i of the twelve, of 8 rows: see `scale_min_k` in `quant` for the bits.
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
        Scales { d: [d; 2], m: _mm256_sub_ps(_mm256_setzero_ps(), m) }
    }
}

impl Lines for quant::Q4K {
    #[inline(always)]
    unsafe fn scales(unit: *const u8, g: usize, half: usize) -> Scales {
        // SAFETY: by the trait's contract.
        unsafe { scales_k(unit, g, half) }
    }

    #[inline(always)]
    unsafe fn line(unit: *const u8, g: usize, j: usize, half: usize) -> __m256i {
        // SAFETY: by the trait's contract.
        unsafe { nibbles(unit.add(256), 8 * (g / 2) + j, half, g % 2 * 4) }
    }
}

impl Lines for quant::Q5K {
    #[inline(always)]
    unsafe fn scales(unit: *const u8, g: usize, half: usize) -> Scales {
        // SAFETY: by the trait's contract.
        unsafe { scales_k(unit, g, half) }
    }

    #[inline(always)]
    unsafe fn line(unit: *const u8, g: usize, j: usize, half: usize) -> __m256i {
        // SAFETY: by the trait's contract.
        unsafe {
            let q = nibbles(unit.add(768), 8 * (g / 2) + j, half, g % 2 * 4);
            with_fifth(q, unit.add(256), 16 * (g / 2) + 2 * j + g % 2, half)
        }
    }
}

impl Lines for quant::Q6K {
    #[inline(always)]
    unsafe fn scales(unit: *const u8, g: usize, half: usize) -> Scales {
        // SAFETY: by the trait's contract.
        unsafe {
            let d = halves(unit.add(16 * half));
            let scaled = |part: usize| {
                let p = unit.add(32 + TILE_ROWS * (2 * g + part) + 8 * half);
                let v = _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()));
                _mm256_mul_ps(d, _mm256_cvtepi32_ps(v))
            };
            Scales { d: [scaled(0), scaled(1)], m: _mm256_setzero_ps() }
        }
    }

    #[inline(always)]
    unsafe fn line(unit: *const u8, g: usize, j: usize, half: usize) -> __m256i {
        // SAFETY: by the trait's contract.
        unsafe {
            let (block, g4) = (g / 4, g % 4);
            let q = nibbles(unit.add(1312), 16 * block + 8 * (g4 % 2) + j, half, g4 / 2 * 4);
            let h = bits(unit.add(288), 8 * block + j, half, 2 * g4);
            let h = _mm256_slli_epi16::<4>(_mm256_and_si256(h, _mm256_set1_epi8(3)));
            _mm256_or_si256(q, h)
        }
    }
}
