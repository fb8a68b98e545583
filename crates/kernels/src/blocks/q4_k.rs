//! Q4_K: w = q·(d·sc) − dmin·m, 256 weights in 8 groups of 32, 144 bytes: f16 d; f16 dmin; 12 bytes of
//! 6-bit scales and minima (`scale_min_k` in [`shared`](super::shared)); 128 bytes of nibbles, of
//! which groups 2j and 2j+1 are the low and the high halves of the same 32 bytes.
//!
//! Source: ggml's block structs; dequantising is checked against the `gguf` package bit for bit.

use super::shared::scale_and_offset_k;
use super::{BlockFormat, Group32, ScaleField};
use crate::quantize::search;
use crate::tiles::fields::{Field, bytes, halves, lines};
use alight_types::GgmlType;

pub(crate) struct Q4K;

impl BlockFormat for Q4K {
    const TYPE: GgmlType = GgmlType::Q4_K;
    const ZERO: i32 = 0;
    const MAX_CODE: i32 = 15;
    const SCALES: usize = 1;
    const OFFSETS: usize = 1;
    const FIELDS: &'static [Field] = &[halves(0, 2), bytes(4, 12), lines(16, 32)];
    const SCALE_FIELDS: &'static [ScaleField] = &[ScaleField::F16(0), ScaleField::F16(2)];

    #[inline(always)]
    fn group(b: &[u8], g: usize) -> Group32 {
        let (d, m) = scale_and_offset_k(b, g);
        let qs = &b[16 + 32 * (g / 2)..][..32];
        let mut q = [0; 32];
        for (q, &b) in q.iter_mut().zip(qs) {
            *q = (b >> (4 * (g & 1))) & 15;
        }
        Group32 { q, d: [d; 2], m: [m; 2] }
    }

    const QUANTIZES: bool = true;

    /// A search with no larger error than llama.cpp's.
    #[inline(always)]
    fn quantize(x: &[f32], out: &mut [u8]) {
        let block = search::affine(x, 15);
        block.put_scales(out);
        block.put_nibbles(&mut out[16..144]);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Q4K;
    use crate::blocks::BlockFormat;
    use crate::blocks::avx2_rows::{self, RowsAvx2, scale_and_offset_k, shr};
    use crate::blocks::avx2_tiles::{self, TilesAvx2, scales_k};
    use crate::blocks::avx512_rows::{self, RowsAvx512, group_k, low_high};
    use crate::blocks::avx512_tiles::{self, HeadK, TilesAvx512, nibbles_k};
    use crate::tiles::fields::offset;
    use std::arch::x86_64::*;

    impl RowsAvx2 for Q4K {
        #[inline(always)]
        unsafe fn group256(row: *const u8, b: usize) -> avx2_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let (p, g) = (row.add(b / 8 * Self::BYTES), b % 8);
                let (d, m) = scale_and_offset_k(p, g);
                let v = _mm256_loadu_si256(p.add(16 + 32 * (g / 2)).cast());
                let q = _mm256_and_si256(shr(v, 4 * (g & 1)), _mm256_set1_epi8(15));
                avx2_rows::Group { q, d: [d; 2], m: [m; 2] }
            }
        }
    }

    impl RowsAvx512 for Q4K {
        type Offsets = ();

        #[inline(always)]
        unsafe fn begin(row: *const u8, g: usize, _: usize) -> avx512_rows::Group<()> {
            // SAFETY: by the trait's contract.
            unsafe { group_k(row.add(g * Self::BYTES)) }
        }

        #[inline(always)]
        unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe { low_high(at.add(16 + 32 * j)) }
        }
    }

    /// Where a unit has its lines.
    const LINES: usize = offset(Q4K::FIELDS, 2);

    impl TilesAvx2 for Q4K {
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
            unsafe { avx2_tiles::nibbles(unit.add(LINES), 8 * (g / 2) + j, half, g % 2 * 4) }
        }
    }

    impl TilesAvx512 for Q4K {
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
            unsafe { nibbles_k::<P>(unit.add(LINES), g, j) }
        }
    }
}
