//! Softmax in place.

use crate::Isa;

/// `x[i] = exp(x[i] - max) / Σ exp(x[j] - max)`.
pub fn softmax(isa: Isa, x: &mut [f32]) {
    let _ = isa;
    let max = x.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v));
    let mut sum = 0f32;
    for v in x.iter_mut() {
        *v = (*v - max).exp();
        sum += *v;
    }
    for v in x {
        *v /= sum;
    }
}
