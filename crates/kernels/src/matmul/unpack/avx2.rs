//! How AVX2 reads each quantised format: 32 weights at a time, in the order of the weights.

use crate::half::f16_to_f32;
use crate::quant::{self, Quant};
use std::arch::x86_64::*;

/// 32 weights of one group as bytes, and what turns their products into floats.
pub(in crate::matmul) struct Group {
    /// 32 unsigned bytes.
    pub q: __m256i,
    /// Scales of the first and the second 16.
    pub d: [f32; 2],
    /// Offset.
    pub m: f32,
}

/// How AVX2 reads a format. `group(row, b)` unpacks weights `32·b .. 32·b + 32` of a row.
pub(in crate::matmul) trait Unpack: Quant {
    /// # Safety
    /// `row` holds group `b`; the CPU has AVX2.
    unsafe fn group256(row: *const u8, b: usize) -> Group;
}

#[inline(always)]
unsafe fn f16_at(p: *const u8) -> f32 {
    // SAFETY: the caller's pointer has two readable bytes.
    f16_to_f32(unsafe { p.cast::<u16>().read_unaligned() })
}

/// 16 bytes at `p` → 16 low nibbles, 16 high nibbles.
#[inline(always)]
unsafe fn nibbles(p: *const u8) -> __m256i {
    // SAFETY: the caller's pointer has 16 readable bytes and the CPU has AVX2.
    unsafe {
        let v = _mm_loadu_si128(p.cast());
        let v = _mm256_set_m128i(_mm_srli_epi16::<4>(v), v);
        _mm256_and_si256(v, _mm256_set1_epi8(15))
    }
}

/// 32 bits at `p` → 32 bytes of 0 or 16.
#[inline(always)]
pub(in crate::matmul) unsafe fn fifth_bits(p: *const u8) -> __m256i {
    // SAFETY: the caller's pointer has 4 readable bytes and the CPU has AVX2.
    unsafe {
        let v = _mm256_set1_epi32(p.cast::<i32>().read_unaligned());
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
        let set = _mm256_cmpeq_epi8(_mm256_and_si256(v, bit), bit);
        _mm256_and_si256(set, _mm256_set1_epi8(16))
    }
}

impl Unpack for quant::Q4_0 {
    #[inline(always)]
    unsafe fn group256(row: *const u8, b: usize) -> Group {
        // SAFETY: by the trait's contract.
        unsafe {
            let p = row.add(b * Self::BYTES);
            Group { q: nibbles(p.add(2)), d: [f16_at(p); 2], m: 0.0 }
        }
    }
}

impl Unpack for quant::Q4_1 {
    #[inline(always)]
    unsafe fn group256(row: *const u8, b: usize) -> Group {
        // SAFETY: by the trait's contract.
        unsafe {
            let p = row.add(b * Self::BYTES);
            Group { q: nibbles(p.add(4)), d: [f16_at(p); 2], m: f16_at(p.add(2)) }
        }
    }
}

impl Unpack for quant::Q5_0 {
    #[inline(always)]
    unsafe fn group256(row: *const u8, b: usize) -> Group {
        // SAFETY: by the trait's contract.
        unsafe {
            let p = row.add(b * Self::BYTES);
            let q = _mm256_or_si256(nibbles(p.add(6)), fifth_bits(p.add(2)));
            Group { q, d: [f16_at(p); 2], m: 0.0 }
        }
    }
}

impl Unpack for quant::Q5_1 {
    #[inline(always)]
    unsafe fn group256(row: *const u8, b: usize) -> Group {
        // SAFETY: by the trait's contract.
        unsafe {
            let p = row.add(b * Self::BYTES);
            let q = _mm256_or_si256(nibbles(p.add(8)), fifth_bits(p.add(4)));
            Group { q, d: [f16_at(p); 2], m: f16_at(p.add(2)) }
        }
    }
}

impl Unpack for quant::Q8_0 {
    #[inline(always)]
    unsafe fn group256(row: *const u8, b: usize) -> Group {
        // SAFETY: by the trait's contract.
        unsafe {
            let p = row.add(b * Self::BYTES);
            let q = _mm256_loadu_si256(p.add(2).cast());
            Group { q: _mm256_xor_si256(q, _mm256_set1_epi8(-128)), d: [f16_at(p); 2], m: 0.0 }
        }
    }
}

/// Scale and minimum of group `g` of a Q4_K or Q5_K block.
#[inline(always)]
unsafe fn scale_min_k(block: *const u8, g: usize) -> (f32, f32) {
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

/// Shifts 16-bit lanes right by a run-time count.
#[inline(always)]
unsafe fn shr(v: __m256i, n: usize) -> __m256i {
    // SAFETY: the callers' CPU has AVX2.
    unsafe { _mm256_srl_epi16(v, _mm_cvtsi32_si128(n as i32)) }
}

impl Unpack for quant::Q4K {
    #[inline(always)]
    unsafe fn group256(row: *const u8, b: usize) -> Group {
        // SAFETY: by the trait's contract.
        unsafe {
            let (p, g) = (row.add(b / 8 * Self::BYTES), b % 8);
            let (d, m) = scale_min_k(p, g);
            let v = _mm256_loadu_si256(p.add(16 + 32 * (g / 2)).cast());
            let q = _mm256_and_si256(shr(v, 4 * (g & 1)), _mm256_set1_epi8(15));
            Group { q, d: [d; 2], m }
        }
    }
}

impl Unpack for quant::Q5K {
    #[inline(always)]
    unsafe fn group256(row: *const u8, b: usize) -> Group {
        // SAFETY: by the trait's contract.
        unsafe {
            let (p, g) = (row.add(b / 8 * Self::BYTES), b % 8);
            let (d, m) = scale_min_k(p, g);
            let v = _mm256_loadu_si256(p.add(48 + 32 * (g / 2)).cast());
            let q = _mm256_and_si256(shr(v, 4 * (g & 1)), _mm256_set1_epi8(15));
            let h = shr(_mm256_loadu_si256(p.add(16).cast()), g);
            let h = _mm256_and_si256(h, _mm256_set1_epi8(1));
            let q = _mm256_or_si256(q, _mm256_slli_epi16::<4>(h));
            Group { q, d: [d; 2], m }
        }
    }
}

impl Unpack for quant::Q6K {
    #[inline(always)]
    unsafe fn group256(row: *const u8, b: usize) -> Group {
        // SAFETY: by the trait's contract.
        unsafe {
            let (p, half, g) = (row.add(b / 8 * Self::BYTES), b % 8 / 4, b % 4);
            let v = _mm256_loadu_si256(p.add(64 * half + 32 * (g & 1)).cast());
            let q = _mm256_and_si256(shr(v, 4 * (g / 2)), _mm256_set1_epi8(15));
            let h = shr(_mm256_loadu_si256(p.add(128 + 32 * half).cast()), 2 * g);
            let h = _mm256_and_si256(h, _mm256_set1_epi8(3));
            let q = _mm256_or_si256(q, _mm256_slli_epi16::<4>(h));
            let sc = p.add(192 + 2 * (b % 8)).cast::<i8>();
            let d = f16_at(p.add(208));
            Group { q, d: [d * *sc as f32, d * *sc.add(1) as f32], m: 0.0 }
        }
    }
}
