//! Speed of the matrix products on one thread: `cargo run --release -p alight-kernels --example
//! matmul_speed [ISA [TYPE…]]`, for both layouts. Minima of many repetitions; bytes are those of the weights.

#[path = "support/sample.rs"]
mod sample;

use alight_kernels::{
    ActivationFormats, Activations, Isa, Layout, MatmulScratch, Matrix, Output, Precision,
    RowCounts, WeightType, matmul, peak, piece_rows, tiles,
};
use sample::Sample;
use std::hint::black_box;

/// Seconds of the fastest of some runs.
fn best<T>(f: impl FnMut() -> T) -> f64 {
    Sample::for_seconds(0.2, f).least()
}

fn blocks(ty: WeightType, rows: usize, cols: usize) -> Vec<u8> {
    let n = ty.row_bytes(cols).unwrap() * rows;
    let mut s = 1u64;
    let mut bytes: Vec<u8> = (0..n)
        .map(|_| {
            s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (s >> 40) as u8
        })
        .collect();
    // Some bits would make subnormal numbers, which no model has and CPUs are slow with.
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        ty.scale_fields().iter().for_each(|field| field.set(block, 0.01));
    }
    bytes
}

fn run(isa: Isa, w: &Matrix<'_>, counts: RowCounts) -> f64 {
    let (rows, cols) = (w.rows(), w.cols());
    let tokens = counts.all();
    let mut act = Activations::new(tokens, cols);
    act.begin(isa, counts, cols, ActivationFormats::of([w.kind()]));
    let x: Vec<f32> = (0..cols).map(|i| (i as f32).sin()).collect();
    for t in 0..tokens {
        act.put(t, &x);
    }
    let mut out = vec![0f32; rows * tokens];
    let mut scratch = MatmulScratch::new();
    best(|| {
        let y = Output::new(&mut out, rows);
        // Threads take many pieces at once, so that what they read of the activations stays in the cache.
        let step = if tokens > 1 { 256 } else { piece_rows(w, tokens) };
        for r in (0..rows).step_by(step) {
            // SAFETY: one thread.
            unsafe { matmul(w, r..rows.min(r + step), &act, y, &mut scratch) };
        }
    })
}

fn main() {
    let only: Option<Isa> = std::env::args().nth(1).map(|s| s.parse().unwrap());
    let names: Vec<String> = std::env::args().skip(2).collect();
    for isa in Isa::available().into_iter().filter(|i| only.is_none_or(|o| o == *i)) {
        let macs = peak::int8_macs(isa, 100_000) as f64;
        let top = macs / best(|| peak::int8_products(isa, 100_000)) / 1e9;
        let memory = vec![1u8; 512 << 20];
        let bw = memory.len() as f64 / best(|| peak::read(isa, black_box(&memory))) / 1e9;
        drop(memory);
        println!("{isa}: int8 peak {top:.0} GMAC/s, memory {bw:.1} GB/s");
        for ty in WeightType::ALL {
            if !names.is_empty() && !names.contains(&ty.to_string()) {
                continue;
            }
            // 512 KiB of weights for the second-level cache, 256 MiB for memory.
            let cols = 2048;
            let row = ty.row_bytes(cols).unwrap();
            let (few, many) = (512 * 1024 / row / 32 * 32, (256 << 20) / row / 32 * 32);
            let (mut small, mut large) = (blocks(ty, few, cols), blocks(ty, many, cols));
            if tiles::packable(ty, few, cols) {
                let mut packed = vec![0; small.len()];
                let pack = best(|| tiles::pack(ty, cols, &small, &mut packed));
                let back = best(|| tiles::unpack(ty, cols, &small, &mut packed));
                let speed = |s: f64| small.len() as f64 / s / 1e9;
                println!("  {ty:5} pack {:.1}, unpack {:.1} GB/s", speed(pack), speed(back));
            }
            for layout in [Layout::Rows, Layout::Tiles] {
                if layout == Layout::Tiles {
                    if !tiles::packable(ty, few, cols) {
                        continue;
                    }
                    for weights in [&mut small, &mut large] {
                        let mut packed = vec![0; weights.len()];
                        tiles::pack(ty, cols, weights, &mut packed);
                        *weights = packed;
                    }
                }
                let w = Matrix::with_layout(layout, ty, &small, few, cols).unwrap();
                let big = Matrix::with_layout(layout, ty, &large, many, cols).unwrap();
                // Of one token that is made, and of several that are made at once.
                let bytes_per_second = |precision, counts: &[usize]| {
                    for &tokens in counts {
                        let counts = RowCounts::new(precision, tokens);
                        let cached = small.len() as f64 / run(isa, &w, counts) / 1e9;
                        let cold = large.len() as f64 / run(isa, &big, counts) / 1e9;
                        print!("  {tokens}: {cached:.1} {cold:.1}");
                    }
                };
                print!("  {ty:5} {layout:?}: 16 bits, cached and memory GB/s");
                bytes_per_second(Precision::Bits16, &[1, 2, 3, 4, 6, 8, 16]);
                print!("; 8 bits, cached and memory GB/s");
                bytes_per_second(Precision::Bits8, &[2, 5, 9, 12, 16]);
                print!("; GMAC/s");
                for tokens in [2, 5, 8, 16, 24, 96, 510] {
                    let macs = (few * cols * tokens) as f64;
                    let counts = RowCounts::new(Precision::Bits8, tokens);
                    print!("  {tokens}: {:.0}", macs / run(isa, &w, counts) / 1e9);
                }
                println!();
            }
        }
    }
}
