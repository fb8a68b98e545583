//! IQ1, IQ2 and IQ3: 256 weights whose magnitudes are looked up 4 or 8 at a time in a codebook ([`grids`]), and whose scales have
//! a few bits each. Decodes all of these types, in portable code and with SIMD.
//!
//! The cost is in the lookups, eight of 8 bytes for 64 weights; signs are applied to all weights of a register. There is no
//! packed form: rows side by side would need more lookups, not fewer.

use super::{BlockFormat, Group32};

/// A block type of 256 weights with a codebook.
pub(super) trait Codebook: BlockFormat {
    /// True if entries are magnitudes, with a sign for each weight. Otherwise they are codes.
    const SIGNED: bool = true;

    /// The entries of group `g`, eight weights each, the first in the lowest byte.
    fn entries(block: &[u8], g: usize) -> [u64; 4];

    /// Bit `i` is set if weight `i` of group `g` is negative.
    fn signs(_block: &[u8], _g: usize) -> u32 {
        0
    }

    /// The scale of the block, which is multiplied by `2s + 1`.
    fn unit(block: &[u8]) -> f32;

    /// The number s of the `k`-th 32 weights (or 16, if the type has two scales per 32).
    fn step(block: &[u8], k: usize) -> u8;
}

/// Implements [`BlockFormat::group`] for such a type.
#[inline(always)]
pub(super) fn group<Q: Codebook>(block: &[u8], g: usize) -> Group32 {
    let mut q = [0; 32];
    let signs = Q::signs(block, g);
    for (i, (entry, q)) in Q::entries(block, g).iter().zip(q.as_chunks_mut::<8>().0).enumerate() {
        *q = entry.to_le_bytes();
        if Q::SIGNED {
            for (j, q) in q.iter_mut().enumerate() {
                let negative = signs >> (8 * i + j) & 1 != 0;
                *q = if negative { Q::ZERO as u8 - *q } else { Q::ZERO as u8 + *q };
            }
        }
    }
    let unit = Q::unit(block);
    let scale = |k| unit * f32::from(2 * Q::step(block, k) + 1);
    let d = if Q::SCALES == 2 { [scale(2 * g), scale(2 * g + 1)] } else { [scale(g); 2] };
    Group32 { q, d, m: [0.0; 2] }
}

/// A codebook of eights: the values of an entry's eight levels, of which there are four, in 8 bytes.
pub(super) const fn eights<const N: usize>(book: &[u16; N], levels: [u8; 4]) -> [u64; N] {
    let mut out = [0; N];
    let mut i = 0;
    while i < 8 * N {
        let level = levels[(book[i / 8] >> (2 * (i % 8)) & 3) as usize];
        out[i / 8] |= (level as u64) << (8 * (i % 8));
        i += 1;
    }
    out
}

/// A codebook of fours: the values of an entry's four levels, of which there are eight, in 4 bytes.
pub(super) const fn fours<const N: usize>(book: &[u16; N], levels: [u8; 8]) -> [u32; N] {
    let mut out = [0; N];
    let mut i = 0;
    while i < 4 * N {
        let level = levels[(book[i / 4] >> (4 * (i % 4)) & 7) as usize];
        out[i / 4] |= (level as u32) << (8 * (i % 4));
        i += 1;
    }
    out
}

/// The levels of all IQ2 types; the fourth does not occur.
pub(super) const IQ2_LEVELS: [u8; 4] = [8, 25, 43, 0];

/// The four entries of a group. (The compiler may turn `array::from_fn` into a function that calls a closure.)
#[inline(always)]
pub(super) fn four(entry: impl Fn(usize) -> u64) -> [u64; 4] {
    [entry(0), entry(1), entry(2), entry(3)]
}

/// Eight weights from a codebook of fours.
#[inline(always)]
pub(super) fn two_fours<const N: usize>(book: &[u32; N], i: usize, j: usize) -> u64 {
    u64::from(book[i]) | u64::from(book[j]) << 32
}

/// Four codes of 7 bits, the lowest first, as 32 signs: the eighth of each is the parity of its seven.
#[inline(always)]
pub(super) fn signs_of_codes(codes: u32) -> u32 {
    let seven = |i: u32| (codes >> (7 * i) & 127) << (8 * i);
    let x = seven(0) | seven(1) | seven(2) | seven(3);
    // Folded within each byte; bits that cross into a neighbour do not reach its lowest bit.
    let fold = x ^ x >> 4;
    let fold = fold ^ fold >> 2;
    let fold = fold ^ fold >> 1;
    x | (fold & 0x0101_0101) << 7
}

/// The 32 bits at byte `at`.
#[inline(always)]
pub(super) fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// The 16 bits at byte `at`.
#[inline(always)]
pub(super) fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

/// Nibble `k` of the bytes from `at` on, the low half of a byte first.
#[inline(always)]
pub(super) fn nibble_at(b: &[u8], at: usize, k: usize) -> u8 {
    b[at + k / 2] >> (k % 2 * 4) & 15
}

