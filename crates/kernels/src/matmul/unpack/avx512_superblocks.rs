//! AVX-512 unpacking of the K-quants: a superblock of 256 weights is one group.
//!
//! All scales of a superblock are turned into floats once, into one register; a step permutes
//! out of it the two (Q6_K: four) that it needs.

use super::avx512::{Step, Unpack};
use crate::half::f16_to_f32;
use crate::quant::{self, Quant};
use std::arch::x86_64::*;

/// A superblock and its 16 floats.
#[derive(Clone, Copy)]
pub(in crate::matmul) struct Superblock {
    block: *const u8,
    /// Q4_K, Q5_K: 8 × d·sc, then 8 × dmin·m. Q6_K: 16 × d·sc.
    scales: __m512,
}

#[inline(always)]
unsafe fn f16_at(p: *const u8) -> f32 {
    // SAFETY: inside the caller's block.
    f16_to_f32(unsafe { p.cast::<u16>().read_unaligned() })
}

/// The 6-bit scales and minima of Q4_K and Q5_K as floats.
#[inline(always)]
unsafe fn scales_k(block: *const u8) -> __m512 {
    // SAFETY: 16 bytes of the caller's block; its CPU has the tier.
    unsafe {
        let word = |i: usize| block.add(4 + 4 * i).cast::<u32>().read_unaligned();
        let (u0, u1, u2) = (word(0), word(1), word(2));
        // Groups 0..4 have their six bits in place; 4..8 take four from the third word and two
        // from the top of the first (scale) or second (minimum).
        let sc = (u0 & 0x3f3f_3f3f) as u64
            | (((u2 & 0x0f0f_0f0f) | ((u0 >> 2) & 0x3030_3030)) as u64) << 32;
        let m = (u1 & 0x3f3f_3f3f) as u64
            | ((((u2 >> 4) & 0x0f0f_0f0f) | ((u1 >> 2) & 0x3030_3030)) as u64) << 32;
        let v = _mm512_cvtepu8_epi32(_mm_set_epi64x(m as i64, sc as i64));
        // d in the lower eight lanes, dmin in the upper ones.
        let dd = _mm_set1_epi32(block.cast::<i32>().read_unaligned());
        let dd = _mm256_shuffle_epi8(
            _mm256_broadcastsi128_si256(dd),
            _mm256_set_m128i(_mm_set1_epi16(0x0302), _mm_set1_epi16(0x0100)),
        );
        _mm512_mul_ps(_mm512_cvtepi32_ps(v), _mm512_cvtph_ps(dd))
    }
}

