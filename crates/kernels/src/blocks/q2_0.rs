//! Q2_0: w = (q − 1)·d, so −d to 2d, 64 weights in 18 bytes: f16 d; 16 bytes of bit pairs, four consecutive weights in a byte,
//! starting from the lowest pair.
//!
//! Source: the specification's formula (ggml's `block_q2_0`).

use super::shared::f16_at;
use super::tile_groups::{self, each};
use super::{BlockFormat, Group32, ScaleField, TileGroup};
use crate::fields::{Field, halves, lines, offset};
use crate::fit::simple;
use alight_types::GgmlType;

pub(crate) struct Q2_0;

/// Offset of the lines in a unit: two for each group.
const LINES: usize = offset(Q2_0::FIELDS, 1);

impl BlockFormat for Q2_0 {
    const TYPE: GgmlType = GgmlType::Q2_0;
    const ZERO: i32 = 1;
    const MAX_CODE: i32 = 3;
    const SCALES: usize = 1;
    const OFFSETS: usize = 0;
    const FIELDS: &'static [Field] = &[halves(0, 1), lines(2, 4)];
    const SCALE_FIELDS: &'static [ScaleField] = &[ScaleField::F16(0)];

    #[inline(always)]
    fn group(b: &[u8], g: usize) -> Group32 {
        let pairs = &b[2 + 8 * g..][..8];
        let mut q = [0; 32];
        for (i, q) in q.iter_mut().enumerate() {
            *q = pairs[i / 4] >> (2 * (i % 4)) & 3;
        }
        Group32 { q, d: [f16_at(b, 0); 2], m: [0.0; 2] }
    }

    #[inline(always)]
    fn tile_group(unit: &[u8], g: usize, to: &mut TileGroup) {
        for (j, q) in to.q.iter_mut().enumerate() {
            // Byte j of a row, whose bit pairs become bytes.
            let bytes = tile_groups::numbers(unit, LINES, 2 * g + j / 4);
            *q = each(|r| {
                let byte = bytes[r] >> (8 * (j % 4)) & 255;
                ((byte | byte << 6 | byte << 12 | byte << 18) & 0x0303_0303).to_le_bytes()
            });
        }
        to.d = [tile_groups::halves(unit, 0); 2];
    }

    const QUANTIZES: bool = true;

    /// Bit-identical to the reference (ggml).
    #[inline(always)]
    fn quantize(x: &[f32], _: &[f32], out: &mut [u8]) {
        let q: [u8; 64] = simple::ternary(x, out);
        for (q, out) in q.as_chunks::<4>().0.iter().zip(&mut out[2..]) {
            *out = q[0] | q[1] << 2 | q[2] << 4 | q[3] << 6;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LINES, Q2_0};
    use crate::blocks::BlockFormat;
    use crate::blocks::avx2_rows::{self, RowsAvx2, f16_at};
    use crate::blocks::avx2_tiles::{self, TilesAvx2};
    use crate::blocks::avx512_rows::{self, RowsAvx512};
    use crate::blocks::avx512_tiles::{self, TilesAvx512};
    use std::arch::x86_64::*;

    /// The lowest byte of eight lanes → its four bit pairs, one per byte.
    #[inline(always)]
    unsafe fn pairs256(v: __m256i) -> __m256i {
        // SAFETY: the callers' CPU has AVX2.
        unsafe {
            let v = _mm256_and_si256(v, _mm256_set1_epi32(255));
            // Moves each pair six bits further than the one before.
            let v = _mm256_or_si256(v, _mm256_slli_epi32::<12>(v));
            let v = _mm256_or_si256(v, _mm256_slli_epi32::<6>(v));
            _mm256_and_si256(v, _mm256_set1_epi8(3))
        }
    }

    /// Byte `i` of sixteen lanes → its four bit pairs, one per byte.
    #[inline(always)]
    unsafe fn pairs512(v: __m512i, i: usize) -> __m512i {
        // SAFETY: the callers' CPU has the SIMD level.
        unsafe {
            let from = _mm512_set1_epi64(0x2624_2220_0604_0200);
            let from = _mm512_add_epi8(from, _mm512_set1_epi8(8 * i as i8));
            _mm512_and_si512(_mm512_multishift_epi64_epi8(from, v), _mm512_set1_epi8(3))
        }
    }

    impl RowsAvx2 for Q2_0 {
        #[inline(always)]
        unsafe fn group256(row: *const u8, b: usize) -> avx2_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let p = row.add(b / 2 * Self::BYTES);
                let v = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(2 + 8 * (b % 2)).cast()));
                avx2_rows::Group { q: pairs256(v), d: [f16_at(p); 2], m: [0.0; 2] }
            }
        }
    }

    impl RowsAvx512 for Q2_0 {
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
                let v = _mm_loadu_si128(at.add(j * Self::BYTES + 2).cast());
                pairs512(_mm512_cvtepu8_epi32(v), 0)
            }
        }
    }

    impl TilesAvx2 for Q2_0 {
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
                let at = unit.add(LINES + 64 * (2 * g + j / 4) + 32 * half);
                let v = _mm256_loadu_si256(at.cast());
                pairs256(_mm256_srl_epi32(v, _mm_cvtsi32_si128(8 * (j % 4) as i32)))
            }
        }
    }

    impl TilesAvx512 for Q2_0 {
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
            unsafe { pairs512(avx512_tiles::load(unit.add(LINES + 64 * (2 * g + j / 4))), j % 4) }
        }
    }
}
