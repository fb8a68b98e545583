//! Q6_K: w = (q − 32)·(d·sc), 256 weights in 16 groups of 16, 210 bytes: 128 bytes of low nibbles; 64 bytes of upper bit pairs;
//! 16 × i8 scales; f16 d. A half of 128 weights has 64 bytes of nibbles and 32 bytes of bit pairs. Its groups of 32, 0 and 1, are
//! the low nibbles of those 64 bytes, 2 and 3 the high ones; bit pair `g` of byte `i` belongs to weight `i` of group `g`.
//!
//! Source: ggml's block structs; dequantising is checked against the `gguf` package bit for bit.

use super::shared::f16_at;
use super::tile_groups::{self, add_bits, each, line};
use super::{BlockFormat, Group32, ScaleField, TileGroup};
use crate::fields::TILE_ROWS;
use crate::fields::{Field, bytes, halves, lines, offset};
use crate::fit::search::{Signed, signed};
use alight_types::GgmlType;

pub(crate) struct Q6K;

/// Offsets of the scales, of the lines of bit pairs and of the lines of nibbles in a unit.
const SCALES: usize = offset(Q6K::FIELDS, 1);
const PAIRS: usize = offset(Q6K::FIELDS, 2);
const LINES: usize = offset(Q6K::FIELDS, 3);

impl BlockFormat for Q6K {
    const TYPE: GgmlType = GgmlType::Q6_K;
    const ZERO: i32 = 32;
    const MAX_CODE: i32 = 63;
    const SCALES: usize = 2;
    const OFFSETS: usize = 0;
    const FIELDS: &'static [Field] =
        &[halves(208, 1), bytes(192, 16), lines(128, 16), lines(0, 32)];
    const SCALE_FIELDS: &'static [ScaleField] = &[ScaleField::F16(208)];

    #[inline(always)]
    fn group(b: &[u8], g: usize) -> Group32 {
        let (half, g4) = (g / 4, g % 4);
        let ql = &b[64 * half + 32 * (g4 & 1)..][..32];
        let qh = &b[128 + 32 * half..][..32];
        let mut q = [0; 32];
        for i in 0..32 {
            q[i] = ((ql[i] >> (4 * (g4 / 2))) & 15) | ((qh[i] >> (2 * g4)) & 3) << 4;
        }
        let d = f16_at(b, 208);
        let sc = [b[192 + 2 * g] as i8, b[193 + 2 * g] as i8];
        Group32 { q, d: [d * sc[0] as f32, d * sc[1] as f32], m: [0.0; 2] }
    }

    #[inline(always)]
    fn tile_group(unit: &[u8], g: usize, to: &mut TileGroup) {
        let (half, g4) = (g / 4, g % 4);
        for (j, q) in to.q.iter_mut().enumerate() {
            let l = 16 * half + 8 * (g4 % 2) + j;
            line(unit, LINES, l, q, |byte| byte >> (g4 / 2 * 4) & 15);
            add_bits(unit, PAIRS, 8 * half + j, q, |byte| (byte >> (2 * g4) & 3) << 4);
        }
        let d = tile_groups::halves(unit, 0);
        for (h, to) in to.d.iter_mut().enumerate() {
            let scales = tile_groups::bytes(unit, SCALES + TILE_ROWS * (2 * g + h));
            *to = each(|r| d[r] * f32::from(scales[r] as i8));
        }
    }

    const QUANTIZES: bool = true;

    /// Searches for the scales; the error is at most that of llama.cpp.
    #[inline(always)]
    fn quantize(x: &[f32], weights: &[f32], out: &mut [u8]) {
        let Signed { d, scales, q } = signed(x, weights, [-32.0, 31.0], [-128.0, 127.0]);
        let at = |i: usize| (q[i / 16][i % 16] + 32) as u8;
        for half in 0..2 {
            for l in 0..32 {
                let [a, b, c, d] = std::array::from_fn(|k| at(128 * half + 32 * k + l));
                out[64 * half + l] = (a & 15) | (c & 15) << 4;
                out[64 * half + 32 + l] = (b & 15) | (d & 15) << 4;
                out[128 + 32 * half + l] = a >> 4 | (b >> 4) << 2 | (c >> 4) << 4 | (d >> 4) << 6;
            }
        }
        for (scale, out) in scales.iter().zip(&mut out[192..208]) {
            *out = *scale as u8;
        }
        out[208..210].copy_from_slice(&d.to_le_bytes());
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LINES, PAIRS, Q6K, SCALES};
    use crate::blocks::BlockFormat;
    use crate::blocks::avx2_rows::{self, RowsAvx2, f16_at, shr};
    use crate::blocks::avx2_tiles::{self, TilesAvx2};
    use crate::blocks::avx512_rows::{self, RowsAvx512};
    use crate::blocks::avx512_tiles::{self, TilesAvx512};
    use crate::fields::TILE_ROWS;
    use crate::half::f16_to_f32;
    use std::arch::x86_64::*;