/// Lanes 0..8 ← `v[base + 2j]`, lanes 8..16 ← `v[base + 2j + 1]`.
#[inline(always)]
unsafe fn spread2(v: __m512, base: usize, j: usize) -> __m512 {
    // SAFETY: the callers' CPU has the tier.
    unsafe {
        let upper = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
        let at = _mm512_add_epi32(_mm512_set1_epi32((base + 2 * j) as i32), upper);
        _mm512_permutexvar_ps(at, v)
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

/// acc − dmin·m·s32, in the upper eight lanes.
#[inline(always)]
unsafe fn subtract_minima(scales: __m512, s32: *const f32, acc: __m512) -> __m512 {
    // SAFETY: 8 floats of the caller; its CPU has the tier.
    unsafe {
        let s = _mm512_maskz_broadcast_f32x8(0xff00, _mm256_loadu_ps(s32));
        _mm512_fnmadd_ps(scales, s, acc)
    }
}

impl Unpack for quant::Q4K {
    type Group = Superblock;

    #[inline(always)]
    unsafe fn begin(row: *const u8, g: usize) -> Superblock {
        // SAFETY: by the trait's contract.
        unsafe {
            let block = row.add(g * Self::BYTES);
            Superblock { block, scales: scales_k(block) }
        }
    }

    #[inline(always)]
    unsafe fn step<const HALF: bool>(group: &Superblock, j: usize) -> Step {
        // SAFETY: by the trait's contract.
        unsafe {
            Step {
                q: low_high(group.block.add(16 + 32 * j)),
                d: spread2(group.scales, 0, j),
                m: _mm512_sub_ps(_mm512_setzero_ps(), spread2(group.scales, 8, j)),
            }
        }
    }

    #[inline(always)]
    unsafe fn add_offsets(group: &Superblock, s32: *const f32, acc: __m512) -> Option<__m512> {
        // SAFETY: by the trait's contract.
        Some(unsafe { subtract_minima(group.scales, s32, acc) })
    }
}

impl Unpack for quant::Q5K {
    type Group = Superblock;

    #[inline(always)]
    unsafe fn begin(row: *const u8, g: usize) -> Superblock {
        // SAFETY: by the trait's contract.
        unsafe {
            let block = row.add(g * Self::BYTES);
            Superblock { block, scales: scales_k(block) }
        }
    }

    #[inline(always)]
    unsafe fn step<const HALF: bool>(group: &Superblock, j: usize) -> Step {
        // SAFETY: by the trait's contract.
        unsafe {
            let q = low_high(group.block.add(48 + 32 * j));
            let h = _mm512_broadcast_i64x4(_mm256_loadu_si256(group.block.add(16).cast()));
            // Bit 2j of the bytes for the low nibbles, bit 2j + 1 for the high ones.
            let bit = _mm512_set_epi64(
                0x0202_0202_0202_0202,
                0x0202_0202_0202_0202,
                0x0202_0202_0202_0202,
                0x0202_0202_0202_0202,
                0x0101_0101_0101_0101,
                0x0101_0101_0101_0101,
                0x0101_0101_0101_0101,
                0x0101_0101_0101_0101,
            );
            let bit = _mm512_sll_epi64(bit, _mm_cvtsi32_si128(2 * j as i32));
            let set = _mm512_test_epi8_mask(h, bit);
            Step {
                q: _mm512_mask_add_epi8(q, set, q, _mm512_set1_epi8(16)),
                d: spread2(group.scales, 0, j),
                m: _mm512_sub_ps(_mm512_setzero_ps(), spread2(group.scales, 8, j)),
            }
        }
    }

    #[inline(always)]
    unsafe fn add_offsets(group: &Superblock, s32: *const f32, acc: __m512) -> Option<__m512> {
        // SAFETY: by the trait's contract.
        Some(unsafe { subtract_minima(group.scales, s32, acc) })
    }
}

impl Unpack for quant::Q6K {
    type Group = Superblock;

    #[inline(always)]
    unsafe fn begin(row: *const u8, g: usize) -> Superblock {
        // SAFETY: by the trait's contract.
        unsafe {
            let block = row.add(g * Self::BYTES);
            let sc = _mm512_cvtepi8_epi32(_mm_loadu_si128(block.add(192).cast()));
            let d = _mm512_set1_ps(f16_at(block.add(208)));
            Superblock { block, scales: _mm512_mul_ps(_mm512_cvtepi32_ps(sc), d) }
        }
    }

    #[inline(always)]
    unsafe fn step<const HALF: bool>(group: &Superblock, j: usize) -> Step {
        // SAFETY: by the trait's contract.
        unsafe {
            let (half, high) = (j / 2, j % 2);
            // 64 bytes hold 128 weights: steps 0 and 2 are their low nibbles, 1 and 3 the high.
            let q = _mm512_loadu_si512(group.block.add(64 * half).cast());
            let q = _mm512_srl_epi64(q, _mm_cvtsi32_si128(4 * high as i32));
            // Bit pairs 2·high and 2·high + 1 of 32 bytes, moved to bits 4 and 5. Rotating whole
            // 64-bit lanes is fine: the two bits kept never leave their byte.
            let h = _mm256_loadu_si256(group.block.add(128 + 32 * half).cast());
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
            // (q & 15) | h
            let q = _mm512_ternarylogic_epi64::<0b1111_1000>(h, q, _mm512_set1_epi8(15));
            let quarter = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
            let at = _mm512_add_epi32(_mm512_set1_epi32(4 * j as i32), quarter);
            Step { q, d: _mm512_permutexvar_ps(at, group.scales), m: _mm512_setzero_ps() }
        }
    }
}
