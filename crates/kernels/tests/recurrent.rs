//! Recurrent mixers compared with their formulas in f64, one token at a time with many, and every SIMD level with the portable one.

use alight_kernels::Isa;
use alight_kernels::parallel::{
    Cost, DeltaRule, HeadRows, LinearAttention, Rows, Scratch, SelectiveScan, StateSpace, Threads,
};
use alight_kernels::recurrent::{COLUMNS, Filter, convolve};
use std::ops::Range;

use crate::common::{Rng, at_all_levels, changed_at_all_levels};

struct NoScratch;

impl Scratch for NoScratch {
    fn with_products(
        &mut self,
        _: usize,
        _: impl FnOnce(&mut alight_kernels::matmul::MatmulScratch, &mut [f32]),
    ) {
        unreachable!("no product");
    }

    fn with_attention(
        &mut self,
        _: alight_kernels::attention::AttentionLimits,
        _: impl FnOnce(&mut alight_kernels::attention::AttentionScratch),
    ) {
        unreachable!("no attention");
    }
}

/// One thread that takes the units in reverse.
struct Reversed;

// SAFETY: every unit is handed out once, before `run` returns.
unsafe impl Threads for Reversed {
    type Scratch = NoScratch;

    fn run(&mut self, units: usize, _: Cost, f: &(dyn Fn(Range<usize>, &mut NoScratch) + Sync)) {
        for unit in (0..units).rev() {
            f(unit..unit + 1, &mut NoScratch);
        }
    }
}

const TOKENS: usize = 21;

struct Case {
    key_heads: usize,
    value_heads: usize,
    dim: usize,
    neighbours: bool,
    mixed: Vec<f32>,
    decays: Vec<f32>,
    rates: Vec<f32>,
}

impl Case {
    fn new([key_heads, value_heads, dim]: [usize; 3], neighbours: bool) -> Case {
        let mut rng = Rng(7);
        let width = (2 * key_heads + value_heads) * dim;
        let mut mixed = rng.normals(TOKENS * width);
        // Queries and keys of about unit length, as the model makes them.
        for row in mixed.chunks_exact_mut(width) {
            row[..2 * key_heads * dim].iter_mut().for_each(|x| *x /= (dim as f32).sqrt());
        }
        let unit = |x: &f32| 1.0 / (1.0 + (-x).exp());
        let gates = rng.normals(2 * TOKENS * value_heads);
        let (decays, rates) = gates.split_at(TOKENS * value_heads);
        let (decays, rates) = (decays.iter().map(unit).collect(), rates.iter().map(unit).collect());
        Case { key_heads, value_heads, dim, neighbours, mixed, decays, rates }
    }

    /// The tokens in parts of `part`, `[TOKENS, value_heads · dim]`.
    fn run(&self, isa: Isa, part: usize) -> Vec<f32> {
        let Case { key_heads, value_heads, dim, neighbours, .. } = *self;
        let mut state = vec![0.0; DeltaRule::state_len(value_heads, dim)];
        let mut out = vec![f32::NAN; TOKENS * value_heads * dim];
        let (width, inner) = ((2 * key_heads + value_heads) * dim, value_heads * dim);
        for first in (0..TOKENS).step_by(part) {
            let n = part.min(TOKENS - first);
            let rule = DeltaRule {
                key_heads,
                value_heads,
                dim,
                neighbours,
                mixed: &self.mixed[first * width..],
                decays: &self.decays[first * value_heads..],
                rates: &self.rates[first * value_heads..],
            };
            let rows = Rows::starting_at(&mut out, inner, first);
            rule.run(&mut Reversed, isa, n, &mut state, rows);
        }
        out
    }

