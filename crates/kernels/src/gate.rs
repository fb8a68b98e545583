//! Gates of feed-forward layers: `gate = activation(gate) * up`.

use crate::Isa;

/// `gate = silu(gate) * up`, `silu(x) = x / (1 + exp(-x))`. Panics on different lengths.
pub fn silu_mul(isa: Isa, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up lengths");
    let _ = isa;
    for (g, u) in gate.iter_mut().zip(up) {
        *g = *g / (1.0 + (-*g).exp()) * u;
    }
}

/// `gate = gelu(gate) * up` with the tanh form of GELU,
/// `gelu(x) = x/2 · (1 + tanh(sqrt(2/π) · (x + 0.044715 x³)))`. Panics on different lengths.
pub fn gelu_tanh_mul(isa: Isa, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up lengths");
    let _ = isa;
    for (g, u) in gate.iter_mut().zip(up) {
        let x = *g;
        let v = 0.797_884_6 * (x + 0.044715 * x * x * x);
        *g = 0.5 * x * (1.0 + v.tanh()) * u;
    }
}
