//! Sixteen numbers at a time, in the same order on every SIMD level: results do not depend on the level, to the bit.
//!
//! No operation here may round differently from the portable one: no fused multiply-add on f32; sums of squares in
//! sixteen f64, added pairwise.

use alight_kernels::half::{bf16_to_f32, f16_to_f32, f32_to_f16};

/// Elements handled at once.
pub(super) const LANES: usize = 16;

/// Sixteen f32 in registers, and sixteen f64 for sums of squares.
///
/// # Safety
/// All functions need the CPU features of the level; those with a pointer need sixteen elements there that may be read or
/// written, at any alignment.
pub(super) trait Lanes {
    type V: Copy;
    type Squares: Copy;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn load_f32(p: *const f32) -> Self::V;
    unsafe fn store_f32(p: *mut f32, v: Self::V);
    unsafe fn load_f16(p: *const u16) -> Self::V;
    unsafe fn store_f16(p: *mut u16, v: Self::V);
    unsafe fn load_bf16(p: *const u16) -> Self::V;
    unsafe fn store_bf16(p: *mut u16, v: Self::V);
    /// Stores numbers that are already bf16.
    unsafe fn keep_bf16(p: *mut u16, v: Self::V);
    /// Rounds to f16 and back.
    unsafe fn round_f16(v: Self::V) -> Self::V;
    /// Rounds to bf16 and back.
    unsafe fn round_bf16(v: Self::V) -> Self::V;
    /// Does nothing: the numbers are already f32.
    #[inline(always)]
    unsafe fn round_f32(v: Self::V) -> Self::V {
        v
    }
    unsafe fn no_squares() -> Self::Squares;
    /// Adds the squares; a square of an f32 is exact in f64.
    unsafe fn square(s: Self::Squares, v: Self::V) -> Self::Squares;
    unsafe fn spread(s: Self::Squares) -> [f64; LANES];
}

/// Sums sixteen numbers pairwise: i and i + 8, then i and i + 4, …
pub(super) fn total(mut lanes: [f64; LANES]) -> f64 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

/// Rounds to the nearest bf16, ties to even; a NaN stays NaN.
fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    match x.is_nan() {
        true => (bits >> 16) as u16 | 0x40,
        false => ((bits + (0x7fff + ((bits >> 16) & 1))) >> 16) as u16,
    }
}

/// Plain Rust.
pub(super) struct Portable;

impl Lanes for Portable {
    type V = [f32; LANES];
    type Squares = [f64; LANES];

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    unsafe fn load_f32(p: *const f32) -> Self::V {
        // SAFETY: sixteen elements may be read (the trait's contract).
        unsafe { p.cast::<Self::V>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_f32(p: *mut f32, v: Self::V) {
        // SAFETY: sixteen elements may be written (the trait's contract).
        unsafe { p.cast::<Self::V>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::V {
        // SAFETY: sixteen elements may be read (the trait's contract).
        unsafe { p.cast::<[u16; LANES]>().read_unaligned() }.map(f16_to_f32)
    }

    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: Self::V) {
        // SAFETY: sixteen elements may be written (the trait's contract).
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(v.map(f32_to_f16)) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::V {
        // SAFETY: sixteen elements may be read (the trait's contract).
        unsafe { p.cast::<[u16; LANES]>().read_unaligned() }.map(bf16_to_f32)
    }

    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: Self::V) {
        // SAFETY: sixteen elements may be written (the trait's contract).
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(v.map(to_bf16)) }
    }

    #[inline(always)]
    unsafe fn keep_bf16(p: *mut u16, v: Self::V) {
        let bits = v.map(|x| (x.to_bits() >> 16) as u16);
        // SAFETY: sixteen elements may be written (the trait's contract).
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(bits) }
    }

    #[inline(always)]
    unsafe fn round_f16(v: Self::V) -> Self::V {
        v.map(|x| f16_to_f32(f32_to_f16(x)))
    }

    #[inline(always)]
    unsafe fn round_bf16(v: Self::V) -> Self::V {
        v.map(|x| bf16_to_f32(to_bf16(x)))
    }

    #[inline(always)]
    unsafe fn no_squares() -> Self::Squares {
        [0.0; LANES]
    }

    #[inline(always)]
    unsafe fn square(s: Self::Squares, v: Self::V) -> Self::Squares {
        std::array::from_fn(|i| s[i] + f64::from(v[i]) * f64::from(v[i]))
    }

    #[inline(always)]
    unsafe fn spread(s: Self::Squares) -> [f64; LANES] {
        s
    }
}
