//! Q5_0: w = (q − 16)·d, 32 weights in 22 bytes: f16 d; 32 fifth bits, of which bit `i` belongs to weight `i`; 16 bytes of
//! nibbles, byte `j` holding weight `j` (low) and `j + 16` (high).
//!
//! Source: ggml's block structs; dequantising is checked against the `gguf` package bit for bit.

use super::shared::{f16_at, nibbles_and_fifth};
use super::{BlockFormat, Group32, ScaleField, TileGroup, nibbles_32};
use crate::fields::{Field, halves, lines};
use crate::fit::{search, simple};
use alight_types::GgmlType;

pub(crate) struct Q5_0;

impl BlockFormat for Q5_0 {
    const TYPE: GgmlType = GgmlType::Q5_0;
    const ZERO: i32 = 16;
    const MAX_CODE: i32 = 31;
    const SCALES: usize = 1;
    const OFFSETS: usize = 0;
    const FIELDS: &'static [Field] = &[halves(0, 1), Field::Bits32 { at: 2 }, lines(6, 4)];
    const SCALE_FIELDS: &'static [ScaleField] = &[ScaleField::F16(0)];

    #[inline(always)]
    fn group(b: &[u8], _: usize) -> Group32 {
        let q = nibbles_and_fifth(&b[6..22], &b[2..6]);
        Group32 { q, d: [f16_at(b, 0); 2], m: [0.0; 2] }
    }

    #[inline(always)]
    fn tile_group(unit: &[u8], _: usize, to: &mut TileGroup) {
        nibbles_32::tile_group::<Self>(unit, to);
    }

    const QUANTIZES: bool = true;

    /// Without weights, bit-identical to the reference (ggml, and the `gguf` package).
    #[inline(always)]
    fn quantize(x: &[f32], weights: &[f32], out: &mut [u8]) {
        let q = search::symmetric(x, weights, 16.0, out);
        simple::put_fifth(&mut out[2..], &q);
        simple::put_nibbles(&mut out[6..], &q);
    }
}

impl nibbles_32::Nibbles32 for Q5_0 {}