/// Implements the hooks of a [`Codebook`].
macro_rules! codebook {
    ($ty:ident) => {
        #[cfg(target_arch = "x86_64")]
        impl $crate::blocks::avx2_rows::RowsAvx2 for $ty {
            #[inline(always)]
            unsafe fn group256(row: *const u8, b: usize) -> $crate::blocks::avx2_rows::Group {
                // SAFETY: by the trait's contract.
                unsafe { $crate::blocks::codebook::avx2_group::<Self>(row, b) }
            }
        }

        #[cfg(target_arch = "x86_64")]
        impl $crate::blocks::avx512_rows::RowsAvx512 for $ty {
            type Offsets = ();

            #[inline(always)]
            unsafe fn begin(
                row: *const u8,
                g: usize,
                _: usize,
            ) -> $crate::blocks::avx512_rows::Group256<()> {
                // SAFETY: by the trait's contract.
                unsafe { $crate::blocks::codebook::avx512_begin::<Self>(row, g) }
            }

            #[inline(always)]
            unsafe fn quants<const HALF: bool>(
                at: *const u8,
                j: usize,
            ) -> std::arch::x86_64::__m512i {
                // SAFETY: by the trait's contract.
                unsafe { $crate::blocks::codebook::avx512_quants::<Self>(at, j) }
            }
        }
    };
}
pub(super) use codebook;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Codebook;
    use crate::blocks::{avx2_rows, avx512_rows};
    use std::arch::x86_64::*;

    /// # Safety
    /// As for `RowsAvx2::group256`.
    #[inline(always)]
    pub(crate) unsafe fn avx2_group<Q: Codebook>(row: *const u8, b: usize) -> avx2_rows::Group {
        // SAFETY: by the caller's promise.
        unsafe {
            let at = row.add(b / 8 * Q::BYTES);
            let (block, g) = (std::slice::from_raw_parts(at, Q::BYTES), b % 8);
            let [a, b, c, d] = Q::entries(block, g).map(|entry| entry as i64);
            let mut q = _mm256_set_epi64x(d, c, b, a);
            if Q::SIGNED {
                let negative = avx2_rows::set_bits(Q::signs(block, g));
                // Inverting and adding one, which subtracting −1 does.
                q = _mm256_sub_epi8(_mm256_xor_si256(q, negative), negative);
                q = _mm256_add_epi8(q, _mm256_set1_epi8(Q::ZERO as i8));
            }
            let unit = Q::unit(block);
            let d = if Q::SCALES == 2 {
                [2 * g, 2 * g + 1].map(|k| unit * f32::from(2 * Q::step(block, k) + 1))
            } else {
                [unit * f32::from(2 * Q::step(block, g) + 1); 2]
            };
            avx2_rows::Group { q, d, m: [0.0; 2] }
        }
    }

    /// # Safety
    /// As for `RowsAvx512::begin`.
    #[inline(always)]
    pub(crate) unsafe fn avx512_begin<Q: Codebook>(
        row: *const u8,
        g: usize,
    ) -> avx512_rows::Group256<()> {
        // SAFETY: by the caller's promise.
        unsafe {
            let at = row.add(g * Q::BYTES);
            let block = std::slice::from_raw_parts(at, Q::BYTES);
            let mut steps = [0u8; 16];
            for (k, step) in steps.iter_mut().take(8 * Q::SCALES).enumerate() {
                *step = 2 * Q::step(block, k) + 1;
            }
            // If the type has one scale for 32, the upper eight lanes are offsets: zero.
            let steps = _mm512_cvtepu8_epi32(_mm_loadu_si128(steps.as_ptr().cast()));
            let unit = _mm512_set1_ps(Q::unit(block));
            let scales = _mm512_mul_ps(_mm512_cvtepi32_ps(steps), unit);
            avx512_rows::Group256 { at, scales, offsets: () }
        }
    }

    /// # Safety
    /// As for `RowsAvx512::quants`.
    #[inline(always)]
    pub(crate) unsafe fn avx512_quants<Q: Codebook>(at: *const u8, j: usize) -> __m512i {
        // SAFETY: by the caller's promise.
        unsafe {
            let block = std::slice::from_raw_parts(at, Q::BYTES);
            let [a, b, c, d] = Q::entries(block, 2 * j).map(|entry| entry as i64);
            let [e, f, g, h] = Q::entries(block, 2 * j + 1).map(|entry| entry as i64);
            let q = _mm512_set_epi64(h, g, f, e, d, c, b, a);
            if !Q::SIGNED {
                return q;
            }
            let signs = [Q::signs(block, 2 * j), Q::signs(block, 2 * j + 1)];
            let negative = u64::from(signs[0]) | u64::from(signs[1]) << 32;
            let zero = _mm512_set1_epi8(Q::ZERO as i8);
            _mm512_mask_sub_epi8(_mm512_add_epi8(zero, q), negative, zero, q)
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{avx2_group, avx512_begin, avx512_quants};
