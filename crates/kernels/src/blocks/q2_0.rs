//! Q2_0: w = (q − 1)·d, so −d to 2d, 64 weights in 18 bytes: f16 d; 16 bytes of bit pairs, four
//! consecutive weights in a byte from the lowest pair on.
//!
//! Source: the specification's formula (ggml's `block_q2_0`). Read only; every SIMD level goes through
//! the portable decoding.

use super::decoded::decoded;
use super::shared::f16_at;
use super::{BlockFormat, Group32, ScaleField};
use crate::tiles::fields::{Field, halves, lines};
use alight_types::GgmlType;

pub(crate) struct Q2_0;

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
        let q = std::array::from_fn(|i| pairs[i / 4] >> (2 * (i % 4)) & 3);
        Group32 { q, d: [f16_at(b, 0); 2], m: [0.0; 2] }
    }
}

decoded!(Q2_0: RowsAvx2, RowsAvx512, TilesAvx2, TilesAvx512);
