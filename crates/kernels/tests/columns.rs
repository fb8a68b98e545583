//! Some columns of a matrix, in place: the same bits as of a matrix that has only those, on every SIMD level, in both
//! layouts, for one token and for several.

use alight_kernels::matmul::MatrixError;
use alight_kernels::tiles::{pack, packable};
use alight_kernels::{
    ActivationFormats, Activations, Isa, Layout, MatmulScratch, Matrix, Output, RowCounts,
    WeightType, matmul,
};
use std::ops::Range;

use crate::common::{Rng, random_blocks};

/// The bytes of `columns` of canonical rows, copied.
fn copied(ty: WeightType, blocks: &[u8], cols: usize, columns: &Range<usize>) -> Vec<u8> {
    let [from, to] = [columns.start, columns.end].map(|n| ty.row_bytes(n).unwrap());
    blocks
        .chunks_exact(ty.row_bytes(cols).unwrap())
        .flat_map(|row| &row[from..to])
        .copied()
        .collect()
}

fn packed(ty: WeightType, cols: usize, blocks: &[u8]) -> Vec<u8> {
    let mut tiles = vec![0; blocks.len()];
    pack(ty, cols, blocks, &mut tiles);
    tiles
}

/// Rows `rows` of the product, in a buffer of their own that they fill.
fn product(w: &Matrix<'_>, rows: Range<usize>, isa: Isa, x: &[f32]) -> Vec<u32> {
    let tokens = x.len() / w.cols();
    let mut act = Activations::new(tokens, w.cols());
    act.begin(isa, RowCounts::of_call(tokens), w.cols(), ActivationFormats::of([w.kind()]));
    for (t, x) in x.chunks_exact(w.cols()).enumerate() {
        act.put(t, x);
    }
    let mut out = vec![f32::NAN; tokens * rows.len()];
    let y = Output::starting_at(rows.start, &mut out, rows.len());
    // SAFETY: one thread.
    unsafe { matmul(w, rows, &act, y, &mut MatmulScratch::new()) };
    out.into_iter().map(f32::to_bits).collect()
}

#[test]
fn columns_are_those_of_a_matrix_that_was_copied_out() {
    let mut rng = Rng(1);
    for ty in WeightType::ALL {
        for round in 0..12 {
            // A few short rows, and rows longer than what is prefetched and unpacked at once.
            let blocks = if round % 3 == 0 { 9000 / ty.block_len().max(64) } else { 9 };
            let blocks = rng.range(2, blocks.max(3)) * if ty.is_float() { 7 } else { 1 };
            let cols = blocks * ty.block_len();
            let rows = if round % 2 == 0 { 16 * rng.range(1, 6) } else { rng.range(1, 90) };
            let bytes = random_blocks(&mut rng, ty, rows, cols);
            let from = rng.range(0, blocks);
            let to = rng.range(from + 1, blocks + 1);
            let columns = from * ty.block_len()..to * ty.block_len();
            let part = copied(ty, &bytes, cols, &columns);
            let first = rng.range(0, rows);
            let some = first..rng.range(first + 1, rows + 1);
            let view =
                Matrix::new(ty, &bytes, rows, cols).unwrap().columns(columns.clone()).unwrap();
            let alone = Matrix::new(ty, &part, rows, columns.len()).unwrap();
            same(&view, &alone, some.clone(), &mut rng);
            if packable(ty, rows, cols) {
                let bytes = packed(ty, cols, &bytes);
                let part = packed(ty, columns.len(), &part);
                let tiles = |bytes, cols| Matrix::with_layout(Layout::Tiles, ty, bytes, rows, cols);
                let view = tiles(&bytes, cols).unwrap().columns(columns.clone()).unwrap();
                same(&view, &tiles(&part, columns.len()).unwrap(), some, &mut rng);
            }
        }
    }
}

fn same(view: &Matrix<'_>, alone: &Matrix<'_>, rows: Range<usize>, rng: &mut Rng) {
    let what = format!("{:?} {} × {} rows {rows:?}", view.kind(), view.rows(), view.cols());
    assert_eq!((view.rows(), view.cols()), (alone.rows(), alone.cols()));
    let (mut a, mut b) = (vec![0f32; view.cols()], vec![1f32; view.cols()]);
    for r in rows.clone() {
        view.dequantize_row(r, &mut a);
        alone.dequantize_row(r, &mut b);
        assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()), "{what} row {r}");
    }
    for tokens in [1, 2, rng.range(3, 30)] {
        let x = rng.normals(tokens * view.cols());
        for isa in Isa::available() {
            let (a, b) =
                (product(view, rows.clone(), isa, &x), product(alone, rows.clone(), isa, &x));
            assert_eq!(a, b, "{what} {isa} tokens {tokens}");
        }
    }
}

/// A view of a view, and one of everything.
#[test]
fn views_nest() {
    let mut rng = Rng(2);
    let bytes = random_blocks(&mut rng, WeightType::Q4_1, 32, 512);
    for layout in [Layout::Rows, Layout::Tiles] {
        let w = Matrix::with_layout(layout, WeightType::Q4_1, &bytes, 32, 512).unwrap();
        let twice = w.columns(64..416).unwrap().columns(32..96).unwrap();
        same(&twice, &w.columns(96..160).unwrap(), 0..32, &mut rng);
        same(&w.columns(0..512).unwrap(), &w, 0..32, &mut rng);
        assert_eq!(w.columns(0..512).unwrap().data().len(), bytes.len());
    }
}

#[test]
fn columns_that_cannot_be_are_an_error() {
    let bytes = vec![0; 2 * 144 * 3];
    let w = Matrix::new(WeightType::Q4_K, &bytes, 2, 768).unwrap();
    #[allow(clippy::reversed_empty_ranges)]
    for columns in [0..128, 32..256, 512..1024, 256..256, 512..256, 768..1024, 0..usize::MAX] {
        let error = w.columns(columns.clone()).err().unwrap();
        assert_eq!(error, MatrixError::Columns { ty: WeightType::Q4_K, cols: 768, found: columns });
    }
    let error = w.columns(32..256).err().unwrap().to_string();
    assert!(error.contains("columns 32..256 of 768") && error.contains("256 weights"), "{error}");
}

#[test]
#[should_panic(expected = "the output does not have these rows")]
fn rows_before_the_first_of_the_output_are_refused() {
    let w = Matrix::new(WeightType::F32, &[0; 4 * 8], 8, 1).unwrap();
    let mut act = Activations::new(1, 1);
    act.begin(Isa::SCALAR, RowCounts::of_call(1), 1, ActivationFormats::of([w.kind()]));
    act.put(0, &[1.0]);
    let mut out = [0.0; 4];
    let y = Output::starting_at(4, &mut out, 4);
    // SAFETY: one thread.
    unsafe { matmul(&w, 3..7, &act, y, &mut MatmulScratch::new()) };
}
