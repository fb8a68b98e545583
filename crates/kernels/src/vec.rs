//! Element-wise operations on vectors, conversions, dot product and argmax.

use crate::Isa;
use crate::lanes::{self, Binary, Lanes, Unary, by_level};

/// `x += y`. Panics on different lengths.
pub fn add_assign(isa: Isa, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "lengths of a sum");
    by_level!(isa, (x: &mut [f32], y: &[f32]) -> (), add_assign_lanes)
}

/// `x += s · y`. Panics on different lengths.
pub fn add_times(isa: Isa, x: &mut [f32], y: &[f32], s: f32) {
    assert_eq!(x.len(), y.len(), "lengths of a sum");
    by_level!(
        isa,
        (x: &mut [f32], y: &[f32], s: f32) -> (),
        add_times_lanes
    )
}

/// `x *= s`.
pub fn scale(isa: Isa, x: &mut [f32], s: f32) {
    by_level!(isa, (x: &mut [f32], s: f32) -> (), scale_lanes)
}

/// `x = cap * tanh(x / cap)`; tanh within 1.5 ulp.
pub fn softcap(isa: Isa, x: &mut [f32], cap: f32) {
    by_level!(isa, (x: &mut [f32], cap: f32) -> (), softcap_lanes)
}

/// `Σ x[i] y[i]` in f32. Panics on different lengths.
pub fn dot(isa: Isa, x: &[f32], y: &[f32]) -> f32 {
    assert_eq!(x.len(), y.len(), "lengths of a dot product");
    by_level!(isa, (x: &[f32], y: &[f32]) -> f32, dot_lanes)
}

/// Returns the index of the largest element, the first of equals; NaN is never chosen; 0 if there
/// is nothing above -infinity.
pub fn argmax(isa: Isa, x: &[f32]) -> usize {
    let max = by_level!(isa, (x: &[f32]) -> f32, largest_lanes);
    x.iter().position(|&v| v == max).unwrap_or(0)
}

/// Applies [`f16_to_f32`](crate::half::f16_to_f32) to every element. Panics on different lengths.
pub fn widen_f16(isa: Isa, from: &[u16], to: &mut [f32]) {
    assert_eq!(from.len(), to.len(), "lengths of a conversion");
    by_level!(isa, (from: &[u16], to: &mut [f32]) -> (), widen_lanes)
}

/// Applies [`f32_to_f16`](crate::half::f32_to_f16) to every element. Panics on different lengths.
pub fn narrow_f16(isa: Isa, from: &[f32], to: &mut [u16]) {
    assert_eq!(from.len(), to.len(), "lengths of a conversion");
    by_level!(isa, (from: &[f32], to: &mut [u16]) -> (), narrow_lanes)
}

/// Makes infinite elements NaN, and leaves the others as they are.
pub(crate) fn infinite_to_nan(isa: Isa, x: &mut [f32]) {
    by_level!(isa, (x: &mut [f32]) -> (), infinite_to_nan_lanes)
}

/// The square root of a sum of squares, or of their mean; NaN if the sum has overflowed: a number divided by an infinite root would be 0.
pub fn root_of_squares(sum: f32) -> f32 {
    if sum < f32::INFINITY { sum.sqrt() } else { f32::NAN }
}

#[derive(Clone, Copy)]
struct Add;

impl Binary for Add {
    #[inline(always)]
    unsafe fn apply<S: Lanes>(self, x: S::V, y: S::V) -> S::V {
        // SAFETY: the caller vouches for the features.
        unsafe { S::add(x, y) }
    }
}

/// ∞ · 0 is NaN, and adding a zero of its own sign to a number changes no bit.
#[derive(Clone, Copy)]
struct InfiniteToNan;

impl Unary for InfiniteToNan {
    #[inline(always)]
    unsafe fn apply<S: Lanes>(self, x: S::V) -> S::V {
        // SAFETY: the caller vouches for the features.
        unsafe { S::add(x, S::mul(x, S::splat(0.0))) }
    }
}

#[derive(Clone, Copy)]
struct Softcap(f32);

impl Unary for Softcap {
    #[inline(always)]
    unsafe fn apply<S: Lanes>(self, x: S::V) -> S::V {
        // SAFETY: the caller vouches for the features.
        unsafe { lanes::softcap::<S>(x, self.0) }
    }
}

#[inline(always)]
unsafe fn add_assign_lanes<S: Lanes>(x: &mut [f32], y: &[f32]) {
    // SAFETY: the caller vouches for the features and for equal lengths.
    unsafe { lanes::zip::<S>(x, y, Add) }
}

#[inline(always)]
unsafe fn add_times_lanes<S: Lanes>(x: &mut [f32], y: &[f32], s: f32) {
    // SAFETY: the caller vouches for the features and for equal lengths.
    unsafe { lanes::zip::<S>(x, y, lanes::AddTimes(s)) }
}

#[inline(always)]
unsafe fn scale_lanes<S: Lanes>(x: &mut [f32], s: f32) {
    // SAFETY: the caller vouches for the features.
    unsafe { lanes::map::<S>(x, lanes::Times(s)) }
}

#[inline(always)]
unsafe fn infinite_to_nan_lanes<S: Lanes>(x: &mut [f32]) {
    // SAFETY: the caller vouches for the features.
    unsafe { lanes::map::<S>(x, InfiniteToNan) }
}

#[inline(always)]
unsafe fn softcap_lanes<S: Lanes>(x: &mut [f32], cap: f32) {
    // SAFETY: the caller vouches for the features.
    unsafe { lanes::map::<S>(x, Softcap(cap)) }
}

#[inline(always)]
unsafe fn dot_lanes<S: Lanes>(x: &[f32], y: &[f32]) -> f32 {
    // SAFETY: the caller vouches for the features and for equal lengths.
    unsafe { lanes::dot::<S>(x, y) }
}

#[inline(always)]
unsafe fn largest_lanes<S: Lanes>(x: &[f32]) -> f32 {
    // SAFETY: the caller vouches for the features.
    unsafe { lanes::largest::<S>(x) }
}

#[inline(always)]
unsafe fn widen_lanes<S: Lanes>(from: &[u16], to: &mut [f32]) {
    let (p, q, n) = (from.as_ptr(), to.as_mut_ptr(), from.len().min(to.len()));
    let mut i = 0;
    // SAFETY: pointers stay within both slices; the caller vouches for the features.
    unsafe {
        while i + S::N <= n {
            S::store(q.add(i), S::load_f16(p.add(i)));
            i += S::N;
        }
        if i < n {
            S::store_n(q.add(i), S::load_f16_n(p.add(i), n - i), n - i);
        }
    }
}

#[inline(always)]
unsafe fn narrow_lanes<S: Lanes>(from: &[f32], to: &mut [u16]) {
    let (p, q, n) = (from.as_ptr(), to.as_mut_ptr(), from.len().min(to.len()));
    let mut i = 0;
    // SAFETY: pointers stay within both slices; the caller vouches for the features.
    unsafe {
        while i + S::N <= n {
            S::store_f16(q.add(i), S::load(p.add(i)));
            i += S::N;
        }
        if i < n {
            S::store_f16_n(q.add(i), S::load_n(p.add(i), n - i), n - i);
        }
    }
}
