//! Q1_0: w = d or −d, 128 weights in 18 bytes: f16 d; 16 bytes of bits, starting from the lowest of the first byte: set means d.
//! The code is 2 or 0 with a zero point of 1.
//!
//! Source: the specification's formula (ggml's `block_q1_0`).

use super::shared::f16_at;
use super::tile_groups::{self, each};
use super::{BlockFormat, Group32, ScaleField, TileGroup};
use crate::fields::{Field, bits_of, halves, lines, offset};
use crate::fit::simple;
use alight_types::GgmlType;

pub(crate) struct Q1_0;

/// Offset of the lines in a unit: one for each group.
const LINES: usize = offset(Q1_0::FIELDS, 1);

impl BlockFormat for Q1_0 {
    const TYPE: GgmlType = GgmlType::Q1_0;
    const ZERO: i32 = 1;
    const MAX_CODE: i32 = 2;
    const SCALES: usize = 1;
    const OFFSETS: usize = 0;
    const FIELDS: &'static [Field] = &[halves(0, 1), lines(2, 4)];
    const SCALE_FIELDS: &'static [ScaleField] = &[ScaleField::F16(0)];

    #[inline(always)]
    fn group(b: &[u8], g: usize) -> Group32 {
        let bits = &b[2 + 4 * g..][..4];
        let mut q = [0; 32];
        for (i, q) in q.iter_mut().enumerate() {
            *q = (bits[i / 8] >> (i % 8) & 1) << 1;
        }
        Group32 { q, d: [f16_at(b, 0); 2], m: [0.0; 2] }
    }

    #[inline(always)]
    fn tile_group(unit: &[u8], g: usize, to: &mut TileGroup) {
        let bits = tile_groups::numbers(unit, LINES, g);
        // Bits 4j .. of a row, each in a byte of its own, as bit 1.
        for (j, q) in to.q.iter_mut().enumerate() {
            *q = each(|r| (bits_of(bits[r] >> (4 * j) & 15) << 1).to_le_bytes());
        }
        to.d = [tile_groups::halves(unit, 0); 2];
    }

    const QUANTIZES: bool = true;

    /// Bit-identical to the reference (ggml).
    #[inline(always)]
    fn quantize(x: &[f32], _: &[f32], out: &mut [u8]) {
        let mut sum = 0.0;
        for x in x {
            sum += x.abs();
        }
        simple::put_f16(out, sum / 128.0);
        for (x, out) in x.chunks_exact(8).zip(&mut out[2..]) {
            *out = (0..8).fold(0, |bits, i| bits | u8::from(x[i] >= 0.0) << i);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LINES, Q1_0};
    use crate::blocks::BlockFormat;
    use crate::blocks::avx2_rows::{self, RowsAvx2, f16_at, set_bits};
    use crate::blocks::avx2_tiles::{self, TilesAvx2};
    use crate::blocks::avx512_rows::{self, RowsAvx512};
    use crate::blocks::avx512_tiles::{self, TilesAvx512};
    use std::arch::x86_64::*;

    impl RowsAvx2 for Q1_0 {
        #[inline(always)]
        unsafe fn group256(row: *const u8, b: usize) -> avx2_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let p = row.add(b / 4 * Self::BYTES);
                let bits = p.add(2 + 4 * (b % 4)).cast::<u32>().read_unaligned();
                let q = _mm256_and_si256(set_bits(bits), _mm256_set1_epi8(2));
                avx2_rows::Group { q, d: [f16_at(p); 2], m: [0.0; 2] }
            }
        }
    }

    impl RowsAvx512 for Q1_0 {
        type Offsets = ();

        #[inline(always)]
        unsafe fn begin(row: *const u8, g: usize, count: usize) -> avx512_rows::Group256<()> {
            // SAFETY: by the trait's contract.
            unsafe { avx512_rows::one_scale::<Self>(row, g, count, 0) }
        }

        #[inline(always)]
        unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe {
                let bits = at.add(j / 2 * Self::BYTES + 2 + 8 * (j % 2));
                let bits = bits.cast::<u64>().read_unaligned();
                _mm512_maskz_mov_epi8(bits, _mm512_set1_epi8(2))
            }
        }
    }

    impl TilesAvx2 for Q1_0 {
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
            // SAFETY: by the trait's contract.
            unsafe {
                // Four bits of each row, from its bit 4j on, in each of its four bytes.
                let v = _mm256_loadu_si256(unit.add(LINES + 64 * g + 32 * half).cast());
                let v = _mm256_srl_epi32(v, _mm_cvtsi32_si128(4 * j as i32));
                let v = _mm256_and_si256(v, _mm256_set1_epi32(15));
                let v = _mm256_or_si256(v, _mm256_slli_epi32::<16>(v));
                let v = _mm256_or_si256(v, _mm256_slli_epi32::<8>(v));
                let bit = _mm256_set1_epi32(0x0804_0201);
                let set = _mm256_cmpeq_epi8(_mm256_and_si256(v, bit), bit);
                _mm256_and_si256(set, _mm256_set1_epi8(2))
            }
        }
    }

    impl TilesAvx512 for Q1_0 {
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
            // SAFETY: by the trait's contract.
            unsafe {
                // Bits 4j to 4j + 3 of each row, each as bit 1 of a byte.
                let from = _mm512_set1_epi64(0x2221_201f_0201_00ff_u64 as i64);
                let from = _mm512_add_epi8(from, _mm512_set1_epi8(4 * j as i8));
                let v = avx512_tiles::load(unit.add(LINES + 64 * g));
                let v = _mm512_multishift_epi64_epi8(from, v);
                _mm512_and_si512(v, _mm512_set1_epi8(2))
            }
        }
    }
}
