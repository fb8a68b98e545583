//! Q2_K: w = q·(d·sc) − dmin·m, 256 weights in 16 groups of 16, 84 bytes: 16 bytes of scales, of which the low nibble is sc and
//! the high one m; 64 bytes of bit pairs; f16 d; f16 dmin. A half of 128 weights has 32 bytes of bit pairs: pair `t` of byte `i`
//! is weight `i` of the half's `t`-th group of 32.
//!
//! Source: ggml's `block_q2_K`; dequantising is checked against the `gguf` package bit for bit.

use super::shared::{f16_at, pairs};
use super::tile_groups::{self, each};
use super::{BlockFormat, Group32, ScaleField, TileGroup};
use crate::fields::TILE_ROWS;
use crate::fields::{Field, bytes, halves, lines, offset};
use crate::fit::{search, simple};
use alight_types::GgmlType;

pub(crate) struct Q2K;

/// Offsets of the scales and of the lines in a unit.
const SCALES: usize = offset(Q2K::FIELDS, 1);
const LINES: usize = offset(Q2K::FIELDS, 2);

impl BlockFormat for Q2K {
    const TYPE: GgmlType = GgmlType::Q2_K;
    const ZERO: i32 = 0;
    const MAX_CODE: i32 = 3;
    const SCALES: usize = 2;
    const OFFSETS: usize = 2;
    const FIELDS: &'static [Field] = &[halves(80, 2), bytes(0, 16), lines(16, 16)];
    const SCALE_FIELDS: &'static [ScaleField] = &[ScaleField::F16(80), ScaleField::F16(82)];

    #[inline(always)]
    fn group(b: &[u8], g: usize) -> Group32 {
        let (d, dmin) = (f16_at(b, 80), f16_at(b, 82));
        let scales = [b[2 * g], b[2 * g + 1]];
        Group32 {
            q: pairs(&b[16..80], g),
            d: scales.map(|s| d * (s & 15) as f32),
            m: scales.map(|s| -(dmin * (s >> 4) as f32)),
        }
    }

    #[inline(always)]
    fn tile_group(unit: &[u8], g: usize, to: &mut TileGroup) {
        tile_groups::pairs(unit, LINES, g, &mut to.q);
        let (d, dmin) = (tile_groups::halves(unit, 0), tile_groups::halves(unit, 32));
        for h in 0..2 {
            let s = tile_groups::bytes(unit, SCALES + TILE_ROWS * (2 * g + h));
            to.d[h] = each(|r| d[r] * f32::from(s[r] & 15));
            to.m[h] = each(|r| -(dmin[r] * f32::from(s[r] >> 4)));
        }
    }

    const QUANTIZES: bool = true;

    /// Searches for the scales; the error is at most that of llama.cpp.
    #[inline(always)]
    fn quantize(x: &[f32], weights: &[f32], out: &mut [u8]) {
        let block = search::affine::<16, 16>(x, weights, 3, 15.0);
        for (out, (s, m)) in out[..16].iter_mut().zip(block.scales.iter().zip(block.mins)) {
            *out = s | m << 4;
        }
        simple::put_pairs(&mut out[16..80], block.q.as_flattened());
        out[80..82].copy_from_slice(&block.d.to_le_bytes());
        out[82..84].copy_from_slice(&block.dmin.to_le_bytes());
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LINES, Q2K, SCALES};
    use crate::blocks::BlockFormat;
    use crate::blocks::avx2_rows::{self, RowsAvx2, f16_at, pairs};
    use crate::blocks::avx2_tiles::{self, TilesAvx2};
    use crate::blocks::avx512_rows::{self, RowsAvx512};
    use crate::blocks::avx512_tiles::{self, TilesAvx512};
    use crate::fields::TILE_ROWS;
    use crate::half::f16_to_f32;
    use std::arch::x86_64::*;

