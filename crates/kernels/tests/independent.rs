//! What a row gets does not depend on the rows beside it: products of mixed sets of activations, and attention, bit for bit.

use alight_kernels::attention::{
    Ahead, AttentionLimits, AttentionParams, AttentionScratch, KvCache, KvShape, KvType, KvWriter,
    PageTable, Window, kv_store, tile_tokens,
};
use alight_kernels::matmul::Precision;
use alight_kernels::parallel::{Attend, AttendRows, Product, Rows, Scratch, Threads, multiply};
use alight_kernels::parallel::{Cost, pack as pack_rows};
use alight_kernels::planes::has_planes_for;
use alight_kernels::tiles::packable;
use alight_kernels::{
    ActivationFormats, Activations, Isa, Layout, MatmulScratch, Matrix, Output, RowCounts,
    WeightType, matmul,
};
use std::ops::Range;

use crate::common::{Rng, levels, random_blocks};

struct Own {
    matmul: MatmulScratch,
    attention: Option<AttentionScratch>,
}

impl Scratch for Own {
    fn with_products(&mut self, count: usize, f: impl FnOnce(&mut MatmulScratch, &mut [f32])) {
        f(&mut self.matmul, &mut vec![f32::NAN; count]);
    }

    fn with_attention(&mut self, limits: AttentionLimits, f: impl FnOnce(&mut AttentionScratch)) {
        let scratch = AttentionScratch::new(limits);
        f(self.attention.insert(scratch));
    }
}

/// One thread, which takes the units two by two.
struct Alone(Own);

impl Alone {
    fn new() -> Alone {
        Alone(Own { matmul: MatmulScratch::new(), attention: None })
    }
}

// SAFETY: every unit is run once, in order.
unsafe impl Threads for Alone {
    type Scratch = Own;

