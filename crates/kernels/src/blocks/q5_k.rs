//! Q5_K: w = q·(d·sc) − dmin·m, 256 weights in 8 groups of 32, 176 bytes: f16 d; f16 dmin; 12 bytes of
//! 6-bit scales and minima (`scale_min_k` in [`shared`](super::shared)); 32 bytes of fifth bits, bit
//! `g` of byte `i` that of weight `i` of group `g`; 128 bytes of nibbles, of which groups 2j and 2j+1
//! are the low and the high halves of the same 32 bytes.
//!
//! Source: ggml's block structs; dequantising is checked against the `gguf` package bit for bit.

use super::shared::scale_and_offset_k;
use super::{BlockFormat, Group32, ScaleField};
use crate::quantize::search;
use crate::tiles::fields::{Field, bytes, halves, lines};
use alight_types::GgmlType;

pub(crate) struct Q5K;

impl BlockFormat for Q5K {
    const TYPE: GgmlType = GgmlType::Q5_K;
    const ZERO: i32 = 0;
    const MAX_CODE: i32 = 31;
    const SCALES: usize = 1;
    const OFFSETS: usize = 1;
    const FIELDS: &'static [Field] =
        &[halves(0, 2), bytes(4, 12), Field::Bits256 { at: 16 }, lines(48, 32)];
    const SCALE_FIELDS: &'static [ScaleField] = &[ScaleField::F16(0), ScaleField::F16(2)];

    #[inline(always)]
    fn group(b: &[u8], g: usize) -> Group32 {
        let (d, m) = scale_and_offset_k(b, g);
        let (qh, qs) = (&b[16..48], &b[48 + 32 * (g / 2)..][..32]);
        let mut q = [0; 32];
        for i in 0..32 {
            q[i] = ((qs[i] >> (4 * (g & 1))) & 15) | ((qh[i] >> g) & 1) << 4;
        }
        Group32 { q, d: [d; 2], m: [m; 2] }
    }

    const QUANTIZES: bool = true;

    /// A search with no larger error than llama.cpp's.
    #[inline(always)]
    fn quantize(x: &[f32], out: &mut [u8]) {
        let block = search::affine(x, 31);
        block.put_scales(out);
        block.put_fifth(&mut out[16..48]);
        block.put_nibbles(&mut out[48..176]);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Q5K;
    use crate::blocks::BlockFormat;
    use crate::blocks::avx2_rows::{self, RowsAvx2, scale_and_offset_k, shr};
    use crate::blocks::avx2_tiles::{self, TilesAvx2, scales_k, with_fifth};
    use crate::blocks::avx512_rows::{self, RowsAvx512, group_k, low_high};
    use crate::blocks::avx512_tiles::{self, HeadK, TilesAvx512, nibbles_k};
    use crate::tiles::fields::{mask256, offset};
    use std::arch::x86_64::*;

    impl RowsAvx2 for Q5K {
        #[inline(always)]
        unsafe fn group256(row: *const u8, b: usize) -> avx2_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let (p, g) = (row.add(b / 8 * Self::BYTES), b % 8);
                let (d, m) = scale_and_offset_k(p, g);
                let v = _mm256_loadu_si256(p.add(48 + 32 * (g / 2)).cast());
                let q = _mm256_and_si256(shr(v, 4 * (g & 1)), _mm256_set1_epi8(15));
                let h = shr(_mm256_loadu_si256(p.add(16).cast()), g);
                let h = _mm256_and_si256(h, _mm256_set1_epi8(1));
                let q = _mm256_or_si256(q, _mm256_slli_epi16::<4>(h));
                avx2_rows::Group { q, d: [d; 2], m: [m; 2] }
            }
        }
    }

    impl RowsAvx512 for Q5K {
        type Offsets = ();

        #[inline(always)]
        unsafe fn begin(row: *const u8, g: usize, _: usize) -> avx512_rows::Group<()> {
            // SAFETY: by the trait's contract.
            unsafe { group_k(row.add(g * Self::BYTES)) }
        }

        #[inline(always)]
        unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe {
                let q = low_high(at.add(48 + 32 * j));
                let h = _mm512_broadcast_i64x4(_mm256_loadu_si256(at.add(16).cast()));
                // Bit 2j of the bytes for the low nibbles, bit 2j + 1 for the high ones.
                let (low, high) = (0x0101_0101_0101_0101, 0x0202_0202_0202_0202);
                let bit = _mm512_set_epi64(high, high, high, high, low, low, low, low);
                let bit = _mm512_sll_epi64(bit, _mm_cvtsi32_si128(2 * j as i32));
                let set = _mm512_test_epi8_mask(h, bit);
                _mm512_mask_add_epi8(q, set, q, _mm512_set1_epi8(16))
            }
        }
    }

    /// Where a unit has its masks of fifth bits and its lines.
    const MASKS: usize = offset(Q5K::FIELDS, 2);
    const LINES: usize = offset(Q5K::FIELDS, 3);

    impl TilesAvx2 for Q5K {
        type Group = ();

        #[inline(always)]
        unsafe fn begin(_: *const u8, _: usize, _: usize) {}

        #[inline(always)]
        unsafe fn scales(unit: *const u8, _: &(), g: usize, half: usize) -> avx2_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe { scales_k(unit, g, half) }
        }

        #[inline(always)]
        unsafe fn line(unit: *const u8, _: &(), g: usize, j: usize, half: usize) -> __m256i {
            // SAFETY: by the trait's contract.
            unsafe {
                let q = avx2_tiles::nibbles(unit.add(LINES), 8 * (g / 2) + j, half, g % 2 * 4);
                with_fifth(q, unit.add(MASKS), mask256(g, j), half)
            }
        }
    }

    impl TilesAvx512 for Q5K {
        /// Pairs of groups share lines of nibbles.
        const PHASES: usize = 2;
        type Head = HeadK;

        #[inline(always)]
        unsafe fn head(unit: *const u8) -> HeadK {
            // SAFETY: by the trait's contract.
            unsafe { HeadK::of(unit) }
        }

        #[inline(always)]
        unsafe fn scales(_: *const u8, head: &HeadK, g: usize) -> avx512_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe { head.scales(g) }
        }

        #[inline(always)]
        unsafe fn line<const P: usize>(unit: *const u8, _: &HeadK, g: usize, j: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe {
                let q = nibbles_k::<P>(unit.add(LINES), g, j);
                avx512_tiles::with_fifth(q, unit.add(MASKS), 16 * (g / 2) + 2 * j + P)
            }
        }
    }
}
