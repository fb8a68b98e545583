//! RMSNorm: `out = x / sqrt(mean(x²) + eps) * weight` (Zhang and Sennrich 2019). LayerNorm (Ba et al. 2016) is the same
//! applied to the result of [`center`].
//!
//! Squares are summed in f32 in 64 lanes, of which each adds some `n / 64` terms: the relative error of the sum is below
//! `(n / 64 + 11) · 2⁻²⁴` (6.4e-6 at n = 6144 in the worst case, some 1e-7 in practice), and half of that in the result. Squares overflow above 1.8e19, as in other f32 implementations; the result is then NaN.

use crate::Isa;
use crate::lanes::{self, Binary, Lanes, Unary, by_level};
use crate::vec::root_of_squares;

/// `out = x / sqrt(mean(x²) + eps) * weight`. Panics unless all three have the same length.
pub fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "norm output length");
    // The copy is in the first-level cache and costs less than a second kernel would.
    out.copy_from_slice(x);
    rms_norm_in_place(isa, out, weight, eps);
}

/// [`rms_norm`] that overwrites its input.
pub fn rms_norm_in_place(isa: Isa, x: &mut [f32], weight: &[f32], eps: f32) {
    assert_eq!(x.len(), weight.len(), "norm weight length");
    by_level!(isa, (x: &mut [f32], weight: &[f32], eps: f32) -> (), norm_lanes)
}

/// `x = x - mean(x)`.
pub fn center(isa: Isa, x: &mut [f32]) {
    by_level!(isa, (x: &mut [f32]) -> (), center_lanes)
}

/// `x + a`.
#[derive(Clone, Copy)]
struct Plus(f32);

impl Unary for Plus {
    #[inline(always)]
    unsafe fn apply<S: Lanes>(self, x: S::V) -> S::V {
        // SAFETY: the caller vouches for the features.
        unsafe { S::add(x, S::splat(self.0)) }
    }
}

#[inline(always)]
unsafe fn center_lanes<S: Lanes>(x: &mut [f32]) {
    // SAFETY: the caller vouches for the features.
    unsafe {
        let mean = lanes::sum::<S>(x) / x.len() as f32;
        lanes::map::<S>(x, Plus(-mean));
    }
}

/// `x · r · w`, in this order.
#[derive(Clone, Copy)]
struct Normalise(f32);

impl Binary for Normalise {
    #[inline(always)]
    unsafe fn apply<S: Lanes>(self, x: S::V, w: S::V) -> S::V {
        // SAFETY: the caller vouches for the features.
        unsafe { S::mul(S::mul(x, S::splat(self.0)), w) }
    }
}

#[inline(always)]
unsafe fn norm_lanes<S: Lanes>(x: &mut [f32], weight: &[f32], eps: f32) {
    // SAFETY: the caller vouches for the features and for equal lengths.
    unsafe {
        let mean = lanes::dot::<S>(x, x) / x.len() as f32;
        lanes::zip::<S>(x, weight, Normalise(1.0 / root_of_squares(mean + eps)));
    }
}
