//! 8 lanes in portable code, which compilers turn into vectors of any CPU: the portable level, whose bits all others have.

use super::{Lanes, Outlined};
use crate::fit::levels::IQ4_LEVELS;
use crate::half::{f16_to_f32, f32_to_f16};

/// The portable level.
pub(crate) struct Portable;

const N: usize = 8;

type Eight = [f32; N];

/// `f` of each lane.
#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> Eight {
    let mut v = [0.0; N];
    for (i, x) in v.iter_mut().enumerate() {
        *x = f(i);
    }
    v
}

// SAFETY of all functions: the callers vouch for pointers; there are no features.
impl Lanes for Portable {
    const N: usize = N;
    type V = Eight;

    #[inline(always)]
    unsafe fn outline<F: Outlined>(f: F) -> F::Output {
        #[inline(never)]
        unsafe fn apart<F: Outlined>(f: F) -> F::Output {
            // SAFETY: by the caller's promise.
            unsafe { f.run::<Portable>() }
        }
        // SAFETY: as above.
        unsafe { apart(f) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Eight {
        [x; N]
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Eight {
        // SAFETY: the caller's.
        unsafe { p.cast::<Eight>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Eight) {
        // SAFETY: the caller's.
        unsafe { p.cast::<Eight>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> Eight {
        let mut v = [0.0; N];
        // SAFETY: the caller's.
        unsafe { std::ptr::copy_nonoverlapping(p, v.as_mut_ptr(), n.min(N)) }
        v
    }

    #[inline(always)]
    unsafe fn store_n(p: *mut f32, v: Eight, n: usize) {
        // SAFETY: the caller's.
        unsafe { std::ptr::copy_nonoverlapping(v.as_ptr(), p, n.min(N)) }
    }

    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Eight {
        // SAFETY: the caller's.
        unsafe { p.cast::<[u16; N]>().read_unaligned() }.map(f16_to_f32)
    }

    #[inline(always)]
    unsafe fn load_f16_n(p: *const u16, n: usize) -> Eight {
        let mut v = [0; N];
        // SAFETY: the caller's.
        unsafe { std::ptr::copy_nonoverlapping(p, v.as_mut_ptr(), n.min(N)) }
        v.map(f16_to_f32)
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Eight {
        // SAFETY: the caller's.
        unsafe { p.cast::<[i8; N]>().read_unaligned() }.map(f32::from)
    }

    #[inline(always)]
    unsafe fn load_levels(p: *const u8) -> [Eight; 2] {
        // SAFETY: the caller's.
        let bytes = unsafe { p.cast::<[u8; N]>().read_unaligned() };
        [0, 4].map(|shift| bytes.map(|byte| f32::from(IQ4_LEVELS[usize::from(byte >> shift & 15)])))
    }

    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: Eight) {
        // SAFETY: the caller's.
        unsafe { p.cast::<[u16; N]>().write_unaligned(v.map(f32_to_f16)) }
    }

    #[inline(always)]
    unsafe fn store_f16_n(p: *mut u16, v: Eight, n: usize) {
        // SAFETY: the caller's.
        unsafe { std::ptr::copy_nonoverlapping(v.map(f32_to_f16).as_ptr(), p, n.min(N)) }
    }

    #[inline(always)]
    unsafe fn add(a: Eight, b: Eight) -> Eight {
        each(|i| a[i] + b[i])
    }

    #[inline(always)]
    unsafe fn sub(a: Eight, b: Eight) -> Eight {
        each(|i| a[i] - b[i])
    }

    #[inline(always)]
    unsafe fn mul(a: Eight, b: Eight) -> Eight {
        each(|i| a[i] * b[i])
    }

    #[inline(always)]
    unsafe fn div(a: Eight, b: Eight) -> Eight {
        each(|i| a[i] / b[i])
    }

    #[inline(always)]
    unsafe fn fma(a: Eight, b: Eight, c: Eight) -> Eight {
        fma_lanes(a, b, c)
    }

    #[inline(always)]
    unsafe fn fnma(a: Eight, b: Eight, c: Eight) -> Eight {
        fma_lanes(each(|i| -a[i]), b, c)
    }

    #[inline(always)]
    unsafe fn max(a: Eight, b: Eight) -> Eight {
        each(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    unsafe fn min(a: Eight, b: Eight) -> Eight {
        each(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    unsafe fn abs(a: Eight) -> Eight {
        each(|i| a[i].abs())
    }

    #[inline(always)]
    unsafe fn copysign(a: Eight, sign: Eight) -> Eight {
        each(|i| a[i].copysign(sign[i]))
    }

    #[inline(always)]
    unsafe fn select_lt(a: Eight, b: Eight, x: Eight, y: Eight) -> Eight {
        each(|i| if a[i] < b[i] { x[i] } else { y[i] })
    }

    // `f32::round_ties_even` is a call for each lane where the CPU has no instruction.
    #[inline(always)]
    unsafe fn round(a: Eight) -> Eight {
        // All numbers from there on are whole, so that the sum is rounded to a whole number.
        const WHOLE: f32 = 8_388_608.0;
        each(|i| {
            let magnitude = a[i].abs();
            let rounded = ((magnitude + WHOLE) - WHOLE).copysign(a[i]);
            if magnitude < WHOLE { rounded } else { a[i] }
        })
    }

    // In two steps, as 2^n itself may be out of range. Only the second can round.
    #[inline(always)]
    unsafe fn ldexp(a: Eight, n: Eight) -> Eight {
        each(|i| {
            let n = whole(n[i]);
            let half = n >> 1;
            a[i] * power(half) * power(n.wrapping_sub(half))
        })
    }

    #[inline(always)]
    unsafe fn times_power(a: Eight, n: Eight) -> Eight {
        each(|i| a[i] * power(whole(n[i])))
    }

    #[inline(always)]
    unsafe fn sum(a: Eight) -> f32 {
        let four: [f32; 4] = std::array::from_fn(|i| a[i] + a[i + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }

    #[inline(always)]
    unsafe fn largest(a: Eight) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    unsafe fn rotate_pairs(x: Eight, cos: *const f32, sin: *const f32) -> Eight {
        // SAFETY: the caller's.
        let (cos, sin) = unsafe {
            let read = |p: *const f32| p.cast::<[f32; N / 2]>().read_unaligned();
            (read(cos), read(sin))
        };
        let product = each(|i| {
            let product = x[i ^ 1] * sin[i / 2];
            if i % 2 == 0 { -product } else { product }
        });
        fma_lanes(x, each(|i| cos[i / 2]), product)
    }
}

/// Returns a whole number, of at most 22 bits, as an integer. Conversions of Rust saturate, which takes many instructions; here a NaN becomes any
/// number.
#[inline(always)]
fn whole(n: f32) -> i32 {
    // Its last digit counts ones.
    const ONES: f32 = 12_582_912.0;
    (n + ONES).to_bits().wrapping_sub(ONES.to_bits()) as i32
}

/// Returns `2^n` for `n` in -126..=127.
#[inline(always)]
fn power(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// [`fma`] of each lane. Where it takes some forty instructions, it is a function that is called: inlined, it would be a sixth of the text of this
/// crate.
#[cfg_attr(any(target_arch = "aarch64", target_feature = "fma"), inline(always))]
#[cfg_attr(not(any(target_arch = "aarch64", target_feature = "fma")), inline(never))]
fn fma_lanes(a: Eight, b: Eight, c: Eight) -> Eight {
    #[cfg(any(target_arch = "aarch64", target_feature = "fma"))]
    return each(|i| a[i].mul_add(b[i], c[i]));
    #[cfg(not(any(target_arch = "aarch64", target_feature = "fma")))]
    {
        let mut sums = [0f64; N];
        for i in 0..N {
            sums[i] = f64::from(a[i]) * f64::from(b[i]) + f64::from(c[i]);
        }
        let rounded = each(|i| sums[i] as f32);
        // Zeros, which are common and exact, are among those that `fma` looks at once more.
        if any_doubtful(&sums, &rounded) { fma_one_by_one(a, b, c) } else { rounded }
    }
}

/// True if a sum lies between two f32, or is smaller than all normal ones when it is rounded.
#[inline(always)]
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "fma")))]
fn any_doubtful(sums: &[f64; N], rounded: &Eight) -> bool {
    let doubtful = |i: usize| is_between(sums[i]) | (rounded[i].abs() < f32::MIN_POSITIVE);
    (0..N).fold(false, |any, i| any | doubtful(i))
}

/// The same in half as many instructions as LLVM finds.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
#[cfg_attr(target_feature = "fma", allow(dead_code))]
fn any_doubtful(sums: &[f64; N], rounded: &Eight) -> bool {
    use std::arch::x86_64::*;
    // SAFETY: every CPU of x86-64 has SSE2; four numbers follow wherever some are loaded.
    unsafe {
        let (lost, half) = (_mm_set1_epi32(LOST as i32), _mm_set1_epi32(HALF as i32));
        let (sign, least) = (_mm_set1_ps(-0.0), _mm_set1_ps(f32::MIN_POSITIVE));
        let four = |i: usize| {
            let two = |i: usize| _mm_castpd_ps(_mm_loadu_pd(sums.as_ptr().add(i)));
            let low = _mm_castps_si128(_mm_shuffle_ps::<0b10_00_10_00>(two(i), two(i + 2)));
            let between = _mm_cmpeq_epi32(_mm_and_si128(low, lost), half);
            let rounded = _mm_loadu_ps(rounded.as_ptr().add(i));
            let small = _mm_cmplt_ps(_mm_andnot_ps(sign, rounded), least);
            _mm_or_ps(_mm_castsi128_ps(between), small)
        };
        _mm_movemask_ps(_mm_or_ps(four(0), four(4))) != 0
    }
}

#[cold]
#[inline(never)]
#[cfg_attr(any(target_arch = "aarch64", target_feature = "fma"), allow(dead_code))]
fn fma_one_by_one(a: Eight, b: Eight, c: Eight) -> Eight {
    each(|i| fma(a[i], b[i], c[i]))
}

/// `a * b + c`, rounded once, on any CPU.
///
/// The C library's function for it is exact, too, but takes a call and, without hardware for it, some hundred cycles. Here the product is exact in
/// f64, and the sum rounded to f64 before it is rounded to f32. Rounding twice differs from rounding once only if the first result lies exactly
/// between two f32: then its last bit is made odd if it is not exact (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved
/// algorithms using rounding to odd", 2008).
#[inline(always)]
pub(crate) fn fma(a: f32, b: f32, c: f32) -> f32 {
    #[cfg(any(target_arch = "aarch64", target_feature = "fma"))]
    return a.mul_add(b, c);
    #[cfg(not(any(target_arch = "aarch64", target_feature = "fma")))]
    {
        let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
        let sum = product + c;
        if may_round_twice(sum) { to_odd(product, c, sum) as f32 } else { sum as f32 }
    }
}

/// True if rounding this sum to f32 may depend on digits that it has lost: it lies between two f32, or is a subnormal f32, whose last digit is
/// elsewhere.
#[inline(always)]
#[cfg_attr(any(target_arch = "aarch64", target_feature = "fma"), allow(dead_code))]
fn may_round_twice(sum: f64) -> bool {
    let magnitude = sum.abs();
    is_between(sum) || magnitude < f64::from(f32::MIN_POSITIVE) && magnitude != 0.0
}

/// The bits of an f64 that an f32 has no place for, and their value between two f32.
#[cfg_attr(any(target_arch = "aarch64", target_feature = "fma"), allow(dead_code))]
const LOST: u32 = (1 << 29) - 1;
#[cfg_attr(any(target_arch = "aarch64", target_feature = "fma"), allow(dead_code))]
const HALF: u32 = 1 << 28;

/// True if a number lies exactly between two normal f32.
#[inline(always)]
#[cfg_attr(any(target_arch = "aarch64", target_feature = "fma"), allow(dead_code))]
fn is_between(sum: f64) -> bool {
    sum.to_bits() as u32 & LOST == HALF
}

/// `product + c`, of which `sum` is the nearest f64, with an odd last digit if it is not exact.
#[cold]
#[cfg_attr(any(target_arch = "aarch64", target_feature = "fma"), allow(dead_code))]
fn to_odd(product: f64, c: f64, sum: f64) -> f64 {
    // The error of a sum is an f64 (Knuth).
    let of_c = sum - product;
    let error = (product - (sum - of_c)) + (c - of_c);
    let bits = sum.to_bits();
    if error == 0.0 || bits % 2 == 1 {
        return sum;
    }
    let larger = (error > 0.0) == (sum > 0.0);
    f64::from_bits(if larger { bits + 1 } else { bits - 1 })
}
