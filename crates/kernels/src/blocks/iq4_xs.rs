//! IQ4_XS: w = d·(s − 32)·K[q], 256 weights in 136 bytes: f16 d; u16 `scales_h`; 4 bytes of `scales_l`; 128 bytes of nibbles.
//! Group `g` of 32 weights has the 6-bit scale s, whose low four bits are nibble `g` of `scales_l` and whose high two are bits
//! `2g` and `2g + 1` of `scales_h`, and bytes `16g ..` of the nibbles, byte `j` holding weight `j` (low) and `j + 16` (high). K
//! is the table of the sixteen values of [`IQ4_CODES`], minus 127; the code is K[q] + 127.
//!
//! Source: ggml's `block_iq4_xs`. Dequantising is checked against the `gguf` package bit for bit.

use super::shared::{codes, f16_at, iq4_code};
use super::tile_groups::{self, each};
use super::{BlockFormat, Group32, ScaleField, TileGroup};
use crate::fields::TILE_ROWS;
use crate::fields::{Field, bytes, halves, lines, offset};
use crate::fit::search::group_of;
use crate::fit::{levels, simple};
use crate::half::{f16_to_f32, f32_to_f16};
use alight_types::GgmlType;

pub(crate) struct Iq4Xs;

/// Offsets of the two parts of the scales and of the lines in a unit.
const HIGH: usize = offset(Iq4Xs::FIELDS, 1);
const LOW: usize = offset(Iq4Xs::FIELDS, 2);
const LINES: usize = offset(Iq4Xs::FIELDS, 3);

impl BlockFormat for Iq4Xs {
    const TYPE: GgmlType = GgmlType::IQ4_XS;
    const ZERO: i32 = 127;
    const MAX_CODE: i32 = 240;
    const SCALES: usize = 1;
    const OFFSETS: usize = 0;
    const FIELDS: &'static [Field] = &[halves(0, 1), halves(2, 1), bytes(4, 4), lines(8, 32)];
    const SCALE_FIELDS: &'static [ScaleField] = &[ScaleField::F16(0)];

    #[inline(always)]
    fn group(b: &[u8], g: usize) -> Group32 {
        let d = f16_at(b, 0) * scale(u16::from_le_bytes([b[2], b[3]]), b[4 + g / 2], g);
        Group32 { q: codes(&b[8 + 16 * g..][..16], iq4_code), d: [d; 2], m: [0.0; 2] }
    }

    #[inline(always)]
    fn tile_group(unit: &[u8], g: usize, to: &mut TileGroup) {
        tile_groups::nibbles(unit, LINES, 4 * g, &mut to.q, iq4_code);
        let d = tile_groups::halves(unit, 0);
        let high = tile_groups::words(unit, HIGH);
        let low = tile_groups::bytes(unit, LOW + TILE_ROWS * (g / 2));
        to.d = [each(|r| d[r] * scale(high[r], low[r], g)); 2];
    }

    const QUANTIZES: bool = true;

    /// Searches for the scales; the error is at most that of llama.cpp.
    #[inline(always)]
    fn quantize(x: &[f32], weights: &[f32], out: &mut [u8]) {
        let (groups, _) = x.as_chunks::<32>();
        let fits: [f32; 8] =
            std::array::from_fn(|g| levels::fit(&groups[g], group_of::<32>(weights, g)));
        let far = fits.iter().fold(0.0f32, |far, &d| if d.abs() > far.abs() { d } else { far });
        let d = f32_to_f16(far / -32.0);
        let unit = f16_to_f32(d);
        let (mut high, mut low) = (0u16, [0u8; 4]);
        for g in 0..8 {
            let scale = if unit == 0.0 { 0.0 } else { (fits[g] / unit).round().clamp(-32.0, 31.0) };
            let scale = levels::best(
                &groups[g],
                group_of::<32>(weights, g),
                unit,
                [scale, scale - 1.0, scale + 1.0],
            );
            let s = (scale as i8 + 32) as u8;
            high |= u16::from(s >> 4) << (2 * g);
            low[g / 2] |= (s & 15) << (g % 2 * 4);
            let q = levels::codes(&groups[g], unit * scale);
            simple::put_nibbles(&mut out[8 + 16 * g..], &q);
        }
        out[..2].copy_from_slice(&d.to_le_bytes());
        out[2..4].copy_from_slice(&high.to_le_bytes());
        out[4..8].copy_from_slice(&low);
    }
}

