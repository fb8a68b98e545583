//! Q1_0: w = d or −d, 128 weights in 18 bytes: f16 d; 16 bytes of bits, from the lowest of the first
//! byte on: set means d. The code is 2 or 0 with a zero point of 1.
//!
//! Source: the specification's formula (ggml's `block_q1_0`). Read only; every SIMD level goes through
//! the portable decoding.

use super::decoded::decoded;
use super::shared::f16_at;
use super::{BlockFormat, Group32, ScaleField};
use crate::tiles::fields::{Field, halves, lines};
use alight_types::GgmlType;

pub(crate) struct Q1_0;

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
        let q = std::array::from_fn(|i| (bits[i / 8] >> (i % 8) & 1) << 1);
        Group32 { q, d: [f16_at(b, 0); 2], m: [0.0; 2] }
    }
}

decoded!(Q1_0: RowsAvx2, RowsAvx512, TilesAvx2, TilesAvx512);
