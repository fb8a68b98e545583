//! IQ1_S: w = d·(2s + 1)·(K ± 1/8), 256 weights in 50 bytes: f16 d; 32 bytes with the low 8 bits of an index for eight weights; 8
//! 16-bit numbers, one per 32 weights: the high three bits of four indices, then s in three bits, then a bit that makes the 1/8
//! negative. The codebook has 2048 entries of eight K, which are −1, 0 or 1. The code of a weight is 8K ± 1 + 9, and its scale
//! d·(2s + 1)/8.
//!
//! Source: ggml's `block_iq1_s`. Dequantising is checked against the `gguf` package bit for bit. Read only, and not packed.

use super::codebook::{Codebook, codebook, eights, four, group, u16_at};
use super::shared::f16_at;
use super::{BlockFormat, Group32, ScaleField, grids};
use alight_types::GgmlType;

pub(crate) struct Iq1S;

/// 8K + 8.
pub(super) static BOOK: [u64; 2048] = eights(&grids::IQ1_S, [0, 8, 16, 0]);

/// The number added to eight entries: ±1 + 1 for each.
#[inline(always)]
pub(super) fn shift(negative: bool) -> u64 {
    if negative { 0 } else { 0x0202_0202_0202_0202 }
}

impl BlockFormat for Iq1S {
    const TYPE: GgmlType = GgmlType::IQ1_S;
    const ZERO: i32 = 9;
    const MAX_CODE: i32 = 18;
    const SCALES: usize = 1;
    const OFFSETS: usize = 0;
    const SCALE_FIELDS: &'static [ScaleField] = &[ScaleField::F16(0)];

    #[inline(always)]
    fn group(b: &[u8], g: usize) -> Group32 {
        group::<Self>(b, g)
    }
}

impl Codebook for Iq1S {
    const SIGNED: bool = false;

    #[inline(always)]
    fn entries(b: &[u8], g: usize) -> [u64; 4] {
        let bits = usize::from(u16_at(b, 34 + 2 * g));
        let index = |i: usize| usize::from(b[2 + 4 * g + i]) | (bits >> (3 * i) & 7) << 8;
        four(|i| BOOK[index(i)] + shift(bits >> 15 != 0))
    }

    #[inline(always)]
    fn unit(b: &[u8]) -> f32 {
        f16_at(b, 0) / 8.0
    }

    #[inline(always)]
    fn step(b: &[u8], k: usize) -> u8 {
        (u16_at(b, 34 + 2 * k) >> 12 & 7) as u8
    }
}

codebook!(Iq1S);
