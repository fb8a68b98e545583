//! Reads tiles with AVX-512: lines of 16 rows × 4 unsigned codes, and scales of 16 rows; also code shared by several types.

use super::BlockFormat;
use std::arch::x86_64::*;

/// The scales and offsets that turn the sums of a group of 32 weights into floats, for each of 16 rows.
#[derive(Clone, Copy)]
pub(crate) struct Scales {
    /// Scales of the first and of the second 16 weights; the same if the type has one per 32.
    pub d: [__m512; 2],
    /// The offsets, likewise; zeros if the type has none.
    pub m: [__m512; 2],
}

/// A block type's units. A group has 32 weights; `P` is the group's number modulo [`PHASES`](TilesAvx512::PHASES), known at
/// compile time, so that shifts are constants.
///
/// # Safety
/// For all functions: `unit` points to a whole unit, the groups and lines exist, and the CPU has the SIMD level.
pub(crate) trait TilesAvx512: BlockFormat {
    /// The number of groups after which the layout of the bits repeats: 1, 2 or 4.
    const PHASES: usize;
    /// Data computed once per unit.
    type Head: Copy;

    /// Called before the other functions for a unit.
    unsafe fn head(unit: *const u8) -> Self::Head;

    /// The scales and offsets of group `g`.
    unsafe fn scales(unit: *const u8, head: &Self::Head, g: usize) -> Scales;

    /// Weights `32g + 4j .. 32g + 4j + 4` of all rows, as unsigned codes.
    unsafe fn line<const P: usize>(
        unit: *const u8,
        head: &Self::Head,
        g: usize,
        j: usize,
    ) -> __m512i;

    /// True if codes can be read from rows by [`Self::columns`], which is faster for one or two tokens than packing them into lines. Only for blocks
    /// of 32.
    const IN_ROWS: bool = false;

    /// Weights `16·half ..` of the blocks of four rows, as unsigned codes: quarter `q` of the register has those of row `4q`, counted from the row
    /// whose block is given; rows are `stride` bytes apart.
    ///
    /// # Safety
    /// The blocks of these rows can be read.
    #[inline(always)]
    unsafe fn columns(_block: *const u8, _stride: usize, _half: usize) -> __m512i {
        unreachable!("codes are packed into lines")
    }
}

/// 16 f16 at `p`.
#[inline(always)]
pub(super) unsafe fn halves(p: *const u8) -> __m512 {
    // SAFETY: inside the caller's unit.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
}

#[inline(always)]
pub(super) unsafe fn load(p: *const u8) -> __m512i {
    // SAFETY: inside the caller's unit.
    unsafe { _mm512_loadu_si512(p.cast()) }
}

#[inline(always)]
pub(super) unsafe fn low(v: __m512i) -> __m512i {
    // SAFETY: the callers' CPU has the SIMD level.
    unsafe { _mm512_and_si512(v, _mm512_set1_epi8(15)) }
}

#[inline(always)]
pub(super) unsafe fn high(v: __m512i) -> __m512i {
    // SAFETY: the callers' CPU has the SIMD level.
    unsafe { low(_mm512_srli_epi16::<4>(v)) }
}

/// Line `j` of a group whose four lines of nibbles are at `lines`: low nibbles first.
#[inline(always)]
pub(super) unsafe fn nibbles(lines: *const u8, j: usize) -> __m512i {
    // SAFETY: inside the caller's unit.
    unsafe {
        let v = load(lines.add(64 * (j % 4)));
        if j < 4 { low(v) } else { high(v) }
    }
}

/// Line `j` of group `g` of a field of bit pairs, see `pairs` in `shared`; `P` is `g` modulo four.
#[inline(always)]
pub(super) unsafe fn pairs<const P: usize>(lines: *const u8, g: usize, j: usize) -> __m512i {
    // SAFETY: inside the caller's unit.
    unsafe {
        let v = load(lines.add(64 * (8 * (g / 4) + j)));
        let v = match P {
            0 => v,
            1 => _mm512_srli_epi16::<2>(v),
            2 => _mm512_srli_epi16::<4>(v),
            _ => _mm512_srli_epi16::<6>(v),
        };
        _mm512_and_si512(v, _mm512_set1_epi8(3))
    }
}

