//! IQ2_S: w = ±d·(2s + 1)/8·K, 256 weights in 82 bytes: f16 d; 32 bytes with the low 8 bits of an index for eight weights; 32
//! bytes of signs; 8 bytes with the high two bits of the indices, four to a byte; 8 bytes with 16 nibbles s. The codebook has
//! 1024 entries of eight K, which are 8, 25 or 43. The code of a weight is ±K + 43.
//!
//! Source: ggml's `block_iq2_s`. Dequantising is checked against the `gguf` package bit for bit. Read only, and not packed.

use super::codebook::{Codebook, IQ2_LEVELS, codebook, eights, four, group, nibble_at, u32_at};
use super::shared::f16_at;
use super::{BlockFormat, Group32, ScaleField, grids};
use alight_types::GgmlType;

pub(crate) struct Iq2S;

static BOOK: [u64; 1024] = eights(&grids::IQ2_S, IQ2_LEVELS);

impl BlockFormat for Iq2S {
    const TYPE: GgmlType = GgmlType::IQ2_S;
    const ZERO: i32 = 43;
    const MAX_CODE: i32 = 86;
    const SCALES: usize = 2;
    const OFFSETS: usize = 0;
    const SCALE_FIELDS: &'static [ScaleField] = &[ScaleField::F16(0)];

    #[inline(always)]
    fn group(b: &[u8], g: usize) -> Group32 {
        group::<Self>(b, g)
    }
}

impl Codebook for Iq2S {
    #[inline(always)]
    fn entries(b: &[u8], g: usize) -> [u64; 4] {
        let high = usize::from(b[66 + g]);
        four(|i| BOOK[usize::from(b[2 + 4 * g + i]) | (high >> (2 * i) & 3) << 8])
    }

    #[inline(always)]
    fn signs(b: &[u8], g: usize) -> u32 {
        u32_at(b, 34 + 4 * g)
    }

    #[inline(always)]
    fn unit(b: &[u8]) -> f32 {
        f16_at(b, 0) / 8.0
    }

    #[inline(always)]
    fn step(b: &[u8], k: usize) -> u8 {
        nibble_at(b, 74, k)
    }
}

codebook!(Iq2S);
