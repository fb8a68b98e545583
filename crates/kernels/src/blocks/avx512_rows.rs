//! Reads rows of blocks with AVX-512, in groups of 256 weights: a superblock of the K types or several smaller blocks. The scales
//! of a group are gathered once into registers; its codes are read in four steps of 64, one register of bytes each.
//!
//! For blocks of 32, the bytes of two blocks are loaded at once (masked, so that the end of the file is never crossed) and a byte
//! permutation puts each block's 16 bytes of nibbles into place twice, the second copy to be shifted. The scales of eight blocks
//! are picked out of up to four registers by two-register byte permutations.

use super::BlockFormat;
use super::shared::scales_and_minima_k;
use std::arch::x86_64::*;

/// 256 weights of a row.
#[derive(Clone, Copy)]
pub(crate) struct Group256<O> {
    /// The start of the group's bytes.
    pub at: *const u8,
    /// One scale and at most one offset per 32 weights: eight scales, then eight offsets (which are added; zero if the type has
    /// none). Otherwise ([`per_16`](super::per_16)): a scale for every 16 weights.
    pub scales: __m512,
    /// One offset for every 16 weights, if offsets have a register of their own ([`per_16`](super::per_16)).
    pub offsets: O,
}

/// [`RowsAvx512::Offsets`]: a register, or nothing. (An unused register would be stored with each of the sixteen groups of a
/// panel.)
pub(crate) trait Offsets: Copy {
    /// The offsets, in lanes of 16 weights; zeros for `()`.
    ///
    /// # Safety
    /// The CPU has the SIMD level.
    unsafe fn lanes(self) -> __m512;
}

impl Offsets for __m512 {
    #[inline(always)]
    unsafe fn lanes(self) -> __m512 {
        self
    }
}

impl Offsets for () {
    #[inline(always)]
    unsafe fn lanes(self) -> __m512 {
        // SAFETY: by the caller's promise.
        unsafe { _mm512_setzero_ps() }
    }
}

/// A block type's rows.
pub(crate) trait RowsAvx512: BlockFormat {
    /// `__m512` for a type with [`per_16`](super::per_16) and offsets; `()` for all others.
    type Offsets: Offsets;

    /// Group `g` of a row, in which `count` ≤ 8 runs of 32 weights exist; nothing past them is read, and the scales and offsets
    /// there are zero.
    ///
    /// # Safety
    /// The row holds these weights; the CPU has the SIMD level.
    unsafe fn begin(row: *const u8, g: usize, count: usize) -> Group256<Self::Offsets>;

    /// Weights `64·j .. 64·j + 64` of a group as unsigned codes in their order. With `HALF` only the first 32: the row ends
    /// there.
    ///
    /// # Safety
    /// The row holds these weights; the CPU has the SIMD level.
    unsafe fn quants<const HALF: bool>(at: *const u8, j: usize) -> __m512i;
}

/// A table of 64 byte positions.
#[repr(align(64))]
pub(super) struct Table(pub [u8; 64]);

/// Positions of the nibbles of two blocks of `bytes` bytes whose nibbles begin at `at`.
pub(super) const fn nibble_table(bytes: usize, at: usize) -> Table {
    let mut t = [0; 64];
    let mut i = 0;
    while i < 64 {
        t[i] = (i / 32 * bytes + at + i % 16) as u8;
        i += 1;
    }
    Table(t)
}

/// Returns the position of byte `o` of the gathered scales in eight blocks of `bytes` bytes: first the word at the start of each
/// block, then the word after it.
const fn scale_position(bytes: usize, o: usize) -> usize {
    o / 2 % 8 * bytes + o / 16 * 2 + o % 2
}

/// [`scale_position`] modulo 128, as a permutation of two registers needs it.
pub(super) const fn scale_table(bytes: usize) -> Table {
    let mut t = [0; 64];
    let mut i = 0;
    while i < 32 {
        t[i] = (scale_position(bytes, i) % 128) as u8;
        i += 1;
    }
    Table(t)
}