    impl RowsAvx2 for Q2K {
        #[inline(always)]
        unsafe fn group256(row: *const u8, b: usize) -> avx2_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let (p, g) = (row.add(b / 8 * Self::BYTES), b % 8);
                let q = pairs(p.add(16), g);
                let (d, dmin) = (f16_at(p.add(80)), f16_at(p.add(82)));
                let s = [*p.add(2 * g), *p.add(2 * g + 1)];
                let m = [-(dmin * (s[0] >> 4) as f32), -(dmin * (s[1] >> 4) as f32)];
                avx2_rows::Group { q, d: [d * (s[0] & 15) as f32, d * (s[1] & 15) as f32], m }
            }
        }
    }

    impl RowsAvx512 for Q2K {
        type Offsets = __m512;

        #[inline(always)]
        unsafe fn begin(row: *const u8, g: usize, _: usize) -> avx512_rows::Group256<__m512> {
            // SAFETY: by the trait's contract.
            unsafe {
                let at = row.add(g * Self::BYTES);
                let half = |i: usize| f16_to_f32(at.add(i).cast::<u16>().read_unaligned());
                let v = _mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast()));
                let sc = _mm512_and_si512(v, _mm512_set1_epi32(15));
                let scaled = |v, by| _mm512_mul_ps(_mm512_cvtepi32_ps(v), _mm512_set1_ps(by));
                avx512_rows::Group256 {
                    at,
                    scales: scaled(sc, half(80)),
                    offsets: scaled(_mm512_srli_epi32::<4>(v), -half(82)),
                }
            }
        }

        #[inline(always)]
        unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe { avx512_rows::pairs(at.add(16), j) }
        }
    }

    impl TilesAvx2 for Q2K {
        type Group = ();

        #[inline(always)]
        unsafe fn begin(_: *const u8, _: usize, _: usize) {}

        #[inline(always)]
        unsafe fn scales(unit: *const u8, _: &(), g: usize, half: usize) -> avx2_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe {
                let zero = _mm256_setzero_ps();
                let d = avx2_tiles::halves(unit.add(16 * half));
                let dmin = _mm256_sub_ps(zero, avx2_tiles::halves(unit.add(32 + 16 * half)));
                let mut scales = avx2_tiles::Scales { d: [zero; 2], m: [zero; 2] };
                for part in 0..2 {
                    let p = unit.add(SCALES + TILE_ROWS * (2 * g + part) + 8 * half);
                    let v = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
                    let sc = _mm256_and_si256(v, _mm256_set1_epi32(15));
                    scales.d[part] = _mm256_mul_ps(d, _mm256_cvtepi32_ps(sc));
                    let m = _mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(v));
                    scales.m[part] = _mm256_mul_ps(dmin, m);
                }
                scales
            }
        }

        #[inline(always)]
        unsafe fn line(unit: *const u8, _: &(), g: usize, j: usize, half: usize) -> __m256i {
            // SAFETY: by the trait's contract.
            unsafe { avx2_tiles::pairs(unit.add(LINES), g, j, half) }
        }
    }

    impl TilesAvx512 for Q2K {
        /// The four groups of a half share lines of bit pairs.
        const PHASES: usize = 4;
        /// d and −dmin.
        type Head = [__m512; 2];

        #[inline(always)]
        unsafe fn head(unit: *const u8) -> [__m512; 2] {
            // SAFETY: by the trait's contract.
            unsafe {
                let dmin = avx512_tiles::halves(unit.add(32));
                [avx512_tiles::halves(unit), _mm512_sub_ps(_mm512_setzero_ps(), dmin)]
            }
        }

        #[inline(always)]
        unsafe fn scales(unit: *const u8, head: &[__m512; 2], g: usize) -> avx512_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe {
                let mut scales = avx512_tiles::Scales { d: [head[0]; 2], m: [head[1]; 2] };
                for part in 0..2 {
                    let p = unit.add(SCALES + TILE_ROWS * (2 * g + part));
                    let v = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
                    let sc = _mm512_and_si512(v, _mm512_set1_epi32(15));
                    let m = _mm512_srli_epi32::<4>(v);
                    scales.d[part] = _mm512_mul_ps(scales.d[part], _mm512_cvtepi32_ps(sc));
                    scales.m[part] = _mm512_mul_ps(scales.m[part], _mm512_cvtepi32_ps(m));
                }
                scales
            }
        }

        #[inline(always)]
        unsafe fn line<const P: usize>(
            unit: *const u8,
            _: &[__m512; 2],
            g: usize,
            j: usize,
        ) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe { avx512_tiles::pairs::<P>(unit.add(LINES), g, j) }
        }
    }
}
