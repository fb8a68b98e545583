//! Reads rows of blocks with AVX2, 32 weights at a time, in the order of the weights; also code shared by several types.

use super::BlockFormat;
use super::shared::scales_and_minima_k;
use crate::lanes::avx2::opaque;
use std::arch::x86_64::*;

/// 32 weights of one group as bytes, and the scales and offsets that turn their products into floats.
pub(crate) struct Group {
    /// 32 unsigned codes.
    pub q: __m256i,
    /// Scales of the first and the second 16.
    pub d: [f32; 2],
    /// Offsets of the first and the second 16.
    pub m: [f32; 2],
}

/// Scales and offsets of eight consecutive groups, as in [`Group`].
#[derive(Clone, Copy)]
pub(crate) struct Eight {
    /// `[8][SCALES]`, in the first `8 · SCALES`.
    pub d: [f32; 16],
    pub m: [f32; 8],
}

impl Eight {
    pub(crate) const NONE: Eight = Eight { d: [0.0; 16], m: [0.0; 8] };
}

/// A block type's rows.
pub(crate) trait RowsAvx2: BlockFormat {
    /// Unpacks weights `32·b .. 32·b + 32` of a row.
    ///
    /// # Safety
    /// `row` holds group `b`; the CPU has AVX2 and F16C.
    unsafe fn group256(row: *const u8, b: usize) -> Group;

    /// The same weights as 16-bit integers, their codes minus the zero point: 16 and 16.
    ///
    /// # Safety
    /// As for [`Self::group256`].
    #[inline(always)]
    unsafe fn words(row: *const u8, b: usize) -> [__m256i; 2] {
        // SAFETY: by the caller's promise.
        unsafe { widened::<Self>(row, b) }
    }

    /// True if the scales of 256 weights are computed faster together, by [`Self::eight`].
    const EIGHT: bool = false;

    /// The period, in groups, of the positions of the codes' bits in their bytes: 1, 2 or 4.
    const PHASES: usize = 1;

    /// The number of these groups that are computed in turn, because they share work on their bytes.
    const TOGETHER: usize = 1;

    /// Scales and offsets of groups `8g .. 8g + 8`, bit-identical to those of [`Self::group256`].
    ///
    /// # Safety
    /// `row` holds these groups; the CPU has AVX2 and F16C.
    unsafe fn eight(_row: *const u8, _g: usize) -> Eight {
        unreachable!("scales are made group by group")
    }
}

/// [`RowsAvx2::words`] from the bytes of [`RowsAvx2::group256`]: minus the zero point, codes fit signed bytes.
#[inline(always)]
pub(super) unsafe fn widened<Q: RowsAvx2>(row: *const u8, b: usize) -> [__m256i; 2] {
    // SAFETY: by the caller's promise.
    unsafe {
        let q = _mm256_sub_epi8(Q::group256(row, b).q, _mm256_set1_epi8(Q::ZERO as i8));
        let high = _mm256_extracti128_si256::<1>(q);
        [_mm256_cvtepi8_epi16(_mm256_castsi256_si128(q)), _mm256_cvtepi8_epi16(high)]
    }
}

/// 16 bytes at `p` → their low and their high nibbles, as 16-bit integers minus `zero`.
#[inline(always)]
pub(super) unsafe fn nibble_words(p: *const u8, zero: i32) -> [__m256i; 2] {
    // SAFETY: the caller's pointer has 16 readable bytes and the CPU has AVX2.
    unsafe {
        let zero = _mm256_set1_epi16(zero as i16);
        // Widened first: the compiler would otherwise shift and mask bytes, and widen both.
        let v = opaque(_mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast())));
        let (low, high) = (_mm256_and_si256(v, _mm256_set1_epi16(15)), _mm256_srli_epi16::<4>(v));
        [_mm256_sub_epi16(low, zero), _mm256_sub_epi16(high, zero)]
    }
}

#[inline(always)]
pub(super) unsafe fn f16_at(p: *const u8) -> f32 {
    // SAFETY: the caller's pointer has two readable bytes, and the CPU has F16C.
    unsafe {
        let bits = _mm_cvtsi32_si128(p.cast::<u16>().read_unaligned() as i32);
        _mm_cvtss_f32(_mm_cvtph_ps(bits))
    }
}

/// 16 bytes at `p` → 16 low nibbles, 16 high nibbles.
#[inline(always)]
pub(super) unsafe fn nibbles(p: *const u8) -> __m256i {
    // SAFETY: the caller's pointer has 16 readable bytes and the CPU has AVX2.
    unsafe {
        let v = _mm_loadu_si128(p.cast());
        let v = _mm256_set_m128i(_mm_srli_epi16::<4>(v), v);
        _mm256_and_si256(v, _mm256_set1_epi8(15))
    }
}

