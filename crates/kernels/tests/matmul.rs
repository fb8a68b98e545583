//! Products on random blocks: the portable level against a float64 oracle, whose bound is what rounding the activations allows, and every SIMD level and
//! layout against the portable one, to the bit. AMX's products in bf16 have an oracle of their own.

use alight_kernels::{
    ActivationFormats, Activations, Isa, Layout, MatmulScratch, Matrix, Output, RowCounts,
    SimdLevel, WeightType, dequantize_row, matmul,
    tiles::{pack, packable},
};
use std::ops::Range;

use crate::common::{Rng, few, random_blocks, uniform};

/// Activations as networks have them: mostly small, a few large.
fn random_activations(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|i| uniform(rng, -1.0, 1.0) * if i % 61 == 7 { 40.0 } else { 1.0 }).collect()
}

#[derive(Clone)]
struct Case {
    ty: WeightType,
    layout: Layout,
    rows: usize,
    cols: usize,
    tokens: usize,
    blocks: Vec<u8>,
    x: Vec<f32>,
    /// What rounding the activations can do to each output at most.
    bound: Vec<f64>,
    exact: Vec<f64>,
    /// With AMX: the sums of products that are rounded to bf16, and what f32 sums of them can be off by.
    bf16: Vec<[f64; 2]>,
}

/// The nearest bf16; of an activation ties go to even, of a weight away from zero.
fn bf16(x: f32, weight: bool) -> f64 {
    let bits = x.to_bits();
    let tie = if weight { 1 } else { bits >> 16 & 1 };
    f32::from_bits((bits + 0x7fff + tie) & 0xffff_0000) as f64
}

impl Case {
    fn new(rng: &mut Rng, ty: WeightType, rows: usize, cols: usize, tokens: usize) -> Case {
        let blocks = random_blocks(rng, ty, rows, cols);
        let x = random_activations(rng, tokens * cols);
        let mut w = vec![0f32; rows * cols];
        dequantize_row(ty, &blocks, &mut w);
        let (mut exact, mut bound, mut bf16s) = (vec![], vec![], vec![]);
        // One unit of the integers is max / limit of its group; rounding is off by half of it.
        let (group, limit) = if tokens == 1 { (256, 32512.0) } else { (32, 127.0) };
        for x in x.chunks_exact(cols) {
            for w in w.chunks_exact(cols) {
                let (mut y, mut err, mut size) = (0f64, 0f64, 0f64);
                let (mut rounded, mut largest) = (0f64, 0f64);
                for (x, w) in x.chunks(group).zip(w.chunks(group)) {
                    let max = x.iter().fold(0f32, |m, x| m.max(x.abs())) as f64;
                    for (x, w) in x.iter().zip(w) {
                        y += *x as f64 * *w as f64;
                        err += w.abs() as f64 * max / limit / 2.0;
                        size += (x * w).abs() as f64;
                        rounded += bf16(*x, false) * bf16(*w, true);
                        largest = largest.max((x * w).abs() as f64);
                    }
                }
                exact.push(y);
                // A weight is the result of another sequence of operations here, and may be rounded to the bf16 beside this
                // one, of which there are few.
                bf16s.push([rounded, size * 2e-6 * 16.0 + largest / 64.0]);
                // f32 accumulation adds at most some ulps of the sum of magnitudes. With an
                // offset, d·q and m cancel, so their own magnitudes count: hence the factor.
                bound.push(if ty.is_float() { 0.0 } else { err * 1.0001 } + size * 2e-6 * 16.0);
            }
        }
        Case { ty, layout: Layout::Rows, rows, cols, tokens, blocks, x, bound, exact, bf16: bf16s }
    }

    /// True if a prompt's products are of bf16 numbers.
    fn is_bf16(&self, isa: Isa) -> bool {
        let kind = !self.ty.is_float() || self.ty == WeightType::BF16;
        isa.level() == SimdLevel::Amx && self.tokens > 1 && kind && self.cols.is_multiple_of(32)
    }

