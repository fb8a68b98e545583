//! Packs a unit with AVX-512: sixteen rows × 16 bytes at a time, transposed in registers as 32-bit lanes, which are the lines of a unit.

use super::BlockFormat;
use super::units::{UnitPacker, few_elements, four_rows};
use crate::fields::{TILE_ROWS, first_bit32, mask256};
use crate::lanes::Avx512;
use std::arch::x86_64::*;

impl UnitPacker for Avx512 {
    #[inline(always)]
    unsafe fn lines<const SIGNED: bool>(p: *const u8, stride: usize, count: usize, to: *mut u8) {
        // SAFETY: by the trait's contract.
        unsafe {
            for l in (0..count).step_by(4) {
                for (i, mut v) in four_lines(p.add(4 * l), stride).into_iter().enumerate() {
                    if SIGNED {
                        v = _mm512_xor_si512(v, _mm512_set1_epi8(-128));
                    }
                    _mm512_storeu_si512(to.add(64 * (l + i)).cast(), v);
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
            let by = _mm_cvtsi32_si128(8 * skipped as i32);
            put_elements(_mm512_srl_epi32(line(p, stride), by), size, bytes, to);
        }
    }

    /// 16 bytes of each row at once, if more than eight are needed.
    #[inline(always)]
    unsafe fn elements<Q: BlockFormat>(
        blocks: *const u8,
        stride: usize,
        [at, size, count]: [usize; 3],
        to: *mut u8,
    ) {
        let bytes = size * count;
        // SAFETY: by the trait's contract; what is read is inside the block.
        unsafe {
            if bytes <= 8 || at + 16 > Q::BYTES {
                return few_elements::<Avx512, Q>(blocks, stride, [at, size, count], to);
            }
            let four = four_lines(blocks.add(at), stride);
            for first in (0..bytes).step_by(4) {
                put_elements(four[first / 4], size, bytes - first, to.add(TILE_ROWS * first));
            }
        }
    }

    #[inline(always)]
    unsafe fn bits32(p: *const u8, stride: usize, to: *mut u8) {
        // SAFETY: by the trait's contract.
        unsafe {
            let v = line(p, stride);
            for i in 0..8 {
                // Four bits of each row, as the low bits of sixteen bytes, then as eight bytes.
                let bits = _mm512_srl_epi32(v, _mm_cvtsi32_si128(first_bit32(i) as i32));
                let nibbles = _mm512_cvtepi32_epi8(_mm512_and_si512(bits, _mm512_set1_epi32(15)));
                let two = _mm_maddubs_epi16(nibbles, _mm_set1_epi16(0x1001));
                _mm_storel_epi64(to.add(8 * i).cast(), _mm_cvtepi16_epi8(two));
            }
        }
    }

    #[inline(always)]
    unsafe fn bits256(p: *const u8, stride: usize, to: *mut u8) {
        // SAFETY: by the trait's contract.
        unsafe {
            for l in (0..8).step_by(4) {
                for (i, v) in four_lines(p.add(4 * l), stride).into_iter().enumerate() {
                    for g in 0..8 {
                        let mask = _mm512_test_epi8_mask(v, _mm512_set1_epi8(1 << g));
                        to.add(8 * mask256(g, l + i)).cast::<u64>().write_unaligned(mask);
                    }
                }
            }
        }
    }
}

/// Stores the elements of `size` bytes of a line, of which at most `bytes` of each row.
#[inline(always)]
unsafe fn put_elements(v: __m512i, size: usize, bytes: usize, to: *mut u8) {
    // SAFETY: by the caller's promise.
    unsafe {
        let v = match size {
            2 => _mm512_permutexvar_epi16(table16(), v),
            _ => _mm512_permutexvar_epi8(table8(), v),
        };
        let n = TILE_ROWS * bytes.min(4);
        let mask = if n == 64 { u64::MAX } else { (1 << n) - 1 };
        _mm512_mask_storeu_epi8(to.cast(), mask, v);
    }
}

/// 16 bytes of sixteen rows, as four lines.
#[inline(always)]
unsafe fn four_lines(p: *const u8, stride: usize) -> [__m512i; 4] {
    // SAFETY: by the caller's promise.
    unsafe {
        // Row 4q + i in quarter q of register i.
        let (q0, q1) = (quarters(p, stride), quarters(p.add(stride), stride));
        let (q2, q3) = (quarters(p.add(2 * stride), stride), quarters(p.add(3 * stride), stride));
        let (a, b) = (_mm512_unpacklo_epi32(q0, q1), _mm512_unpackhi_epi32(q0, q1));
        let (c, d) = (_mm512_unpacklo_epi32(q2, q3), _mm512_unpackhi_epi32(q2, q3));
        [
            _mm512_unpacklo_epi64(a, c),
            _mm512_unpackhi_epi64(a, c),
            _mm512_unpacklo_epi64(b, d),
            _mm512_unpackhi_epi64(b, d),
        ]
    }
}

/// 16 bytes of every fourth row, four rows from the one at `p` on.
#[inline(always)]
pub(super) unsafe fn quarters(p: *const u8, stride: usize) -> __m512i {
    // SAFETY: by the caller's promise.
    unsafe {
        let v = _mm512_castsi128_si512(_mm_loadu_si128(p.cast()));
        let v = _mm512_inserti32x4::<1>(v, _mm_loadu_si128(p.add(4 * stride).cast()));
        let v = _mm512_inserti32x4::<2>(v, _mm_loadu_si128(p.add(8 * stride).cast()));
        _mm512_inserti32x4::<3>(v, _mm_loadu_si128(p.add(12 * stride).cast()))
    }
}

/// Four bytes of sixteen rows.
#[inline(always)]
unsafe fn line(p: *const u8, stride: usize) -> __m512i {
    // SAFETY: by the caller's promise.
    unsafe {
        let (a, b) = (four_rows(p, stride), four_rows(p.add(4 * stride), stride));
        let (c, d) = (four_rows(p.add(8 * stride), stride), four_rows(p.add(12 * stride), stride));
        let (ab, cd) = (_mm256_set_m128i(b, a), _mm256_set_m128i(d, c));
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(ab), cd)
    }
}

/// The positions of a line's bytes in the order of the bytes of its elements, then of the rows.
#[inline(always)]
unsafe fn table8() -> __m512i {
    const TABLE: [u8; 64] = {
        let (mut table, mut i) = ([0; 64], 0);
        while i < 64 {
            table[i] = (i % 16 * 4 + i / 16) as u8;
            i += 1;
        }
        table
    };
    // SAFETY: 64 bytes; the callers' CPU has the level.
    unsafe { _mm512_loadu_si512(TABLE.as_ptr().cast()) }
}

/// The same of its 16-bit words.
#[inline(always)]
unsafe fn table16() -> __m512i {
    const TABLE: [u16; 32] = {
        let (mut table, mut i) = ([0; 32], 0);
        while i < 32 {
            table[i] = (i % 16 * 2 + i / 16) as u16;
            i += 1;
        }
        table
    };
    // SAFETY: as above.
    unsafe { _mm512_loadu_si512(TABLE.as_ptr().cast()) }
}
