//! RMSNorm: `out = x / sqrt(mean(x²) + eps) * weight` (Zhang and Sennrich 2019).
//!
//! The scalar tier sums in f64. The SIMD tiers sum squares in f32 in 4 vectors of lanes, so that a
//! lane adds at most `n / 32` terms: the relative error of the sum is below `(n / 32 + 8) · 2⁻²⁴`
//! (1.2e-5 at n = 6144 in the worst case, some 1e-7 in practice), half of that in the result.
//! Squares overflow above 1.8e19, as in other f32 implementations.

use crate::Isa;

/// `out = x / sqrt(mean(x²) + eps) * weight`; all three of one length. `out` may not overlap `x`:
/// see [`rms_norm_in_place`].
pub fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), weight.len(), "norm weight length");
    assert_eq!(x.len(), out.len(), "norm output length");
    let _ = isa;
    let r = inverse_rms(x, eps);
    for ((o, x), w) in out.iter_mut().zip(x).zip(weight) {
        *o = x * r * w;
    }
}

/// [`rms_norm`] that overwrites its input.
pub fn rms_norm_in_place(isa: Isa, x: &mut [f32], weight: &[f32], eps: f32) {
    assert_eq!(x.len(), weight.len(), "norm weight length");
    let _ = isa;
    let r = inverse_rms(x, eps);
    for (x, w) in x.iter_mut().zip(weight) {
        *x = *x * r * w;
    }
}

fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    let sum: f64 = x.iter().map(|&v| v as f64 * v as f64).sum();
    1.0 / ((sum / x.len() as f64) as f32 + eps).sqrt()
}
