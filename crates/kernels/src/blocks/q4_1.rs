//! Q4_1: w = q·d + m, 32 weights in 20 bytes: f16 d; f16 m; 16 bytes of nibbles, byte `j` holding
//! weight `j` (low) and `j + 16` (high).
//!
//! Source: ggml's block structs; dequantising is checked against the `gguf` package bit for bit.

use super::shared::{f16_at, nibbles};
use super::{BlockFormat, Group32, ScaleField};
use crate::quantize::simple;
use crate::tiles::fields::{Field, halves, lines};
use alight_types::GgmlType;

pub(crate) struct Q4_1;

impl BlockFormat for Q4_1 {
    const TYPE: GgmlType = GgmlType::Q4_1;
    const ZERO: i32 = 0;
    const MAX_CODE: i32 = 15;
    const SCALES: usize = 1;
    const OFFSETS: usize = 1;
    const FIELDS: &'static [Field] = &[halves(0, 2), lines(4, 4)];
    const SCALE_FIELDS: &'static [ScaleField] = &[ScaleField::F16(0), ScaleField::F16(2)];

    #[inline(always)]
    fn group(b: &[u8], _: usize) -> Group32 {
        Group32 { q: nibbles(&b[4..20]), d: [f16_at(b, 0); 2], m: [f16_at(b, 2); 2] }
    }

    const QUANTIZES: bool = true;

    /// As the reference (ggml, and the `gguf` package), bit for bit.
    #[inline(always)]
    fn quantize(x: &[f32], out: &mut [u8]) {
        let q = simple::affine(x, 15, out);
        simple::put_nibbles(&mut out[4..], &q);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Q4_1;
    use crate::blocks::BlockFormat;
    use crate::blocks::avx2_rows::{self, RowsAvx2, f16_at};
    use crate::blocks::avx2_tiles::{self, TilesAvx2};
    use crate::blocks::avx512_rows::{
        self, RowsAvx512, Table, leading_scales, nibble_table, nibbles, scale_table,
    };
    use crate::blocks::avx512_tiles::{self, TilesAvx512};
    use crate::tiles::fields::offset;
    use std::arch::x86_64::*;

    impl RowsAvx2 for Q4_1 {
        #[inline(always)]
        unsafe fn group256(row: *const u8, b: usize) -> avx2_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let p = row.add(b * Self::BYTES);
                avx2_rows::Group {
                    q: avx2_rows::nibbles(p.add(4)),
                    d: [f16_at(p); 2],
                    m: [f16_at(p.add(2)); 2],
                }
            }
        }
    }

    impl RowsAvx512 for Q4_1 {
        type Offsets = ();

        #[inline(always)]
        unsafe fn begin(row: *const u8, g: usize, count: usize) -> avx512_rows::Group<()> {
            static SCALES: Table = scale_table(Q4_1::BYTES);
            // SAFETY: by the trait's contract.
            unsafe { leading_scales::<Self>(row, g, count, &SCALES) }
        }

        #[inline(always)]
        unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
            static NIBBLES: Table = nibble_table(Q4_1::BYTES, 4);
            // SAFETY: by the trait's contract.
            unsafe { nibbles::<Self, HALF>(at.add(j * 2 * Self::BYTES), &NIBBLES) }
        }
    }

    /// Where a unit has its lines.
    const LINES: usize = offset(Q4_1::FIELDS, 1);

    impl TilesAvx2 for Q4_1 {
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
            unsafe { avx2_tiles::nibbles(unit.add(LINES), j % 4, half, j / 4 * 4) }
        }
    }

    impl TilesAvx512 for Q4_1 {
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
            unsafe { avx512_tiles::nibbles(unit.add(LINES), j) }
        }
    }
}
