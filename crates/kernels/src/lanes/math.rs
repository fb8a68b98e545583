//! exp, tanh and functions built on them, on lanes.
//!
//! Polynomials: our own, fitted for the least maximal relative error (Lawson's iteration). The errors stated are the limits of `tests/math.rs`, which
//! tries one in ten thousand f32 patterns of all signs and magnitudes.

// The coefficients are exactly those of the fit.
#![allow(clippy::excessive_precision)]

use super::{Lanes, WIDEST};

/// `e^x` is 0 for smaller `x`. It would be a subnormal number, which takes a CPU a hundred times as long to produce (60 ns a vector with AVX-512).
/// Every row of scores with a mask has such an `x`.
const MIN_EXPONENT: f32 = -87.336_5;

/// `e^x`, within 1 ulp. Exactly 0 below [`MIN_EXPONENT`], infinity above 88.73; NaN stays.
#[inline(always)]
pub(crate) unsafe fn exp<S: Lanes>(x: S::V) -> S::V {
    // SAFETY: the caller vouches for the features.
    unsafe {
        // The result is infinity from 88.73 on. 89 yields it, too, and keeps `n` in the range of `ldexp`.
        let (p, n) = mantissa_and_power::<S>(S::min(S::splat(89.0), x));
        or_zero::<S>(x, S::ldexp(p, n))
    }
}

/// [`exp`] for `x <= 0` (or NaN).
#[inline(always)]
pub(crate) unsafe fn exp_negative<S: Lanes>(x: S::V) -> S::V {
    // SAFETY: the caller vouches for the features.
    unsafe {
        let (p, n) = mantissa_and_power::<S>(x);
        or_zero::<S>(x, S::times_power(p, n))
    }
}

/// [`exp_negative`] of one number.
#[inline(always)]
pub(crate) unsafe fn exp_of_negative<S: Lanes>(x: f32) -> f32 {
    let mut lanes = [0.0; WIDEST];
    // SAFETY: no vector has more lanes; the caller vouches for the features.
    unsafe { S::store(lanes.as_mut_ptr(), exp_negative::<S>(S::splat(x))) }
    lanes[0]
}

/// Returns `e`, which is `e^x`, or 0 where `x` is too small.
#[inline(always)]
unsafe fn or_zero<S: Lanes>(x: S::V, e: S::V) -> S::V {
    // SAFETY: the caller vouches for the features.
    unsafe { S::select_lt(x, S::splat(MIN_EXPONENT), S::splat(0.0), e) }
}

/// Returns `e^r` and `n`, such that `e^x` is `2^n e^r` and `|r| <= ln 2 / 2`, for `x` of at most 89. An `x` below [`MIN_EXPONENT`] is replaced by
/// [`MIN_EXPONENT`]. NaN stays.
#[inline(always)]
unsafe fn mantissa_and_power<S: Lanes>(x: S::V) -> (S::V, S::V) {
    /// ln 2 as the sum of two f32.
    const LN2: [f32; 2] = [0.693_147_182_464_599_6, -1.904_654_323_148_236e-9];
    /// `e^r ≈ 1 + r + r² (C[0] + C[1] r + …)`, relative error 3.1e-9.
    const C: [f32; 5] =
        [4.999_999_343e-1, 1.666_652_040e-1, 4.166_839_079e-2, 8.368_745_173e-3, 1.381_454_016e-3];
    // SAFETY: the caller vouches for the features.
    unsafe {
        // A NaN as second operand is returned.
        let x = S::max(S::splat(MIN_EXPONENT), x);
        let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
        let r = S::fnma(n, S::splat(LN2[0]), x);
        let r = S::fnma(n, S::splat(LN2[1]), r);
        // Two halves of the polynomial in parallel, for a shorter chain.
        let r2 = S::mul(r, r);
        let low = S::fma(S::splat(C[1]), r, S::splat(C[0]));
        let high = S::fma(S::splat(C[3]), r, S::splat(C[2]));
        let high = S::fma(S::splat(C[4]), r2, high);
        let p = S::fma(high, r2, low);
        let p = S::fma(p, r2, r);
        (S::add(p, S::splat(1.0)), n)
    }
}

/// `tanh x`, within 1.5 ulp. ±1 for large `x`; NaN and the sign of zero stay.
#[inline(always)]
pub(crate) unsafe fn tanh<S: Lanes>(x: S::V) -> S::V {
    /// `tanh x ≈ x + x³ (T[0] + T[1] x² + …)` for `|x| < 0.63`, relative error 4.8e-9.
    const T: [f32; 5] = [
        -3.333_327_806e-1,
        1.333_133_100e-1,
        -5.373_000_685e-2,
        2.060_617_573e-2,
        -5.666_976_107e-3,
    ];
    // SAFETY: the caller vouches for the features.
    unsafe {
        let a = S::abs(x);
        let x2 = S::mul(x, x);
        let mut p = S::splat(T[4]);
        for c in [T[3], T[2], T[1], T[0]] {
            p = S::fma(p, x2, S::splat(c));
        }
        let small = S::fma(S::mul(p, x2), x, x);
        let one = S::splat(1.0);
        let two = S::splat(2.0);
        let e = exp::<S>(S::add(a, a));
        let large = S::sub(one, S::div(two, S::add(e, one)));
        S::copysign(S::select_lt(a, S::splat(0.625), small, large), x)
    }
}

