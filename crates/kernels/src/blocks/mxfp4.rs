//! MXFP4: w = 2^(e − 128)·K[q], 32 weights in 17 bytes: the exponent byte e; 16 bytes of nibbles, byte
//! `j` holding weight `j` (low) and `j + 16` (high). K is twice the value of a 4-bit float (E2M1):
//! 0, 1, 2, 3, 4, 6, 8, 12, then the same negated. e = 0 and 1 give the subnormal scales 2^−128 and
//! 2^−127; e = 255 is not special. The code is K[q] + 12.
//!
//! Source: OCP Microscaling Formats 1.0; ggml's `block_mxfp4`. Dequantising is checked against the
//! `gguf` package bit for bit.

use super::shared::codes;
use super::tile_groups::{self, each};
use super::{BlockFormat, Group32, ScaleField, TileGroup};
use crate::fields::{Field, bytes, lines, offset};
use crate::fit::simple;
use alight_types::GgmlType;

pub(crate) struct Mxfp4;

/// Returns the code of a nibble, K + 12, by arithmetic: the compiler vectorises loops of that, but not loops of lookups.
#[inline(always)]
pub(super) const fn code(nibble: u8) -> u8 {
    let m = nibble & 7;
    let k = m + (m > 4) as u8 + (m > 5) as u8 + 3 * (m > 6) as u8;
    if nibble < 8 { 12 + k } else { 12 - k }
}

/// The codes of all nibbles.
pub(super) const CODES: [u8; 16] = {
    let mut codes = [0; 16];
    let mut i = 0;
    while i < 16 {
        codes[i] = code(i as u8);
        i += 1;
    }
    codes
};

/// 2^(e − 128): the exponent field is e − 1; below that, the subnormals 2^−128 and 2^−127.
#[inline(always)]
const fn scale(e: u8) -> f32 {
    f32::from_bits(match e {
        0 | 1 => 0x0020_0000 << e,
        _ => (e as u32 - 1) << 23,
    })
}

/// Offset of the lines in a unit.
const LINES: usize = offset(Mxfp4::FIELDS, 1);

impl BlockFormat for Mxfp4 {
    const TYPE: GgmlType = GgmlType::MXFP4;
    const ZERO: i32 = 12;
    const MAX_CODE: i32 = 24;
    const SCALES: usize = 1;
    const OFFSETS: usize = 0;
    const FIELDS: &'static [Field] = &[bytes(0, 1), lines(1, 4)];
    const SCALE_FIELDS: &'static [ScaleField] = &[ScaleField::Exponent(0)];

    #[inline(always)]
    fn group(b: &[u8], _: usize) -> Group32 {
        let q = codes(&b[1..17], code);
        Group32 { q, d: [scale(b[0]); 2], m: [0.0; 2] }
    }

    #[inline(always)]
    fn tile_group(unit: &[u8], _: usize, to: &mut TileGroup) {
        tile_groups::nibbles(unit, LINES, 0, &mut to.q, code);
        let e = tile_groups::bytes(unit, 0);
        to.d = [each(|r| scale(e[r])); 2];
    }

    const QUANTIZES: bool = true;

