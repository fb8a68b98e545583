//! Softmax in place.
//!
//! exp is within 1 ulp, and sums are in 64 lanes of f32; the relative error of a result is at most `(n / 64 + 13) · 2⁻²⁴`.

use crate::Isa;
use crate::lanes::{self, Lanes, Summand, by_level};

/// `x[i] = exp(x[i] - max) / Σ exp(x[j] - max)`.
///
/// -infinity becomes 0. If there is a NaN, a +infinity or nothing above -infinity, all results are
/// NaN.
pub fn softmax(isa: Isa, x: &mut [f32]) {
    by_level!(isa, (x: &mut [f32]) -> (), softmax_lanes)
}

/// `exp(x[i] - max)`, which replaces `x[i]`.
struct Exponentials {
    x: *mut f32,
    max: f32,
}

impl Summand for Exponentials {
    #[inline(always)]
    unsafe fn add<S: Lanes>(&self, at: usize, n: usize, sum: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe {
            let (p, max) = (self.x.add(at), S::splat(self.max));
            if n == S::N {
                let e = lanes::exp_negative::<S>(S::sub(S::load(p), max));
                S::store(p, e);
                return S::add(sum, e);
            }
            // Lanes without an element add nothing.
            let mut rest = [f32::NEG_INFINITY; lanes::WIDEST];
            std::ptr::copy_nonoverlapping(p, rest.as_mut_ptr(), n);
            let e = lanes::exp_negative::<S>(S::sub(S::load(rest.as_ptr()), max));
            S::store_n(p, e, n);
            S::add(sum, e)
        }
    }
}

#[inline(always)]
unsafe fn softmax_lanes<S: Lanes>(x: &mut [f32]) {
    // SAFETY: elements of the slice; the caller vouches for the features.
    unsafe {
        let max = lanes::largest::<S>(x);
        let sum = lanes::total::<S>(x.len(), Exponentials { x: x.as_mut_ptr(), max });
        lanes::map::<S>(x, lanes::Times(1.0 / sum));
    }
}
