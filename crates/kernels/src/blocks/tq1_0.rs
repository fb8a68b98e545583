//! TQ1_0: w = (q − 1)·d with q of 0, 1 and 2, 256 weights in 54 bytes: 48 bytes of five weights each; 4 bytes of four; f16 d. A
//! byte is a fraction of 256 in base three: q number `n` of byte `b` is `(b·3ⁿ mod 256)·3` divided by 256. The order is all q
//! number 0 of the first 32 bytes, then all number 1, and so on; then likewise those of the next 16 bytes, then of the last 4.
//!
//! Source: ggml's `block_tq1_0`; dequantising is checked against the `gguf` package bit for bit.

use super::shared::f16_at;
use super::tile_groups::{self, line};
use super::{BlockFormat, Group32, ScaleField, TileGroup};
use crate::fields::TILE_ROWS;
use crate::fields::{Field, halves, lines, offset};
use crate::fit::simple;
use alight_types::GgmlType;

pub(crate) struct Tq1_0;

/// Offset of the lines in a unit: those of the first 48 bytes, then that of the last 4.
const LINES: usize = offset(Tq1_0::FIELDS, 1);

impl BlockFormat for Tq1_0 {
    const TYPE: GgmlType = GgmlType::TQ1_0;
    const ZERO: i32 = 1;
    const MAX_CODE: i32 = 2;
    const SCALES: usize = 1;
    const OFFSETS: usize = 0;
    const FIELDS: &'static [Field] = &[halves(52, 1), lines(0, 12), lines(48, 1)];
    const SCALE_FIELDS: &'static [ScaleField] = &[ScaleField::F16(52)];

    #[inline(always)]
    fn group(b: &[u8], g: usize) -> Group32 {
        let mut q = [0; 32];
        for (i, q) in q.iter_mut().enumerate() {
            let (byte, power) = place(32 * g + i);
            *q = digit(b[byte], power);
        }
        Group32 { q, d: [f16_at(b, 52); 2], m: [0.0; 2] }
    }

    #[inline(always)]
    fn tile_group(unit: &[u8], g: usize, to: &mut TileGroup) {
        for (j, q) in to.q.iter_mut().enumerate() {
            let (at, power) = line_of(g, j);
            line(unit, at, 0, q, |byte| digit(byte, power));
        }
        to.d = [tile_groups::halves(unit, 0); 2];
    }

    const QUANTIZES: bool = true;

    /// Bit-identical to the reference (ggml).
    #[inline(always)]
    fn quantize(x: &[f32], _: &[f32], out: &mut [u8]) {
        let q: [u8; 256] = simple::ternary(x, &mut out[52..]);
        let mut digits = [0u16; 52];
        for (i, q) in q.iter().enumerate() {
            let (byte, power) = place(i);
            digits[byte] += u16::from(*q) * (81 / power);
        }
        // Rounded up, so that a byte times a power of three is never below its digit.
        for (digits, out) in digits.iter().zip(out) {
            *out = (u32::from(*digits) * 256).div_ceil(243) as u8;
        }
    }
}

/// Returns the q of a byte that belongs to `power`.
#[inline(always)]
const fn digit(byte: u8, power: u16) -> u8 {
    ((byte.wrapping_mul(power as u8) as u16 * 3) >> 8) as u8
}

/// Returns the offset of line `j` of group `g` in a unit, and its power.
#[inline(always)]
const fn line_of(g: usize, j: usize) -> (usize, u16) {
    let (byte, power) = place(32 * g + 4 * j);
    (LINES + TILE_ROWS * byte, power)
}