    /// The formula.
    fn exact(&self) -> Vec<f64> {
        let Case { key_heads, value_heads, dim, neighbours, .. } = *self;
        let width = (2 * key_heads + value_heads) * dim;
        let mut out = vec![0.0; TOKENS * value_heads * dim];
        for head in 0..value_heads {
            let from = if neighbours { head * key_heads / value_heads } else { head % key_heads };
            let mut state = vec![vec![0.0f64; dim]; dim];
            for t in 0..TOKENS {
                let row = &self.mixed[t * width..][..width];
                let at = |first: usize, i: usize| f64::from(row[first * dim + i]);
                let gate = |gates: &[f32]| f64::from(gates[t * value_heads + head]);
                let (decay, rate) = (gate(&self.decays), gate(&self.rates));
                state.iter_mut().flatten().for_each(|s| *s *= decay);
                for c in 0..dim {
                    let held: f64 = (0..dim).map(|i| at(key_heads + from, i) * state[i][c]).sum();
                    let added = rate * (at(2 * key_heads + head, c) - held);
                    for (i, row) in state.iter_mut().enumerate() {
                        row[c] += at(key_heads + from, i) * added;
                    }
                    out[(t * value_heads + head) * dim + c] =
                        (0..dim).map(|i| at(from, i) * state[i][c]).sum();
                }
            }
        }
        out
    }
}

#[test]
fn the_delta_rule_is_its_formula() {
    for (sizes, neighbours) in
        [([2, 4, 2 * COLUMNS], false), ([2, 6, COLUMNS], true), ([1, 1, 128], true)]
    {
        let case = Case::new(sizes, neighbours);
        let exact = case.exact();
        let found = at_all_levels("the delta rule", |isa| case.run(isa, TOKENS));
        for (i, (found, exact)) in found.iter().zip(&exact).enumerate() {
            // Sums of up to `dim` products of order one over `dim`, through the tokens.
            assert!((f64::from(*found) - exact).abs() < 2e-5, "{i}: {found} {exact}");
        }
    }
}

#[test]
fn heads_share_keys_one_way_or_the_other() {
    let (strided, neighbours) = (Case::new([2, 4, 16], false), Case::new([2, 4, 16], true));
    assert_ne!(strided.run(Isa::SCALAR, TOKENS), neighbours.run(Isa::SCALAR, TOKENS));
}

#[test]
fn tokens_one_by_one_give_the_same_bits_as_many() {
    let case = Case::new([2, 4, 32], false);
    let whole = case.run(Isa::SCALAR, TOKENS);
    for isa in Isa::available() {
        for part in [1, 4, 20] {
            assert_eq!(case.run(isa, part), whole, "{isa}, {part} at a time");
        }
    }
}

#[test]
fn the_convolution_is_its_formula_with_any_number_of_channels() {
    let mut rng = Rng(3);
    for (channels, silu, biased) in
        [(1, true, false), (7, false, true), (16, true, true), (50, false, false), (50, true, true)]
    {
        let rows: Vec<Vec<f32>> = (0..4).map(|_| rng.normals(channels)).collect();
        let (taps, bias) = (rng.normals(4 * channels), rng.normals(channels));
        let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        let filter = Filter { taps: &taps, bias: biased.then_some(&bias), silu };
        let out = changed_at_all_levels("convolution", &vec![0.0; channels], |isa, out| {
            convolve(isa, out, &rows, filter);
        });
        for c in 0..channels {
            let first = if biased { f64::from(bias[c]) } else { 0.0 };
            let sum: f64 =
                (0..4).map(|j| f64::from(rows[j][c]) * f64::from(taps[j * channels + c])).sum();
            let sum = first + sum;
            let exact = if silu { sum / (1.0 + (-sum).exp()) } else { sum };
            assert!((f64::from(out[c]) - exact).abs() < 2e-6, "{} {exact}", out[c]);
        }
    }
}

