//! How AVX-512 reads each format's units: lines of 16 rows × 4 unsigned bytes, and scales of 16
//! rows.

use crate::quant::{self, Quant};
use std::arch::x86_64::*;

/// What turns the sums of a group of 32 weights into floats, for each of 16 rows.
#[derive(Clone, Copy)]
pub(super) struct Scales {
    /// Of the first and of the second 16 weights: the same, but for Q6_K.
    pub d: [__m512; 2],
    /// The offset; zeros where the format has none.
    pub m: __m512,
}

/// A format's unit. Groups are of 32 weights; `P` is the group's number modulo [`Lines::PHASES`],
/// known when the code is compiled, so that shifts are constants.
///
/// # Safety
/// Of all functions: `unit` points to a whole unit, groups and lines exist, the CPU has the tier.
pub(super) trait Lines: Quant {
    /// Groups after which the bits lie in the same way again.
    const PHASES: usize;
    /// What is computed once per unit.
    type Head: Copy;

    unsafe fn head(unit: *const u8) -> Self::Head;

    /// Of group `g`.
    unsafe fn scales(unit: *const u8, head: &Self::Head, g: usize) -> Scales;

    /// Weights `32g + 4j .. 32g + 4j + 4` of all rows, as unsigned bytes.
    unsafe fn line<const P: usize>(unit: *const u8, g: usize, j: usize) -> __m512i;
}

/// 16 f16 at `p`.
#[inline(always)]
unsafe fn halves(p: *const u8) -> __m512 {
    // SAFETY: inside the caller's unit.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
}

#[inline(always)]
unsafe fn load(p: *const u8) -> __m512i {
    // SAFETY: inside the caller's unit.
    unsafe { _mm512_loadu_si512(p.cast()) }
}

#[inline(always)]
unsafe fn low(v: __m512i) -> __m512i {
    // SAFETY: the callers' CPU has the tier.
    unsafe { _mm512_and_si512(v, _mm512_set1_epi8(15)) }
}

#[inline(always)]
unsafe fn high(v: __m512i) -> __m512i {
    // SAFETY: the callers' CPU has the tier.
    unsafe { low(_mm512_srli_epi16::<4>(v)) }
}

/// Line `j` of a group whose four lines of nibbles are at `lines`: low nibbles first.
#[inline(always)]
unsafe fn nibbles(lines: *const u8, j: usize) -> __m512i {
    // SAFETY: inside the caller's unit.
    unsafe {
        let v = load(lines.add(64 * (j % 4)));
        if j < 4 { low(v) } else { high(v) }
    }
}

/// Adds fifth bits, which are mask `i` of those at `masks`.
#[inline(always)]
unsafe fn with_fifth(q: __m512i, masks: *const u8, i: usize) -> __m512i {
    // SAFETY: inside the caller's unit.
    unsafe {
        let mask = masks.add(8 * i).cast::<u64>().read_unaligned();
        _mm512_mask_add_epi8(q, mask, q, _mm512_set1_epi8(16))
    }
}

/// The scales of a format with one per block of 32.
#[inline(always)]
unsafe fn one_scale(unit: *const u8, offset: bool) -> Scales {
    // SAFETY: inside the caller's unit.
    unsafe {
        let m = if offset { halves(unit.add(32)) } else { _mm512_setzero_ps() };
        Scales { d: [halves(unit); 2], m }
    }
}

/// A format of blocks of 32, whose groups are its units.
macro_rules! blocks_of_32 {
    ($($name:ident: |$unit:ident, $j:ident| $line:expr;)*) => {$(
        impl Lines for quant::$name {
            const PHASES: usize = 1;
            type Head = ();

            #[inline(always)]
            unsafe fn head(_: *const u8) {}

            #[inline(always)]
            unsafe fn scales(unit: *const u8, _: &(), _: usize) -> Scales {
                // SAFETY: by the trait's contract.
                unsafe { one_scale(unit, Self::MIN) }
            }

            #[inline(always)]
            unsafe fn line<const P: usize>($unit: *const u8, _: usize, $j: usize) -> __m512i {
                // SAFETY: by the trait's contract.
                unsafe { $line }
            }
        }
    )*};
}

blocks_of_32! {
    Q4_0: |unit, j| nibbles(unit.add(32), j);
    Q4_1: |unit, j| nibbles(unit.add(64), j);
    Q5_0: |unit, j| with_fifth(nibbles(unit.add(96), j), unit.add(32), 2 * (j % 4) + j / 4);
    Q5_1: |unit, j| with_fifth(nibbles(unit.add(128), j), unit.add(64), 2 * (j % 4) + j / 4);
    Q8_0: |unit, j| load(unit.add(32 + 64 * j));
}