/// Returns s − 32 of group `g`; `low` is byte `g / 2` of `scales_l`.
#[inline(always)]
fn scale(high: u16, low: u8, g: usize) -> f32 {
    let (low, high) = (low >> (g % 2 * 4) & 15, (high >> (2 * g)) as u8 & 3);
    f32::from((low | high << 4) as i8 - 32)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{HIGH, Iq4Xs, LINES, LOW, scale};
    use crate::blocks::BlockFormat;
    use crate::blocks::IQ4_CODES;
    use crate::blocks::avx2_rows::{self, RowsAvx2, f16_at};
    use crate::blocks::avx2_tiles::{self, TilesAvx2};
    use crate::blocks::avx512_rows::{self, RowsAvx512, Table, nibble_table, nibbles_of};
    use crate::blocks::avx512_tiles::{self, TilesAvx512};
    use crate::fields::TILE_ROWS;
    use std::arch::x86_64::*;

    impl RowsAvx2 for Iq4Xs {
        #[inline(always)]
        unsafe fn group256(row: *const u8, b: usize) -> avx2_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let (p, g) = (row.add(b / 8 * Self::BYTES), b % 8);
                let q = avx2_rows::looked_up(&IQ4_CODES, avx2_rows::nibbles(p.add(8 + 16 * g)));
                let high = p.add(2).cast::<u16>().read_unaligned();
                let d = f16_at(p) * scale(high, *p.add(4 + g / 2), g);
                avx2_rows::Group { q, d: [d; 2], m: [0.0; 2] }
            }
        }
    }

    impl RowsAvx512 for Iq4Xs {
        type Offsets = ();

        #[inline(always)]
        unsafe fn begin(row: *const u8, g: usize, _: usize) -> avx512_rows::Group256<()> {
            // SAFETY: by the trait's contract.
            unsafe {
                let at = row.add(g * Self::BYTES);
                let i = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
                let high = _mm256_set1_epi32(at.add(2).cast::<u16>().read_unaligned().into());
                let high = _mm256_srlv_epi32(high, _mm256_slli_epi32::<1>(i));
                let low = _mm256_set1_epi32(at.add(4).cast::<i32>().read_unaligned());
                let low = _mm256_srlv_epi32(low, _mm256_slli_epi32::<2>(i));
                let s = avx2_scales(low, high);
                let scales = _mm256_mul_ps(_mm256_set1_ps(f16_at(at)), s);
                // The lanes of offsets are zero: the type has none.
                avx512_rows::Group256 { at, scales: _mm512_zextps256_ps512(scales), offsets: () }
            }
        }

        #[inline(always)]
        unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
            /// For two groups of 16 bytes.
            static NIBBLES: Table = nibble_table(16, 0);
            // SAFETY: by the trait's contract.
            unsafe {
                let nibbles = nibbles_of(at.add(8 + 32 * j), 32, &NIBBLES);
                avx512_rows::looked_up(&IQ4_CODES, nibbles)
            }
        }
    }

    /// s − 32 of the low four bits of `low` and the low two of `high`.
    #[inline(always)]
    unsafe fn avx2_scales(low: __m256i, high: __m256i) -> __m256 {
        // SAFETY: the callers' CPU has AVX2.
        unsafe {
            let low = _mm256_and_si256(low, _mm256_set1_epi32(15));
            let high = _mm256_slli_epi32::<4>(_mm256_and_si256(high, _mm256_set1_epi32(3)));
            let s = _mm256_or_si256(low, high);
            _mm256_cvtepi32_ps(_mm256_sub_epi32(s, _mm256_set1_epi32(32)))
        }
    }

    /// As [`avx2_scales`].
    #[inline(always)]
    unsafe fn avx512_scales(low: __m512i, high: __m512i) -> __m512 {
        // SAFETY: the callers' CPU has the SIMD level.
        unsafe {
            let low = _mm512_and_si512(low, _mm512_set1_epi32(15));
            let high = _mm512_slli_epi32::<4>(_mm512_and_si512(high, _mm512_set1_epi32(3)));
            let s = _mm512_or_si512(low, high);
            _mm512_cvtepi32_ps(_mm512_sub_epi32(s, _mm512_set1_epi32(32)))
        }
    }

    impl TilesAvx2 for Iq4Xs {
        type Group = ();

        #[inline(always)]
        unsafe fn begin(_: *const u8, _: usize, _: usize) {}

        #[inline(always)]
        unsafe fn scales(unit: *const u8, _: &(), g: usize, half: usize) -> avx2_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe {
                let low = unit.add(LOW + TILE_ROWS * (g / 2) + 8 * half);
                let low = _mm256_cvtepu8_epi32(_mm_loadl_epi64(low.cast()));
                let low = _mm256_srl_epi32(low, _mm_cvtsi32_si128(4 * (g % 2) as i32));
                let high = _mm_loadu_si128(unit.add(HIGH + 16 * half).cast());
                let high = _mm256_cvtepu16_epi32(high);
                let high = _mm256_srl_epi32(high, _mm_cvtsi32_si128(2 * g as i32));
                let d = avx2_tiles::halves(unit.add(16 * half));
                let d = _mm256_mul_ps(d, avx2_scales(low, high));
                avx2_tiles::Scales { d: [d; 2], m: [_mm256_setzero_ps(); 2] }
            }
        }

        #[inline(always)]
        unsafe fn line(unit: *const u8, _: &(), g: usize, j: usize, half: usize) -> __m256i {
            // SAFETY: by the trait's contract.
            unsafe {
                let nibbles = avx2_tiles::nibbles(unit.add(LINES), 4 * g + j % 4, half, j / 4 * 4);
                avx2_rows::looked_up(&IQ4_CODES, nibbles)
            }
        }
    }

    impl TilesAvx512 for Iq4Xs {
        const PHASES: usize = 1;
        type Head = __m512;

        #[inline(always)]
        unsafe fn head(unit: *const u8) -> __m512 {
            // SAFETY: by the trait's contract.
            unsafe { avx512_tiles::halves(unit) }
        }

        #[inline(always)]
        unsafe fn scales(unit: *const u8, d: &__m512, g: usize) -> avx512_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe {
                let low = _mm_loadu_si128(unit.add(LOW + TILE_ROWS * (g / 2)).cast());
                let low = _mm512_cvtepu8_epi32(low);
                let low = _mm512_srl_epi32(low, _mm_cvtsi32_si128(4 * (g % 2) as i32));
                let high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(unit.add(HIGH).cast()));
                let high = _mm512_srl_epi32(high, _mm_cvtsi32_si128(2 * g as i32));
                let d = _mm512_mul_ps(*d, avx512_scales(low, high));
                avx512_tiles::Scales { d: [d; 2], m: [_mm512_setzero_ps(); 2] }
            }
        }

        #[inline(always)]
        unsafe fn line<const P: usize>(unit: *const u8, _: &__m512, g: usize, j: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe {
                let nibbles = avx512_tiles::nibbles(unit.add(LINES + 256 * g), j);
                avx512_rows::looked_up(&IQ4_CODES, nibbles)
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::{HIGH, Iq4Xs, LINES, LOW, scale};
    use crate::blocks::BlockFormat;
    use crate::blocks::IQ4_CODES;
    use crate::blocks::neon_rows::{self, RowsNeon, f16_at, floats_s8};
    use crate::blocks::neon_tiles::{self, TilesNeon, times};
    use crate::fields::TILE_ROWS;
    use std::arch::aarch64::*;

    impl RowsNeon for Iq4Xs {
        #[inline(always)]
        unsafe fn group128(row: *const u8, b: usize) -> neon_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let (p, g) = (row.add(b / 8 * Self::BYTES), b % 8);
                let q = neon_rows::looked_up(&IQ4_CODES, neon_rows::nibbles(p.add(8 + 16 * g)));
                let high = p.add(2).cast::<u16>().read_unaligned();
                let d = f16_at(p) * scale(high, *p.add(4 + g / 2), g);
                neon_rows::Group { q, d: [d; 2], m: [0.0; 2] }
            }
        }
    }

    impl TilesNeon for Iq4Xs {
        type Group = ();

        #[inline(always)]
        unsafe fn begin(_: *const u8, _: usize, _: usize) {}

        #[inline(always)]
        unsafe fn scales(unit: *const u8, _: &(), g: usize, half: usize) -> neon_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe {
                let low = vld1_u8(unit.add(LOW + TILE_ROWS * (g / 2) + 8 * half));
                let low = vand_u8(vshl_u8(low, vdup_n_s8(-(4 * (g % 2) as i8))), vdup_n_u8(15));
                let high = vld1q_u16(unit.add(HIGH + 16 * half).cast());
                let high = vmovn_u16(vshlq_u16(high, vdupq_n_s16(-(2 * g as i16))));
                let s = vorr_u8(low, vshl_n_u8::<4>(vand_u8(high, vdup_n_u8(3))));
                let s = floats_s8(vreinterpret_s8_u8(vsub_u8(s, vdup_n_u8(32))));
                neon_tiles::Scales::one(times(neon_tiles::halves(unit.add(16 * half)), s))
            }
        }

        #[inline(always)]
        unsafe fn line(
            unit: *const u8,
            _: &(),
            g: usize,
            j: usize,
            half: usize,
        ) -> [uint8x16_t; 2] {
            // SAFETY: by the trait's contract.
            unsafe {
                let nibbles = neon_tiles::nibbles(unit.add(LINES), 4 * g + j % 4, half, j / 4 * 4);
                neon_rows::looked_up(&IQ4_CODES, nibbles)
            }
        }
    }
}