/// A Mamba-2 mixer's tokens in parts of `part`, `[TOKENS, heads · dim]`, and the same by its formula.
fn state_space(isa: Isa, [heads, groups, dim, len]: [usize; 4], part: usize) -> [Vec<f32>; 2] {
    let mut rng = Rng(9);
    let (inner, width) = (heads * dim, heads * dim + 2 * groups * len);
    let (mixed, past) = (rng.normals(TOKENS * width), rng.normals(heads));
    let unit = |x: &f32| 1.0 / (1.0 + (-x).exp());
    let decays: Vec<f32> = rng.normals(TOKENS * heads).iter().map(unit).collect();
    let rates: Vec<f32> = rng.normals(TOKENS * heads).iter().map(unit).collect();
    let mut state = vec![0.0; StateSpace::state_len(heads, dim, len)];
    let mut out = vec![f32::NAN; TOKENS * inner];
    for first in (0..TOKENS).step_by(part) {
        let n = part.min(TOKENS - first);
        let space = StateSpace {
            heads,
            groups,
            dim,
            len,
            mixed: &mixed[first * width..],
            decays: &decays[first * heads..],
            rates: &rates[first * heads..],
            past: &past,
        };
        let rows = Rows::new(&mut out[first * inner..(first + n) * inner], inner);
        space.run(&mut Reversed, isa, n, &mut state, rows);
    }
    let mut exact = Vec::new();
    let mut state = vec![0f64; inner * len];
    for token in 0..TOKENS {
        let row: Vec<f64> = mixed[token * width..][..width].iter().map(|x| f64::from(*x)).collect();
        for column in 0..inner {
            let head = column / dim;
            let group = head * groups / heads;
            let number = |of: &[f32]| f64::from(of[token * heads + head]);
            let mut sum = f64::from(past[head]) * row[column];
            for i in 0..len {
                let s = &mut state[column * len + i];
                *s = number(&decays) * *s
                    + number(&rates) * row[column] * row[inner + group * len + i];
                sum += *s * row[inner + (groups + group) * len + i];
            }
            exact.push(sum as f32);
        }
    }
    [out, exact]
}

#[test]
fn a_state_space_is_its_formula_and_does_not_depend_on_parts() {
    for sizes in [[4, 2, 32, 20], [1, 1, 16, 4], [6, 3, 16, 128]] {
        let exact = state_space(Isa::SCALAR, sizes, TOKENS)[1].clone();
        let whole =
            at_all_levels("a state space", |isa| state_space(isa, sizes, TOKENS)[0].clone());
        let most = exact.iter().fold(1f32, |m, x| m.max(x.abs()));
        for (found, exact) in whole.iter().zip(&exact) {
            assert!((found - exact).abs() < 4e-6 * most, "{sizes:?}: {found} {exact}");
        }
        for isa in Isa::available() {
            for part in [1, 4, 20] {
                assert_eq!(state_space(isa, sizes, part)[0], whole, "{isa}, {part} at a time");
            }
        }
    }
}

/// Linear attention of `[heads, dim]` in parts of `part`, `[TOKENS, heads · dim]`, and the same by its formula. `kind` 0: alone; 1: with what is moved; 2: with a
/// bonus.
fn linear(isa: Isa, [heads, dim, kind]: [usize; 3], part: usize) -> [Vec<f32>; 2] {
    let mut rng = Rng(11);
    let (inner, root) = (heads * dim, (dim as f32).sqrt());
    let mut vectors = || rng.normals(TOKENS * inner).iter().map(|x| x / root).collect::<Vec<f32>>();
    let [queries, keys, values, from, to, bonus] = std::array::from_fn(|_| vectors());
    let decays: Vec<f32> = vectors().iter().map(|x| 1.0 / (1.0 + (-3.0 * x).exp())).collect();
    let mut state = vec![0.0; LinearAttention::state_len(heads, dim)];
    let mut out = vec![f32::NAN; TOKENS * inner];
    for first in (0..TOKENS).step_by(part) {
        let n = part.min(TOKENS - first);
        let rows = |of: &'static [f32]| HeadRows { rows: &of[first * inner..], stride: inner };
        // The vectors live as long as the test.
        let leaked = |of: &Vec<f32>| rows(Vec::leak(of.clone()));
        let attention = LinearAttention {
            heads,
            dim,
            queries: leaked(&queries),
            keys: leaked(&keys),
            values: leaked(&values),
            decays: leaked(&decays),
            moved: (kind == 1).then(|| [leaked(&from), leaked(&to)]),
            bonus: (kind == 2).then(|| &bonus[..inner]),
        };
        let rows = Rows::new(&mut out[first * inner..(first + n) * inner], inner);
        attention.run(&mut Reversed, isa, n, &mut state, rows);
    }
    let mut exact = Vec::new();
    let mut state = vec![0f64; inner * dim];
    for token in 0..TOKENS {
        for column in 0..inner {
            let head = column / dim * dim;
            let of = |vectors: &[f32], i: usize| f64::from(vectors[token * inner + head + i]);
            let value = f64::from(values[token * inner + column]);
            let s = &mut state[column * dim..][..dim];
            let held: f64 = (0..dim).map(|i| of(&from, i) * s[i]).sum();
            let mut sum = 0.0;
            for i in 0..dim {
                let old = s[i];
                s[i] = of(&decays, i) * old + of(&keys, i) * value;
                if kind == 1 {
                    s[i] += of(&to, i) * held;
                }
                let seen = match kind {
                    2 => old + f64::from(bonus[head + i]) * of(&keys, i) * value,
                    _ => s[i],
                };
                sum += of(&queries, i) * seen;
            }
            exact.push(sum as f32);
        }
    }
    [out, exact]
}