/// Mask of those of the first `n` gathered bytes that are in the registers `pair` (0: bytes 0..128 of the group, 1: 128..256).
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
pub(super) unsafe fn table(t: &'static Table) -> __m512i {
    // SAFETY: 64 aligned bytes; the callers' CPU has the SIMD level.
    unsafe { _mm512_load_si512(t.0.as_ptr().cast()) }
}

/// The first `n` bytes at `p`, zeros after them. Masked bytes are not read.
#[inline(always)]
pub(super) unsafe fn load(p: *const u8, n: usize) -> __m512i {
    let mask = if n >= 64 { u64::MAX } else { (1u64 << n) - 1 };
    // SAFETY: the caller's n bytes; its CPU has the SIMD level.
    unsafe { _mm512_maskz_loadu_epi8(mask, p.cast()) }
}

/// The f16 scales (and offsets) that begin each of `count` blocks of 32.
#[inline(always)]
pub(super) unsafe fn leading_scales<Q: BlockFormat>(
    row: *const u8,
    g: usize,
    count: usize,
    positions: &'static Table,
) -> Group256<()> {
    // SAFETY: `count` blocks of the caller; its CPU has the SIMD level.
    unsafe {
        let at = row.add(g * 8 * Q::BYTES);
        let bytes = count * Q::BYTES;
        let part = |i: usize| load(at.wrapping_add(64 * i), bytes.saturating_sub(64 * i));
        let wanted = if Q::OFFSETS == 0 { 16 } else { 32 };
        let (low, high) = (scale_mask(Q::BYTES, wanted, 0), scale_mask(Q::BYTES, wanted, 1));
        let i = table(positions);
        let mut words = _mm512_maskz_permutex2var_epi8(low, part(0), i, part(1));
        if high != 0 {
            let w = _mm512_maskz_permutex2var_epi8(high, part(2), i, part(3));
            words = _mm512_or_si512(words, w);
        }
        Group256 { at, offsets: (), scales: _mm512_cvtph_ps(_mm512_castsi512_si256(words)) }
    }
}

/// The f16 at byte `at` of each block of 64 weights or more, for `count` runs of 32 weights.
#[inline(always)]
pub(super) unsafe fn one_scale<Q: BlockFormat>(
    row: *const u8,
    g: usize,
    count: usize,
    at: usize,
) -> Group256<()> {
    let (runs, mut scales) = (Q::BLOCK / 32, [0u16; 8]);
    // SAFETY: `count` runs of the caller, which are whole blocks; its CPU has the SIMD level.
    unsafe {
        let group = row.add(g * (8 / runs) * Q::BYTES);
        for b in 0..count / runs {
            let scale = group.add(b * Q::BYTES + at).cast::<u16>().read_unaligned();
            scales[b * runs..][..runs].fill(scale);
        }
        let scales = _mm256_cvtph_ps(_mm_loadu_si128(scales.as_ptr().cast()));
        Group256 { at: group, offsets: (), scales: _mm512_zextps256_ps512(scales) }
    }
}

/// 64 nibbles in bytes → their entries in `table`.
#[inline(always)]
pub(super) unsafe fn looked_up(table: &[u8; 16], nibbles: __m512i) -> __m512i {
    // SAFETY: the callers' CPU has the SIMD level.
    unsafe {
        let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
        _mm512_shuffle_epi8(table, nibbles)
    }
}

/// Two blocks' nibbles (`HALF`: one block's) in the order of the weights.
#[inline(always)]
pub(super) unsafe fn nibbles<Q: BlockFormat, const HALF: bool>(
    p: *const u8,
    t: &'static Table,
) -> __m512i {
    // SAFETY: the caller's blocks; its CPU has the SIMD level.
    unsafe { nibbles_of(p, if HALF { Q::BYTES } else { 2 * Q::BYTES }, t) }
}

