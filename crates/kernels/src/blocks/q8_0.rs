//! Q8_0: w = q·d with signed q, 32 weights in 34 bytes: f16 d; 32 × i8. The code is q + 128.
//!
//! Source: ggml's block structs; dequantising is checked against the `gguf` package bit for bit.

use super::shared::f16_at;
use super::tile_groups::{self, line};
use super::{BlockFormat, Group32, ScaleField, TileGroup};
use crate::fields::{Field, halves, offset};
use crate::fit::simple;
use alight_types::GgmlType;

pub(crate) struct Q8_0;

/// Offset of the lines in a unit.
const LINES: usize = offset(Q8_0::FIELDS, 1);

impl BlockFormat for Q8_0 {
    const TYPE: GgmlType = GgmlType::Q8_0;
    const ZERO: i32 = 128;
    const MAX_CODE: i32 = 255;
    const SCALES: usize = 1;
    const OFFSETS: usize = 0;
    const FIELDS: &'static [Field] = &[halves(0, 1), Field::Signed { at: 2, count: 8 }];
    const SCALE_FIELDS: &'static [ScaleField] = &[ScaleField::F16(0)];

    #[inline(always)]
    fn group(b: &[u8], _: usize) -> Group32 {
        let mut q = [0; 32];
        for (q, &b) in q.iter_mut().zip(&b[2..34]) {
            *q = b ^ 0x80;
        }
        Group32 { q, d: [f16_at(b, 0); 2], m: [0.0; 2] }
    }

    #[inline(always)]
    fn tile_group(unit: &[u8], _: usize, to: &mut TileGroup) {
        for (j, q) in to.q.iter_mut().enumerate() {
            line(unit, LINES, j, q, |byte| byte);
        }
        to.d = [tile_groups::halves(unit, 0); 2];
    }

    const QUANTIZES: bool = true;

    /// Bit-identical to the reference (ggml, and the `gguf` package).
    #[inline(always)]
    fn quantize(x: &[f32], _: &[f32], out: &mut [u8]) {
        simple::signed(x, out);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LINES, Q8_0};
    use crate::blocks::BlockFormat;
    use crate::blocks::avx2_rows::{self, RowsAvx2, f16_at};
    use crate::blocks::avx512_rows::{self, RowsAvx512};
    use crate::blocks::avx512_tiles;
    use crate::blocks::avx512_units::quarters;
    use crate::blocks::plain_tiles::PlainTiles;
    use std::arch::x86_64::*;

    impl RowsAvx2 for Q8_0 {
        #[inline(always)]
        unsafe fn group256(row: *const u8, b: usize) -> avx2_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let p = row.add(b * Self::BYTES);
                let q = _mm256_loadu_si256(p.add(2).cast());
                let q = _mm256_xor_si256(q, _mm256_set1_epi8(-128));
                avx2_rows::Group { q, d: [f16_at(p); 2], m: [0.0; 2] }
            }
        }

        #[inline(always)]
        unsafe fn words(row: *const u8, b: usize) -> [__m256i; 2] {
            // SAFETY: by the trait's contract.
            unsafe {
                let p = row.add(b * Self::BYTES + 2).cast::<__m128i>();
                let (low, high) = (p.read_unaligned(), p.add(1).read_unaligned());
                [_mm256_cvtepi8_epi16(low), _mm256_cvtepi8_epi16(high)]
            }
        }

        const EIGHT: bool = true;

        #[inline(always)]
        unsafe fn eight(row: *const u8, g: usize) -> avx2_rows::Eight {
            // SAFETY: by the trait's contract.
            unsafe { avx2_rows::leading_eight::<Self>(row, g) }
        }
    }

    impl RowsAvx512 for Q8_0 {
        type Offsets = ();

        #[inline(always)]
        unsafe fn begin(row: *const u8, g: usize, count: usize) -> avx512_rows::Group256<()> {
            // Eight blocks span five registers: joining the words in integer registers, which are
            // idle, is cheaper than picking them out.
            // SAFETY: `count` blocks of the caller; its CPU has the SIMD level.
            unsafe {
                let at = row.add(g * 8 * Self::BYTES);
                let mut words = [0u64; 2];
                for i in 0..8 {
                    if i < count {
                        let d = at.add(i * Self::BYTES).cast::<u16>().read_unaligned();
                        words[i / 4] |= (d as u64) << (16 * (i % 4));
                    }
                }
                let words = _mm_set_epi64x(words[1] as i64, words[0] as i64);
                avx512_rows::Group256 {
                    at,
                    offsets: (),
                    scales: _mm512_zextps256_ps512(_mm256_cvtph_ps(words)),
                }
            }
        }

        #[inline(always)]
        unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe {
                let p = at.add(j * 2 * Self::BYTES);
                let mut q = _mm512_castsi256_si512(_mm256_loadu_si256(p.add(2).cast()));
                if !HALF {
                    let second = _mm256_loadu_si256(p.add(Self::BYTES + 2).cast());
                    q = _mm512_inserti64x4::<1>(q, second);
                }
                _mm512_xor_si512(q, _mm512_set1_epi8(-128))
            }
        }
    }

    impl PlainTiles for Q8_0 {
        #[inline(always)]
        unsafe fn line256(unit: *const u8, j: usize, half: usize) -> __m256i {
            // SAFETY: by the trait's contract.
            unsafe { _mm256_loadu_si256(unit.add(LINES + 64 * j + 32 * half).cast()) }
        }

        #[inline(always)]
        unsafe fn line512(unit: *const u8, j: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe { avx512_tiles::load(unit.add(LINES + 64 * j)) }
        }

        const IN_ROWS: bool = true;

        #[inline(always)]
        unsafe fn columns512(block: *const u8, stride: usize, half: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe {
                let q = quarters(block.add(2 + 16 * half), stride);
                _mm512_xor_si512(q, _mm512_set1_epi8(-128))
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::{LINES, Q8_0};
    use crate::blocks::BlockFormat;
    use crate::blocks::neon_rows::{self, RowsNeon, f16_at};
    use crate::blocks::neon_tiles::{self, TilesNeon};
    use std::arch::aarch64::*;

    impl RowsNeon for Q8_0 {
        #[inline(always)]
        unsafe fn group128(row: *const u8, b: usize) -> neon_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let p = row.add(b * Self::BYTES);
                let (q, sign) = (neon_rows::load(p.add(2)), vdupq_n_u8(128));
                let q = [veorq_u8(q[0], sign), veorq_u8(q[1], sign)];
                neon_rows::Group { q, d: [f16_at(p); 2], m: [0.0; 2] }
            }
        }
    }

    impl TilesNeon for Q8_0 {
        type Group = ();

        #[inline(always)]
        unsafe fn begin(_: *const u8, _: usize, _: usize) {}

        #[inline(always)]
        unsafe fn scales(unit: *const u8, _: &(), _: usize, half: usize) -> neon_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe { neon_tiles::one_scale::<Self>(unit, half) }
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
            unsafe { neon_rows::load(unit.add(LINES + 64 * j + 32 * half)) }
        }
    }
}
