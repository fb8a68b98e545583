//! NVFP4: w = e·K[q], 64 weights in 36 bytes: 4 bytes with a scale e for 16 weights each; 32 bytes of nibbles, of which bytes `8s
//! ..` belong to the `s`-th 16 weights, byte `j` of them holding weight `j` (low) and `j + 8` (high). K is that of MXFP4, the
//! code is K[q] + 12. A scale is half of an unsigned 8-bit float (E4M3): an exponent of 4 bits above a mantissa m of 3, (1 +
//! m/8)·2^(exponent − 7), or m·2^−9 if the exponent is 0; the byte 0x7f means 0, otherwise the highest bit is ignored.
//!
//! The factor in a file for the products of a whole matrix (`NAME.scale`) is not in its blocks.
//!
//! Source: ggml's `block_nvfp4`; dequantising is checked against the `gguf` package bit for bit. Read only.

use super::mxfp4::code;
use super::tile_groups::{self, each, line};
use super::{BlockFormat, Group32, ScaleField, TileGroup};
use crate::fields::TILE_ROWS;
use crate::fields::{Field, bytes, lines, offset};
use alight_types::GgmlType;

pub(crate) struct Nvfp4;

/// A scale; the halving makes the exponent's bias 8, and f32's is 127.
#[inline(always)]
const fn scale(e: u8) -> f32 {
    match e & 0x7f {
        0x7f if e == 0x7f => 0.0,
        m if m < 8 => m as f32 / 1024.0,
        e => f32::from_bits(((e as u32) << 20) + (119 << 23)),
    }
}

/// The line with weights `4j ..` of group `g`, and the first bit of their nibbles.
#[inline(always)]
fn line_of(g: usize, j: usize) -> (usize, usize) {
    (4 * g + j / 4 * 2 + j % 2, j % 4 / 2 * 4)
}

/// Offset of the lines in a unit.
const LINES: usize = offset(Nvfp4::FIELDS, 1);

impl BlockFormat for Nvfp4 {
    const TYPE: GgmlType = GgmlType::NVFP4;
    const ZERO: i32 = 12;
    const MAX_CODE: i32 = 24;
    const SCALES: usize = 2;
    const OFFSETS: usize = 0;
    const FIELDS: &'static [Field] = &[bytes(0, 4), lines(4, 8)];
    const SCALE_FIELDS: &'static [ScaleField] =
        &[ScaleField::E4M3(0), ScaleField::E4M3(1), ScaleField::E4M3(2), ScaleField::E4M3(3)];

    #[inline(always)]
    fn group(b: &[u8], g: usize) -> Group32 {
        let nibbles = &b[4 + 16 * g..][..16];
        let mut q = [0; 32];
        for (i, q) in q.iter_mut().enumerate() {
            let byte = nibbles[i / 16 * 8 + i % 8];
            *q = code(byte >> (i / 8 % 2 * 4) & 15);
        }
        Group32 { q, d: [scale(b[2 * g]), scale(b[2 * g + 1])], m: [0.0; 2] }
    }

