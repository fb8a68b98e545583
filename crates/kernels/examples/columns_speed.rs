//! Speed of products with some columns of a matrix beside those of a matrix that has no others, on one thread, from memory:
//! `cargo run --release -p alight-kernels --example columns_speed [TYPE]`. Minima of many; bytes are those that are used.

#[path = "support/sample.rs"]
mod sample;

use alight_kernels::{
    ActivationFormats, Activations, Isa, Layout, MatmulScratch, Matrix, Output, RowCounts,
    WeightType, matmul, piece_rows,
};
use sample::Sample;

/// GB/s of the fastest of some runs over all the matrices.
fn run(matrices: &[Matrix<'_>], tokens: usize) -> f64 {
    let (isa, w) = (Isa::best(), &matrices[0]);
    let (rows, cols) = (w.rows(), w.cols());
    let mut act = Activations::new(tokens, cols);
    act.begin(isa, RowCounts::of_call(tokens), cols, ActivationFormats::of([w.kind()]));
    let x: Vec<f32> = (0..cols).map(|i| (i as f32).sin()).collect();
    (0..tokens).for_each(|t| act.put(t, &x));
    let mut out = vec![0f32; rows * tokens];
    let mut scratch = MatmulScratch::new();
    let times = Sample::for_seconds(0.4, || {
        for w in matrices {
            let y = Output::new(&mut out, rows);
            let step = piece_rows(w, tokens);
            for r in (0..rows).step_by(step) {
                // SAFETY: one thread.
                unsafe { matmul(w, r..rows.min(r + step), &act, y, &mut scratch) };
            }
        }
    });
    let bytes = matrices.len() * rows * w.weight_type().row_bytes(cols).unwrap();
    bytes as f64 / times.least() / 1e9
}

fn main() {
    let only = std::env::args().nth(1);
    let memory: Vec<u8> = (0..192usize << 20).map(|i| (i * 7 % 61) as u8 & 0x2f).collect();
    for ty in
        WeightType::ALL.into_iter().filter(|ty| only.as_ref().is_none_or(|o| *o == ty.to_string()))
    {
        for (rows, cols, parts) in [(576, 1536, 2), (640, 2048, 4), (4096, 14336, 8)] {
            for layout in [Layout::Rows, Layout::Tiles] {
                let make = |cols: usize| -> Vec<Matrix<'_>> {
                    let size = rows * ty.row_bytes(cols).unwrap();
                    let one = |data| Matrix::with_layout(layout, ty, data, rows, cols).ok();
                    memory.chunks_exact(size).filter_map(one).collect()
                };
                let part = cols / parts / ty.block_len() * ty.block_len();
                let alone = make(part);
                if alone.is_empty() {
                    continue;
                }
                let views: Vec<_> =
                    make(cols).iter().map(|w| w.columns(part..2 * part).unwrap()).collect();
                print!("{ty} {layout:?} {rows} × {part} of {cols}:");
                for tokens in [1, 2, 16] {
                    // In turns.
                    let pairs = [0; 2].map(|_| [run(&alone, tokens), run(&views, tokens)]);
                    let [alone, part] =
                        [0, 1].map(|i| Sample::of(pairs.map(|p| p[i]).to_vec()).most());
                    print!("  {tokens}: alone {alone:.1}, part {part:.1} GB/s");
                }
                println!();
            }
        }
    }
}
