//! AVX-512 unpacking of the formats with blocks of 32: two blocks a step.
//!
//! The bytes of two blocks are loaded at once (masked, so that the end of the file is never
//! crossed) and a byte permutation puts each block's 16 bytes of nibbles into place twice, the
//! second copy to be shifted. The scales of eight blocks are picked out of up to four registers
//! by two-register byte permutations.

use super::avx512::{Group, Unpack};
use crate::quant::{self, Quant};
use std::arch::x86_64::*;

/// A table of 64 byte positions.
#[repr(align(64))]
struct Table([u8; 64]);

/// Positions of the nibbles of two blocks of `bytes` bytes whose nibbles begin at `at`.
const fn nibble_table(bytes: usize, at: usize) -> Table {
    let mut t = [0; 64];
    let mut i = 0;
    while i < 64 {
        t[i] = (i / 32 * bytes + at + i % 16) as u8;
        i += 1;
    }
    Table(t)
}

/// Where byte `o` of the gathered scales comes from in eight blocks of `bytes` bytes: first the
/// word at the start of each block, then the word after it.
const fn scale_position(bytes: usize, o: usize) -> usize {
    o / 2 % 8 * bytes + o / 16 * 2 + o % 2
}

/// [`scale_position`] modulo 128, which is what a permutation of two registers looks at.
const fn scale_table(bytes: usize) -> Table {
    let mut t = [0; 64];
    let mut i = 0;
    while i < 32 {
        t[i] = (scale_position(bytes, i) % 128) as u8;
        i += 1;
    }
    Table(t)
}

/// Which of the first `n` gathered bytes lie in the registers `pair` (0: bytes 0..128 of the
/// group, 1: 128..256).
const fn scale_mask(bytes: usize, n: usize, pair: usize) -> u64 {
    let (mut mask, mut i) = (0, 0);
    while i < n {
        if scale_position(bytes, i) / 128 == pair {
            mask |= 1 << i;
        }
        i += 1;
    }
    mask
}

#[inline(always)]
unsafe fn table(t: &'static Table) -> __m512i {
    // SAFETY: 64 aligned bytes; the callers' CPU has the tier.
    unsafe { _mm512_load_si512(t.0.as_ptr().cast()) }
}

/// The first `n` bytes at `p`, zeros behind them. Masked bytes are not read.
#[inline(always)]
unsafe fn load(p: *const u8, n: usize) -> __m512i {
    let mask = if n >= 64 { u64::MAX } else { (1u64 << n) - 1 };
    // SAFETY: the caller's n bytes; its CPU has the tier.
    unsafe { _mm512_maskz_loadu_epi8(mask, p.cast()) }
}

/// The scales (and offsets) of `count` blocks.
#[inline(always)]
unsafe fn group<Q: Quant>(
    row: *const u8,
    g: usize,
    count: usize,
    positions: &'static Table,
) -> Group {
    // SAFETY: `count` blocks of the caller; its CPU has the tier.
    unsafe {
        let at = row.add(g * 8 * Q::BYTES);
        let bytes = count * Q::BYTES;
        let part = |i: usize| load(at.wrapping_add(64 * i), bytes.saturating_sub(64 * i));
        let wanted = if Q::MIN { 32 } else { 16 };
        let (low, high) = (scale_mask(Q::BYTES, wanted, 0), scale_mask(Q::BYTES, wanted, 1));
        let i = table(positions);
        let mut words = _mm512_maskz_permutex2var_epi8(low, part(0), i, part(1));
        if high != 0 {
            let w = _mm512_maskz_permutex2var_epi8(high, part(2), i, part(3));
            words = _mm512_or_si512(words, w);
        }
        Group { at, scales: _mm512_cvtph_ps(_mm512_castsi512_si256(words)) }
    }
}

/// Two blocks' nibbles (`HALF`: one block's) in the order of the weights.
#[inline(always)]
unsafe fn nibbles<Q: Quant, const HALF: bool>(p: *const u8, t: &'static Table) -> __m512i {
    // SAFETY: the caller's blocks; its CPU has the tier.
    unsafe {
        let raw = load(p, if HALF { Q::BYTES } else { 2 * Q::BYTES });
        let v = _mm512_permutexvar_epi8(table(t), raw);
        let v = _mm512_srlv_epi64(v, _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0));
        _mm512_and_si512(v, _mm512_set1_epi8(15))
    }
}

