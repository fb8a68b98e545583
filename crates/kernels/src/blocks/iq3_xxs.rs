//! IQ3_XXS: w = ±d·(2s + 1)/4·K, 256 weights in 98 bytes: f16 d; 64 8-bit indices into a codebook of 256 entries of four K, which
//! are 4, 12, 20, 28, 36, 44, 52 or 62; then 32 bits for each 32 weights, as in IQ2_XXS: four 7-bit codes for the signs of eight
//! weights each, and above them s. The code of a weight is ±K + 62.
//!
//! Source: ggml's `block_iq3_xxs`. Dequantising is checked against the `gguf` package bit for bit. Read only, and not packed.

use super::codebook::{Codebook, codebook, four, fours, group, signs_of_codes, two_fours, u32_at};
use super::shared::f16_at;
use super::{BlockFormat, Group32, ScaleField, grids};
use alight_types::GgmlType;

pub(crate) struct Iq3Xxs;

static BOOK: [u32; 256] = fours(&grids::IQ3_XXS, [4, 12, 20, 28, 36, 44, 52, 62]);

impl BlockFormat for Iq3Xxs {
    const TYPE: GgmlType = GgmlType::IQ3_XXS;
    const ZERO: i32 = 62;
    const MAX_CODE: i32 = 124;
    const SCALES: usize = 1;
    const OFFSETS: usize = 0;
    const SCALE_FIELDS: &'static [ScaleField] = &[ScaleField::F16(0)];

    #[inline(always)]
    fn group(b: &[u8], g: usize) -> Group32 {
        group::<Self>(b, g)
    }
}

impl Codebook for Iq3Xxs {
    #[inline(always)]
    fn entries(b: &[u8], g: usize) -> [u64; 4] {
        let index = |i: usize| usize::from(b[2 + 8 * g + i]);
        four(|i| two_fours(&BOOK, index(2 * i), index(2 * i + 1)))
    }

    #[inline(always)]
    fn signs(b: &[u8], g: usize) -> u32 {
        signs_of_codes(u32_at(b, 66 + 4 * g))
    }

    #[inline(always)]
    fn unit(b: &[u8]) -> f32 {
        f16_at(b, 0) / 4.0
    }

    #[inline(always)]
    fn step(b: &[u8], k: usize) -> u8 {
        b[66 + 4 * k + 3] >> 4
    }
}

codebook!(Iq3Xxs);
