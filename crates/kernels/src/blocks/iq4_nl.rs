//! IQ4_NL: w = d·K[q], 32 weights in 18 bytes: f16 d; 16 bytes of nibbles, byte `j` holding weight `j` (low) and `j + 16` (high).
//! K is the table of the sixteen values of [`IQ4_CODES`], minus 127; the code is K[q] + 127.
//!
//! Source: ggml's `block_iq4_nl`. Dequantising is checked against the `gguf` package bit for bit.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::IQ4_CODES;
use super::shared::{codes, f16_at, iq4_code};
use super::{BlockFormat, Group32, ScaleField, TileGroup, nibbles_32};
use crate::fields::{Field, halves, lines};
use crate::fit::{levels, simple};
use crate::half::{f16_to_f32, f32_to_f16};
use alight_types::GgmlType;

pub(crate) struct Iq4Nl;

impl BlockFormat for Iq4Nl {
    const TYPE: GgmlType = GgmlType::IQ4_NL;
    const ZERO: i32 = 127;
    const MAX_CODE: i32 = 240;
    const SCALES: usize = 1;
    const OFFSETS: usize = 0;
    const FIELDS: &'static [Field] = &[halves(0, 1), lines(2, 4)];
    const SCALE_FIELDS: &'static [ScaleField] = &[ScaleField::F16(0)];

    #[inline(always)]
    fn group(b: &[u8], _: usize) -> Group32 {
        Group32 { q: codes(&b[2..18], iq4_code), d: [f16_at(b, 0); 2], m: [0.0; 2] }
    }

    #[inline(always)]
    fn tile_group(unit: &[u8], _: usize, to: &mut TileGroup) {
        nibbles_32::tile_group::<Self>(unit, to);
    }

    const QUANTIZES: bool = true;

    /// Searches for the scale; the error is at most that of llama.cpp.
    #[inline(always)]
    fn quantize(x: &[f32], weights: &[f32], out: &mut [u8]) {
        let (x, _) = x.as_chunks::<32>();
        let d = f32_to_f16(levels::fit(&x[0], weights));
        out[..2].copy_from_slice(&d.to_le_bytes());
        simple::put_nibbles(&mut out[2..], &levels::codes(&x[0], f16_to_f32(d)));
    }
}

impl nibbles_32::Nibbles32 for Iq4Nl {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    const CODES: Option<&'static [u8; 16]> = Some(&IQ4_CODES);

    #[inline(always)]
    fn code(nibble: u8) -> u8 {
        iq4_code(nibble)
    }
}
