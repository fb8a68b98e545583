//! Q3_K: w = d·(s − 32)·(q − 4), 256 weights in 16 groups of 16, 110 bytes: 32 bytes of third bits, bit `g` of byte `i` belonging
//! to weight `i` of the `g`-th group of 32; 64 bytes of the lower two bits, as in Q2_K; 12 bytes with 16 scales s of 6 bits; f16
//! d. The low four bits of scale `k` are in byte `k mod 8`, in the low half for the first eight; the high two are in byte `8 + k
//! mod 4`, at bit `2·(k div 4)`.
//!
//! Source: ggml's `block_q3_K`; dequantising is checked against the `gguf` package bit for bit.

use super::shared::{f16_at, pairs};
use super::tile_groups::{self, add_bits, each};
use super::{BlockFormat, Group32, ScaleField, TileGroup};
use crate::fields::TILE_ROWS;
use crate::fields::{Field, bytes, halves, lines, offset};
use crate::fit::{search, simple};
use alight_types::GgmlType;

pub(crate) struct Q3K;

/// Offsets of the scales, of the lines of third bits and of the lines of bit pairs in a unit.
const SCALES: usize = offset(Q3K::FIELDS, 1);
const THIRD: usize = offset(Q3K::FIELDS, 2);
const LINES: usize = offset(Q3K::FIELDS, 3);

impl BlockFormat for Q3K {
    const TYPE: GgmlType = GgmlType::Q3_K;
    const ZERO: i32 = 4;
    const MAX_CODE: i32 = 7;
    const SCALES: usize = 2;
    const OFFSETS: usize = 0;
    const FIELDS: &'static [Field] = &[halves(108, 1), bytes(96, 12), lines(0, 8), lines(32, 16)];
    const SCALE_FIELDS: &'static [ScaleField] = &[ScaleField::F16(108)];

    #[inline(always)]
    fn group(b: &[u8], g: usize) -> Group32 {
        let mut q = pairs(&b[32..96], g);
        for (q, h) in q.iter_mut().zip(&b[..32]) {
            *q |= (h >> g & 1) << 2;
        }
        let d = f16_at(b, 108);
        let d = [2 * g, 2 * g + 1].map(|k| d * f32::from(scale(&b[96..108], k)));
        Group32 { q, d, m: [0.0; 2] }
    }

    #[inline(always)]
    fn tile_group(unit: &[u8], g: usize, to: &mut TileGroup) {
        tile_groups::pairs(unit, LINES, g, &mut to.q);
        for (j, q) in to.q.iter_mut().enumerate() {
            add_bits(unit, THIRD, j, q, |byte| (byte >> g & 1) << 2);
        }
        let d = tile_groups::halves(unit, 0);
        for (h, to) in to.d.iter_mut().enumerate() {
            // As in `scale`, for all rows.
            let k = 2 * g + h;
            let byte = |i: usize| tile_groups::bytes(unit, SCALES + TILE_ROWS * i);
            let low = each(|r| byte(k % 8)[r] >> (k / 8 * 4) & 15);
            let high = each(|r| byte(8 + k % 4)[r] >> (k / 4 * 2) & 3);
            *to = each(|r| d[r] * f32::from((low[r] | high[r] << 4) as i8 - 32));
        }
    }

    const QUANTIZES: bool = true;

    /// Searches for the scales; the error is at most that of llama.cpp.
    #[inline(always)]
    fn quantize(x: &[f32], weights: &[f32], out: &mut [u8]) {
        let block = search::signed(x, weights, [-4.0, 3.0], [-32.0, 31.0]);
        let q: [u8; 256] = std::array::from_fn(|i| (block.q[i / 16][i % 16] + 4) as u8);
        for (i, out) in out[..32].iter_mut().enumerate() {
            *out = (0..8).fold(0, |bits, g| bits | (q[32 * g + i] >> 2) << g);
        }
        simple::put_pairs(&mut out[32..96], &q);
        let s = block.scales.map(|s| (s + 32) as u8);
        for k in 0..8 {
            out[96 + k] = (s[k] & 15) | (s[k + 8] & 15) << 4;
        }
        for k in 0..4 {
            out[104 + k] =
                s[k] >> 4 | (s[k + 4] >> 4) << 2 | (s[k + 8] >> 4) << 4 | (s[k + 12] >> 4) << 6;
        }
        out[108..110].copy_from_slice(&block.d.to_le_bytes());
    }
}

