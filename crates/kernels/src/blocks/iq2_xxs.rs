//! IQ2_XXS: w = ±d·(2s + 1)/8·K, 256 weights in 66 bytes: f16 d; then two 32-bit numbers for each 32 weights. The first has four
//! 8-bit indices into a codebook of 256 entries of eight K, which are 8, 25 or 43. The second has four 7-bit codes for the signs
//! of eight weights each, from the lowest bit upwards, and above them s. The code of a weight is ±K + 43.
//!
//! Source: ggml's `block_iq2_xxs`. Dequantising is checked against the `gguf` package bit for bit. Read only, and not packed.

use super::codebook::{
    Codebook, IQ2_LEVELS, codebook, eights, four, group, signs_of_codes, u32_at,
};
use super::shared::f16_at;
use super::{BlockFormat, Group32, ScaleField, grids};
use alight_types::GgmlType;

pub(crate) struct Iq2Xxs;

static BOOK: [u64; 256] = eights(&grids::IQ2_XXS, IQ2_LEVELS);

impl BlockFormat for Iq2Xxs {
    const TYPE: GgmlType = GgmlType::IQ2_XXS;
    const ZERO: i32 = 43;
    const MAX_CODE: i32 = 86;
    const SCALES: usize = 1;
    const OFFSETS: usize = 0;
    const SCALE_FIELDS: &'static [ScaleField] = &[ScaleField::F16(0)];

    #[inline(always)]
    fn group(b: &[u8], g: usize) -> Group32 {
        group::<Self>(b, g)
    }
}

impl Codebook for Iq2Xxs {
    #[inline(always)]
    fn entries(b: &[u8], g: usize) -> [u64; 4] {
        four(|i| BOOK[usize::from(b[2 + 8 * g + i])])
    }

    #[inline(always)]
    fn signs(b: &[u8], g: usize) -> u32 {
        signs_of_codes(u32_at(b, 2 + 8 * g + 4))
    }

    #[inline(always)]
    fn unit(b: &[u8]) -> f32 {
        f16_at(b, 0) / 8.0
    }

    #[inline(always)]
    fn step(b: &[u8], k: usize) -> u8 {
        b[2 + 8 * k + 7] >> 4
    }
}

codebook!(Iq2Xxs);
