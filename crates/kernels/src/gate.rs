//! Activations of feed-forward layers: `gate = activation(gate) * up`, or `x = activation(x)` where there is no gate.
//!
//! With exp of `lanes` (within 1 ulp) SiLU is within 4 ulp for `x > -87`; the tanh form of GELU within 4 ulp for `x >
//! -1` and a relative error of `2⁻²¹ (1 + |2u|)` below, where the rounding of `u` is amplified while the result
//! vanishes; GELU itself within 8 ulp. Where exp would be subnormal (SiLU below -87, GELU below -10 or -13), they are 0. Infinities
//! yield the limits, NaN stays NaN.

use crate::Isa;
use crate::lanes::{self, Binary, Lanes, Unary, by_level};

/// `gate = silu(gate) * up`, `silu(x) = x / (1 + exp(-x))`. Panics on different lengths.
pub fn silu_mul(isa: Isa, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up lengths");
    by_level!(isa, (gate: &mut [f32], up: &[f32]) -> (), silu_mul_lanes)
}

/// `gate = gelu(gate) * up` with the tanh form of GELU, `gelu(x) = x/2 · (1 + tanh(u))`,
/// `u = sqrt(2/π) · (x + 0.044715 x³)`, computed as `x / (1 + exp(-2u))`, which is the same and
/// does not cancel. Panics on different lengths.
pub fn gelu_tanh_mul(isa: Isa, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up lengths");
    by_level!(isa, (gate: &mut [f32], up: &[f32]) -> (), gelu_mul_lanes)
}

/// `x = silu(x)`, as in [`silu_mul`].
pub fn silu(isa: Isa, x: &mut [f32]) {
    by_level!(isa, (x: &mut [f32]) -> (), silu_lanes)
}

/// `x = gelu(x)`, as in [`gelu_tanh_mul`].
pub fn gelu_tanh(isa: Isa, x: &mut [f32]) {
    by_level!(isa, (x: &mut [f32]) -> (), gelu_lanes)
}

/// `gate = gelu(gate) * up` with GELU itself, `gelu(x) = x Φ(x) = x/2 · (1 + erf(x / √2))`. Panics on different lengths.
pub fn gelu_erf_mul(isa: Isa, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up lengths");
    by_level!(isa, (gate: &mut [f32], up: &[f32]) -> (), gelu_erf_mul_lanes)
}

/// `x = gelu(x)`, as in [`gelu_erf_mul`].
pub fn gelu_erf(isa: Isa, x: &mut [f32]) {
    by_level!(isa, (x: &mut [f32]) -> (), gelu_erf_lanes)
}

/// `x = max(x, 0)`. NaN stays NaN.
pub fn relu(isa: Isa, x: &mut [f32]) {
    by_level!(isa, (x: &mut [f32]) -> (), relu_lanes)
}

/// `x = max(x, 0)²`. NaN stays NaN.
pub fn relu_squared(isa: Isa, x: &mut [f32]) {
    by_level!(isa, (x: &mut [f32]) -> (), relu_squared_lanes)
}

/// `gate = g · sigmoid(1.702 g) · (u + 1)` with `g = min(gate, 7)` and `u = up` clamped to ±7, as in gpt-oss. Panics
/// on different lengths.
pub fn clamped_silu_mul(isa: Isa, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up lengths");
    by_level!(isa, (gate: &mut [f32], up: &[f32]) -> (), clamped_mul_lanes)
}

/// gpt-oss's clamp, and the slope of its sigmoid.
const CLAMP: f32 = 7.0;
const SLOPE: f32 = 1.702;

/// `gate = sigmoid(gate) * x`, `sigmoid(x) = 1 / (1 + exp(-x))`. Panics on different lengths.
pub fn sigmoid_mul(isa: Isa, gate: &mut [f32], x: &[f32]) {
    assert_eq!(gate.len(), x.len(), "gate and input lengths");
    by_level!(isa, (gate: &mut [f32], x: &[f32]) -> (), sigmoid_mul_lanes)
}

#[derive(Clone, Copy)]
struct SigmoidMul;

impl Binary for SigmoidMul {
    #[inline(always)]
    unsafe fn apply<S: Lanes>(self, gate: S::V, x: S::V) -> S::V {
        // SAFETY: the caller vouches for the features.
        unsafe { S::mul(lanes::sigmoid::<S>(gate), x) }
    }
}

#[inline(always)]
unsafe fn sigmoid_mul_lanes<S: Lanes>(gate: &mut [f32], x: &[f32]) {
    // SAFETY: the caller vouches for the features and for equal lengths.
    unsafe { lanes::zip::<S>(gate, x, SigmoidMul) }
}

#[derive(Clone, Copy)]
struct ClampedMul;

impl Binary for ClampedMul {
    #[inline(always)]
    unsafe fn apply<S: Lanes>(self, gate: S::V, up: S::V) -> S::V {
        // SAFETY: the caller vouches for the features.
        unsafe {
            // The second operand is returned where either is NaN.
            let (most, least) = (S::splat(CLAMP), S::splat(-CLAMP));
            let gate = S::min(most, gate);
            let up = S::max(least, S::min(most, up));
            let gate = lanes::times_sigmoid::<S>(gate, S::mul(gate, S::splat(SLOPE)));
            S::mul(gate, S::add(up, S::splat(1.0)))
        }
    }
}