    /// Bit-identical to the reference (ggml).
    #[inline(always)]
    fn quantize(x: &[f32], _: &[f32], out: &mut [u8]) {
        let far = simple::extreme(x).abs();
        // The largest K, 12, is reached from 1.5 times a power of two upwards.
        out[0] = if far > 0.0 { (libm::log2f(far).floor() + 125.0) as u8 } else { 0 };
        let d = scale(out[0]);
        let nearest = |x: f32| {
            let error = |q: usize| (f32::from(CODES[q] as i8 - 12) * d - x).abs();
            (1..16).fold(0, |best, q| if error(q) < error(best) { q } else { best }) as u8
        };
        let q = std::array::from_fn(|i| nearest(x[i]));
        simple::put_nibbles(&mut out[1..], &q);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{CODES, LINES, Mxfp4, scale};
    use crate::blocks::BlockFormat;
    use crate::blocks::avx2_rows::{self, RowsAvx2};
    use crate::blocks::avx2_tiles;
    use crate::blocks::avx512_rows::{self, RowsAvx512, Table, load, nibble_table, nibbles};
    use crate::blocks::avx512_tiles;
    use crate::blocks::plain_tiles::PlainTiles;
    use std::arch::x86_64::*;

    /// Eight [`scale`]s.
    #[inline(always)]
    unsafe fn scales256(e: __m256i) -> __m256 {
        // SAFETY: the callers' CPU has AVX2.
        unsafe {
            let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
            let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
            let is_normal = _mm256_cmpgt_epi32(e, _mm256_set1_epi32(1));
            _mm256_castsi256_ps(_mm256_blendv_epi8(subnormal, normal, is_normal))
        }
    }

    /// Sixteen [`scale`]s.
    #[inline(always)]
    unsafe fn scales512(e: __m512i) -> __m512 {
        // SAFETY: the callers' CPU has the SIMD level.
        unsafe {
            let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
            let is_subnormal = _mm512_cmple_epu32_mask(e, _mm512_set1_epi32(1));
            let least = _mm512_set1_epi32(0x0020_0000);
            _mm512_castsi512_ps(_mm512_mask_sllv_epi32(normal, is_subnormal, least, e))
        }
    }

    impl RowsAvx2 for Mxfp4 {
        #[inline(always)]
        unsafe fn group256(row: *const u8, b: usize) -> avx2_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let p = row.add(b * Self::BYTES);
                let q = avx2_rows::looked_up(&CODES, avx2_rows::nibbles(p.add(1)));
                avx2_rows::Group { q, d: [scale(*p); 2], m: [0.0; 2] }
            }
        }
    }

    /// Positions of the exponents of eight blocks, one for each 32-bit lane. The last is byte 119, so two registers hold them
    /// all.
    static EXPONENTS: Table = {
        let mut t = [0; 64];
        let mut i = 0;
        while i < 8 {
            t[4 * i] = (i * Mxfp4::BYTES) as u8;
            i += 1;
        }
        Table(t)
    };

    impl RowsAvx512 for Mxfp4 {
        type Offsets = ();

        #[inline(always)]
        unsafe fn begin(row: *const u8, g: usize, count: usize) -> avx512_rows::Group256<()> {
            // SAFETY: `count` blocks by the trait's contract; the masked bytes past them are not read.
            unsafe {
                let at = row.add(g * 8 * Self::BYTES);
                let bytes = count * Self::BYTES;
                let low = load(at, bytes);
                let high = load(at.wrapping_add(64), bytes.saturating_sub(64));
                let i = avx512_rows::table(&EXPONENTS);
                let e = _mm512_maskz_permutex2var_epi8(0x1111_1111, low, i, high);
                let exist = ((1u32 << count) - 1) as __mmask16;
                let scales = _mm512_maskz_mov_ps(exist, scales512(e));
                avx512_rows::Group256 { at, offsets: (), scales }
            }
        }

        #[inline(always)]
        unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
            static NIBBLES: Table = nibble_table(Mxfp4::BYTES, 1);
            // SAFETY: by the trait's contract.
            unsafe {
                avx512_rows::looked_up(
                    &CODES,
                    nibbles::<Self, HALF>(at.add(j * 2 * Self::BYTES), &NIBBLES),
                )
            }
        }
    }

    impl PlainTiles for Mxfp4 {
        #[inline(always)]
        unsafe fn scales256(unit: *const u8, half: usize) -> avx2_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe {
                let e = _mm_loadl_epi64(unit.add(8 * half).cast());
                let d = scales256(_mm256_cvtepu8_epi32(e));
                avx2_tiles::Scales { d: [d; 2], m: [_mm256_setzero_ps(); 2] }
            }
        }

        #[inline(always)]
        unsafe fn line256(unit: *const u8, j: usize, half: usize) -> __m256i {
            // SAFETY: by the trait's contract.
            unsafe {
                avx2_rows::looked_up(
                    &CODES,
                    avx2_tiles::nibbles(unit.add(LINES), j % 4, half, j / 4 * 4),
                )
            }
        }

        #[inline(always)]
        unsafe fn scales512(unit: *const u8) -> avx512_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe {
                let d = scales512(_mm512_cvtepu8_epi32(_mm_loadu_si128(unit.cast())));
                avx512_tiles::Scales { d: [d; 2], m: [_mm512_setzero_ps(); 2] }
            }
        }

        #[inline(always)]
        unsafe fn line512(unit: *const u8, j: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe { avx512_rows::looked_up(&CODES, avx512_tiles::nibbles(unit.add(LINES), j)) }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::{CODES, LINES, Mxfp4, scale};
    use crate::blocks::BlockFormat;
    use crate::blocks::neon_rows::{self, RowsNeon};
    use crate::blocks::neon_tiles::{self, TilesNeon};
    use std::arch::aarch64::*;

    /// Four [`scale`]s.
    #[inline(always)]
    unsafe fn scales(e: uint32x4_t) -> float32x4_t {
        // SAFETY: the callers' CPU has NEON.
        unsafe {
            let normal = vshlq_n_u32::<23>(vsubq_u32(e, vdupq_n_u32(1)));
            // A shift by 32 or more gives zero, but one by 255 would shift right.
            let by = vreinterpretq_s32_u32(vminq_u32(e, vdupq_n_u32(32)));
            let subnormal = vshlq_u32(vdupq_n_u32(0x0020_0000), by);
            let is_normal = vcgtq_u32(e, vdupq_n_u32(1));
            vreinterpretq_f32_u32(vbslq_u32(is_normal, normal, subnormal))
        }
    }

    impl RowsNeon for Mxfp4 {
        #[inline(always)]
        unsafe fn group128(row: *const u8, b: usize) -> neon_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let p = row.add(b * Self::BYTES);
                let q = neon_rows::looked_up(&CODES, neon_rows::nibbles(p.add(1)));
                neon_rows::Group { q, d: [scale(*p); 2], m: [0.0; 2] }
            }
        }
    }

    impl TilesNeon for Mxfp4 {
        type Group = ();

        #[inline(always)]
        unsafe fn begin(_: *const u8, _: usize, _: usize) {}

        #[inline(always)]
        unsafe fn scales(unit: *const u8, _: &(), _: usize, half: usize) -> neon_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe {
                let e = vmovl_u8(vld1_u8(unit.add(8 * half)));
                let low = scales(vmovl_u16(vget_low_u16(e)));
                neon_tiles::Scales::one([low, scales(vmovl_high_u16(e))])
            }
        }

        #[inline(always)]
        unsafe fn line(
            unit: *const u8,
            _: &(),
            _: usize,
            j: usize,
            half: usize,
        ) -> [uint8x16_t; 2] {
            // SAFETY: by the trait's contract.
            unsafe {
                let nibbles = neon_tiles::nibbles(unit.add(LINES), j % 4, half, j / 4 * 4);
                neon_rows::looked_up(&CODES, nibbles)
            }
        }
    }
}