/// Group `g` of 64 bytes of bit pairs at `p`, see `pairs` in `shared`.
#[inline(always)]
pub(super) unsafe fn pairs(p: *const u8, g: usize) -> __m256i {
    // SAFETY: the caller's pointer has 64 readable bytes and the CPU has AVX2.
    unsafe {
        let v = shr(_mm256_loadu_si256(p.add(32 * (g / 4)).cast()), 2 * (g % 4));
        _mm256_and_si256(v, _mm256_set1_epi8(3))
    }
}

/// 32 nibbles in bytes → their entries in `table`.
#[inline(always)]
pub(super) unsafe fn looked_up(table: &[u8; 16], nibbles: __m256i) -> __m256i {
    // SAFETY: the callers' CPU has AVX2.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        _mm256_shuffle_epi8(table, nibbles)
    }
}

/// 32 bits at `p` → 32 bytes of 0 or 16.
#[inline(always)]
pub(super) unsafe fn fifth_bits(p: *const u8) -> __m256i {
    // SAFETY: the caller's pointer has 4 readable bytes and the CPU has AVX2.
    unsafe {
        let set = set_bits(p.cast::<u32>().read_unaligned());
        _mm256_and_si256(set, _mm256_set1_epi8(16))
    }
}

/// 32 bits → 32 bytes of 0 or 255.
#[inline(always)]
pub(super) unsafe fn set_bits(bits: u32) -> __m256i {
    // SAFETY: the callers' CPU has AVX2.
    unsafe {
        let v = _mm256_set1_epi32(bits as i32);
        // Byte i of the result looks at byte i / 8 …
        let at = _mm256_set_epi64x(
            0x0303_0303_0303_0303,
            0x0202_0202_0202_0202,
            0x0101_0101_0101_0101,
            0,
        );
        let v = _mm256_shuffle_epi8(v, at);
        // … and there at bit i % 8.
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        _mm256_cmpeq_epi8(_mm256_and_si256(v, bit), bit)
    }
}

/// Shifts 16-bit lanes right by a run-time count.
#[inline(always)]
pub(super) unsafe fn shr(v: __m256i, n: usize) -> __m256i {
    // SAFETY: the callers' CPU has AVX2.
    unsafe { _mm256_srl_epi16(v, _mm_cvtsi32_si128(n as i32)) }
}

/// The scales of eight blocks of 32 weights that begin with an f16, and their offsets if a second f16 follows.
#[inline(always)]
pub(super) unsafe fn leading_eight<Q: BlockFormat>(row: *const u8, g: usize) -> Eight {
    // SAFETY: by the callers' contract the row has the blocks, and the CPU has AVX2 and F16C.
    unsafe {
        let mut all = Eight::NONE;
        let block = row.add(8 * g * Q::BYTES);
        _mm256_storeu_ps(all.d.as_mut_ptr(), f16_of_eight(block, Q::BYTES));
        if Q::OFFSETS != 0 {
            _mm256_storeu_ps(all.m.as_mut_ptr(), f16_of_eight(block.add(2), Q::BYTES));
        }
        all
    }
}

/// Eight f16, each `stride` bytes after the one before.
#[inline(always)]
unsafe fn f16_of_eight(p: *const u8, stride: usize) -> __m256 {
    // SAFETY: the caller's pointers have two readable bytes each, and the CPU has F16C.
    unsafe {
        let at = |i: usize| p.add(i * stride).cast::<i16>().read_unaligned();
        let words = _mm_setr_epi16(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
        _mm256_cvtph_ps(words)
    }
}

/// Scales and offsets of all groups of a Q4_K or Q5_K block.
#[inline(always)]
pub(super) unsafe fn eight_k(block: *const u8) -> Eight {
    // SAFETY: by the callers' contract the block is whole, and the CPU has AVX2 and F16C.
    unsafe {
        let words = block.add(4).cast::<[u32; 3]>().read_unaligned();
        let (sc, m) = scales_and_minima_k(words);
        let sc = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(sc as i64)));
        let m = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(m as i64)));
        let d = _mm256_mul_ps(_mm256_set1_ps(f16_at(block)), sc);
        let m = _mm256_mul_ps(_mm256_set1_ps(f16_at(block.add(2))), m);
        let mut all = Eight::NONE;
        _mm256_storeu_ps(all.d.as_mut_ptr(), d);
        _mm256_storeu_ps(all.m.as_mut_ptr(), _mm256_xor_ps(m, _mm256_set1_ps(-0.0)));
        all
    }
}

/// Scale and offset of group `g` of a Q4_K or Q5_K block.
#[inline(always)]
pub(super) unsafe fn scale_and_offset_k(block: *const u8, g: usize) -> (f32, f32) {
    // SAFETY: by the callers' contract the block is whole.
    unsafe {
        let s = block.add(4);
        let at = |i: usize| *s.add(i);
        let (sc, m) = if g < 4 {
            (at(g) & 63, at(g + 4) & 63)
        } else {
            ((at(g + 4) & 15) | (at(g - 4) >> 6) << 4, (at(g + 4) >> 4) | (at(g) >> 6) << 4)
        };
        (f16_at(block) * sc as f32, -(f16_at(block.add(2)) * m as f32))
    }
}
