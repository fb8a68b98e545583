//! IQ2_XS: w = ±d·(2s + 1)/8·K, 256 weights in 74 bytes: f16 d; 32 16-bit numbers; 8 bytes with 16 nibbles s. A 16-bit number is
//! eight weights: the low 9 bits are an index into a codebook of 512 entries of eight K, which are 8, 25 or 43, the high 7 a code
//! for the signs. The code of a weight is ±K + 43.
//!
//! Source: ggml's `block_iq2_xs`. Dequantising is checked against the `gguf` package bit for bit. Read only, and not packed.

use super::codebook::{
    Codebook, IQ2_LEVELS, codebook, eights, four, group, nibble_at, signs_of_codes, u16_at,
};
use super::shared::f16_at;
use super::{BlockFormat, Group32, ScaleField, grids};
use alight_types::GgmlType;

pub(crate) struct Iq2Xs;

static BOOK: [u64; 512] = eights(&grids::IQ2_XS, IQ2_LEVELS);

impl BlockFormat for Iq2Xs {
    const TYPE: GgmlType = GgmlType::IQ2_XS;
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

impl Codebook for Iq2Xs {
    #[inline(always)]
    fn entries(b: &[u8], g: usize) -> [u64; 4] {
        four(|i| BOOK[usize::from(u16_at(b, 2 + 8 * g + 2 * i) & 511)])
    }

    #[inline(always)]
    fn signs(b: &[u8], g: usize) -> u32 {
        let code = |i: usize| u32::from(u16_at(b, 2 + 8 * g + 2 * i) >> 9) << (7 * i);
        signs_of_codes(code(0) | code(1) | code(2) | code(3))
    }

    #[inline(always)]
    fn unit(b: &[u8]) -> f32 {
        f16_at(b, 0) / 8.0
    }

    #[inline(always)]
    fn step(b: &[u8], k: usize) -> u8 {
        nibble_at(b, 66, k)
    }
}

codebook!(Iq2Xs);