/// The nibbles at the positions of a [`nibble_table`] in `n` bytes, in the order of the weights.
#[inline(always)]
pub(super) unsafe fn nibbles_of(p: *const u8, n: usize, t: &'static Table) -> __m512i {
    // SAFETY: the caller's n bytes; its CPU has the SIMD level.
    unsafe {
        let v = _mm512_permutexvar_epi8(table(t), load(p, n));
        let v = _mm512_srlv_epi64(v, _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0));
        _mm512_and_si512(v, _mm512_set1_epi8(15))
    }
}

/// Adds 16 to the bytes whose bit is set in the 32-bit words at `at` of both blocks.
#[inline(always)]
pub(super) unsafe fn add_fifth<Q: BlockFormat, const HALF: bool>(
    q: __m512i,
    p: *const u8,
    at: usize,
) -> __m512i {
    // SAFETY: the words are in the caller's blocks; its CPU has the SIMD level.
    unsafe {
        let mut bits = p.add(at).cast::<u32>().read_unaligned() as u64;
        if !HALF {
            bits |= (p.add(Q::BYTES + at).cast::<u32>().read_unaligned() as u64) << 32;
        }
        _mm512_mask_add_epi8(q, bits, q, _mm512_set1_epi8(16))
    }
}

/// Groups `2j` and `2j + 1` of 64 bytes of bit pairs at `p`, see `pairs` in `shared`.
#[inline(always)]
pub(super) unsafe fn pairs(p: *const u8, j: usize) -> __m512i {
    // SAFETY: 32 bytes of the caller's block; its CPU has the SIMD level.
    unsafe {
        // Steps 0 and 1 are bit pairs 0 to 3 of the first 32 bytes, 2 and 3 those of the others.
        let v = _mm512_broadcast_i64x4(_mm256_loadu_si256(p.add(32 * (j / 2)).cast()));
        let by = _mm512_set_epi64(2, 2, 2, 2, 0, 0, 0, 0);
        let by = _mm512_add_epi64(by, _mm512_set1_epi64(4 * (j as i64 % 2)));
        _mm512_and_si512(_mm512_srlv_epi64(v, by), _mm512_set1_epi8(3))
    }
}

/// The group of a Q4_K or Q5_K block: 8 × d·sc, then 8 × −dmin·m.
#[inline(always)]
pub(super) unsafe fn group_k(at: *const u8) -> Group256<()> {
    // SAFETY: 16 bytes of the caller's block; its CPU has the SIMD level.
    unsafe {
        let word = |i: usize| at.add(4 + 4 * i).cast::<u32>().read_unaligned();
        let (sc, m) = scales_and_minima_k([word(0), word(1), word(2)]);
        let v = _mm512_cvtepu8_epi32(_mm_set_epi64x(m as i64, sc as i64));
        // d in the lower eight lanes, −dmin in the upper ones.
        let dd = _mm_set1_epi32(at.cast::<i32>().read_unaligned() ^ i32::MIN);
        let dd = _mm256_shuffle_epi8(
            _mm256_broadcastsi128_si256(dd),
            _mm256_set_m128i(_mm_set1_epi16(0x0302), _mm_set1_epi16(0x0100)),
        );
        Group256 {
            at,
            offsets: (),
            scales: _mm512_mul_ps(_mm512_cvtepi32_ps(v), _mm512_cvtph_ps(dd)),
        }
    }
}

/// 32 bytes of nibbles → 32 low ones, 32 high ones.
#[inline(always)]
pub(super) unsafe fn low_high(p: *const u8) -> __m512i {
    // SAFETY: 32 bytes of the caller's block; its CPU has the SIMD level.
    unsafe {
        let v = _mm512_broadcast_i64x4(_mm256_loadu_si256(p.cast()));
        let v = _mm512_srlv_epi64(v, _mm512_set_epi64(4, 4, 4, 4, 0, 0, 0, 0));
        _mm512_and_si512(v, _mm512_set1_epi8(15))
    }
}
