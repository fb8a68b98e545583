//! Products see every weight as dequantising has it: of each type, in both layouts, on every SIMD level, in rows with every tail. A product with a
//! column of the identity matrix is a column of weights, so that nothing is lost in sums.

use alight_kernels::tiles::{TILE_ROWS, pack, packable};
use alight_kernels::{
    ActivationFormats, Activations, Isa, Layout, MatmulScratch, Matrix, Output, RowCounts,
    SimdLevel, WeightType, dequantize_row, matmul,
};

use crate::common::{Rng, few, levels, random_blocks};

/// `[columns][rows]`: the products with all columns of the identity matrix, one after the other or at the same time.
fn columns(w: &Matrix<'_>, isa: Isa, at_once: bool) -> Vec<f32> {
    let (rows, cols) = (w.rows(), w.cols());
    let tokens = if at_once { cols } else { 1 };
    let mut act = Activations::new(tokens, cols);
    let mut out = vec![f32::NAN; cols * rows];
    for (part, first) in out.chunks_mut(tokens * rows).zip((0..cols).step_by(tokens)) {
        act.begin(isa, RowCounts::of_call(tokens), cols, ActivationFormats::of([w.kind()]));
        for t in 0..tokens {
            let mut x = vec![0.0; cols];
            x[first + t] = 1.0;
            act.put(t, &x);
        }
        let y = Output::new(part, rows);
        // SAFETY: one thread.
        unsafe { matmul(w, 0..rows, &act, y, &mut MatmulScratch::new()) };
    }
    out
}

fn check(w: &Matrix<'_>, weights: &[f32]) {
    let (rows, cols) = (w.rows(), w.cols());
    let portable = [false, true].map(|at_once| columns(w, Isa::SCALAR, at_once));
    for isa in levels() {
        for at_once in [false, true] {
            // Products of prompts with AMX round weights to bf16.
            let bf16 = at_once && isa.level() == SimdLevel::Amx;
            let found = columns(w, isa, at_once);
            let bits = |y: &[f32]| -> Vec<u32> { y.iter().map(|y| y.to_bits()).collect() };
            let (ty, layout) = (w.weight_type(), w.layout());
            let same = bf16 || bits(&found) == bits(&portable[usize::from(at_once)]);
            assert!(same, "{ty} {layout:?} {isa}, at once: {at_once}, {cols} columns");
            for (i, y) in found.into_iter().enumerate() {
                let (k, r) = (i / rows, i % rows);
                // A weight is a scale times a code and an offset, which may cancel: of the size of what is near.
                let near = &weights[r * cols + k / 32 * 32..][..32];
                let size = near.iter().fold(0f32, |max, w| max.max(w.abs()));
                let bound = size * if bf16 { 1.0 / 64.0 } else { 2e-5 };
                let weight = weights[r * cols + k];
                assert!(
                    (y - weight).abs() <= bound,
                    "{ty} {layout:?} {isa}, at once: {at_once}, {cols} columns, row {r} column {k}: {y}, not {weight}"
                );
            }
        }
    }
}

/// The numbers of blocks of a row: whole steps of 256 weights, what is shorter, and some steps with a tail.
fn counts(ty: WeightType) -> Vec<usize> {
    let per_256 = 256 / ty.block_len();
    if few() {
        return vec![1, per_256 + 1];
    }
    [per_256, 2 * per_256].into_iter().chain(1..per_256).chain([3 * per_256 + 1]).collect()
}

#[test]
fn every_weight_of_a_row_of_blocks_is_in_the_products() {
    let mut rng = Rng(11);
    for ty in WeightType::ALL.into_iter().filter(|ty| !ty.is_float()) {
        for n in counts(ty) {
            let (rows, cols) = (3, n * ty.block_len());
            let blocks = random_blocks(&mut rng, ty, rows, cols);
            let mut weights = vec![0.0; rows * cols];
            dequantize_row(ty, &blocks, &mut weights);
            check(&Matrix::new(ty, &blocks, rows, cols).unwrap(), &weights);
        }
    }
}

#[test]
fn every_weight_of_a_tile_is_in_the_products() {
    let mut rng = Rng(12);
    let packable = |ty: &WeightType| !ty.is_float() && packable(*ty, TILE_ROWS, ty.block_len());
    for ty in WeightType::ALL.into_iter().filter(packable) {
        for n in [1, 256 / ty.block_len() + 1] {
            let (rows, cols) = (TILE_ROWS, n * ty.block_len());
            let blocks = random_blocks(&mut rng, ty, rows, cols);
            let mut weights = vec![0.0; rows * cols];
            dequantize_row(ty, &blocks, &mut weights);
            let mut tiles = vec![0; blocks.len()];
            pack(ty, cols, &blocks, &mut tiles);
            let w = Matrix::with_layout(Layout::Tiles, ty, &tiles, rows, cols).unwrap();
            check(&w, &weights);
        }
    }
}

/// On AArch64 some types have nothing else, and are tested above.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_type_that_has_nothing_but_its_decoding_is_read_on_every_level() {
    use alight_kernels::internals::derived;
    let (mut rng, ty) = (Rng(13), WeightType::Q2_0);
    for isa in Isa::available() {
        for n in counts(ty) {
            let row = random_blocks(&mut rng, ty, 1, n * ty.block_len());
            let mut weights = vec![0.0; n * ty.block_len()];
            dequantize_row(ty, &row, &mut weights);
            assert!(derived::row(isa, &row).is_none_or(|found| found == weights), "{isa} {n}");
        }
        let blocks = random_blocks(&mut rng, ty, TILE_ROWS, ty.block_len());
        let (mut unit, mut weights) =
            (vec![0; blocks.len()], vec![0.0; TILE_ROWS * ty.block_len()]);
        pack(ty, ty.block_len(), &blocks, &mut unit);
        dequantize_row(ty, &blocks, &mut weights);
        assert!(derived::unit(isa, &unit).is_none_or(|found| found == weights), "{isa}");
    }
}
