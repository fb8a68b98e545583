//! Numbers that are not finite: nothing that is computed from them is, on any SIMD level, and nothing else is different.

use std::ops::Range;

use alight_kernels::{
    ActivationFormats, Activations, Isa, Layout, MatmulScratch, Matrix, Output, RowCounts,
    WeightType, gate, matmul, norm,
    tiles::{pack, packable},
};

use crate::common::{Rng, changed_at_all_levels, few, levels, random_blocks, uniform};

const BAD: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

/// A matrix `[rows, cols]` in one layout.
struct Weights {
    ty: WeightType,
    layout: Layout,
    shape: [usize; 2],
    blocks: Vec<u8>,
}

impl Weights {
    /// The same weights in each layout that they can have.
    fn in_layouts(ty: WeightType, shape: [usize; 2], blocks: &[u8]) -> Vec<Weights> {
        let [rows, cols] = shape;
        let mut all = vec![Weights { ty, layout: Layout::Rows, shape, blocks: blocks.to_vec() }];
        if packable(ty, rows, cols) {
            let mut packed = vec![0; blocks.len()];
            pack(ty, cols, blocks, &mut packed);
            all.push(Weights { ty, layout: Layout::Tiles, shape, blocks: packed });
        }
        all
    }

    fn matrix(&self) -> Matrix<'_> {
        let [rows, cols] = self.shape;
        Matrix::with_layout(self.layout, self.ty, &self.blocks, rows, cols).unwrap()
    }

    /// The products with `x`, in memory that other calls have used: as bits, by token.
    fn products(
        &self,
        isa: Isa,
        x: &[f32],
        acts: &mut Activations,
        scratch: &mut MatmulScratch,
    ) -> Vec<Vec<f32>> {
        let (w, [rows, cols]) = (self.matrix(), self.shape);
        let tokens = x.len() / cols;
        let formats = ActivationFormats::of([w.kind()]);
        acts.begin(isa, RowCounts::of_call(tokens), cols, formats);
        x.chunks_exact(cols).enumerate().for_each(|(t, x)| acts.put(t, x));
        let mut out = vec![0.0; tokens * rows];
        // SAFETY: one thread.
        unsafe { matmul(&w, 0..rows, &*acts, Output::new(&mut out, rows), scratch) };
        out.chunks_exact(rows).map(<[f32]>::to_vec).collect()
    }
}

fn memory() -> (Activations, MatmulScratch) {
    (Activations::new(30, 2048), MatmulScratch::new())
}

/// Checks that exactly `wanted` of two results are NaN, and that the rest has the same bits.
fn only(wanted: impl Fn(usize, usize) -> bool, found: &[Vec<f32>], clean: &[Vec<f32>], what: &str) {
    for (t, (found, clean)) in found.iter().zip(clean).enumerate() {
        for (r, (found, clean)) in found.iter().zip(clean).enumerate() {
            match wanted(t, r) {
                true => assert!(found.is_nan(), "{what}: row {r} of token {t} is {found}"),
                false => assert_eq!(
                    found.to_bits(),
                    clean.to_bits(),
                    "{what}: row {r} of token {t} is {found}, not {clean}"
                ),
            }
        }
    }
}

/// Shapes with and without whole panels and groups of 256, for the types that can have them.
fn shapes(ty: WeightType) -> impl Iterator<Item = [usize; 2]> {
    let all: [[usize; 2]; 4] = [[48, 512], [37, 352], [32, 1504], [35, 256]];
    all.into_iter().filter(move |[_, cols]| cols.is_multiple_of(ty.block_len()))
}

/// One token, some tokens, many.
fn counts() -> &'static [usize] {
    if few() { &[1, 5] } else { &[1, 2, 5, 27] }
}

fn floats(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| uniform(rng, -1.0, 1.0)).collect()
}

#[test]
fn a_token_with_a_value_that_is_not_finite_has_no_product_and_leaves_no_trace() {
    let mut rng = Rng(31);
    for ty in WeightType::ALL {
        for shape @ [rows, cols] in shapes(ty) {
            let blocks = random_blocks(&mut rng, ty, rows, cols);
            for (w, isa) in Weights::in_layouts(ty, shape, &blocks)
                .iter()
                .flat_map(|w| levels().into_iter().map(move |isa| (w, isa)))
            {
                let (mut acts, mut scratch) = memory();
                for &tokens in counts() {
                    let x = floats(&mut rng, tokens * cols);
                    let (mut fresh, mut own) = memory();
                    let clean = w.products(isa, &x, &mut fresh, &mut own);
                    for value in BAD {
                        let what = format!("{ty} {:?} {isa} {shape:?}: {value}", w.layout);
                        let (bad, mut spoilt) = (rng.range(0, tokens), x.clone());
                        spoilt[bad * cols + rng.range(0, cols)] = value;
                        let found = w.products(isa, &spoilt, &mut acts, &mut scratch);
                        only(|t, _| t == bad, &found, &clean, &what);
                        // The memory had more and longer tokens of it before.
                        acts.begin(
                            isa,
                            RowCounts::of_call(30),
                            2048,
                            ActivationFormats::of([w.matrix().kind()]),
                        );
                        (0..30).for_each(|t| acts.put(t, &[value; 2048]));
                        let after = w.products(isa, &x, &mut acts, &mut scratch);
                        only(|_, _| false, &after, &clean, &what);
                    }
                }
            }
        }
    }
}

