//! AVX-512 unpacking of the formats with blocks of 32: two blocks a step.
//!
//! The bytes of two blocks are loaded at once (masked, so that the end of the file is never
//! crossed) and a byte permutation puts them where they belong: each block's 16 bytes of nibbles
//! twice, the second copy to be shifted; each scale eight times.

use super::avx512::{Step, Unpack};
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

/// Positions of the 16-bit word at the start of two blocks, eight times each, and, in the upper
/// half, of the word after it.
const fn scale_table(bytes: usize) -> Table {
    let mut t = [0; 64];
    let mut i = 0;
    while i < 64 {
        t[i] = (i % 32 / 16 * bytes + i / 32 * 2 + i % 2) as u8;
        i += 1;
    }
    Table(t)
}

#[inline(always)]
unsafe fn table(t: &'static Table) -> __m512i {
    // SAFETY: 64 aligned bytes; the callers' CPU has the tier.
    unsafe { _mm512_load_si512(t.0.as_ptr().cast()) }
}

/// The bytes of two blocks (`HALF`: of one), zeros behind them.
#[inline(always)]
unsafe fn load<Q: Quant, const HALF: bool>(p: *const u8) -> __m512i {
    let n = if HALF { Q::BYTES } else { 2 * Q::BYTES };
    // SAFETY: masked bytes are not read; the others are the caller's blocks.
    unsafe { _mm512_maskz_loadu_epi8((1u64 << n) - 1, p.cast()) }
}

/// Nibbles in the order of the weights.
#[inline(always)]
unsafe fn nibbles(raw: __m512i, t: &'static Table) -> __m512i {
    // SAFETY: the callers' CPU has the tier.
    unsafe {
        let v = _mm512_permutexvar_epi8(table(t), raw);
        let v = _mm512_srlv_epi64(v, _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0));
        _mm512_and_si512(v, _mm512_set1_epi8(15))
    }
}

/// The first f16 of both blocks spread over their lanes, and the second one.
#[inline(always)]
unsafe fn scales(raw: __m512i, t: &'static Table) -> (__m512, __m512) {
    // SAFETY: the callers' CPU has the tier.
    unsafe {
        let v = _mm512_permutexvar_epi8(table(t), raw);
        (
            _mm512_cvtph_ps(_mm512_castsi512_si256(v)),
            _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(v)),
        )
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
    type Group = *const u8;

    #[inline(always)]
    unsafe fn begin(row: *const u8, g: usize) -> *const u8 {
        row.wrapping_add(g * 8 * Self::BYTES)
    }

    #[inline(always)]
    unsafe fn step<const HALF: bool>(group: &*const u8, j: usize) -> Step {
        static NIBBLES: Table = nibble_table(18, 2);
        static SCALES: Table = scale_table(18);
        // SAFETY: by the trait's contract.
        unsafe {
            let raw = load::<Self, HALF>(group.add(j * 2 * Self::BYTES));
            let (d, m) = scales(raw, &SCALES);
            Step { q: nibbles(raw, &NIBBLES), d, m }
        }
    }
}

impl Unpack for quant::Q4_1 {
    type Group = *const u8;

    #[inline(always)]
    unsafe fn begin(row: *const u8, g: usize) -> *const u8 {
        row.wrapping_add(g * 8 * Self::BYTES)
    }

    #[inline(always)]
    unsafe fn step<const HALF: bool>(group: &*const u8, j: usize) -> Step {
        static NIBBLES: Table = nibble_table(20, 4);
        static SCALES: Table = scale_table(20);
        // SAFETY: by the trait's contract.
        unsafe {
            let raw = load::<Self, HALF>(group.add(j * 2 * Self::BYTES));
            let (d, m) = scales(raw, &SCALES);
            Step { q: nibbles(raw, &NIBBLES), d, m }
        }
    }
}

impl Unpack for quant::Q5_0 {
    type Group = *const u8;

    #[inline(always)]
    unsafe fn begin(row: *const u8, g: usize) -> *const u8 {
        row.wrapping_add(g * 8 * Self::BYTES)
    }

    #[inline(always)]
    unsafe fn step<const HALF: bool>(group: &*const u8, j: usize) -> Step {
        static NIBBLES: Table = nibble_table(22, 6);
        static SCALES: Table = scale_table(22);
        // SAFETY: by the trait's contract.
        unsafe {
            let p = group.add(j * 2 * Self::BYTES);
            let raw = load::<Self, HALF>(p);
            let (d, m) = scales(raw, &SCALES);
            let q = add_fifth::<Self, HALF>(nibbles(raw, &NIBBLES), p, 2);
            Step { q, d, m }
        }
    }
}

impl Unpack for quant::Q5_1 {
    type Group = *const u8;

    #[inline(always)]
    unsafe fn begin(row: *const u8, g: usize) -> *const u8 {
        row.wrapping_add(g * 8 * Self::BYTES)
    }

    #[inline(always)]
    unsafe fn step<const HALF: bool>(group: &*const u8, j: usize) -> Step {
        static NIBBLES: Table = nibble_table(24, 8);
        static SCALES: Table = scale_table(24);
        // SAFETY: by the trait's contract.
        unsafe {
            let p = group.add(j * 2 * Self::BYTES);
            let raw = load::<Self, HALF>(p);
            let (d, m) = scales(raw, &SCALES);
            let q = add_fifth::<Self, HALF>(nibbles(raw, &NIBBLES), p, 4);
            Step { q, d, m }
        }
    }
}

impl Unpack for quant::Q8_0 {
    type Group = *const u8;

    #[inline(always)]
    unsafe fn begin(row: *const u8, g: usize) -> *const u8 {
        row.wrapping_add(g * 8 * Self::BYTES)
    }

    #[inline(always)]
    unsafe fn step<const HALF: bool>(group: &*const u8, j: usize) -> Step {
        // SAFETY: by the trait's contract.
        unsafe {
            let p = group.add(j * 2 * Self::BYTES);
            let word = |p: *const u8| _mm_set1_epi16(p.cast::<i16>().read_unaligned());
            let mut q = _mm512_castsi256_si512(_mm256_loadu_si256(p.add(2).cast()));
            let mut d = _mm256_zextsi128_si256(word(p));
            if !HALF {
                let p = p.add(Self::BYTES);
                q = _mm512_inserti64x4::<1>(q, _mm256_loadu_si256(p.add(2).cast()));
                d = _mm256_inserti128_si256::<1>(d, word(p));
            }
            let q = _mm512_xor_si512(q, _mm512_set1_epi8(-128));
            Step { q, d: _mm512_cvtph_ps(d), m: _mm512_setzero_ps() }
        }
    }
}