    /// The same matrix packed, if it can be.
    fn packed(&self) -> Option<Case> {
        if !packable(self.ty, self.rows, self.cols) {
            return None;
        }
        let mut blocks = vec![0; self.blocks.len()];
        pack(self.ty, self.cols, &self.blocks, &mut blocks);
        Some(Case { layout: Layout::Tiles, blocks, ..self.clone() })
    }

    fn run(&self, isa: Isa, rows: Range<usize>) -> Vec<f32> {
        self.run_tokens(isa, rows, 0..self.tokens)
    }

    /// The products with some of the tokens, which begin at a block.
    fn run_tokens(&self, isa: Isa, rows: Range<usize>, tokens: Range<usize>) -> Vec<f32> {
        let (layout, ty) = (self.layout, self.ty);
        let w = Matrix::with_layout(layout, ty, &self.blocks, self.rows, self.cols).unwrap();
        // Larger than needed, and dirty, so that stale contents would show.
        let mut act = Activations::new(self.tokens + 1, self.cols + 300);
        act.begin(
            isa,
            RowCounts::of_call(self.tokens),
            self.cols,
            ActivationFormats::of([w.kind()]),
        );
        for t in 0..self.tokens {
            act.put(t, &vec![1e3; self.cols]);
        }
        for (t, x) in self.x.chunks_exact(self.cols).enumerate() {
            act.put(t, x);
        }
        let mut out = vec![f32::NAN; tokens.len() * self.rows];
        let mut scratch = MatmulScratch::new();
        let y = Output::new(&mut out, self.rows);
        // SAFETY: one thread.
        unsafe { matmul(&w, rows, act.tokens_in(tokens), y, &mut scratch) };
        out
    }

    fn check(&self) {
        let portable = self.run(Isa::SCALAR, 0..self.rows);
        for (i, &y) in portable.iter().enumerate() {
            let (exact, bound) = (self.exact[i], self.bound[i]);
            let off = (y as f64 - exact).abs();
            let what = self.name(Isa::SCALAR);
            assert!(off <= bound, "{what} [{i}]: {y}, exact {exact}, off by {off} > {bound}");
        }
        let mut bf16 = None;
        for case in [Some(self.clone()), self.packed()].into_iter().flatten() {
            for isa in Isa::available() {
                let found = case.run(isa, 0..case.rows);
                if !case.is_bf16(isa) {
                    assert!(same_bits(&found, &portable), "{} is not the portable", case.name(isa));
                    continue;
                }
                for (i, &y) in found.iter().enumerate() {
                    let [exact, bound] = case.bf16[i];
                    let off = (y as f64 - exact).abs();
                    let what = case.name(isa);
                    assert!(off <= bound, "{what} [{i}]: {y}, of bf16 {exact}, off by {off}");
                }
                let first = bf16.get_or_insert_with(|| found.clone());
                assert!(same_bits(&found, first), "{} is not that of rows", case.name(isa));
            }
        }
    }

    fn name(&self, isa: Isa) -> String {
        let Case { ty, layout, rows, cols, tokens, .. } = self;
        format!("{ty} {layout:?} {isa} {rows}×{cols}, {tokens} tokens")
    }
}

fn same_bits(x: &[f32], y: &[f32]) -> bool {
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    bits(x) == bits(y)
}

#[test]
fn products_are_as_exact_as_the_activations_allow() {
    let mut rng = Rng(1);
    let mut shapes = &[(1, 256), (7, 512), (33, 768), (64, 1024), (16, 2304), (48, 512)][..];
    let mut counts = &[1, 2, 3, 5, 6, 7, 13, 27][..];
    if few() {
        (shapes, counts) = (&[(7, 512), (48, 1280)], &[1, 5, 6, 7]);
    }
    for ty in WeightType::ALL {
        for &(rows, cols) in shapes {
            for &tokens in counts {
                Case::new(&mut rng, ty, rows, cols, tokens).check();
            }
        }
    }
}

