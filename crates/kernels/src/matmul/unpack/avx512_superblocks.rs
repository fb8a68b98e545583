//! AVX-512 unpacking of the K-quants: a superblock of 256 weights is one group, always whole.

use super::avx512::{Group, Unpack};
use crate::half::f16_to_f32;
use crate::quant::{self, Quant};
use std::arch::x86_64::*;

/// The group of a Q4_K or Q5_K block: 8 × d·sc, then 8 × −dmin·m.
#[inline(always)]
unsafe fn group_k(at: *const u8) -> Group {
    // SAFETY: 16 bytes of the caller's block; its CPU has the tier.
    unsafe {
        let word = |i: usize| at.add(4 + 4 * i).cast::<u32>().read_unaligned();
        let (u0, u1, u2) = (word(0), word(1), word(2));
        // Runs 0..4 have their six bits in place; 4..8 take four from the third word and two
        // from the top of the first (scale) or second (minimum).
        let sc = (u0 & 0x3f3f_3f3f) as u64
            | (((u2 & 0x0f0f_0f0f) | ((u0 >> 2) & 0x3030_3030)) as u64) << 32;
        let m = (u1 & 0x3f3f_3f3f) as u64
            | ((((u2 >> 4) & 0x0f0f_0f0f) | ((u1 >> 2) & 0x3030_3030)) as u64) << 32;
        let v = _mm512_cvtepu8_epi32(_mm_set_epi64x(m as i64, sc as i64));
        // d in the lower eight lanes, −dmin in the upper ones.
        let dd = _mm_set1_epi32(at.cast::<i32>().read_unaligned() ^ i32::MIN);
        let dd = _mm256_shuffle_epi8(
            _mm256_broadcastsi128_si256(dd),
            _mm256_set_m128i(_mm_set1_epi16(0x0302), _mm_set1_epi16(0x0100)),
        );
        Group { at, scales: _mm512_mul_ps(_mm512_cvtepi32_ps(v), _mm512_cvtph_ps(dd)) }
    }
}

/// 32 bytes of nibbles → 32 low ones, 32 high ones.
#[inline(always)]
unsafe fn low_high(p: *const u8) -> __m512i {
    // SAFETY: 32 bytes of the caller's block; its CPU has the tier.
    unsafe {
        let v = _mm512_broadcast_i64x4(_mm256_loadu_si256(p.cast()));
        let v = _mm512_srlv_epi64(v, _mm512_set_epi64(4, 4, 4, 4, 0, 0, 0, 0));
        _mm512_and_si512(v, _mm512_set1_epi8(15))
    }
}

impl Unpack for quant::Q4K {
    #[inline(always)]
    unsafe fn begin(row: *const u8, g: usize, _: usize) -> Group {
        // SAFETY: by the trait's contract.
        unsafe { group_k(row.add(g * Self::BYTES)) }
    }

    #[inline(always)]
    unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
        // SAFETY: by the trait's contract.
        unsafe { low_high(at.add(16 + 32 * j)) }
    }
}

impl Unpack for quant::Q5K {
    #[inline(always)]
    unsafe fn begin(row: *const u8, g: usize, _: usize) -> Group {
        // SAFETY: by the trait's contract.
        unsafe { group_k(row.add(g * Self::BYTES)) }
    }

    #[inline(always)]
    unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
        // SAFETY: by the trait's contract.
        unsafe {
            let q = low_high(at.add(48 + 32 * j));
            let h = _mm512_broadcast_i64x4(_mm256_loadu_si256(at.add(16).cast()));
            // Bit 2j of the bytes for the low nibbles, bit 2j + 1 for the high ones.
            let (low, high) = (0x0101_0101_0101_0101, 0x0202_0202_0202_0202);
            let bit = _mm512_set_epi64(high, high, high, high, low, low, low, low);
            let bit = _mm512_sll_epi64(bit, _mm_cvtsi32_si128(2 * j as i32));
            let set = _mm512_test_epi8_mask(h, bit);
            _mm512_mask_add_epi8(q, set, q, _mm512_set1_epi8(16))
        }
    }
}

impl Unpack for quant::Q6K {
    #[inline(always)]
    unsafe fn begin(row: *const u8, g: usize, _: usize) -> Group {
        // SAFETY: by the trait's contract.
        unsafe {
            let at = row.add(g * Self::BYTES);
            let sc = _mm512_cvtepi8_epi32(_mm_loadu_si128(at.add(192).cast()));
            let d = f16_to_f32(at.add(208).cast::<u16>().read_unaligned());
            Group { at, scales: _mm512_mul_ps(_mm512_cvtepi32_ps(sc), _mm512_set1_ps(d)) }
        }
    }

    #[inline(always)]
    unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
        // SAFETY: by the trait's contract.
        unsafe {
            let (half, high) = (j / 2, j % 2);
            // 64 bytes hold 128 weights: steps 0 and 2 are their low nibbles, 1 and 3 the high.
            let q = _mm512_loadu_si512(at.add(64 * half).cast());
            let q = _mm512_srl_epi64(q, _mm_cvtsi32_si128(4 * high as i32));
            // Bit pairs 2·high and 2·high + 1 of 32 bytes, moved to bits 4 and 5. Rotating whole
            // 64-bit lanes is fine: the two bits kept never leave their byte.
            let h = _mm256_loadu_si256(at.add(128 + 32 * half).cast());
            let h = _mm512_broadcast_i64x4(h);
            let h = _mm512_rolv_epi64(
                h,
                if high == 0 {
                    _mm512_set_epi64(2, 2, 2, 2, 4, 4, 4, 4)
                } else {
                    _mm512_set_epi64(62, 62, 62, 62, 0, 0, 0, 0)
                },
            );
            let h = _mm512_and_si512(h, _mm512_set1_epi8(0x30));
            // h | (q & 15)
            _mm512_ternarylogic_epi64::<0b1111_1000>(h, q, _mm512_set1_epi8(15))
        }
    }
}
