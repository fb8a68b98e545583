//! TQ2_0: w = (q − 1)·d, so −d, 0, d (and 2d, which no quantiser writes), 256 weights in 66 bytes: 64 bytes of bit pairs, as in
//! Q2_K; f16 d.
//!
//! Source: ggml's `block_tq2_0`; dequantising is checked against the `gguf` package bit for bit.

use super::shared::{f16_at, pairs};
use super::{BlockFormat, Group32, ScaleField, TileGroup, tile_groups};
use crate::fields::{Field, halves, lines, offset};
use crate::fit::simple;
use alight_types::GgmlType;

pub(crate) struct Tq2_0;

/// Offset of the lines in a unit.
const LINES: usize = offset(Tq2_0::FIELDS, 1);

impl BlockFormat for Tq2_0 {
    const TYPE: GgmlType = GgmlType::TQ2_0;
    const ZERO: i32 = 1;
    const MAX_CODE: i32 = 3;
    const SCALES: usize = 1;
    const OFFSETS: usize = 0;
    const FIELDS: &'static [Field] = &[halves(64, 1), lines(0, 16)];
    const SCALE_FIELDS: &'static [ScaleField] = &[ScaleField::F16(64)];

    #[inline(always)]
    fn group(b: &[u8], g: usize) -> Group32 {
        Group32 { q: pairs(&b[..64], g), d: [f16_at(b, 64); 2], m: [0.0; 2] }
    }

    #[inline(always)]
    fn tile_group(unit: &[u8], g: usize, to: &mut TileGroup) {
        tile_groups::pairs(unit, LINES, g, &mut to.q);
        to.d = [tile_groups::halves(unit, 0); 2];
    }

    const QUANTIZES: bool = true;

    /// Bit-identical to the reference (ggml).
    #[inline(always)]
    fn quantize(x: &[f32], _: &[f32], out: &mut [u8]) {
        let q: [u8; 256] = simple::ternary(x, &mut out[64..]);
        simple::put_pairs(&mut out[..64], &q);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LINES, Tq2_0};
    use crate::blocks::BlockFormat;
    use crate::blocks::avx2_rows::{self, RowsAvx2, f16_at};
    use crate::blocks::avx2_tiles::{self, TilesAvx2};
    use crate::blocks::avx512_rows::{self, RowsAvx512};
    use crate::blocks::avx512_tiles::{self, TilesAvx512};
    use std::arch::x86_64::*;

    impl RowsAvx2 for Tq2_0 {
        #[inline(always)]
        unsafe fn group256(row: *const u8, b: usize) -> avx2_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let p = row.add(b / 8 * Self::BYTES);
                let q = avx2_rows::pairs(p, b % 8);
                avx2_rows::Group { q, d: [f16_at(p.add(64)); 2], m: [0.0; 2] }
            }
        }
    }

    impl RowsAvx512 for Tq2_0 {
        type Offsets = ();

        #[inline(always)]
        unsafe fn begin(row: *const u8, g: usize, count: usize) -> avx512_rows::Group256<()> {
            // SAFETY: by the trait's contract.
            unsafe { avx512_rows::one_scale::<Self>(row, g, count, 64) }
        }

        #[inline(always)]
        unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe { avx512_rows::pairs(at, j) }
        }
    }

    impl TilesAvx2 for Tq2_0 {
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
            unsafe { avx2_tiles::pairs(unit.add(LINES), g, j, half) }
        }
    }

    impl TilesAvx512 for Tq2_0 {
        /// The four groups of a half share lines of bit pairs.
        const PHASES: usize = 4;
        type Head = avx512_tiles::Scales;

        #[inline(always)]
        unsafe fn head(unit: *const u8) -> avx512_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe { avx512_tiles::one_scale::<Self>(unit) }
        }

        #[inline(always)]
        unsafe fn scales(
            _: *const u8,
            head: &avx512_tiles::Scales,
            _: usize,
        ) -> avx512_tiles::Scales {
            *head
        }

        #[inline(always)]
        unsafe fn line<const P: usize>(
            unit: *const u8,
            _: &avx512_tiles::Scales,
            g: usize,
            j: usize,
        ) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe { avx512_tiles::pairs::<P>(unit.add(LINES), g, j) }
        }
    }
}
