//! What is right: f64 arithmetic with the roundings of docs/explanation/collective.md, and the collective among threads, by bits.

#[path = "../../../collective/tests/common/mod.rs"]
#[allow(dead_code)] // some of it is for the tests of the collective alone
mod common;

use alight_collective::{Options, Spec};
pub use common::{Inputs, numbers, ordinal};
use common::{round, run};

/// (new residual, normed) by the collective among threads.
pub fn reference(spec: &Spec, inputs: &Inputs) -> (Vec<u8>, Vec<u8>) {
    let options = Options::new(inputs.partials.len(), inputs.residual.len());
    run(options, spec, inputs).pop().unwrap().unwrap()
}

fn norm(spec: &Spec, row: &[f64], weight: &[f64]) -> Vec<f64> {
    let f32 = |x: f64| f64::from(x as f32);
    let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
    let scale = f32(1.0 / (mean + f64::from(spec.epsilon)).sqrt());
    let bias = f64::from(u8::from(spec.bias));
    row.iter()
        .zip(weight)
        .map(|(x, w)| round(spec.element, f32(x * scale) * f32(bias + w)))
        .collect()
}

/// How far results are from f64 arithmetic: in ulps, of the new residual, and of the norm of that new residual.
pub fn distance(spec: &Spec, inputs: &Inputs, found: &(Vec<u8>, Vec<u8>)) -> (i64, i64) {
    let element = spec.element;
    let f32 = |x: f64| f64::from(x as f32);
    let partials: Vec<_> = inputs.partials.iter().map(|x| numbers(element, x)).collect();
    let residual = numbers(element, &inputs.residual);
    let weight = numbers(spec.weight, &inputs.weight);
    let post_weight = numbers(spec.weight, &inputs.post_weight);
    let (new, normed) = (numbers(element, &found.0), numbers(element, &found.1));
    let (mut worst_new, mut worst_norm) = (0, 0);
    for row in 0..spec.rows {
        let at = |i: usize| row * spec.hidden + i;
        let sum =
            |i: usize| partials[1..].iter().fold(partials[0][at(i)], |s, x| f32(s + x[at(i)]));
        let mut sum: Vec<f64> = (0..spec.hidden).map(|i| round(element, sum(i))).collect();
        if spec.post_norm {
            sum = norm(spec, &sum, &post_weight);
        }
        for (i, x) in sum.iter().enumerate() {
            let expected = round(element, residual[at(i)] + x);
            worst_new =
                worst_new.max((ordinal(element, new[at(i)]) - ordinal(element, expected)).abs());
        }
        let row_found = &new[row * spec.hidden..][..spec.hidden];
        for (i, x) in norm(spec, row_found, &weight).iter().enumerate() {
            worst_norm =
                worst_norm.max((ordinal(element, normed[at(i)]) - ordinal(element, *x)).abs());
        }
    }
    (worst_new, worst_norm)
}
