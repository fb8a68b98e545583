//! Packs a unit with AVX2: eight rows × 16 bytes at a time, transposed in registers as 32-bit lanes, which are the halves of lines of a unit.

use super::units::{UnitPacker, four_rows};
use crate::fields::{first_bit32, mask256};
use crate::lanes::Avx2;
use std::arch::x86_64::*;

impl UnitPacker for Avx2 {
    #[inline(always)]
    unsafe fn lines<const SIGNED: bool>(p: *const u8, stride: usize, count: usize, to: *mut u8) {
        // SAFETY: by the trait's contract.
        unsafe {
            for l in (0..count).step_by(4) {
                for half in 0..2 {
                    let four = four_half_lines(p.add(4 * l + 8 * half * stride), stride);
                    for (i, mut v) in four.into_iter().enumerate() {
                        if SIGNED {
                            v = _mm256_xor_si256(v, _mm256_set1_epi8(-128));
                        }
                        _mm256_storeu_si256(to.add(64 * (l + i) + 32 * half).cast(), v);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn four_bytes(
        p: *const u8,
        stride: usize,
        skipped: usize,
        [size, bytes]: [usize; 2],
        to: *mut u8,
    ) {
        // SAFETY: by the trait's contract.
        unsafe {
            let mut v = line(p, stride);
            for v in &mut v {
                *v = _mm_srl_epi32(*v, _mm_cvtsi32_si128(8 * skipped as i32));
            }
            put_elements(v, size, bytes, to);
        }
    }

    #[inline(always)]
    unsafe fn bits32(p: *const u8, stride: usize, to: *mut u8) {
        // SAFETY: by the trait's contract.
        unsafe {
            let v = line(p, stride);
            for i in 0..8 {
                // Four bits of each row, as the low bits of sixteen bytes, then as eight bytes.
                let by = _mm_cvtsi32_si128(first_bit32(i) as i32);
                let mut bits = v;
                for bits in &mut bits {
                    *bits = _mm_and_si128(_mm_srl_epi32(*bits, by), _mm_set1_epi32(15));
                }
                let [a, b, c, d] = bits;
                let nibbles = _mm_packus_epi16(_mm_packus_epi32(a, b), _mm_packus_epi32(c, d));
                let two = _mm_maddubs_epi16(nibbles, _mm_set1_epi16(0x1001));
                _mm_storel_epi64(to.add(8 * i).cast(), _mm_packus_epi16(two, two));
            }
        }
    }

    #[inline(always)]
    unsafe fn bits256(p: *const u8, stride: usize, to: *mut u8) {
        // SAFETY: by the trait's contract.
        unsafe {
            for half in 0..2 {
                for l in (0..8).step_by(4) {
                    let four = four_half_lines(p.add(4 * l + 8 * half * stride), stride);
                    for (i, v) in four.into_iter().enumerate() {
                        for g in 0..8 {
                            // The bit becomes the sign of its byte.
                            let v = _mm256_sll_epi16(v, _mm_cvtsi32_si128(7 - g as i32));
                            let to = to.add(8 * mask256(g, l + i) + 4 * half).cast::<i32>();
                            to.write_unaligned(_mm256_movemask_epi8(v));
                        }
                    }
                }
            }
        }
    }
}

/// 16 bytes of eight rows, as halves of four lines.
#[inline(always)]
unsafe fn four_half_lines(p: *const u8, stride: usize) -> [__m256i; 4] {
    // SAFETY: by the caller's promise.
    unsafe {
        let (q0, q1) = (two_rows(p, stride), two_rows(p.add(stride), stride));
        let (q2, q3) = (two_rows(p.add(2 * stride), stride), two_rows(p.add(3 * stride), stride));
        let (a, b) = (_mm256_unpacklo_epi32(q0, q1), _mm256_unpackhi_epi32(q0, q1));
        let (c, d) = (_mm256_unpacklo_epi32(q2, q3), _mm256_unpackhi_epi32(q2, q3));
        [
            _mm256_unpacklo_epi64(a, c),
            _mm256_unpackhi_epi64(a, c),
            _mm256_unpacklo_epi64(b, d),
            _mm256_unpackhi_epi64(b, d),
        ]
    }
}

/// 16 bytes of a row and of the fourth row after it.
#[inline(always)]
unsafe fn two_rows(p: *const u8, stride: usize) -> __m256i {
    // SAFETY: by the caller's promise.
    unsafe { _mm256_loadu2_m128i(p.add(4 * stride).cast(), p.cast()) }
}

/// Four bytes of sixteen rows, four rows in each register.
#[inline(always)]
unsafe fn line(p: *const u8, stride: usize) -> [__m128i; 4] {
    let mut four = [p; 4];
    for (i, p) in four.iter_mut().enumerate() {
        *p = p.wrapping_add(4 * i * stride);
    }
    // SAFETY: by the caller's promise.
    unsafe {
        [
            four_rows(four[0], stride),
            four_rows(four[1], stride),
            four_rows(four[2], stride),
            four_rows(four[3], stride),
        ]
    }
}

/// Stores the elements of `size` bytes of a line, of which at most `bytes` of each row.
#[inline(always)]
unsafe fn put_elements(v: [__m128i; 4], size: usize, bytes: usize, to: *mut u8) {
    // SAFETY: by the caller's promise.
    unsafe {
        // The elements of four rows side by side.
        let order = match size {
            2 => _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15),
            _ => _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
        };
        let mut sorted = v;
        for v in &mut sorted {
            *v = _mm_shuffle_epi8(*v, order);
        }
        let [a, b, c, d] = sorted;
        let to = to.cast::<__m128i>();
        if size == 2 {
            let low = [_mm_unpacklo_epi64(a, b), _mm_unpacklo_epi64(c, d)];
            let high = [_mm_unpackhi_epi64(a, b), _mm_unpackhi_epi64(c, d)];
            _mm_storeu_si128(to, low[0]);
            _mm_storeu_si128(to.add(1), low[1]);
            if bytes > 2 {
                _mm_storeu_si128(to.add(2), high[0]);
                _mm_storeu_si128(to.add(3), high[1]);
            }
            return;
        }
        let (ab, cd) = (_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
        let (ef, gh) = (_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d));
        let all = [
            _mm_unpacklo_epi64(ab, cd),
            _mm_unpackhi_epi64(ab, cd),
            _mm_unpacklo_epi64(ef, gh),
            _mm_unpackhi_epi64(ef, gh),
        ];
        for (i, v) in all.into_iter().take(bytes).enumerate() {
            _mm_storeu_si128(to.add(i), v);
        }
    }
}