/// Adds 16 to the bytes whose bit is set in the 32-bit words at `at` of both blocks.
#[inline(always)]
unsafe fn add_fifth<Q: Quant, const HALF: bool>(q: __m512i, p: *const u8, at: usize) -> __m512i {
    // SAFETY: the words lie in the caller's blocks; its CPU has the tier.
    unsafe {
        let mut bits = p.add(at).cast::<u32>().read_unaligned() as u64;
        if !HALF {
            bits |= (p.add(Q::BYTES + at).cast::<u32>().read_unaligned() as u64) << 32;
        }
        _mm512_mask_add_epi8(q, bits, q, _mm512_set1_epi8(16))
    }
}

impl Unpack for quant::Q4_0 {
    #[inline(always)]
    unsafe fn begin(row: *const u8, g: usize, count: usize) -> Group {
        static SCALES: Table = scale_table(18);
        // SAFETY: by the trait's contract.
        unsafe { group::<Self>(row, g, count, &SCALES) }
    }

    #[inline(always)]
    unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
        static NIBBLES: Table = nibble_table(18, 2);
        // SAFETY: by the trait's contract.
        unsafe { nibbles::<Self, HALF>(at.add(j * 2 * Self::BYTES), &NIBBLES) }
    }
}

impl Unpack for quant::Q4_1 {
    #[inline(always)]
    unsafe fn begin(row: *const u8, g: usize, count: usize) -> Group {
        static SCALES: Table = scale_table(20);
        // SAFETY: by the trait's contract.
        unsafe { group::<Self>(row, g, count, &SCALES) }
    }

    #[inline(always)]
    unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
        static NIBBLES: Table = nibble_table(20, 4);
        // SAFETY: by the trait's contract.
        unsafe { nibbles::<Self, HALF>(at.add(j * 2 * Self::BYTES), &NIBBLES) }
    }
}

impl Unpack for quant::Q5_0 {
    #[inline(always)]
    unsafe fn begin(row: *const u8, g: usize, count: usize) -> Group {
        static SCALES: Table = scale_table(22);
        // SAFETY: by the trait's contract.
        unsafe { group::<Self>(row, g, count, &SCALES) }
    }

    #[inline(always)]
    unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
        static NIBBLES: Table = nibble_table(22, 6);
        // SAFETY: by the trait's contract.
        unsafe {
            let p = at.add(j * 2 * Self::BYTES);
            add_fifth::<Self, HALF>(nibbles::<Self, HALF>(p, &NIBBLES), p, 2)
        }
    }
}

impl Unpack for quant::Q5_1 {
    #[inline(always)]
    unsafe fn begin(row: *const u8, g: usize, count: usize) -> Group {
        static SCALES: Table = scale_table(24);
        // SAFETY: by the trait's contract.
        unsafe { group::<Self>(row, g, count, &SCALES) }
    }

    #[inline(always)]
    unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
        static NIBBLES: Table = nibble_table(24, 8);
        // SAFETY: by the trait's contract.
        unsafe {
            let p = at.add(j * 2 * Self::BYTES);
            add_fifth::<Self, HALF>(nibbles::<Self, HALF>(p, &NIBBLES), p, 4)
        }
    }
}

impl Unpack for quant::Q8_0 {
    #[inline(always)]
    unsafe fn begin(row: *const u8, g: usize, count: usize) -> Group {
        // Eight blocks span five registers: joining the words in integer registers, which are
        // idle, is cheaper than picking them out.
        // SAFETY: `count` blocks of the caller; its CPU has the tier.
        unsafe {
            let at = row.add(g * 8 * Self::BYTES);
            let mut words = [0u64; 2];
            for i in 0..8 {
                if i < count {
                    let d = at.add(i * Self::BYTES).cast::<u16>().read_unaligned();
                    words[i / 4] |= (d as u64) << (16 * (i % 4));
                }
            }
            let words = _mm_set_epi64x(words[1] as i64, words[0] as i64);
            Group { at, scales: _mm512_zextps256_ps512(_mm256_cvtph_ps(words)) }
        }
    }

    #[inline(always)]
    unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i {
        // SAFETY: by the trait's contract.
        unsafe {
            let p = at.add(j * 2 * Self::BYTES);
            let mut q = _mm512_castsi256_si512(_mm256_loadu_si256(p.add(2).cast()));
            if !HALF {
                let second = _mm256_loadu_si256(p.add(Self::BYTES + 2).cast());
                q = _mm512_inserti64x4::<1>(q, second);
            }
            _mm512_xor_si512(q, _mm512_set1_epi8(-128))
        }
    }
}
