//! Matrices in planes: all products have the bits of tiles, and the rows with the greatest products are found without reading all rows.

use alight_kernels::matmul::best::{self, Finish, Greatest, NOT_COMPUTED};
use alight_kernels::matmul::matmul;
use alight_kernels::{
    ActivationFormats, Activations, Isa, Layout, MatmulScratch, Matrix, Output, Precision,
    RowCounts, WeightType, vec,
};

use crate::common::{Rng, few, levels, random_blocks};

const TY: WeightType = WeightType::Q8_0;

fn packed(layout: Layout, blocks: &[u8], cols: usize) -> Vec<u8> {
    let mut packed = vec![0; blocks.len()];
    layout.pack(TY, cols, blocks, &mut packed);
    packed
}

fn activations(isa: Isa, precision: Precision, cols: usize, x: &[f32]) -> Activations {
    let tokens = x.len() / cols;
    let mut acts = Activations::new(tokens, cols);
    let kinds = [(TY, Layout::Planes), (TY, Layout::Rows)];
    acts.begin(isa, RowCounts::new(precision, tokens), cols, ActivationFormats::of(kinds));
    x.chunks_exact(cols).enumerate().for_each(|(t, x)| acts.put(t, x));
    acts
}

fn products(w: &Matrix<'_>, acts: &Activations) -> Vec<f32> {
    let mut out = vec![f32::NAN; acts.rows().all() * w.rows()];
    let to = Output::new(&mut out, w.rows());
    // SAFETY: the only thread.
    unsafe { matmul(w, 0..w.rows(), acts, to, &mut MatmulScratch::new()) };
    out
}

#[test]
fn planes_are_a_permutation_of_bits() {
    let mut rng = Rng(10);
    let two_groups = TY.row_bytes(4096).map(|row| (4 << 20) / row / 32 * 32 + 16).unwrap();
    for (rows, cols) in [(16, 32), (48, 96), (two_groups, 4096)] {
        let mut canonical = vec![0; rows * TY.row_bytes(cols).unwrap()];
        canonical.iter_mut().for_each(|byte| *byte = rng.next() as u8);
        let [planes, tiles] =
            [Layout::Planes, Layout::Tiles].map(|layout| packed(layout, &canonical, cols));
        let ones = |bytes: &[u8]| bytes.iter().map(|byte| byte.count_ones()).sum::<u32>();
        assert_eq!(ones(&planes), ones(&tiles), "{rows} × {cols}");
        let mut back = vec![0x5a; planes.len()];
        Layout::Planes.unpack(TY, cols, &planes, &mut back);
        assert!(back == canonical && planes != canonical, "{rows} × {cols}");
    }
}

#[test]
fn products_and_rows_have_the_bits_of_tiles() {
    let mut rng = Rng(11);
    // More than a group of rows, of which the last has an odd number of tiles.
    for (rows, cols) in [(16, 32), (208, 576), (528, 8192)] {
        if few() && cols > 1000 {
            continue;
        }
        let blocks = random_blocks(&mut rng, TY, rows, cols);
        let [tiles, planes] =
            [Layout::Tiles, Layout::Planes].map(|layout| packed(layout, &blocks, cols));
        let tiles = Matrix::with_layout(Layout::Tiles, TY, &tiles, rows, cols).unwrap();
        let planes = Matrix::with_layout(Layout::Planes, TY, &planes, rows, cols).unwrap();
        let (mut a, mut b) = (vec![0.0; cols], vec![1.0; cols]);
        for r in [0, rows / 2, rows - 1] {
            tiles.dequantize_row(r, &mut a);
            planes.dequantize_row(r, &mut b);
            assert_eq!(a, b, "row {r} of {rows} × {cols}");
        }
        for isa in levels() {
            for (precision, tokens) in
                [(Precision::Bits16, 1), (Precision::Bits16, 3), (Precision::Bits8, 14)]
            {
                let acts = activations(isa, precision, cols, &rng.normals(tokens * cols));
                let same = products(&tiles, &acts) == products(&planes, &acts);
                assert!(same, "{rows} × {cols} {isa} {precision:?} {tokens}");
            }
        }
    }
}

/// The rows with the `k` greatest products, in pieces of rows; checks that they, and those of `always`, have the right bits. Returns the share of rows
/// that were read whole.
fn check(
    w: &Matrix<'_>,
    acts: &Activations,
    k: usize,
    always: &[u32],
    piece: usize,
    what: &str,
) -> f64 {
    let (rows, tokens) = (w.rows(), acts.rows().all());
    let isa = acts.isa();
    let finish = |x: &mut [f32]| vec::scale(isa, x, 0.25);
    let mut all = products(w, acts);
    finish(&mut all);
    let limit = rows - 5;
    let mut greatest: Vec<Greatest> =
        (0..tokens).map(|_| Greatest::new(w.cols(), 64, 64)).collect();
    greatest.iter_mut().for_each(|one| one.request(k, limit, always.iter().copied()));
    assert!(best::begin(w, acts, &mut greatest), "{what}");
    let mut out = vec![f32::NAN; tokens * rows];
    let mut scratch = MatmulScratch::new();
    for start in (0..rows).step_by(piece) {
        let to = (Output::new(&mut out, rows), Finish { apply: &finish, slack: 0.0 });
        // SAFETY: the only thread.
        unsafe { best::rows(w, start..rows.min(start + piece), acts, &greatest, to, &mut scratch) };
    }
    for t in 0..tokens {
        let (all, out) = (&all[t * rows..][..rows], &out[t * rows..][..rows]);
        let mut computed = 0;
        for (all, out) in all.iter().zip(out) {
            computed += usize::from(*out != NOT_COMPUTED);
            assert!(*out == NOT_COMPUTED || all.to_bits() == out.to_bits(), "{what}: {all} {out}");
        }
        assert_eq!(computed, greatest[t].rows_read(), "{what}");
        for row in always {
            assert_eq!(all[*row as usize], out[*row as usize], "{what}: row {row}");
        }
        let mut order: Vec<usize> =
            (0..limit).filter(|row| !always.contains(&(*row as u32))).collect();
        order.sort_by(|a, b| all[*b].total_cmp(&all[*a]));
        let least = all[order[k - 1]];
        for row in order.into_iter().filter(|row| all[*row] >= least) {
            assert_eq!(all[row].to_bits(), out[row].to_bits(), "{what}: row {row} is one of {k}");
        }
    }
    greatest.iter().map(|one| one.rows_read() as f64).sum::<f64>() / (tokens * rows) as f64
}