/// Adds fifth bits: mask `i` of `masks`.
#[inline(always)]
pub(super) unsafe fn with_fifth(q: __m512i, masks: *const u8, i: usize) -> __m512i {
    // SAFETY: inside the caller's unit.
    unsafe {
        let mask = masks.add(8 * i).cast::<u64>().read_unaligned();
        _mm512_mask_add_epi8(q, mask, q, _mm512_set1_epi8(16))
    }
}

/// The scales of a type with one per block of 32, and one offset if it has any.
#[inline(always)]
pub(super) unsafe fn one_scale<Q: BlockFormat>(unit: *const u8) -> Scales {
    // SAFETY: inside the caller's unit.
    unsafe {
        let m = if Q::OFFSETS == 0 { _mm512_setzero_ps() } else { halves(unit.add(32)) };
        Scales { d: [halves(unit); 2], m: [m; 2] }
    }
}

/// Q4_K and Q5_K: scales and minima of all groups, and their multipliers.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct HeadK {
    /// `[8 groups][16 rows]`
    scales: [u8; 128],
    /// `[8 groups][16 rows]`
    minima: [u8; 128],
    d: __m512,
    dmin: __m512,
}

impl HeadK {
    #[inline(always)]
    pub(super) unsafe fn of(unit: *const u8) -> HeadK {
        // SAFETY: inside the caller's unit.
        unsafe {
            // Four of the twelve bytes each, for 16 rows: see `scale_min_k` in `shared` for the bits.
            let (a, b, c) = (load(unit.add(64)), load(unit.add(128)), load(unit.add(192)));
            let six = _mm512_set1_epi8(63);
            let two = _mm512_set1_epi8(0x30);
            let upper = |v| _mm512_and_si512(_mm512_srli_epi16::<2>(v), two);
            let mut head = HeadK {
                scales: [0; 128],
                minima: [0; 128],
                d: halves(unit),
                // Offsets are subtracted.
                dmin: _mm512_sub_ps(_mm512_setzero_ps(), halves(unit.add(32))),
            };
            let (s, m) = (head.scales.as_mut_ptr(), head.minima.as_mut_ptr());
            _mm512_store_si512(s.cast(), _mm512_and_si512(a, six));
            _mm512_store_si512(s.add(64).cast(), _mm512_or_si512(low(c), upper(a)));
            _mm512_store_si512(m.cast(), _mm512_and_si512(b, six));
            _mm512_store_si512(m.add(64).cast(), _mm512_or_si512(high(c), upper(b)));
            head
        }
    }

    #[inline(always)]
    pub(super) unsafe fn scales(&self, g: usize) -> Scales {
        // SAFETY: there are 8 groups; the callers' CPU has the SIMD level.
        unsafe {
            let floats = |p: *const u8| {
                _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128(p.add(16 * g).cast())))
            };
            let d = _mm512_mul_ps(self.d, floats(self.scales.as_ptr()));
            let m = _mm512_mul_ps(self.dmin, floats(self.minima.as_ptr()));
            Scales { d: [d; 2], m: [m; 2] }
        }
    }
}

/// Line `j` of group `g` of Q4_K or Q5_K, whose pairs of groups share eight lines of nibbles.
#[inline(always)]
pub(super) unsafe fn nibbles_k<const P: usize>(lines: *const u8, g: usize, j: usize) -> __m512i {
    // SAFETY: inside the caller's unit.
    unsafe {
        let v = load(lines.add(64 * (8 * (g / 2) + j)));
        if P == 0 { low(v) } else { high(v) }
    }
}