/// Returns the byte that holds weight `i`, and 3ⁿ if the weight is q number `n` of that byte.
#[inline(always)]
const fn place(i: usize) -> (usize, u16) {
    const POWERS: [u16; 5] = [1, 3, 9, 27, 81];
    if i < 160 {
        (i % 32, POWERS[i / 32])
    } else if i < 240 {
        (32 + i % 16, POWERS[i / 16 - 10])
    } else {
        (48 + i % 4, POWERS[i / 4 - 60])
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Tq1_0, line_of, place};
    use crate::blocks::BlockFormat;
    use crate::blocks::avx2_rows::{self, RowsAvx2, f16_at};
    use crate::blocks::avx2_tiles::{self, TilesAvx2};
    use crate::blocks::avx512_rows::{self, RowsAvx512, Table};
    use crate::blocks::avx512_tiles::{self, TilesAvx512};
    use std::arch::x86_64::*;

    /// The bytes of weights `64j ..`, for each j.
    static BYTES: [Table; 4] = {
        let mut t = [const { Table([0; 64]) }; 4];
        let mut i = 0;
        while i < 256 {
            t[i / 64].0[i % 64] = place(i).0 as u8;
            i += 1;
        }
        t
    };

    /// The powers of three of all weights, one for each pair of neighbours, which have the same.
    static POWERS: [u16; 128] = {
        let mut t = [0; 128];
        let mut i = 0;
        while i < 256 {
            t[i / 2] = place(i).1;
            i += 1;
        }
        t
    };

    /// Returns the digits of bytes, with one power for each two of them.
    #[inline(always)]
    unsafe fn digits256(v: __m256i, powers: __m256i) -> __m256i {
        // SAFETY: the callers' CPU has AVX2.
        unsafe {
            let low = _mm256_mullo_epi16(v, powers);
            let high = _mm256_mullo_epi16(_mm256_srli_epi16::<8>(v), powers);
            let low = _mm256_and_si256(low, _mm256_set1_epi16(255));
            let v = _mm256_or_si256(low, _mm256_slli_epi16::<8>(high));
            // Three times v is at least 256 from 86 on, and 512 from 171 on.
            let least = |n: i8| _mm256_cmpeq_epi8(_mm256_max_epu8(v, _mm256_set1_epi8(n)), v);
            let minus = _mm256_add_epi8(least(86), least(171u8 as i8));
            _mm256_sub_epi8(_mm256_setzero_si256(), minus)
        }
    }

    /// As [`digits256`].
    #[inline(always)]
    unsafe fn digits512(v: __m512i, powers: __m512i) -> __m512i {
        // SAFETY: the callers' CPU has the SIMD level.
        unsafe {
            let low = _mm512_mullo_epi16(v, powers);
            let high = _mm512_mullo_epi16(_mm512_srli_epi16::<8>(v), powers);
            let v = _mm512_mask_mov_epi8(_mm512_slli_epi16::<8>(high), 0x5555_5555_5555_5555, low);
            let one = _mm512_set1_epi8(1);
            let q = _mm512_maskz_mov_epi8(_mm512_cmpge_epu8_mask(v, _mm512_set1_epi8(86)), one);
            let two = _mm512_cmpge_epu8_mask(v, _mm512_set1_epi8(171u8 as i8));
            _mm512_mask_add_epi8(q, two, q, one)
        }
    }

    impl RowsAvx2 for Tq1_0 {
        #[inline(always)]
        unsafe fn group256(row: *const u8, b: usize) -> avx2_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let (p, g) = (row.add(b / 8 * Self::BYTES), b % 8);
                let v = if g < 5 {
                    _mm256_loadu_si256(p.cast())
                } else {
                    let v = _mm_loadu_si128(p.add(32).cast());
                    let last = _mm_set1_epi32(p.add(48).cast::<i32>().read_unaligned());
                    _mm256_set_m128i(if g < 7 { v } else { last }, v)
                };
                let q = digits256(v, _mm256_loadu_si256(POWERS.as_ptr().add(16 * g).cast()));
                avx2_rows::Group { q, d: [f16_at(p.add(52)); 2], m: [0.0; 2] }
            }
        }
    }

    impl RowsAvx512 for Tq1_0 {
        type Offsets = ();

        #[inline(always)]
        unsafe fn begin(row: *const u8, g: usize, count: usize) -> avx512_rows::Group256<()> {
            // SAFETY: by the trait's contract.
            unsafe { avx512_rows::one_scale::<Self>(row, g, count, 52) }
        }

        #[inline(always)]
        unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe {
                let v = avx512_rows::load(at, 52);
                let v = _mm512_permutexvar_epi8(avx512_rows::table(&BYTES[j]), v);
                digits512(v, _mm512_loadu_si512(POWERS.as_ptr().add(32 * j).cast()))
            }
        }
    }

    impl TilesAvx2 for Tq1_0 {
        type Group = ();

        #[inline(always)]
        unsafe fn begin(_: *const u8, _: usize, _: usize) {}

        #[inline(always)]
        unsafe fn scales(unit: *const u8, _: &(), _: usize, half: usize) -> avx2_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe { avx2_tiles::one_scale::<Self>(unit, half) }
        }

        #[inline(always)]
        unsafe fn line(unit: *const u8, _: &(), g: usize, j: usize, half: usize) -> __m256i {
            let (at, power) = line_of(g, j);
            // SAFETY: by the trait's contract.
            unsafe {
                let v = _mm256_loadu_si256(unit.add(at + 32 * half).cast());
                digits256(v, _mm256_set1_epi16(power as i16))
            }
        }
    }

    impl TilesAvx512 for Tq1_0 {
        const PHASES: usize = 1;
        type Head = ();

        #[inline(always)]
        unsafe fn head(_: *const u8) {}

        #[inline(always)]
        unsafe fn scales(unit: *const u8, _: &(), _: usize) -> avx512_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe { avx512_tiles::one_scale::<Self>(unit) }
        }

        #[inline(always)]
        unsafe fn line<const P: usize>(unit: *const u8, _: &(), g: usize, j: usize) -> __m512i {
            let (at, power) = line_of(g, j);
            // SAFETY: by the trait's contract.
            unsafe { digits512(avx512_tiles::load(unit.add(at)), _mm512_set1_epi16(power as i16)) }
        }
    }
}