/// A selective scan of `[channels, len]` in parts of `part`, `[TOKENS, channels]`, and the same by its formula.
fn scan(isa: Isa, [channels, len]: [usize; 2], part: usize) -> [Vec<f32>; 2] {
    let mut rng = Rng(13);
    let [inputs, lengths] = std::array::from_fn(|_| rng.normals(TOKENS * channels));
    let lengths: Vec<f32> = lengths.iter().map(|x| (1.0 + x.exp()).ln()).collect();
    let (keys, past) = (rng.normals(TOKENS * 2 * len), rng.normals(channels));
    let rates: Vec<f32> = rng.normals(channels * len).iter().map(|x| -x.abs()).collect();
    let mut state = vec![0.0; SelectiveScan::state_len(channels, len)];
    let mut out = vec![f32::NAN; TOKENS * channels];
    for first in (0..TOKENS).step_by(part) {
        let n = part.min(TOKENS - first);
        let scan = SelectiveScan {
            channels,
            len,
            inputs: HeadRows { rows: &inputs[first * channels..], stride: channels },
            lengths: HeadRows { rows: &lengths[first * channels..], stride: channels },
            keys: HeadRows { rows: &keys[first * 2 * len..], stride: 2 * len },
            rates: &rates,
            past: &past,
        };
        let rows = Rows::new(&mut out[first * channels..(first + n) * channels], channels);
        scan.run(&mut Reversed, isa, n, &mut state, rows);
    }
    let mut exact = Vec::new();
    let mut state = vec![0f64; channels * len];
    for token in 0..TOKENS {
        for c in 0..channels {
            let [x, dt] = [&inputs, &lengths].map(|of| f64::from(of[token * channels + c]));
            let mut sum = f64::from(past[c]) * x;
            for i in 0..len {
                let rate = rates[(c / COLUMNS * len + i) * COLUMNS + c % COLUMNS];
                let [key, query] = [i, len + i].map(|i| f64::from(keys[token * 2 * len + i]));
                let s = &mut state[c * len + i];
                *s = (dt * f64::from(rate)).exp() * *s + key * dt * x;
                sum += query * *s;
            }
            exact.push(sum as f32);
        }
    }
    [out, exact]
}

#[test]
fn linear_attention_and_scans_are_their_formulas_and_do_not_depend_on_parts() {
    type Case<'c> = Box<dyn Fn(Isa, usize) -> [Vec<f32>; 2] + 'c>;
    let linear = |sizes| Box::new(move |isa, part| linear(isa, sizes, part)) as Case<'_>;
    let scan = |sizes| Box::new(move |isa, part| scan(isa, sizes, part)) as Case<'_>;
    for (number, case) in [
        linear([2, 32, 0]),
        linear([3, 16, 1]),
        linear([1, 64, 1]),
        linear([2, 16, 2]),
        scan([48, 16]),
        scan([16, 4]),
    ]
    .iter()
    .enumerate()
    {
        let exact = case(Isa::SCALAR, TOKENS)[1].clone();
        let whole = at_all_levels("a recurrence", |isa| case(isa, TOKENS)[0].clone());
        let most = exact.iter().fold(1f32, |m, x| m.max(x.abs()));
        for (found, exact) in whole.iter().zip(&exact) {
            assert!((found - exact).abs() < 4e-6 * most, "{number}: {found} {exact}");
        }
        for isa in Isa::available() {
            for part in [1, 4, 20] {
                assert_eq!(case(isa, part)[0], whole, "{number}: {isa}, {part} at a time");
            }
        }
    }
}
