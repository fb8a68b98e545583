//! Q5_1: w = q·d + m, 32 weights in 24 bytes: f16 d; f16 m; 32 fifth bits, bit `i` that of weight `i`;
//! 16 bytes of nibbles, byte `j` holding weight `j` (low) and `j + 16` (high).
//!
//! Source: ggml's block structs; dequantising is checked against the `gguf` package bit for bit.

use super::shared::{f16_at, nibbles_and_fifth};
use super::{BlockFormat, Group32, ScaleField};
use crate::quantize::simple;
use crate::tiles::fields::{Field, halves, lines};
use alight_types::GgmlType;

pub(crate) struct Q5_1;

impl BlockFormat for Q5_1 {
    const TYPE: GgmlType = GgmlType::Q5_1;
    const ZERO: i32 = 0;
    const MAX_CODE: i32 = 31;
    const SCALES: usize = 1;
    const OFFSETS: usize = 1;
    const FIELDS: &'static [Field] = &[halves(0, 2), Field::Bits32 { at: 4 }, lines(8, 4)];
    const SCALE_FIELDS: &'static [ScaleField] = &[ScaleField::F16(0), ScaleField::F16(2)];

    #[inline(always)]
    fn group(b: &[u8], _: usize) -> Group32 {
        let q = nibbles_and_fifth(&b[8..24], &b[4..8]);
        Group32 { q, d: [f16_at(b, 0); 2], m: [f16_at(b, 2); 2] }
    }

    const QUANTIZES: bool = true;

    /// As the reference (ggml, and the `gguf` package), bit for bit.
    #[inline(always)]
    fn quantize(x: &[f32], out: &mut [u8]) {
        let q = simple::affine(x, 31, out);
        simple::put_fifth(&mut out[4..], &q);
        simple::put_nibbles(&mut out[8..], &q);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Q5_1;
    use crate::blocks::BlockFormat;
    use crate::blocks::avx2_rows::{self, RowsAvx2, f16_at, fifth_bits};
    use crate::blocks::avx2_tiles::{self, TilesAvx2, with_fifth};
    use crate::blocks::avx512_rows::{
        self, RowsAvx512, Table, add_fifth, leading_scales, nibble_table, nibbles, scale_table,
    };
    use crate::blocks::avx512_tiles::{self, TilesAvx512};
    use crate::tiles::fields::offset;
    use std::arch::x86_64::*;

    impl RowsAvx2 for Q5_1 {
        #[inline(always)]
        unsafe fn group256(row: *const u8, b: usize) -> avx2_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let p = row.add(b * Self::BYTES);
                let q = _mm256_or_si256(avx2_rows::nibbles(p.add(8)), fifth_bits(p.add(4)));
                avx2_rows::Group { q, d: [f16_at(p); 2], m: [f16_at(p.add(2)); 2] }
            }
        }
    }

    impl RowsAvx512 for Q5_1 {
        type Offsets = ();

        #[inline(always)]
        unsafe fn begin(row: *const u8, g: usize, count: usize) -> avx512_rows::Group<()> {
            static SCALES: Table = scale_table(Q5_1::BYTES);
            // SAFETY: by the trait's contract.
            unsafe { leading_scales::<Self>(row, g, count, &SCALES) }
        }

        #[inline(always)]
        unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
            static NIBBLES: Table = nibble_table(Q5_1::BYTES, 8);
            // SAFETY: by the trait's contract.
            unsafe {
                let p = at.add(j * 2 * Self::BYTES);
                add_fifth::<Self, HALF>(nibbles::<Self, HALF>(p, &NIBBLES), p, 4)
            }
        }
    }

    /// Where a unit has its masks of fifth bits and its lines.
    const MASKS: usize = offset(Q5_1::FIELDS, 1);
    const LINES: usize = offset(Q5_1::FIELDS, 2);

    impl TilesAvx2 for Q5_1 {
        type Group = ();

        #[inline(always)]
        unsafe fn begin(_: *const u8, _: usize, _: usize) {}

        #[inline(always)]
        unsafe fn scales(unit: *const u8, _: &(), _: usize, half: usize) -> avx2_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe { avx2_tiles::one_scale::<Self>(unit, half) }
        }

        #[inline(always)]
        unsafe fn line(unit: *const u8, _: &(), _: usize, j: usize, half: usize) -> __m256i {
            // SAFETY: by the trait's contract.
            unsafe {
                let q = avx2_tiles::nibbles(unit.add(LINES), j % 4, half, j / 4 * 4);
                with_fifth(q, unit.add(MASKS), 2 * (j % 4) + j / 4, half)
            }
        }
    }

    impl TilesAvx512 for Q5_1 {
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
        unsafe fn line<const P: usize>(unit: *const u8, _: &(), _: usize, j: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe {
                let q = avx512_tiles::nibbles(unit.add(LINES), j);
                avx512_tiles::with_fifth(q, unit.add(MASKS), 2 * (j % 4) + j / 4)
            }
        }
    }
}
