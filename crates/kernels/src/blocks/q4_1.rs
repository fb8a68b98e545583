//! Q4_1: w = q·d + m, 32 weights in 20 bytes: f16 d; f16 m; 16 bytes of nibbles, byte `j` holding
//! weight `j` (low) and `j + 16` (high).
//!
//! Source: ggml's block structs; dequantising is checked against the `gguf` package bit for bit.

use super::shared::{f16_at, nibbles};
use super::{BlockFormat, Group32, ScaleField, TileGroup, nibbles_32};
use crate::fields::{Field, halves, lines};
use crate::fit::{search, simple};
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

    #[inline(always)]
    fn tile_group(unit: &[u8], _: usize, to: &mut TileGroup) {
        nibbles_32::tile_group::<Self>(unit, to);
    }

    const QUANTIZES: bool = true;

    /// Without weights, bit-identical to the reference (ggml, and the `gguf` package).
    #[inline(always)]
    fn quantize(x: &[f32], weights: &[f32], out: &mut [u8]) {
        let q = search::offset(x, weights, 15, out);
        simple::put_nibbles(&mut out[4..], &q);
    }
}

impl nibbles_32::Nibbles32 for Q4_1 {}