#[test]
fn tails_shorter_than_a_step() {
    let mut rng = Rng(2);
    // Blocks of 64 and 128 too have columns past the last 256.
    let mut all = &[32, 64, 96, 288, 352, 576, 640, 800, 1504, 128, 384, 896][..];
    let mut counts = &[1, 4, 6][..];
    if few() {
        (all, counts) = (&[96, 352, 384], &[1, 6]);
    }
    for ty in WeightType::ALL.into_iter().filter(|t| (2..256).contains(&t.block_len())) {
        for &cols in all.iter().filter(|cols| *cols % ty.block_len() == 0) {
            for &tokens in counts {
                Case::new(&mut rng, ty, 37, cols, tokens).check();
                Case::new(&mut rng, ty, 32, cols, tokens).check();
            }
        }
    }
    for ty in WeightType::ALL.into_iter().filter(|t| t.is_float()) {
        for cols in [1, 3, 15, 17, 100, 255, 257, 600] {
            for tokens in [1, 4, 6] {
                Case::new(&mut rng, ty, 19, cols, tokens).check();
                Case::new(&mut rng, ty, 16, cols, tokens).check();
            }
        }
    }
}

/// As many as AMX takes, with one to four groups of columns for a row and more, and one with two panels.
#[test]
fn many_tokens() {
    let mut rng = Rng(5);
    let mut all = &[32, 64, 96, 128, 800, 256, 1024][..];
    let mut counts = &[96, 101][..];
    if few() {
        (all, counts) = (&[96, 256], &[97]);
    }
    for ty in WeightType::ALL.into_iter().filter(|t| !t.is_float()) {
        for &cols in all.iter().filter(|cols| *cols % ty.block_len() == 0) {
            for &tokens in counts {
                Case::new(&mut rng, ty, 37, cols, tokens).check();
                Case::new(&mut rng, ty, 32, cols, tokens).check();
            }
        }
    }
}

/// What a token gets does not depend on those beside it, nor on how many of a set are multiplied at a time.
#[test]
fn some_tokens_of_a_set() {
    let mut rng = Rng(6);
    for ty in [WeightType::Q4_0, WeightType::Q4_K, WeightType::Q6_K, WeightType::BF16] {
        let case = Case::new(&mut rng, ty, 48, 512, 200);
        for case in [case.packed().unwrap(), case] {
            for isa in Isa::available() {
                let whole = case.run(isa, 0..case.rows);
                for tokens in [0..200, 48..200, 96..99, 144..145, 0..112] {
                    let part = case.run_tokens(isa, 0..case.rows, tokens.clone());
                    let (first, last) = (tokens.start * case.rows, tokens.end * case.rows);
                    let same = part.iter().zip(&whole[first..last]);
                    let same = same.filter(|(a, b)| a.to_bits() == b.to_bits()).count();
                    let what = format!("{ty} {:?} {isa} {tokens:?}", case.layout);
                    assert_eq!(same, part.len(), "{what}: other bits");
                }
            }
        }
    }
}

#[test]
fn a_range_of_rows_writes_only_itself() {
    let mut rng = Rng(3);
    for ty in [WeightType::Q4_0, WeightType::Q6_K, WeightType::F16] {
        for tokens in [1, 8] {
            let case = Case::new(&mut rng, ty, 80, 512, tokens);
            for case in [case.packed().unwrap(), case] {
                for isa in Isa::available() {
                    only_rows(&case, isa, 33..47);
                    only_rows(&case, isa, 17..18);
                }
            }
        }
    }
}

fn only_rows(case: &Case, isa: Isa, rows: Range<usize>) {
    let whole = case.run(isa, 0..case.rows);
    let part = case.run(isa, rows.clone());
    for (i, (part, whole)) in part.iter().zip(whole).enumerate() {
        let r = i % case.rows;
        let what = format!("{} {:?} {isa} row {r}", case.ty, case.layout);
        if rows.contains(&r) {
            // Panels begin elsewhere, but each row is summed in the same order.
            assert_eq!(part.to_bits(), whole.to_bits(), "{what}");
        } else {
            assert!(part.is_nan(), "{what} was written");
        }
    }
}