    impl RowsAvx2 for Q6K {
        #[inline(always)]
        unsafe fn group256(row: *const u8, b: usize) -> avx2_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let (p, half, g) = (row.add(b / 8 * Self::BYTES), b % 8 / 4, b % 4);
                let v = _mm256_loadu_si256(p.add(64 * half + 32 * (g & 1)).cast());
                let q = _mm256_and_si256(shr(v, 4 * (g / 2)), _mm256_set1_epi8(15));
                // Bits 2g and 2g + 1, moved to bits 4 and 5.
                let h = _mm256_loadu_si256(p.add(128 + 32 * half).cast());
                let h = match g {
                    0 => _mm256_slli_epi16::<4>(h),
                    1 => _mm256_slli_epi16::<2>(h),
                    2 => h,
                    _ => _mm256_srli_epi16::<2>(h),
                };
                let q = _mm256_or_si256(q, _mm256_and_si256(h, _mm256_set1_epi8(0x30)));
                let sc = p.add(192 + 2 * (b % 8)).cast::<i8>();
                let d = f16_at(p.add(208));
                let d = [d * *sc as f32, d * *sc.add(1) as f32];
                avx2_rows::Group { q, d, m: [0.0; 2] }
            }
        }

        const EIGHT: bool = true;
        const PHASES: usize = 4;

        #[inline(always)]
        unsafe fn eight(row: *const u8, g: usize) -> avx2_rows::Eight {
            // SAFETY: by the trait's contract.
            unsafe {
                let p = row.add(g * Self::BYTES);
                let d = _mm256_set1_ps(f16_at(p.add(208)));
                let mut all = avx2_rows::Eight::NONE;
                for half in 0..2 {
                    let sc = _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(192 + 8 * half).cast()));
                    let scaled = _mm256_mul_ps(d, _mm256_cvtepi32_ps(sc));
                    _mm256_storeu_ps(all.d.as_mut_ptr().add(8 * half), scaled);
                }
                all
            }
        }
    }

    impl RowsAvx512 for Q6K {
        type Offsets = ();

        #[inline(always)]
        unsafe fn begin(row: *const u8, g: usize, _: usize) -> avx512_rows::Group256<()> {
            // SAFETY: by the trait's contract.
            unsafe {
                let at = row.add(g * Self::BYTES);
                let sc = _mm512_cvtepi8_epi32(_mm_loadu_si128(at.add(192).cast()));
                let d = f16_to_f32(at.add(208).cast::<u16>().read_unaligned());
                let scales = _mm512_mul_ps(_mm512_cvtepi32_ps(sc), _mm512_set1_ps(d));
                avx512_rows::Group256 { at, scales, offsets: () }
            }
        }

        #[inline(always)]
        unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe {
                let (half, high) = (j / 2, j % 2);
                // 64 bytes hold 128 weights: steps 0 and 2 are their low nibbles, 1 and 3 the high.
                let q = _mm512_loadu_si512(at.add(64 * half).cast());
                let q = _mm512_srl_epi64(q, _mm_cvtsi32_si128(4 * high as i32));
                // Bit pairs 2·high and 2·high + 1 of 32 bytes, moved to bits 4 and 5. Rotating whole
                // 64-bit lanes is fine: the two bits kept never leave their byte.
                let h = _mm256_loadu_si256(at.add(128 + 32 * half).cast());
                let h = _mm512_broadcast_i64x4(h);
                let h = _mm512_rolv_epi64(
                    h,
                    if high == 0 {
                        _mm512_set_epi64(2, 2, 2, 2, 4, 4, 4, 4)
                    } else {
                        _mm512_set_epi64(62, 62, 62, 62, 0, 0, 0, 0)
                    },
                );
                let h = _mm512_and_si512(h, _mm512_set1_epi8(0x30));
                // h | (q & 15)
                _mm512_ternarylogic_epi64::<0b1111_1000>(h, q, _mm512_set1_epi8(15))
            }
        }
    }

    impl TilesAvx2 for Q6K {
        type Group = ();

        #[inline(always)]
        unsafe fn begin(_: *const u8, _: usize, _: usize) {}

        #[inline(always)]
        unsafe fn scales(unit: *const u8, _: &(), g: usize, half: usize) -> avx2_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe {
                let d = avx2_tiles::halves(unit.add(16 * half));
                let scaled = |part: usize| {
                    let p = unit.add(SCALES + TILE_ROWS * (2 * g + part) + 8 * half);
                    let v = _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()));
                    _mm256_mul_ps(d, _mm256_cvtepi32_ps(v))
                };
                avx2_tiles::Scales { d: [scaled(0), scaled(1)], m: [_mm256_setzero_ps(); 2] }
            }
        }

        #[inline(always)]
        unsafe fn line(unit: *const u8, _: &(), g: usize, j: usize, half: usize) -> __m256i {
            // SAFETY: by the trait's contract.
            unsafe {
                let (block, g4) = (g / 4, g % 4);
                let l = 16 * block + 8 * (g4 % 2) + j;
                let q = avx2_tiles::nibbles(unit.add(LINES), l, half, g4 / 2 * 4);
                let h = avx2_tiles::bits(unit.add(PAIRS), 8 * block + j, half, 2 * g4);
                let h = _mm256_slli_epi16::<4>(_mm256_and_si256(h, _mm256_set1_epi8(3)));
                _mm256_or_si256(q, h)
            }
        }
    }

    impl TilesAvx512 for Q6K {
        /// The four groups of a half share lines of bit pairs.
        const PHASES: usize = 4;
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
                let scaled = |h: usize| {
                    let at = unit.add(SCALES + TILE_ROWS * (2 * g + h));
                    let v = _mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()));
                    _mm512_mul_ps(*d, _mm512_cvtepi32_ps(v))
                };
                avx512_tiles::Scales { d: [scaled(0), scaled(1)], m: [_mm512_setzero_ps(); 2] }
            }
        }

        #[inline(always)]
        unsafe fn line<const P: usize>(unit: *const u8, _: &__m512, g: usize, j: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe {
                let l = 16 * (g / 4) + 8 * (P % 2) + j;
                let q = avx512_tiles::load(unit.add(LINES + 64 * l));
                let q = if P < 2 { q } else { _mm512_srli_epi16::<4>(q) };
                // The bit pair of group P, moved to bits 4 and 5 of its byte.
                let h = avx512_tiles::load(unit.add(PAIRS + 64 * (8 * (g / 4) + j)));
                let h = match P {
                    0 => _mm512_slli_epi16::<4>(h),
                    1 => _mm512_slli_epi16::<2>(h),
                    2 => h,
                    _ => _mm512_srli_epi16::<2>(h),
                };
                // Bits 0 to 3 of `q`, the others of `h`; of those, only bits 4 and 5 are kept.
                let v = _mm512_ternarylogic_epi64::<0xca>(_mm512_set1_epi8(15), q, h);
                _mm512_and_si512(v, _mm512_set1_epi8(63))
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::{LINES, PAIRS, Q6K, SCALES};
    use crate::blocks::BlockFormat;
    use crate::blocks::neon_rows::{self, RowsNeon, f16_at, floats_s8};
    use crate::blocks::neon_tiles::{self, TilesNeon, times};
    use crate::fields::TILE_ROWS;
    use std::arch::aarch64::*;

    impl RowsNeon for Q6K {
        #[inline(always)]
        unsafe fn group128(row: *const u8, b: usize) -> neon_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let (p, half, g) = (row.add(b / 8 * Self::BYTES), b % 8 / 4, b % 4);
                let q = neon_rows::load(p.add(64 * half + 32 * (g & 1)));
                let h = neon_rows::load(p.add(128 + 32 * half));
                let q = six_bits(neon_rows::bits(q, 4 * (g / 2), 15), neon_rows::bits(h, 2 * g, 3));
                let sc = p.add(192 + 2 * (b % 8)).cast::<i8>();
                let d = f16_at(p.add(208));
                let d = [d * *sc as f32, d * *sc.add(1) as f32];
                neon_rows::Group { q, d, m: [0.0; 2] }
            }
        }

        const EIGHT: bool = true;

        #[inline(always)]
        unsafe fn eight(row: *const u8, g: usize) -> neon_rows::Eight {
            // SAFETY: by the trait's contract.
            unsafe {
                let p = row.add(g * Self::BYTES);
                let d = f16_at(p.add(208));
                let mut all = neon_rows::Eight::NONE;
                for half in 0..2 {
                    let sc = floats_s8(vld1_s8(p.add(192 + 8 * half).cast()));
                    for (i, sc) in sc.into_iter().enumerate() {
                        let to = all.d.as_mut_ptr().add(8 * half + 4 * i);
                        vst1q_f32(to, vmulq_n_f32(sc, d));
                    }
                }
                all
            }
        }
    }

    /// Nibbles, with two bits above each.
    #[inline(always)]
    unsafe fn six_bits(q: [uint8x16_t; 2], h: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        // SAFETY: the callers' CPU has NEON.
        unsafe { [vsliq_n_u8::<4>(q[0], h[0]), vsliq_n_u8::<4>(q[1], h[1])] }
    }

    impl TilesNeon for Q6K {
        type Group = ();

        #[inline(always)]
        unsafe fn begin(_: *const u8, _: usize, _: usize) {}

        #[inline(always)]
        unsafe fn scales(unit: *const u8, _: &(), g: usize, half: usize) -> neon_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe {
                let d = neon_tiles::halves(unit.add(16 * half));
                let scaled = |part: usize| {
                    let p = unit.add(SCALES + TILE_ROWS * (2 * g + part) + 8 * half);
                    times(d, floats_s8(vld1_s8(p.cast())))
                };
                neon_tiles::Scales { d: [scaled(0), scaled(1)], m: [[vdupq_n_f32(0.0); 2]; 2] }
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
                let (block, g4) = (g / 4, g % 4);
                let l = 16 * block + 8 * (g4 % 2) + j;
                let q = neon_tiles::nibbles(unit.add(LINES), l, half, g4 / 2 * 4);
                six_bits(q, neon_tiles::bits(unit.add(PAIRS), 8 * block + j, half, 2 * g4, 3))
            }
        }
    }
}