/// Activations of which some are much larger than others, as those of models are.
fn peaked(rng: &mut Rng, n: usize) -> Vec<f32> {
    rng.normals(n).into_iter().map(|x| x * x * x).collect()
}

#[test]
fn the_greatest_products_are_found() {
    let mut rng = Rng(12);
    for (rows, cols) in [(2000, 64), (3008, 256), (1504, 2080)] {
        if few() && cols > 1000 {
            continue;
        }
        let blocks = random_blocks(&mut rng, TY, rows, cols);
        let planes = packed(Layout::Planes, &blocks, cols);
        let w = Matrix::with_layout(Layout::Planes, TY, &planes, rows, cols).unwrap();
        for isa in levels() {
            for (k, tokens, piece) in [(1, 1, rows), (40, 1, 96), (7, 3, 160), (64, 4, rows)] {
                let acts =
                    activations(isa, Precision::Bits16, cols, &peaked(&mut rng, tokens * cols));
                let always: &[u32] = if k == 7 { &[1, 17, 18, 999] } else { &[] };
                let what = format!("{k} of {rows} × {cols} {isa} {tokens}");
                let share = check(&w, &acts, k, always, piece, &what);
                assert!(k != 1 || share < 0.5, "{what}: {share}");
            }
        }
    }
}

/// Low bits that add as much as they can, or as little, so that the bound is reached: a bound that is smaller by a thousandth misses rows.
#[test]
fn bounds_that_are_reached_leave_no_row_out() {
    let mut rng = Rng(13);
    let (rows, cols) = (1024, 640);
    for case in 0..10 {
        let x = peaked(&mut rng, cols);
        let one = random_blocks(&mut rng, TY, 1, cols);
        let mut blocks = Vec::new();
        for row in 0..rows {
            let mut copy = one.clone();
            let least = rng.unit() * 0.02;
            for (b, block) in copy.chunks_exact_mut(34).enumerate() {
                let negative = block[1] & 0x80 != 0;
                for (j, code) in block[2..].iter_mut().enumerate() {
                    let adds = (x[32 * b + j] >= 0.0) != negative;
                    let adds = adds != (row % 2 == 0 || rng.unit() < least);
                    *code = *code & 0xf0 | if adds { 15 } else { 0 };
                }
            }
            blocks.extend(copy);
        }
        let planes = packed(Layout::Planes, &blocks, cols);
        let w = Matrix::with_layout(Layout::Planes, TY, &planes, rows, cols).unwrap();
        for isa in levels() {
            let acts = activations(isa, Precision::Bits16, cols, &x);
            check(&w, &acts, 1 + case, &[], rows, &format!("case {case} {isa}"));
        }
    }
}

/// A row with a NaN is never left out, and products that may overflow have no bounds.
#[test]
fn what_is_not_a_number_is_seen() {
    let mut rng = Rng(14);
    let (rows, cols) = (512, 64);
    let mut blocks = random_blocks(&mut rng, TY, rows, cols);
    blocks[400 * 68 + 34..][..2].copy_from_slice(&0x7e00_u16.to_le_bytes());
    blocks[401 * 68..][..2].copy_from_slice(&0xfc00_u16.to_le_bytes());
    let planes = packed(Layout::Planes, &blocks, cols);
    let w = Matrix::with_layout(Layout::Planes, TY, &planes, rows, cols).unwrap();
    for isa in levels() {
        let mut greatest = [Greatest::new(cols, 4, 4)];
        for x in [1e36_f32, f32::INFINITY, f32::NAN] {
            let mut values = rng.normals(cols);
            values[3] = x;
            greatest[0].request(1, rows, [].into_iter());
            let acts = activations(isa, Precision::Bits16, cols, &values);
            assert!(!best::begin(&w, &acts, &mut greatest), "{x} {isa}");
        }
        let acts = activations(isa, Precision::Bits16, cols, &rng.normals(cols));
        greatest[0].request(1, rows, [].into_iter());
        assert!(best::begin(&w, &acts, &mut greatest));
        let mut out = vec![0.0; rows];
        let to = (Output::new(&mut out, rows), Finish { apply: &|_| {}, slack: 0.0 });
        // SAFETY: the only thread.
        unsafe { best::rows(&w, 0..rows, &acts, &greatest, to, &mut MatmulScratch::new()) };
        let found: Vec<usize> = (0..rows).filter(|row| out[*row].is_nan()).collect();
        assert_eq!(found, [400, 401], "{isa}");
    }
}
