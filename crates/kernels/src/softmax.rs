//! Softmax in place.
//!
//! The SIMD levels use their own exp (within 1 ulp) and sum in vectors of f32; the relative error
//! of a result is at most `(n / 32 + 8) · 2⁻²⁴`.

use crate::Isa;
use crate::lanes::{self, Lanes, by_level};

/// `x[i] = exp(x[i] - max) / Σ exp(x[j] - max)`.
///
/// -infinity becomes 0. If there is a NaN, a +infinity or nothing above -infinity, all results are
/// NaN.
pub fn softmax(isa: Isa, x: &mut [f32]) {
    by_level!(isa, (x: &mut [f32]) -> (), softmax_scalar, softmax_lanes)
}

fn softmax_scalar(x: &mut [f32]) {
    let max = x.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v));
    let mut sum = 0f64;
    for v in x.iter_mut() {
        *v = (*v - max).exp();
        sum += *v as f64;
    }
    let inverse = (1.0 / sum) as f32;
    for v in x {
        *v *= inverse;
    }
}

#[inline(always)]
unsafe fn softmax_lanes<S: Lanes>(x: &mut [f32]) {
    // SAFETY: pointers stay within the slice; the caller vouches for the features.
    unsafe {
        let max = lanes::largest::<S>(x);
        let (p, n) = (x.as_mut_ptr(), x.len());
        let m = S::splat(max);
        let mut sums = [S::splat(0.0); 2];
        let mut i = 0;
        while i + 2 * S::N <= n {
            for (j, sum) in sums.iter_mut().enumerate() {
                let at = p.add(i + j * S::N);
                let e = lanes::exp_negative::<S>(S::sub(S::load(at), m));
                S::store(at, e);
                *sum = S::add(*sum, e);
            }
            i += 2 * S::N;
        }
        let mut sum = S::sum(S::add(sums[0], sums[1]));
        while i < n {
            let (at, rest) = (p.add(i), (n - i).min(S::N));
            let mut lanes = [f32::NEG_INFINITY; 16];
            std::ptr::copy_nonoverlapping(at, lanes.as_mut_ptr(), rest);
            let e = lanes::exp_negative::<S>(S::sub(S::load(lanes.as_ptr()), m));
            S::store(lanes.as_mut_ptr(), e);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), at, rest);
            sum += S::sum(e);
            i += rest;
        }
        lanes::map::<S>(x, lanes::Times(1.0 / sum));
    }
}