/// `x / (1 + e^-v)` for `v` of the sign of `x`, correct where `e^-v` overflows and for infinite `x`.
#[inline(always)]
pub(crate) unsafe fn times_sigmoid<S: Lanes>(x: S::V, v: S::V) -> S::V {
    // SAFETY: the caller vouches for the features.
    unsafe {
        let one = S::splat(1.0);
        let z = exp_negative::<S>(S::sub(S::splat(0.0), S::abs(v)));
        // Below: x z / (1 + z), where -inf · 0 must not become NaN.
        let finite = S::max(S::splat(f32::MIN), x);
        let numerator = S::select_lt(v, S::splat(0.0), S::mul(finite, z), x);
        S::div(numerator, S::add(one, z))
    }
}

/// `x / (1 + e^-x)`, within 4 ulp for `x > -87`; beyond, where it is below 2e-36 and vanishes, within
/// `|x|` times the smallest normal number; -0 for -infinity.
#[inline(always)]
pub(crate) unsafe fn silu<S: Lanes>(x: S::V) -> S::V {
    // SAFETY: the caller vouches for the features.
    unsafe { times_sigmoid::<S>(x, x) }
}

/// `1 / (1 + e^-x)`, within 4 ulp for `x > -87`; beyond, where it is below 2e-38, within the smallest normal number.
#[inline(always)]
pub(crate) unsafe fn sigmoid<S: Lanes>(x: S::V) -> S::V {
    // SAFETY: the caller vouches for the features.
    unsafe { times_sigmoid::<S>(S::splat(1.0), x) }
}

/// `x/2 (1 + tanh u) = x / (1 + e^-2u)` with `u = sqrt(2/π) (x + 0.044715 x³)`.
///
/// Relative error at most `2⁻²¹ (1 + |2u|)`: the rounding of `u` is amplified where the result
/// vanishes; at most 4 ulp for `x > -1`. Below -10, where it is below 2e-37, it is 0.
#[inline(always)]
pub(crate) unsafe fn gelu_tanh<S: Lanes>(x: S::V) -> S::V {
    /// `2 sqrt(2/π)`.
    const A: f32 = 1.595_769_121_605_730_8;
    // SAFETY: the caller vouches for the features.
    unsafe {
        let cubic = S::fma(S::mul(x, x), S::splat(A * 0.044715), S::splat(A));
        times_sigmoid::<S>(x, S::mul(x, cubic))
    }
}

/// `x Φ(x)`, where Φ is the distribution function of the standard normal distribution: `x/2 (1 + erf(x / √2))`. Within 8 ulp; below -13.2,
/// where it is below 2e-37, it is 0.
///
/// `Φ(-a) = e^(-a²/2) t P(t)` with `t = 1 / (1 + p a)` for `a >= 0`. The rounding error of `a²`, which the exponential would amplify, is made up
/// for.
#[inline(always)]
pub(crate) unsafe fn gelu_erf<S: Lanes>(x: S::V) -> S::V {
    /// `p`, exactly 17/64.
    const SCALE: f32 = 0.265_625;
    /// `P(t) = P[0] + P[1] t + …` for `t` in 0.22..=1, relative error of `Φ` 1.3e-8.
    const P: [f32; 9] = [
        1.059_887_037e-1,
        1.055_370_346e-1,
        1.025_733_426e-1,
        6.182_027_981e-2,
        1.341_894_865e-1,
        -1.106_226_519e-1,
        2.121_539_116e-1,
        -1.423_097_104e-1,
        3.066_961_281e-2,
    ];
    // SAFETY: the caller vouches for the features.
    unsafe {
        let one = S::splat(1.0);
        // Beyond 20 the exponential is 0. A NaN as second operand is returned.
        let a = S::min(S::splat(20.0), S::abs(x));
        let t = S::div(one, S::fma(a, S::splat(SCALE), one));
        let mut p = S::splat(P[8]);
        for c in [P[7], P[6], P[5], P[4], P[3], P[2], P[1], P[0]] {
            p = S::fma(p, t, S::splat(c));
        }
        let square = S::mul(a, a);
        // a² - square, exactly.
        let lost = S::fma(a, a, S::sub(S::splat(0.0), square));
        let e = exp_negative::<S>(S::mul(square, S::splat(-0.5)));
        let e = S::fma(e, S::mul(lost, S::splat(-0.5)), e);
        let q = S::mul(p, t);
        // -inf · 0 must not become NaN.
        let finite = S::max(S::splat(f32::MIN), x);
        let negative = S::mul(S::mul(finite, q), e);
        let positive = S::mul(x, S::sub(one, S::mul(q, e)));
        S::select_lt(x, S::splat(0.0), negative, positive)
    }
}

/// `cap · tanh(x / cap)`.
#[inline(always)]
pub(crate) unsafe fn softcap<S: Lanes>(x: S::V, cap: f32) -> S::V {
    // SAFETY: the caller vouches for the features.
    unsafe {
        let cap = S::splat(cap);
        S::mul(cap, tanh::<S>(S::div(x, cap)))
    }
}
