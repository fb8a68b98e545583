//! IQ3_S: w = ±d·(2s + 1)·K, 256 weights in 110 bytes: f16 d; 64 bytes with the low 8 bits of an index for four weights; 8 bytes
//! with the ninth bits, eight to a byte; 32 bytes of signs; 4 bytes with 8 nibbles s. The codebook has 512 entries of four K,
//! which are odd, 1 to 15. The code of a weight is ±K + 15.
//!
//! Source: ggml's `block_iq3_s`. Dequantising is checked against the `gguf` package bit for bit. Read only, and not packed.

use super::codebook::{Codebook, codebook, four, fours, group, nibble_at, two_fours, u32_at};
use super::shared::f16_at;
use super::{BlockFormat, Group32, ScaleField, grids};
use alight_types::GgmlType;

pub(crate) struct Iq3S;

static BOOK: [u32; 512] = fours(&grids::IQ3_S, [1, 3, 5, 7, 9, 11, 13, 15]);

impl BlockFormat for Iq3S {
    const TYPE: GgmlType = GgmlType::IQ3_S;
    const ZERO: i32 = 15;
    const MAX_CODE: i32 = 30;
    const SCALES: usize = 1;
    const OFFSETS: usize = 0;
    const SCALE_FIELDS: &'static [ScaleField] = &[ScaleField::F16(0)];

    #[inline(always)]
    fn group(b: &[u8], g: usize) -> Group32 {
        group::<Self>(b, g)
    }
}

impl Codebook for Iq3S {
    #[inline(always)]
    fn entries(b: &[u8], g: usize) -> [u64; 4] {
        let ninth = usize::from(b[66 + g]);
        let index = |i: usize| usize::from(b[2 + 8 * g + i]) | (ninth >> i & 1) << 8;
        four(|i| two_fours(&BOOK, index(2 * i), index(2 * i + 1)))
    }

    #[inline(always)]
    fn signs(b: &[u8], g: usize) -> u32 {
        u32_at(b, 74 + 4 * g)
    }

    #[inline(always)]
    fn unit(b: &[u8]) -> f32 {
        f16_at(b, 0)
    }

    #[inline(always)]
    fn step(b: &[u8], k: usize) -> u8 {
        nibble_at(b, 106, k)
    }
}

codebook!(Iq3S);