/// Class 10 of the malformed input: any bits in scales and quants are computed without a crash.
#[test]
fn hostile_blocks_are_computed_without_harm() {
    let mut rng = Rng(4);
    for ty in WeightType::ALL {
        for fill in [0xffu8, 0x7c, 0xfc, 0x00, 0x01] {
            let blocks = vec![fill; ty.row_bytes(512).unwrap() * 32];
            let rows = Matrix::new(ty, &blocks, 32, 512);
            let tiles = Matrix::with_layout(Layout::Tiles, ty, &blocks, 32, 512);
            for (w, isa) in [rows, tiles]
                .into_iter()
                .flatten()
                .flat_map(|w| Isa::available().into_iter().map(move |isa| (w, isa)))
            {
                for tokens in [1, 3] {
                    let mut act = Activations::new(tokens, 512);
                    act.begin(
                        isa,
                        RowCounts::of_call(tokens),
                        512,
                        ActivationFormats::of([w.kind()]),
                    );
                    for t in 0..tokens {
                        let mut x = random_activations(&mut rng, 512);
                        (x[0], x[100], x[200]) = (f32::NAN, f32::INFINITY, -1e-42);
                        act.put(t, &x);
                    }
                    let mut out = vec![0f32; 32 * tokens];
                    // SAFETY: one thread.
                    unsafe {
                        matmul(
                            &w,
                            0..32,
                            &act,
                            Output::new(&mut out, 32),
                            &mut MatmulScratch::new(),
                        )
                    };
                }
            }
        }
    }
}

#[test]
fn zero_and_tiny_activations_give_zero() {
    let mut rng = Rng(5);
    for ty in WeightType::ALL.into_iter().filter(|t| !t.is_float()) {
        let blocks = random_blocks(&mut rng, ty, 5, 512);
        let w = Matrix::new(ty, &blocks, 5, 512).unwrap();
        for isa in Isa::available() {
            for (tokens, x) in [(1, 0.0), (2, 0.0), (1, 1e-45), (2, 1e-45)] {
                let mut act = Activations::new(tokens, 512);
                act.begin(isa, RowCounts::of_call(tokens), 512, ActivationFormats::of([w.kind()]));
                for t in 0..tokens {
                    act.put(t, &[x; 512]);
                }
                let mut out = vec![1f32; 5 * tokens];
                // SAFETY: one thread.
                unsafe {
                    matmul(&w, 0..5, &act, Output::new(&mut out, 5), &mut MatmulScratch::new())
                };
                assert!(out.iter().all(|y| y.abs() < 1e-30), "{ty} {isa}: {out:?}");
            }
        }
    }
}

#[test]
fn finished_products_are_scaled() {
    let mut rng = Rng(6);
    for (ty, tokens) in [(WeightType::NVFP4, 1), (WeightType::NVFP4, 3), (WeightType::F16, 2)] {
        let (rows, cols) = (48, 320);
        let bytes = random_blocks(&mut rng, ty, rows, cols);
        let mut packed = vec![0; bytes.len()];
        pack(ty, cols, &bytes, &mut packed);
        let x = random_activations(&mut rng, tokens * cols);
        for (layout, data) in [(Layout::Rows, &bytes), (Layout::Tiles, &packed)] {
            let w = Matrix::with_layout(layout, ty, data, rows, cols).unwrap();
            for isa in Isa::available() {
                let mut act = Activations::new(tokens, cols);
                act.begin(isa, RowCounts::of_call(tokens), cols, ActivationFormats::of([w.kind()]));
                x.chunks_exact(cols).enumerate().for_each(|(t, x)| act.put(t, x));
                let products = |w: Matrix<'_>| {
                    let mut out = vec![0f32; tokens * rows];
                    let y = Output::new(&mut out, rows);
                    // SAFETY: one thread.
                    unsafe { matmul(&w, 5..rows, &act, y, &mut MatmulScratch::new()) };
                    out
                };
                let (plain, scaled) = (products(w), products(w.scaled(-0.3)));
                for (plain, scaled) in plain.iter().zip(scaled) {
                    assert_eq!((plain * -0.3).to_bits() << 1, scaled.to_bits() << 1, "{ty} {isa}");
                }
            }
        }
    }
}