    #[inline(always)]
    fn tile_group(unit: &[u8], g: usize, to: &mut TileGroup) {
        for (j, q) in to.q.iter_mut().enumerate() {
            let (l, from) = line_of(g, j);
            line(unit, LINES, l, q, |byte| code(byte >> from & 15));
        }
        for (h, d) in to.d.iter_mut().enumerate() {
            let e = tile_groups::bytes(unit, TILE_ROWS * (2 * g + h));
            *d = each(|r| scale(e[r]));
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LINES, Nvfp4, line_of, scale};
    use crate::blocks::BlockFormat;
    use crate::blocks::avx2_rows::{self, RowsAvx2};
    use crate::blocks::avx2_tiles::{self, TilesAvx2};
    use crate::blocks::avx512_rows::{self, RowsAvx512};
    use crate::blocks::avx512_tiles::{self, TilesAvx512};
    use crate::blocks::mxfp4::CODES;
    use crate::fields::TILE_ROWS;
    use std::arch::x86_64::*;

    /// Eight [`scale`]s of bytes in lanes.
    #[inline(always)]
    unsafe fn scales256(e: __m256i) -> __m256 {
        // SAFETY: the callers' CPU has AVX2.
        unsafe {
            let v = _mm256_and_si256(e, _mm256_set1_epi32(0x7f));
            let normal = _mm256_slli_epi32::<20>(v);
            let normal = _mm256_add_epi32(normal, _mm256_set1_epi32(119 << 23));
            let small = _mm256_mul_ps(_mm256_cvtepi32_ps(v), _mm256_set1_ps(1.0 / 1024.0));
            let is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), v);
            let scale = _mm256_blendv_epi8(normal, _mm256_castps_si256(small), is_small);
            let is_zero = _mm256_cmpeq_epi32(e, _mm256_set1_epi32(0x7f));
            _mm256_castsi256_ps(_mm256_andnot_si256(is_zero, scale))
        }
    }

    /// Sixteen [`scale`]s, likewise.
    #[inline(always)]
    unsafe fn scales512(e: __m512i) -> __m512 {
        // SAFETY: the callers' CPU has the SIMD level.
        unsafe {
            let v = _mm512_and_si512(e, _mm512_set1_epi32(0x7f));
            let exists = _mm512_cmpneq_epi32_mask(e, _mm512_set1_epi32(0x7f));
            let normal = _mm512_slli_epi32::<20>(v);
            let normal = _mm512_maskz_add_epi32(exists, normal, _mm512_set1_epi32(119 << 23));
            let is_small = _mm512_cmplt_epi32_mask(v, _mm512_set1_epi32(8));
            let small = _mm512_cvtepi32_ps(v);
            let normal = _mm512_castsi512_ps(normal);
            _mm512_mask_mul_ps(normal, is_small, small, _mm512_set1_ps(1.0 / 1024.0))
        }
    }

    impl RowsAvx2 for Nvfp4 {
        #[inline(always)]
        unsafe fn group256(row: *const u8, b: usize) -> avx2_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let (p, g) = (row.add(b / 2 * Self::BYTES), b % 2);
                let v = _mm_loadu_si128(p.add(4 + 16 * g).cast());
                // Eight bytes twice: low nibbles, then high ones.
                let v = _mm256_permute4x64_epi64::<0b01_01_00_00>(_mm256_castsi128_si256(v));
                let v = _mm256_srlv_epi64(v, _mm256_set_epi64x(4, 0, 4, 0));
                let nibbles = _mm256_and_si256(v, _mm256_set1_epi8(15));
                let q = avx2_rows::looked_up(&CODES, nibbles);
                let d = [scale(*p.add(2 * g)), scale(*p.add(2 * g + 1))];
                avx2_rows::Group { q, d, m: [0.0; 2] }
            }
        }
    }

    impl RowsAvx512 for Nvfp4 {
        type Offsets = ();

        #[inline(always)]
        unsafe fn begin(row: *const u8, g: usize, count: usize) -> avx512_rows::Group256<()> {
            // SAFETY: by the trait's contract; `count` is even, as blocks have 64 weights.
            unsafe {
                let at = row.add(g * 4 * Self::BYTES);
                let four = |b: usize| match b < count / 2 {
                    true => at.add(b * Self::BYTES).cast::<i32>().read_unaligned(),
                    false => 0,
                };
                let e = _mm_set_epi32(four(3), four(2), four(1), four(0));
                let scales = scales512(_mm512_cvtepu8_epi32(e));
                avx512_rows::Group256 { at, scales, offsets: () }
            }
        }

        #[inline(always)]
        unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe {
                let v = _mm256_loadu_si256(at.add(j * Self::BYTES + 4).cast());
                // Eight bytes twice: low nibbles, then high ones.
                let twice = _mm512_set_epi64(3, 3, 2, 2, 1, 1, 0, 0);
                let v = _mm512_permutexvar_epi64(twice, _mm512_castsi256_si512(v));
                let v = _mm512_srlv_epi64(v, _mm512_set_epi64(4, 0, 4, 0, 4, 0, 4, 0));
                avx512_rows::looked_up(&CODES, _mm512_and_si512(v, _mm512_set1_epi8(15)))
            }
        }
    }

    impl TilesAvx2 for Nvfp4 {
        type Group = ();

        #[inline(always)]
        unsafe fn begin(_: *const u8, _: usize, _: usize) {}

        #[inline(always)]
        unsafe fn scales(unit: *const u8, _: &(), g: usize, half: usize) -> avx2_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe {
                let at = |part: usize| unit.add(TILE_ROWS * (2 * g + part) + 8 * half);
                let [first, second] = [at(0), at(1)];
                let first = _mm256_cvtepu8_epi32(_mm_loadl_epi64(first.cast()));
                let second = _mm256_cvtepu8_epi32(_mm_loadl_epi64(second.cast()));
                // Not in a closure: that would be compiled separately, without the level's features.
                let d = [scales256(first), scales256(second)];
                avx2_tiles::Scales { d, m: [_mm256_setzero_ps(); 2] }
            }
        }

        #[inline(always)]
        unsafe fn line(unit: *const u8, _: &(), g: usize, j: usize, half: usize) -> __m256i {
            let (l, from) = line_of(g, j);
            // SAFETY: by the trait's contract.
            unsafe {
                let nibbles = avx2_tiles::nibbles(unit.add(LINES), l, half, from);
                avx2_rows::looked_up(&CODES, nibbles)
            }
        }
    }

    impl TilesAvx512 for Nvfp4 {
        const PHASES: usize = 1;
        type Head = ();

        #[inline(always)]
        unsafe fn head(_: *const u8) {}

        #[inline(always)]
        unsafe fn scales(unit: *const u8, _: &(), g: usize) -> avx512_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe {
                let scaled = |part: usize| {
                    let e = _mm_loadu_si128(unit.add(TILE_ROWS * (2 * g + part)).cast());
                    scales512(_mm512_cvtepu8_epi32(e))
                };
                avx512_tiles::Scales { d: [scaled(0), scaled(1)], m: [_mm512_setzero_ps(); 2] }
            }
        }

        #[inline(always)]
        unsafe fn line<const P: usize>(unit: *const u8, _: &(), g: usize, j: usize) -> __m512i {
            let (l, from) = line_of(g, j);
            // SAFETY: by the trait's contract.
            unsafe {
                let v = avx512_tiles::load(unit.add(LINES + 64 * l));
                let nibbles = if from == 4 { avx512_tiles::high(v) } else { avx512_tiles::low(v) };
                avx512_rows::looked_up(&CODES, nibbles)
            }
        }
    }
}
