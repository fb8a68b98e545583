//! Q5_K: w = q·(d·sc) − dmin·m, 256 weights in 8 groups of 32, 176 bytes: f16 d; f16 dmin; 12 bytes of 6-bit scales and minima
//! (`scale_min_k` in [`shared`](super::shared)); 32 bytes of fifth bits, where bit `g` of byte `i` belongs to weight `i` of group
//! `g`; 128 bytes of nibbles, of which groups 2j and 2j+1 are the low and the high halves of the same 32 bytes.
//!
//! Source: ggml's block structs; dequantising is checked against the `gguf` package bit for bit.

use super::nibbles_256::Nibbles256;
use super::shared::scale_and_offset_k;
use super::{BlockFormat, Group32, ScaleField, TileGroup};
use crate::fields::{Field, bytes, halves, lines};
use crate::fit::search;
use alight_types::GgmlType;

pub(crate) type Q5K = Nibbles256<5>;

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

    #[inline(always)]
    fn tile_group(unit: &[u8], g: usize, to: &mut TileGroup) {
        Self::group_of_tile(unit, g, to);
    }

    const QUANTIZES: bool = true;

    /// Searches for the scales; the error is at most that of llama.cpp.
    #[inline(always)]
    fn quantize(x: &[f32], weights: &[f32], out: &mut [u8]) {
        let block = search::affine::<8, 32>(x, weights, 31, 63.0);
        block.put_scales(out);
        block.put_fifth(&mut out[16..48]);
        block.put_nibbles(&mut out[48..176]);
    }
}