/// Integers that are as large as they may be, whose sums f32 holds, are summed exactly.
#[test]
fn whole_numbers_have_exact_products() {
    let mut rng = Rng(8);
    let (rows, cols) = (32, 256);
    for (ty, zero, codes) in [
        (WeightType::Q8_0, 0, -128..=127),
        (WeightType::Q4_0, 8, -8..=7),
        (WeightType::Q4_1, 0, 0..=15),
    ] {
        for (turn, tokens) in (0..40).flat_map(|turn| [(turn, 1), (turn, 7)]) {
            // One token has 16 bits, of which one large one fits a sum; the others have 8.
            let most = if tokens == 1 { 32512 } else { 127 };
            let ends = [-127, -126, -1, 0, 1, 126, 127];
            let (low, high): (i32, i32) = codes.clone().into_inner();
            let code_ends = [low, low + 1, 0, 1, high - 1, high];
            let w: Vec<i32> = (0..rows * cols).map(|_| rng.pick(&code_ends)).collect();
            let mut x: Vec<i32> = (0..tokens * cols).map(|_| rng.pick(&ends)).collect();
            // One in each group makes its scale 1.
            let group = if tokens == 1 { 256 } else { 32 };
            for (i, group) in x.chunks_exact_mut(group).enumerate() {
                let at = (11 * i + 7 * turn) % group.len();
                group[at] = if rng.pick(&[0, 1]) == 0 { most } else { -most };
            }
            let blocks: Vec<u8> =
                w.chunks_exact(32).flat_map(|w| whole_block(ty, zero, w)).collect();
            let case = Case {
                ty,
                layout: Layout::Rows,
                rows,
                cols,
                tokens,
                blocks,
                x: x.iter().map(|x| *x as f32).collect(),
                bound: vec![],
                exact: vec![],
                bf16: vec![],
            };
            let sum = |x: &[i32], w: &[i32]| -> i32 { x.iter().zip(w).map(|(x, w)| x * w).sum() };
            let expected: Vec<f32> = x
                .chunks_exact(cols)
                .flat_map(|x| w.chunks_exact(cols).map(move |w| sum(x, w)))
                .map(|sum| sum as f32)
                .collect();
            for case in [case.packed().unwrap(), case] {
                for isa in Isa::available() {
                    let what = format!("{ty} {:?} {isa}, {tokens} tokens", case.layout);
                    assert_eq!(case.run(isa, 0..rows), expected, "{what}");
                }
            }
        }
    }
}

/// 32 whole numbers as a block with a scale of 1, and no offset.
fn whole_block(ty: WeightType, zero: i32, w: &[i32]) -> Vec<u8> {
    let mut block = vec![0; ty.block_bytes()];
    block[..2].copy_from_slice(&alight_kernels::half::f32_to_f16(1.0).to_le_bytes());
    let codes = block.len() - if ty == WeightType::Q8_0 { 32 } else { 16 };
    for (i, w) in w.iter().enumerate() {
        match ty {
            WeightType::Q8_0 => block[codes + i] = *w as u8,
            _ => block[codes + i % 16] |= ((w + zero) as u8) << (i / 16 * 4),
        }
    }
    block
}

#[test]
fn a_matrix_knows_its_size() {
    assert!(Matrix::new(WeightType::Q4_0, &[0; 18 * 6], 3, 64).is_ok());
    assert!(Matrix::new(WeightType::Q4_0, &[0; 18 * 6], 3, 63).is_err());
    assert!(Matrix::new(WeightType::Q4_0, &[0; 18 * 6 + 1], 3, 64).is_err());
    assert!(Matrix::new(WeightType::F32, &[], usize::MAX, 64).is_err());
}