/// Q4_K and Q5_K: scales and minima of all groups, and what they are multiplied with.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct HeadK {
    /// `[8 groups][16 rows]`
    scales: [u8; 128],
    /// `[8 groups][16 rows]`
    minima: [u8; 128],
    d: __m512,
    dmin: __m512,
}

#[inline(always)]
unsafe fn head_k(unit: *const u8) -> HeadK {
    // SAFETY: inside the caller's unit.
    unsafe {
        // Four of the twelve bytes each, of 16 rows: see `scale_min_k` in `quant` for the bits.
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
unsafe fn scales_k(head: &HeadK, g: usize) -> Scales {
    // SAFETY: there are 8 groups; the callers' CPU has the tier.
    unsafe {
        let floats = |p: *const u8| {
            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128(p.add(16 * g).cast())))
        };
        let d = _mm512_mul_ps(head.d, floats(head.scales.as_ptr()));
        Scales { d: [d; 2], m: _mm512_mul_ps(head.dmin, floats(head.minima.as_ptr())) }
    }
}

/// Line `j` of group `g`, whose pair of groups shares eight lines of nibbles.
#[inline(always)]
unsafe fn nibbles_k<const P: usize>(lines: *const u8, g: usize, j: usize) -> __m512i {
    // SAFETY: inside the caller's unit.
    unsafe {
        let v = load(lines.add(64 * (8 * (g / 2) + j)));
        if P == 0 { low(v) } else { high(v) }
    }
}

/// A format of superblocks whose pairs of groups share lines of nibbles.
macro_rules! pairs_of_groups {
    ($($name:ident: |$unit:ident, $g:ident, $j:ident, $p:ident| $line:expr;)*) => {$(
        impl Lines for quant::$name {
            const PHASES: usize = 2;
            type Head = HeadK;

            #[inline(always)]
            unsafe fn head(unit: *const u8) -> HeadK {
                // SAFETY: by the trait's contract.
                unsafe { head_k(unit) }
            }

            #[inline(always)]
            unsafe fn scales(_: *const u8, head: &HeadK, g: usize) -> Scales {
                // SAFETY: by the trait's contract.
                unsafe { scales_k(head, g) }
            }

            #[inline(always)]
            unsafe fn line<const $p: usize>($unit: *const u8, $g: usize, $j: usize) -> __m512i {
                // SAFETY: by the trait's contract.
                unsafe { $line }
            }
        }
    )*};
}

pairs_of_groups! {
    Q4K: |unit, g, j, P| nibbles_k::<P>(unit.add(256), g, j);
    Q5K: |unit, g, j, P| {
        let q = nibbles_k::<P>(unit.add(768), g, j);
        with_fifth(q, unit.add(256), 16 * (g / 2) + 2 * j + P)
    };
}

impl Lines for quant::Q6K {
    const PHASES: usize = 4;
    type Head = __m512;

    #[inline(always)]
    unsafe fn head(unit: *const u8) -> __m512 {
        // SAFETY: by the trait's contract.
        unsafe { halves(unit) }
    }

    #[inline(always)]
    unsafe fn scales(unit: *const u8, d: &__m512, g: usize) -> Scales {
        // SAFETY: by the trait's contract.
        unsafe {
            let scaled = |h: usize| {
                let bytes = _mm_loadu_si128(unit.add(32 + 16 * (2 * g + h)).cast());
                _mm512_mul_ps(*d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)))
            };
            Scales { d: [scaled(0), scaled(1)], m: _mm512_setzero_ps() }
        }
    }

    #[inline(always)]
    unsafe fn line<const P: usize>(unit: *const u8, g: usize, j: usize) -> __m512i {
        // SAFETY: by the trait's contract.
        unsafe {
            let q = load(unit.add(1312 + 64 * (16 * (g / 4) + 8 * (P % 2) + j)));
            let q = if P < 2 { q } else { _mm512_srli_epi16::<4>(q) };
            // The bit pair of group P, moved to bits 4 and 5 of its byte.
            let h = load(unit.add(288 + 64 * (8 * (g / 4) + j)));
            let h = match P {
                0 => _mm512_slli_epi16::<4>(h),
                1 => _mm512_slli_epi16::<2>(h),
                2 => h,
                _ => _mm512_srli_epi16::<2>(h),
            };
            // Bits 0 to 3 of one, the others of the other; then only bits 4 and 5 of those.
            let v = _mm512_ternarylogic_epi64::<0xca>(_mm512_set1_epi8(15), q, h);
            _mm512_and_si512(v, _mm512_set1_epi8(63))
        }
    }
}
