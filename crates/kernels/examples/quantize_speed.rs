//! How fast quantising is, on one thread: million weights per second for each type that can be made, the fastest
//! of some runs.

#[path = "support/sample.rs"]
mod sample;

use alight_kernels::{Isa, WeightType, quantize_row};
use sample::Sample;

fn main() {
    let mut state = 1u64;
    let x: Vec<f32> = (0..1 << 20)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 0.1
        })
        .collect();
    for ty in WeightType::ALL.into_iter().filter(|ty| ty.quantizes()) {
        let mut blocks = vec![0; ty.row_bytes(x.len()).unwrap()];
        let times = Sample::for_seconds(0.2, || quantize_row(Isa::best(), ty, &x, &mut blocks));
        println!("{ty}: {:.0}", x.len() as f64 / 1e6 / times.least());
    }
}
