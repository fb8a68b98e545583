//! IQ1_M: w = d·(2s + 1)·(K ± 1/8), 256 weights in 56 bytes: 32 bytes with the low 8 bits of an index for eight weights; 16 bytes
//! with a nibble for each index: its high three bits and a bit that makes the 1/8 negative; four 16-bit numbers, whose low 12
//! bits hold four 3-bit s, one per 16 weights, and whose high nibbles are d in f16, the lowest first. The codebook is that of
//! IQ1_S. The code of a weight is 8K ± 1 + 9, and its scale d·(2s + 1)/8.
//!
//! Source: ggml's `block_iq1_m`. Dequantising is checked against the `gguf` package bit for bit. Read only, and not packed.

use super::codebook::{Codebook, codebook, four, group, nibble_at, u16_at};
use super::iq1_s::{BOOK, shift};
use super::{BlockFormat, Group32, ScaleField};
use crate::half::f16_to_f32;
use alight_types::GgmlType;

pub(crate) struct Iq1M;

impl BlockFormat for Iq1M {
    const TYPE: GgmlType = GgmlType::IQ1_M;
    const ZERO: i32 = 9;
    const MAX_CODE: i32 = 18;
    const SCALES: usize = 2;
    const OFFSETS: usize = 0;
    const SCALE_FIELDS: &'static [ScaleField] = &[ScaleField::F16Nibbles(48)];

    #[inline(always)]
    fn group(b: &[u8], g: usize) -> Group32 {
        group::<Self>(b, g)
    }
}

impl Codebook for Iq1M {
    const SIGNED: bool = false;

    #[inline(always)]
    fn entries(b: &[u8], g: usize) -> [u64; 4] {
        four(|i| {
            let bits = usize::from(nibble_at(b, 32 + 2 * g, i));
            BOOK[usize::from(b[4 * g + i]) | (bits & 7) << 8] + shift(bits & 8 != 0)
        })
    }

    #[inline(always)]
    fn unit(b: &[u8]) -> f32 {
        let nibble = |i: usize| (u16_at(b, 48 + 2 * i) >> 12) << (4 * i);
        f16_to_f32(nibble(0) | nibble(1) | nibble(2) | nibble(3)) / 8.0
    }

    #[inline(always)]
    fn step(b: &[u8], k: usize) -> u8 {
        (u16_at(b, 48 + k / 4 * 2) >> (k % 4 * 3) & 7) as u8
    }
}

codebook!(Iq1M);