/// Returns s − 32 of the `k`-th 16 weights; `s` are the 12 bytes.
#[inline(always)]
fn scale(s: &[u8], k: usize) -> i8 {
    let low = s[k % 8] >> (k / 8 * 4) & 15;
    let high = s[8 + k % 4] >> (k / 4 * 2) & 3;
    (low | high << 4) as i8 - 32
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LINES, Q3K, SCALES, THIRD, scale};
    use crate::blocks::BlockFormat;
    use crate::blocks::avx2_rows::{self, RowsAvx2, f16_at, shr};
    use crate::blocks::avx2_tiles::{self, TilesAvx2};
    use crate::blocks::avx512_rows::{self, RowsAvx512};
    use crate::blocks::avx512_tiles::{self, TilesAvx512};
    use crate::fields::TILE_ROWS;
    use std::arch::x86_64::*;

    impl RowsAvx2 for Q3K {
        #[inline(always)]
        unsafe fn group256(row: *const u8, b: usize) -> avx2_rows::Group {
            // SAFETY: by the trait's contract.
            unsafe {
                let (p, g) = (row.add(b / 8 * Self::BYTES), b % 8);
                let h = _mm256_and_si256(shr(_mm256_loadu_si256(p.cast()), g), _mm256_set1_epi8(1));
                let q = avx2_rows::pairs(p.add(32), g);
                let q = _mm256_or_si256(q, _mm256_slli_epi16::<2>(h));
                let s = std::slice::from_raw_parts(p.add(96), 12);
                let d = f16_at(p.add(108));
                let d = [d * f32::from(scale(s, 2 * g)), d * f32::from(scale(s, 2 * g + 1))];
                avx2_rows::Group { q, d, m: [0.0; 2] }
            }
        }
    }

    impl RowsAvx512 for Q3K {
        type Offsets = ();

        #[inline(always)]
        unsafe fn begin(row: *const u8, g: usize, _: usize) -> avx512_rows::Group256<()> {
            // SAFETY: by the trait's contract.
            unsafe {
                let at = row.add(g * Self::BYTES);
                let word = |i: usize| at.add(96 + 4 * i).cast::<i32>().read_unaligned();
                // Scales 0 to 3, 4 to 7 …, one lane each.
                let low = _mm_set_epi32(word(1), word(0), word(1), word(0));
                let low = _mm_srlv_epi32(low, _mm_set_epi32(4, 4, 0, 0));
                let high = _mm_srlv_epi32(_mm_set1_epi32(word(2)), _mm_set_epi32(6, 4, 2, 0));
                let low = _mm_and_si128(low, _mm_set1_epi8(15));
                let high = _mm_slli_epi16::<4>(_mm_and_si128(high, _mm_set1_epi8(3)));
                let s = _mm_sub_epi8(_mm_or_si128(low, high), _mm_set1_epi8(32));
                let s = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(s));
                let d = _mm512_set1_ps(f16_at(at.add(108)));
                avx512_rows::Group256 { at, scales: _mm512_mul_ps(d, s), offsets: () }
            }
        }

        #[inline(always)]
        unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe {
                let q = avx512_rows::pairs(at.add(32), j);
                let h = _mm512_broadcast_i64x4(_mm256_loadu_si256(at.cast()));
                // Bit 2j of the bytes for the first 32 weights, bit 2j + 1 for the others.
                let (first, other) = (0x0101_0101_0101_0101, 0x0202_0202_0202_0202);
                let bit = _mm512_set_epi64(other, other, other, other, first, first, first, first);
                let bit = _mm512_sll_epi64(bit, _mm_cvtsi32_si128(2 * j as i32));
                let set = _mm512_test_epi8_mask(h, bit);
                _mm512_mask_add_epi8(q, set, q, _mm512_set1_epi8(4))
            }
        }
    }

    impl TilesAvx2 for Q3K {
        type Group = ();

        #[inline(always)]
        unsafe fn begin(_: *const u8, _: usize, _: usize) {}

        #[inline(always)]
        unsafe fn scales(unit: *const u8, _: &(), g: usize, half: usize) -> avx2_tiles::Scales {
            // SAFETY: by the trait's contract.
            unsafe {
                let d = avx2_tiles::halves(unit.add(16 * half));
                // Byte i of the twelve, for 8 rows: see `scale` for the bits.
                let at =
                    |i: usize| _mm_loadl_epi64(unit.add(SCALES + TILE_ROWS * i + 8 * half).cast());
                let by = |n: usize| _mm_cvtsi32_si128(n as i32);
                let scaled = |k: usize| {
                    let low = _mm_srl_epi16(at(k % 8), by(k / 8 * 4));
                    let high = _mm_srl_epi16(at(8 + k % 4), by(k / 4 * 2));
                    let low = _mm_and_si128(low, _mm_set1_epi8(15));
                    let high = _mm_slli_epi16::<4>(_mm_and_si128(high, _mm_set1_epi8(3)));
                    let s = _mm_sub_epi8(_mm_or_si128(low, high), _mm_set1_epi8(32));
                    _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(s)))
                };
                let d = [scaled(2 * g), scaled(2 * g + 1)];
                avx2_tiles::Scales { d, m: [_mm256_setzero_ps(); 2] }
            }
        }

        #[inline(always)]
        unsafe fn line(unit: *const u8, _: &(), g: usize, j: usize, half: usize) -> __m256i {
            // SAFETY: by the trait's contract.
            unsafe {
                let q = avx2_tiles::pairs(unit.add(LINES), g, j, half);
                let h = avx2_tiles::bits(unit.add(THIRD), j, half, g);
                let h = _mm256_and_si256(h, _mm256_set1_epi8(1));
                _mm256_or_si256(q, _mm256_slli_epi16::<2>(h))
            }
        }
    }

    /// Data computed once per unit.
    #[derive(Clone, Copy)]
    #[repr(C, align(64))]
    pub(crate) struct Head {
        /// s − 32, `[16 scales][16 rows]`
        scales: [i8; 256],
        d: __m512,
    }

    impl TilesAvx512 for Q3K {
        /// The four groups of a half share lines of bit pairs.
        const PHASES: usize = 4;
        type Head = Head;

        #[inline(always)]
        unsafe fn head(unit: *const u8) -> Head {
            // SAFETY: by the trait's contract.
            unsafe {
                // Four of the twelve bytes each, for 16 rows: see `scale` for the bits.
                let line = |i: usize| avx512_tiles::load(unit.add(SCALES + 64 * i));
                let (a, b, c) = (line(0), line(1), line(2));
                let mut head = Head { scales: [0; 256], d: avx512_tiles::halves(unit) };
                let to = head.scales.as_mut_ptr();
                let put = |i: usize, low, high| {
                    let high = _mm512_and_si512(high, _mm512_set1_epi8(0x30));
                    let s = _mm512_sub_epi8(_mm512_or_si512(low, high), _mm512_set1_epi8(32));
                    _mm512_store_si512(to.add(64 * i).cast(), s);
                };
                put(0, avx512_tiles::low(a), _mm512_slli_epi16::<4>(c));
                put(1, avx512_tiles::low(b), _mm512_slli_epi16::<2>(c));
                put(2, avx512_tiles::high(a), c);
                put(3, avx512_tiles::high(b), _mm512_srli_epi16::<2>(c));
                head
            }
        }

        #[inline(always)]
        unsafe fn scales(_: *const u8, head: &Head, g: usize) -> avx512_tiles::Scales {
            // SAFETY: there are 16 scales; the CPU has the SIMD level by the trait's contract.
            unsafe {
                let scaled = |k: usize| {
                    let s = _mm_load_si128(head.scales.as_ptr().add(16 * k).cast());
                    _mm512_mul_ps(head.d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(s)))
                };
                let d = [scaled(2 * g), scaled(2 * g + 1)];
                avx512_tiles::Scales { d, m: [_mm512_setzero_ps(); 2] }
            }
        }

        #[inline(always)]
        unsafe fn line<const P: usize>(unit: *const u8, _: &Head, g: usize, j: usize) -> __m512i {
            // SAFETY: by the trait's contract.
            unsafe {
                let q = avx512_tiles::pairs::<P>(unit.add(LINES), g, j);
                let h = avx512_tiles::load(unit.add(THIRD + 64 * j));
                let set = _mm512_test_epi8_mask(h, _mm512_set1_epi8(1 << g));
                _mm512_mask_add_epi8(q, set, q, _mm512_set1_epi8(4))
            }
        }
    }
}