/// Makes one number of a block `value`: a scale, or the float. Returns false if the type has none that can be.
fn spoil(ty: WeightType, block: &mut [u8], scale: usize, value: f32) -> bool {
    use alight_kernels::ScaleField::{F16, F16Nibbles};
    use alight_kernels::half::{f32_to_bf16, f32_to_f16};
    match (ty, ty.scale_fields().get(scale)) {
        (WeightType::F32, _) => block.copy_from_slice(&value.to_le_bytes()),
        (WeightType::F16, _) => block.copy_from_slice(&f32_to_f16(value).to_le_bytes()),
        (WeightType::BF16, _) => block.copy_from_slice(&f32_to_bf16(value).to_le_bytes()),
        (_, Some(field @ (F16(_) | F16Nibbles(_)))) => field.set(block, value),
        // As ggml defines them, each byte of these scales is a finite number.
        _ => return false,
    }
    true
}

#[test]
fn a_row_with_a_weight_that_is_not_finite_has_no_product() {
    let mut rng = Rng(32);
    for ty in WeightType::ALL {
        for shape @ [rows, cols] in shapes(ty) {
            let blocks = random_blocks(&mut rng, ty, rows, cols);
            for (scale, value) in (0..ty.scale_fields().len().max(1))
                .flat_map(|scale| BAD.map(|value| (scale, value)))
            {
                let bad = rng.range(0, rows);
                let mut spoilt = blocks.clone();
                let per_row = cols / ty.block_len();
                let at = (bad * per_row + rng.range(0, per_row)) * ty.block_bytes();
                let block = &mut spoilt[at..at + ty.block_bytes()];
                if !spoil(ty, block, scale, value) {
                    continue;
                }
                let clean = Weights::in_layouts(ty, shape, &blocks);
                let spoilt = Weights::in_layouts(ty, shape, &spoilt);
                for (clean, spoilt) in clean.iter().zip(&spoilt) {
                    for (isa, &tokens) in
                        levels().into_iter().flat_map(|isa| counts().iter().map(move |n| (isa, n)))
                    {
                        let what = format!("{ty} {:?} {isa} {shape:?}: {value}", clean.layout);
                        let (mut acts, mut scratch) = memory();
                        let x = floats(&mut rng, tokens * cols);
                        let found = spoilt.products(isa, &x, &mut acts, &mut scratch);
                        // In memory that has seen the weight.
                        let clean = clean.products(isa, &x, &mut acts, &mut scratch);
                        only(|_, row| row == bad, &found, &clean, &what);
                    }
                }
            }
        }
    }
}

#[test]
fn what_follows_a_product_keeps_nan_and_a_norm_does_not_hide_an_overflow() {
    /// Where a value is among others: in a vector of any level, and past the last.
    const PLACES: Range<usize> = 0..37;
    for at in PLACES {
        let mut row = vec![0.5; PLACES.end];
        row[at] = f32::NAN;
        let ones = vec![1.0; PLACES.end];
        let one = |f: &dyn Fn(Isa, &mut [f32])| {
            let row = changed_at_all_levels("NaN", &row, f);
            assert!(row[at].is_nan(), "{at} of {row:?}");
        };
        one(&|isa, x| gate::silu_mul(isa, x, &ones));
        one(&|isa, x| gate::gelu_tanh_mul(isa, x, &ones));
        one(&|isa, x| gate::sigmoid_mul(isa, x, &ones));
        one(&|isa, x| gate::clamped_silu_mul(isa, x, &ones));
        one(&|isa, x| gate::gelu_erf_mul(isa, x, &ones));
        one(&|isa, x| gate::relu(isa, x));
        one(&|isa, x| gate::relu_squared(isa, x));
        one(&|isa, x| alight_kernels::vec::softcap(isa, x, 30.0));
        let up =
            changed_at_all_levels("NaN", &ones, |isa, up| gate::clamped_silu_mul(isa, up, &row));
        assert!(up[at].is_nan(), "{at} of {up:?}");
        for value in [f32::NAN, f32::INFINITY, 1e25] {
            row[at] = value;
            let normed = changed_at_all_levels("a norm", &row, |isa, x| {
                norm::rms_norm_in_place(isa, x, &ones, 1e-5);
            });
            assert!(normed.iter().all(|x| x.is_nan()), "{value} gives {normed:?}");
        }
    }
}
