//! Packs a unit with AVX-512, while its rows are multiplied: sixteen rows × 16 bytes at a time, transposed in registers as 32-bit lanes, which are the
//! lines of a unit.

use super::BlockFormat;
use crate::fields::Field::{Bits32, Bits256, Elements, Signed};
use crate::fields::{TILE_ROWS, first_bit32, mask256, offset};
use std::arch::x86_64::*;

/// Fills a unit from sixteen blocks: the block of row `r` begins at `blocks + r · stride`.
///
/// # Safety
/// The blocks can be read, the unit written; the CPU has AVX-512 BW, VL, DQ and VBMI.
#[inline(always)]
pub(crate) unsafe fn pack<Q: BlockFormat>(blocks: *const u8, stride: usize, unit: *mut u8) {
    const { assert!(Q::FIELDS.len() <= 5) };
    // Separate code for each field, in which its place is a constant.
    // SAFETY: by the caller's promise.
    unsafe {
        field::<Q, 0>(blocks, stride, unit);
        field::<Q, 1>(blocks, stride, unit);
        field::<Q, 2>(blocks, stride, unit);
        field::<Q, 3>(blocks, stride, unit);
        field::<Q, 4>(blocks, stride, unit);
    }
}

/// Field `N` of a type, if there is one.
#[inline(always)]
unsafe fn field<Q: BlockFormat, const N: usize>(blocks: *const u8, stride: usize, unit: *mut u8) {
    if N >= Q::FIELDS.len() {
        return;
    }
    // SAFETY: by the caller's promise; the field is inside the block and the unit.
    unsafe {
        let to = unit.add(offset(Q::FIELDS, N));
        match Q::FIELDS[N] {
            Elements { at, size: 4, count } => lines::<false>(blocks.add(at), stride, count, to),
            Elements { at, size, count } => elements::<Q>(blocks, stride, [at, size, count], to),
            Signed { at, count } => lines::<true>(blocks.add(at), stride, count, to),
            Bits32 { at } => {
                let v = line(blocks.add(at), stride);
                for i in 0..8 {
                    // Four bits of each row, as the low bits of sixteen bytes, then as eight bytes.
                    let bits = _mm512_srl_epi32(v, _mm_cvtsi32_si128(first_bit32(i) as i32));
                    let nibbles =
                        _mm512_cvtepi32_epi8(_mm512_and_si512(bits, _mm512_set1_epi32(15)));
                    let two = _mm_maddubs_epi16(nibbles, _mm_set1_epi16(0x1001));
                    _mm_storel_epi64(to.add(8 * i).cast(), _mm_cvtepi16_epi8(two));
                }
            }
            Bits256 { at } => {
                for l in (0..8).step_by(4) {
                    let four = four_lines(blocks.add(at + 4 * l), stride);
                    for (i, v) in four.into_iter().enumerate() {
                        for g in 0..8 {
                            let mask = _mm512_test_epi8_mask(v, _mm512_set1_epi8(1 << g));
                            to.add(8 * mask256(g, l + i)).cast::<u64>().write_unaligned(mask);
                        }
                    }
                }
            }
        }
    }
}

/// Elements of one or two bytes: four bytes of each row at a time, split.
#[inline(always)]
unsafe fn elements<Q: BlockFormat>(
    blocks: *const u8,
    stride: usize,
    [at, size, count]: [usize; 3],
    to: *mut u8,
) {
    let bytes = size * count;
    // SAFETY: by the caller's promise; what is read is inside the block.
    unsafe {
        if bytes > 8 && at + 16 <= Q::BYTES {
            let four = four_lines(blocks.add(at), stride);
            for first in (0..bytes).step_by(4) {
                put_elements(four[first / 4], size, bytes - first, to.add(TILE_ROWS * first));
            }
            return;
        }
        for first in (0..bytes).step_by(4) {
            // The last four of the block if there are no more.
            let wanted = at + first;
            let from = wanted.min(Q::BYTES - 4);
            let by = _mm_cvtsi32_si128(8 * (wanted - from) as i32);
            let v = _mm512_srl_epi32(line(blocks.add(from), stride), by);
            put_elements(v, size, bytes - first, to.add(TILE_ROWS * first));
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

/// `count` elements of four bytes of each row, each a line of a unit; with `SIGNED` the sign bits of their bytes are inverted.
#[inline(always)]
unsafe fn lines<const SIGNED: bool>(blocks: *const u8, stride: usize, count: usize, to: *mut u8) {
    // SAFETY: by the caller's promise.
    unsafe {
        for l in (0..count).step_by(4) {
            for (i, mut v) in four_lines(blocks.add(4 * l), stride).into_iter().enumerate() {
                if SIGNED {
                    v = _mm512_xor_si512(v, _mm512_set1_epi8(-128));
                }
                _mm512_storeu_si512(to.add(64 * (l + i)).cast(), v);
            }
        }
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
pub(crate) unsafe fn quarters(p: *const u8, stride: usize) -> __m512i {
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

/// Four bytes of four rows.
#[inline(always)]
unsafe fn four_rows(p: *const u8, stride: usize) -> __m128i {
    // SAFETY: by the caller's promise.
    unsafe {
        let v = _mm_cvtsi32_si128(p.cast::<i32>().read_unaligned());
        let v = _mm_insert_epi32::<1>(v, p.add(stride).cast::<i32>().read_unaligned());
        let v = _mm_insert_epi32::<2>(v, p.add(2 * stride).cast::<i32>().read_unaligned());
        _mm_insert_epi32::<3>(v, p.add(3 * stride).cast::<i32>().read_unaligned())
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