    fn run(&mut self, units: usize, _: Cost, f: &(dyn Fn(Range<usize>, &mut Own) + Sync)) {
        for start in (0..units).step_by(2) {
            f(start..units.min(start + 2), &mut self.0);
        }
    }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_product_is_that_of_its_token_alone() {
    let mut rng = Rng(7);
    for ty in WeightType::ALL {
        // With a last group that is not whole, where blocks are short enough.
        let (rows, cols) = (48, if ty.block_len() <= 32 { 1376 } else { 1280 });
        let canonical = random_blocks(&mut rng, ty, rows, cols);
        let mut packed = vec![0; canonical.len()];
        let layouts = match packable(ty, rows, cols) {
            true if has_planes_for(ty, rows, cols) => {
                &[Layout::Rows, Layout::Tiles, Layout::Planes][..]
            }
            true => &[Layout::Rows, Layout::Tiles],
            false => &[Layout::Rows],
        };
        for &layout in layouts {
            let data = match layout {
                Layout::Rows => &canonical,
                _ => {
                    layout.pack(ty, cols, &canonical, &mut packed);
                    &packed
                }
            };
            let w = Matrix::with_layout(layout, ty, data, rows, cols).unwrap();
            for isa in levels() {
                for counts in [[1, 1], [3, 0], [0, 1], [2, 14], [9, 25]] {
                    let counts = RowCounts { bits16: counts[0], bits8: counts[1] };
                    mixed(&mut rng, isa, &w, counts);
                    if layout == Layout::Rows {
                        // Rows that are left over when some are multiplied together.
                        let end = ty.row_bytes(cols).unwrap() * (rows - 1);
                        let w = Matrix::new(ty, &data[..end], rows - 1, cols).unwrap();
                        mixed(&mut rng, isa, &w, counts);
                    }
                }
            }
        }
    }
}

fn mixed(rng: &mut Rng, isa: Isa, w: &Matrix<'_>, counts: RowCounts) {
    let (cols, n, formats) = (w.cols(), counts.all(), ActivationFormats::of([w.kind()]));
    let mut x = rng.normals(n * cols);
    let mut acts = Activations::new(n, cols);
    let buffers = [Rows::new(&mut x, cols)];
    let threads = &mut Alone::new();
    let into = (&mut acts, formats);
    pack_rows(threads, isa, (counts, cols), buffers, into, &|_, [row], _, put| put(row));
    let mut y = vec![0f32; n * w.rows()];
    let out = Rows::new(&mut y, w.rows());
    multiply(threads, &[[Product::new(*w, out)]], &acts, None);
    for (t, y) in y.chunks_exact(w.rows()).enumerate() {
        let mut single = Activations::new(1, cols);
        single.begin(isa, RowCounts::new(counts.precision(t), 1), cols, formats);
        single.put(0, &x[t * cols..][..cols]);
        let mut one = vec![0f32; w.rows()];
        let out = Output::new(&mut one, w.rows());
        // SAFETY: one thread.
        unsafe { matmul(w, 0..w.rows(), &single, out, &mut MatmulScratch::new()) };
        let what = (w.weight_type(), w.layout());
        assert!(bits(y) == bits(&one), "{isa} {what:?} {counts:?}: token {t}");
    }
    assert!(counts.bits8 == 0 || counts.precision(n - 1) == Precision::Bits8);
}

/// Of so many activations a cache holds some columns at a time, so that panels are made in another order.
#[test]
fn a_long_prompt_of_many_columns_is_that_of_its_tokens_alone() {
    let mut rng = Rng(8);
    let (rows, cols, tokens, isa) = (304, 8960, 60, Isa::best());
    let x = rng.normals(tokens * cols);
    for ty in [WeightType::Q4_0, WeightType::Q4_K, WeightType::Q6_K] {
        let canonical = random_blocks(&mut rng, ty, rows, cols);
        let mut packed = vec![0; canonical.len()];
        Layout::Tiles.pack(ty, cols, &canonical, &mut packed);
        for (layout, data) in [(Layout::Rows, &canonical), (Layout::Tiles, &packed)] {
            let w = Matrix::with_layout(layout, ty, data, rows, cols).unwrap();
            let product = |some: Range<usize>, tokens: Range<usize>| {
                let n = tokens.len();
                let counts = RowCounts::new(Precision::Bits8, n);
                let mut acts = Activations::new(n, cols);
                acts.begin(isa, counts, cols, ActivationFormats::of([w.kind()]));
                for (t, x) in x.chunks_exact(cols).skip(tokens.start).take(n).enumerate() {
                    acts.put(t, x);
                }
                let mut y = vec![f32::NAN; n * rows];
                let out = Output::new(&mut y, rows);
                // SAFETY: one thread.
                unsafe { matmul(&w, some, &acts, out, &mut MatmulScratch::new()) };
                y
            };
            let all = product(0..rows, 0..tokens);
            // It begins and ends within a tile.
            let some = 17..298;
            let part = product(some.clone(), 0..tokens);
            for (t, all) in all.chunks_exact(rows).enumerate() {
                let alone = product(0..rows, t..t + 1);
                assert!(bits(all) == bits(&alone), "{isa} {ty} {layout:?}: token {t}");
                let part = &part[t * rows..][..rows];
                assert!(bits(&part[some.clone()]) == bits(&all[some.clone()]), "token {t}");
                let outside = part[..some.start].iter().chain(&part[some.end..]);
                assert!(outside.copied().all(f32::is_nan), "{isa} {ty} {layout:?}: token {t}");
            }
        }
    }
}

#[test]
fn attention_is_that_of_its_row_alone() {
    let windows = [None, Some(Window::Sliding(50)), Some(Window::Chunk(96))];
    for (kv_heads, group, k_dim, v_dim, shared, ty) in [
        (2, 3, 64, 48, false, KvType::F16),
        (1, 8, 128, 128, false, KvType::F16),
        (1, 5, 40, 32, true, KvType::F16),
        (2, 3, 64, 100, false, KvType::F32),
        (2, 3, 64, 96, false, KvType::Q8_0),
        (1, 5, 64, 40, true, KvType::Q8_0),
        (2, 3, 64, 96, false, KvType::Q4R),
        (1, 5, 96, 64, true, KvType::Q4R),
    ] {
        let shape = KvShape { kv_heads, k_dim, v_dim, capacity: 512, shared, ty };
        let mut rng = Rng(11);
        let (mut keys, mut values) = (vec![0; shape.k_len()], vec![0; shape.v_len()]);
        let filled = 500;
        for p in 0..filled {
            let (k, v) = (rng.normals(kv_heads * k_dim), rng.normals(kv_heads * v_dim));
            let v = if shared { &[][..] } else { &v };
            kv_store(Isa::best(), &shape, &mut keys, &mut values, p, &k, v);
        }
        let cache = KvCache::new(shape, &keys, &values);
        // The same in pages of a larger memory that are anywhere in it, between others.
        let page = KvShape { capacity: 64, ..shape };
        let (stride, table) = (page.k_len() + page.v_len() + 48, [7u32, 2, 9, 4, 5, 0, 8, 3]);
        let table = PageTable { pages: &table, stride };
        let mut memory = vec![0x7e00u16; 10 * stride];
        let starts = [16, 16 + page.k_len()];
        let mut one = Rng(11);
        for p in 0..filled {
            let (k, v) = (one.normals(kv_heads * k_dim), one.normals(kv_heads * v_dim));
            let v = if shared { &[][..] } else { &v };
            let writer = KvWriter::paged(page, &mut memory, starts, table);
            // SAFETY: one thread.
            unsafe { writer.store(Isa::best(), p, &k, v) };
        }
        let paged = KvCache::paged(page, &memory[starts[0]..], &memory[starts[1]..], table);
        let (q_width, out_width) = (kv_heads * group * k_dim, kv_heads * group * v_dim);
        let q = rng.normals(filled * q_width);
        let sinks = rng.normals(kv_heads * group);
        for isa in levels() {
            for window in windows {
                let params = AttentionParams { scale: 0.2, softcap: None, window };
                let sinks = Some(&sinks[..]);
                let tiles_of = |cache: KvCache<'_>, tokens: Range<usize>| {
                    let (pos, n) = (tokens.start, tokens.len());
                    let ahead = Ahead::Nothing;
                    let attend = Attend {
                        isa,
                        params,
                        cache,
                        group,
                        sinks,
                        bias: None,
                        pos,
                        tokens: n,
                        ahead,
                    };
                    let mut out = vec![0f32; n * out_width];
                    attend.tiles(&mut Alone::new(), &q[pos * q_width..], &mut out);
                    out
                };
                let tiles = |tokens| tiles_of(cache, tokens);
                let reference = tiles(0..filled);
                assert!(bits(&tiles_of(paged, 70..300)) == bits(&tiles(70..300)), "{isa}: pages");
                for first in [0, 1, 63, 130, 131, 499] {
                    for n in [1, 2, tile_tokens(group) + 1, 200] {
                        let tokens = first..filled.min(first + n);
                        let expected = &reference[first * out_width..tokens.end * out_width];
                        let found = tiles(tokens.clone());
                        assert!(bits(&found) == bits(expected), "{isa} {window:?} {tokens:?}");
                    }
                }
                // Rows that decode, from all over the sequence, beside each other and alone.
                let positions = [0usize, 499, 64, 63, 300, 7];
                let rows_of = |cache: KvCache<'_>, positions: &[usize]| {
                    let q: Vec<f32> = positions
                        .iter()
                        .flat_map(|pos| q[pos * q_width..][..q_width].to_vec())
                        .collect();
                    let row = |i: usize| (cache, positions[i]);
                    let rows = positions.len();
                    let attend =
                        AttendRows { isa, params, group, sinks, bias: None, row: &row, rows };
                    let mut partials = vec![0f32; attend.partials()];
                    let mut out = vec![0f32; rows * out_width];
                    attend.run(&mut Alone::new(), &q, &mut out, &mut partials);
                    out
                };
                let rows = |positions: &[usize]| rows_of(cache, positions);
                let together = rows(&positions);
                assert!(bits(&rows_of(paged, &positions)) == bits(&together), "{isa}: pages");
                for (pos, out) in positions.iter().zip(together.chunks_exact(out_width)) {
                    assert!(bits(out) == bits(&rows(&[*pos])), "{isa} {window:?}: row at {pos}");
                    // The other form differs in rounding alone.
                    let tile = &reference[pos * out_width..][..out_width];
                    for (a, b) in out.iter().zip(tile) {
                        assert!((a - b).abs() < 1e-4, "{isa} {window:?}: {a} {b} at {pos}");
                    }
                }
            }
        }
    }
}