#[inline(always)]
unsafe fn clamped_mul_lanes<S: Lanes>(gate: &mut [f32], up: &[f32]) {
    // SAFETY: the caller vouches for the features and for equal lengths.
    unsafe { lanes::zip::<S>(gate, up, ClampedMul) }
}

#[derive(Clone, Copy)]
struct SiluMul;

impl Binary for SiluMul {
    #[inline(always)]
    unsafe fn apply<S: Lanes>(self, gate: S::V, up: S::V) -> S::V {
        // SAFETY: the caller vouches for the features.
        unsafe { S::mul(lanes::silu::<S>(gate), up) }
    }
}

#[derive(Clone, Copy)]
struct GeluMul;

impl Binary for GeluMul {
    #[inline(always)]
    unsafe fn apply<S: Lanes>(self, gate: S::V, up: S::V) -> S::V {
        // SAFETY: the caller vouches for the features.
        unsafe { S::mul(lanes::gelu_tanh::<S>(gate), up) }
    }
}

#[derive(Clone, Copy)]
struct Silu;

impl Unary for Silu {
    #[inline(always)]
    unsafe fn apply<S: Lanes>(self, x: S::V) -> S::V {
        // SAFETY: the caller vouches for the features.
        unsafe { lanes::silu::<S>(x) }
    }
}

#[derive(Clone, Copy)]
struct Gelu;

impl Unary for Gelu {
    #[inline(always)]
    unsafe fn apply<S: Lanes>(self, x: S::V) -> S::V {
        // SAFETY: the caller vouches for the features.
        unsafe { lanes::gelu_tanh::<S>(x) }
    }
}

#[derive(Clone, Copy)]
struct GeluErfMul;

impl Binary for GeluErfMul {
    #[inline(always)]
    unsafe fn apply<S: Lanes>(self, gate: S::V, up: S::V) -> S::V {
        // SAFETY: the caller vouches for the features.
        unsafe { S::mul(lanes::gelu_erf::<S>(gate), up) }
    }
}

#[derive(Clone, Copy)]
struct GeluErf;

impl Unary for GeluErf {
    #[inline(always)]
    unsafe fn apply<S: Lanes>(self, x: S::V) -> S::V {
        // SAFETY: the caller vouches for the features.
        unsafe { lanes::gelu_erf::<S>(x) }
    }
}

#[derive(Clone, Copy)]
struct Relu;

impl Unary for Relu {
    #[inline(always)]
    unsafe fn apply<S: Lanes>(self, x: S::V) -> S::V {
        // SAFETY: the caller vouches for the features. The second operand is returned where it is NaN.
        unsafe { S::max(S::splat(0.0), x) }
    }
}

#[derive(Clone, Copy)]
struct ReluSquared;

impl Unary for ReluSquared {
    #[inline(always)]
    unsafe fn apply<S: Lanes>(self, x: S::V) -> S::V {
        // SAFETY: the caller vouches for the features.
        unsafe {
            // The second operand is returned where it is NaN.
            let x = S::max(S::splat(0.0), x);
            S::mul(x, x)
        }
    }
}

#[inline(always)]
unsafe fn silu_lanes<S: Lanes>(x: &mut [f32]) {
    // SAFETY: the caller vouches for the features.
    unsafe { lanes::map::<S>(x, Silu) }
}

#[inline(always)]
unsafe fn gelu_lanes<S: Lanes>(x: &mut [f32]) {
    // SAFETY: the caller vouches for the features.
    unsafe { lanes::map::<S>(x, Gelu) }
}

#[inline(always)]
unsafe fn gelu_erf_lanes<S: Lanes>(x: &mut [f32]) {
    // SAFETY: the caller vouches for the features.
    unsafe { lanes::map::<S>(x, GeluErf) }
}

#[inline(always)]
unsafe fn gelu_erf_mul_lanes<S: Lanes>(gate: &mut [f32], up: &[f32]) {
    // SAFETY: the caller vouches for the features and for equal lengths.
    unsafe { lanes::zip::<S>(gate, up, GeluErfMul) }
}

#[inline(always)]
unsafe fn relu_lanes<S: Lanes>(x: &mut [f32]) {
    // SAFETY: the caller vouches for the features.
    unsafe { lanes::map::<S>(x, Relu) }
}

#[inline(always)]
unsafe fn relu_squared_lanes<S: Lanes>(x: &mut [f32]) {
    // SAFETY: the caller vouches for the features.
    unsafe { lanes::map::<S>(x, ReluSquared) }
}

#[inline(always)]
unsafe fn silu_mul_lanes<S: Lanes>(gate: &mut [f32], up: &[f32]) {
    // SAFETY: the caller vouches for the features and for equal lengths.
    unsafe { lanes::zip::<S>(gate, up, SiluMul) }
}

#[inline(always)]
unsafe fn gelu_mul_lanes<S: Lanes>(gate: &mut [f32], up: &[f32]) {
    // SAFETY: the caller vouches for the features and for equal lengths.
    unsafe { lanes::zip::<S>(gate, up, GeluMul) }
}
