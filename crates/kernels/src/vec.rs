//! Element-wise operations on vectors, and dot product and argmax.

use crate::Isa;

/// `x += y`. Panics on different lengths.
pub fn add_assign(isa: Isa, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "lengths of a sum");
    let _ = isa;
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// `x *= s`.
pub fn scale(isa: Isa, x: &mut [f32], s: f32) {
    let _ = isa;
    x.iter_mut().for_each(|x| *x *= s);
}

/// `x = cap * tanh(x / cap)`.
pub fn softcap(isa: Isa, x: &mut [f32], cap: f32) {
    let _ = isa;
    x.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
}

/// `Σ x[i] y[i]` in f32. Panics on different lengths.
pub fn dot(isa: Isa, x: &[f32], y: &[f32]) -> f32 {
    assert_eq!(x.len(), y.len(), "lengths of a dot product");
    let _ = isa;
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

/// The index of the largest element, the first of equals; NaN is never chosen; 0 for none.
pub fn argmax(isa: Isa, x: &[f32]) -> usize {
    let _ = isa;
    let mut best = 0;
    let mut max = f32::NEG_INFINITY;
    for (i, &v) in x.iter().enumerate() {
        if v > max {
            (best, max) = (i, v);
        }
    }
    best
}
