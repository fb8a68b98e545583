//! The mixers of RWKV-7 (Peng et al. 2025): linear attention on a matrix for each head, of which each token takes away what the matrix holds under one vector, and
//! to which it adds that under another, in shares that depend on the token. Inputs are mixed with those of the token before.
//!
//! Its state, in f32, holds the normed row of the last token, the matrices, and at the end that of the feed-forward part, if it has one. Every token is computed in
//! the same order of operations, alone or in a batch.

use std::ops::Range;

use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::{HeadRows, LinearAttention, Rows};
use alight_kernels::{Isa, vec};

use super::delta_net::{recurrent_head_dim, to_length};
use super::routing::sigmoid;
use super::token_shift::{pack_shifted, shift};
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_WIDTH};
use crate::norm::{Norm, NormKind, NormSpec};
use crate::parts::buffers::WorkSize;
use crate::parts::step::Step;
use crate::parts::{MixerSpec, Part, PartSpec};
use crate::tensors::{LayerFinder, Linear, WeightError};

/// Factor on the sigmoid in the logarithm of a decay: e^-½.
const DECAY: f32 = -0.606_531;

/// Added to the variance of a head's output in its norm.
const HEAD_EPS: f32 = 64e-5;

/// The smallest sum of squares of a vector that is scaled to length 1.
const MIN_SQUARES: f32 = 1e-24;

/// A mixer of RWKV-7.
#[derive(Clone, Debug, PartialEq)]
pub struct Rwkv7Spec {
    /// Heads.
    pub heads: usize,
    /// Length of a query, a key and a value.
    pub head_dim: usize,
    /// True if the feed-forward part has a state, too.
    pub before_channel_mix: bool,
}

impl Rwkv7Spec {
    /// Reads its keys.
    ///
    /// # Errors
    /// A size that no model can have, or that is not implemented.
    pub(crate) fn read(keys: &Keys<'_, '_>) -> Result<Rwkv7Spec, SpecError> {
        // All of these networks shift the input of both parts; the rank is that of the tensors.
        keys.do_not_apply(&["token_shift_count", "time_decay_extra_dim"]);
        let hidden = keys.dimension("embedding_length", MAX_WIDTH)?;
        let key = "wkv.head_size";
        let head_dim = recurrent_head_dim(keys, key)?;
        if !hidden.is_multiple_of(head_dim) {
            let expected = format!("a divisor of the embedding length {hidden}");
            return Err(keys.value(key, head_dim, expected));
        }
        Ok(Rwkv7Spec { heads: hidden / head_dim, head_dim, before_channel_mix: false })
    }

    /// Returns the hidden size.
    fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Returns where the state has the matrices.
    pub(super) fn matrices(&self) -> Range<usize> {
        let first = self.inner();
        first..first + LinearAttention::state_len(self.heads, self.head_dim)
    }

    /// Returns where the state has the row of the feed-forward part.
    pub(crate) fn channel_mix(&self) -> Range<usize> {
        let end = self.matrices().end;
        end..end + self.inner()
    }
}

impl PartSpec for Rwkv7Spec {
    fn find(
        &self,
        find: &LayerFinder<'_, '_, '_>,
        hidden: usize,
    ) -> Result<Box<dyn Part>, WeightError> {
        Ok(Box::new(Rwkv7::find(find, self, hidden)?))
    }

    /// Returns the sizes of its buffers: normed rows with the rows before them in `mixed`, queries in `q`, keys in `k`, values in `v`, decays and then the gate
    /// of the output in `gate`, vectors under which is added what the state holds under those in `y`, in `up`.
    fn work(&self, _hidden: usize) -> WorkSize {
        let inner = self.inner();
        WorkSize {
            q: inner,
            k: inner,
            v: inner,
            gate: inner,
            up: inner,
            heads_out: inner,
            mixed: 2 * inner,
            widest_input: inner,
            ..WorkSize::default()
        }
    }
}

impl MixerSpec for Rwkv7Spec {
    fn state_len(&self) -> usize {
        match self.before_channel_mix {
            true => self.channel_mix().end,
            false => self.matrices().end,
        }
    }

    /// Returns the values of the first layer, which are mixed into those of the others.
    fn carried(&self) -> usize {
        self.inner()
    }
}

/// Two projections with a short row between them, and what is added to the second.
#[derive(Debug)]
pub(super) struct Adjusted {
    /// `[rank, hidden]`
    pub(super) first: Linear,
    /// `[hidden, rank]`
    second: Linear,
    /// `[hidden]`; or empty.
    pub(super) base: Vec<f32>,
}

/// A function of the short row.
pub(super) type BetweenFn = fn(Isa, &mut [f32]);

impl Adjusted {
    /// Finds the two matrices and what is added, by their names.
    pub(super) fn find(
        find: &LayerFinder<'_, '_, '_>,
        [first, second]: [&str; 2],
        base: Option<&str>,
        hidden: usize,
    ) -> Result<Adjusted, WeightError> {
        // A row that is not short has no place: it is then a tensor of the wrong shape.
        let rank = find.rows(&format!("{first}.weight")).unwrap_or(1).min(hidden);
        let base = base.map(|name| find.numbers(&format!("{name}.weight"), hidden));
        Ok(Adjusted {
            first: find.linear(first, hidden, rank)?,
            second: find.linear(second, rank, hidden)?,
            base: base.transpose()?.unwrap_or_default(),
        })
    }

    pub(super) fn linears(&self) -> [&Linear; 2] {
        [&self.first, &self.second]
    }

    pub(super) fn linears_mut(&mut self) -> [&mut Linear; 2] {
        [&mut self.first, &mut self.second]
    }

    /// Multiplies the packed rows with both, into a buffer of the step.
    pub(super) fn multiply(&self, between: BetweenFn, to: To, step: &mut Step<'_>) {
        let (compute, n, rank) = (step.compute, step.rows(), self.first.rows());
        let [first, second] = [&self.first, &self.second].map(|linear| linear.view(step.store));
        let isa = compute.isa;
        let b = &mut *step.buffers;
        compute.project(&first, Rows::new(&mut b.y, rank), &b.acts, &b.threads);
        let rows = [Rows::new(&mut b.y, rank)];
        let formats = ActivationFormats::of(self.second.kinds());
        let (acts, threads) = (&mut b.acts, &b.threads);
        compute.pack(n, rank, rows, acts, formats, threads, &|_, [row], _, put| {
            between(isa, row);
            put(row);
        });
        let out = match to {
            To::Gate => &mut b.gate,
            To::Up => &mut b.up,
        };
        compute.project(&second, Rows::new(out, step.hidden), &b.acts, &b.threads);
    }
}

/// The buffer that products go to.
#[derive(Clone, Copy)]
pub(super) enum To {
    Gate,
    Up,
}

/// Finds the norms of what heads put out.
pub(super) fn head_norms(
    find: &LayerFinder<'_, '_, '_>,
    dim: usize,
    hidden: usize,
) -> Result<Vec<Norm>, WeightError> {
    let [weight, bias] = ["time_mix_ln.weight", "time_mix_ln.bias"];
    let (weight, bias) = (find.numbers(weight, hidden)?, find.numbers(bias, hidden)?);
    let norm = |(weight, bias): (&[f32], &[f32])| Norm {
        spec: NormSpec { kind: NormKind::Layer, eps: HEAD_EPS },
        weight: weight.to_vec(),
        bias: Some(bias.to_vec()),
    };
    Ok(weight.chunks_exact(dim).zip(bias.chunks_exact(dim)).map(norm).collect())
}

/// The tensors of a mixer of RWKV-7.
#[derive(Debug)]
struct Rwkv7 {
    spec: Rwkv7Spec,
    /// `[hidden]`
    norm: Norm,
    /// Shares of the row before in the inputs of queries, decays, keys, values, rates and gates: `[hidden]` each.
    shares: Vec<f32>,
    /// `[hidden, hidden]` each.
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    decay: Adjusted,
    /// Rates.
    rate: Adjusted,
    /// Shares of the first layer's values; `None`: this is the first layer.
    first_values: Option<Adjusted>,
    gate: Option<Adjusted>,
    /// Factors on keys, `[hidden]` each: for the vectors under which states are corrected, and for the part of keys that rates scale.
    corrected: Vec<f32>,
    scaled: Vec<f32>,
    /// Weights of products of queries and keys in what bypasses the states, `[hidden]`.
    past: Vec<f32>,
    /// Of each head, `[head_dim]`; some files have none.
    norms: Vec<Norm>,
}

impl Rwkv7 {
    fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &Rwkv7Spec,
        hidden: usize,
    ) -> Result<Rwkv7, WeightError> {
        let adjusted = |letter: char, based: bool| {
            let [base, first, second] = [0, 1, 2].map(|i| format!("time_mix_{letter}{i}"));
            Adjusted::find(find, [&first, &second], based.then_some(&base), hidden)
        };
        let matrix = |name: &str| find.linear(&format!("time_mix_{name}"), hidden, hidden);
        let vector = |name: &str| find.numbers(&format!("time_mix_{name}.weight"), hidden);
        let gated = find.has("time_mix_g1");
        let first = find.layer == 0;
        if first {
            // The first layer has them for nothing.
            for what in ["time_mix_v0.weight", "time_mix_v1.weight", "time_mix_v2.weight"] {
                find.ignore(what);
            }
        }
        let norms = match find.has("time_mix_ln") {
            false => Vec::new(),
            true => head_norms(find, spec.head_dim, hidden)?,
        };
        let parts = if gated { 6 } else { 5 };
        Ok(Rwkv7 {
            spec: spec.clone(),
            norm: find.norm("attn_norm", hidden)?,
            shares: find.numbers("time_mix_lerp_fused.weight", parts * hidden)?,
            query: matrix("receptance")?,
            key: matrix("key")?,
            value: matrix("value")?,
            out: matrix("output")?,
            decay: adjusted('w', true)?,
            rate: adjusted('a', true)?,
            first_values: if first { None } else { Some(adjusted('v', true)?) },
            gate: if gated { Some(adjusted('g', false)?) } else { None },
            corrected: vector("k_k")?,
            scaled: vector("k_a")?,
            past: vector("r_k")?,
            norms,
        })
    }

    /// Packs the inputs of the projection number `i`, of which `linears` are multiplied with them.
    fn pack(&self, i: usize, linears: &[&Linear], step: &mut Step<'_>) {
        let hidden = step.hidden;
        let kinds = linears.iter().flat_map(|linear| linear.kinds());
        pack_shifted(&self.shares[i * hidden..][..hidden], ActivationFormats::of(kinds), step);
    }

    /// Computes queries, keys, values and decays.
    fn project(&self, step: &mut Step<'_>) {
        let (hidden, compute) = (step.hidden, step.compute);
        let n = step.rows().all();
        let [query, key, value] =
            [&self.query, &self.key, &self.value].map(|linear| linear.view(step.store));
        self.pack(0, &[&self.query], step);
        let b = &mut *step.buffers;
        compute.project(&query, Rows::new(&mut b.q, hidden), &b.acts, &b.threads);
        self.pack(1, &[&self.decay.first], step);
        self.decay.multiply(|isa, row| vec::softcap(isa, row, 1.0), To::Gate, step);
        let b = &mut *step.buffers;
        let rows = [Rows::new(&mut b.gate, hidden)];
        compute.each_row(n, rows, &b.threads, &|_, [row], _| {
            for (decay, base) in row.iter_mut().zip(&self.decay.base) {
                *decay = libm::expf(DECAY * sigmoid(*decay + base));
            }
        });
        self.pack(2, &[&self.key], step);
        let b = &mut *step.buffers;
        compute.project(&key, Rows::new(&mut b.k, hidden), &b.acts, &b.threads);
        let first = self.first_values.as_ref();
        let linears = [&self.value, first.map_or(&self.value, |shares| &shares.first)];
        self.pack(3, &linears, step);
        let b = &mut *step.buffers;
        compute.project(&value, Rows::new(&mut b.v, hidden), &b.acts, &b.threads);
        if let Some(shares) = first {
            shares.multiply(|_, _| {}, To::Up, step);
        }
        let b = &mut *step.buffers;
        let rows = [
            Rows::new(&mut b.v, hidden),
            Rows::new(&mut b.up, hidden),
            Rows::new(&mut b.streams, hidden),
        ];
        compute.each_row(n, rows, &b.threads, &|_, [v, up, of_first], _| match first {
            None => of_first.copy_from_slice(v),
            Some(shares) => {
                let shares = up.iter().zip(&shares.base).map(|(x, base)| sigmoid(x + base));
                for ((v, first), share) in v.iter_mut().zip(of_first).zip(shares) {
                    *v += (*first - *v) * share;
                }
            }
        });
    }

    /// Computes rates, and with them the vectors under which states are corrected, into `y` and `up`, and the final keys.
    fn correct(&self, step: &mut Step<'_>) {
        let (isa, hidden, dim) = (step.compute.isa, step.hidden, self.spec.head_dim);
        let n = step.rows().all();
        self.pack(4, &[&self.rate.first], step);
        self.rate.multiply(|_, _| {}, To::Up, step);
        let b = &mut *step.buffers;
        let rows = [
            Rows::new(&mut b.up, hidden),
            Rows::new(&mut b.k, hidden),
            Rows::new(&mut b.y, hidden),
        ];
        step.compute.each_row(n, rows, &b.threads, &|_, [rates, keys, from], _| {
            for ((from, key), factor) in from.iter_mut().zip(&*keys).zip(&self.corrected) {
                *from = key * factor;
            }
            to_length(isa, from, dim, 1.0, MIN_SQUARES);
            let each = rates.iter_mut().zip(keys).zip(from);
            let with = self.rate.base.iter().zip(&self.scaled);
            for (((rate, key), from), (base, scaled)) in each.zip(with) {
                let share = sigmoid(*rate + base);
                *key += (share - 1.0) * (*key * scaled);
                *rate = *from * share;
                *from = -*from;
            }
        });
    }

    /// Applies the recurrence to the rows: `[rows, hidden]` into `heads_out`.
    fn recur(&self, step: &mut Step<'_>) {
        let (spec, hidden) = (&self.spec, step.hidden);
        let b = &mut *step.buffers;
        for span in b.batch.all_spans() {
            let place = spec.matrices();
            let state = &mut step.cache.state(step.layer, span.sequence)[place.clone()];
            let first = span.rows.start;
            let [queries, keys, values, decays, from, to] =
                [&b.q, &b.k, &b.v, &b.gate, &b.y, &b.up]
                    .map(|rows| HeadRows { rows: &rows[first * hidden..], stride: hidden });
            let attention = LinearAttention {
                heads: spec.heads,
                dim: spec.head_dim,
                queries,
                keys,
                values,
                decays,
                moved: Some([from, to]),
                bonus: None,
            };
            let out = Rows::starting_at(&mut b.heads_out, hidden, first);
            let threads = &mut step.compute.threads(&b.threads);
            attention.run(threads, step.compute.isa, span.rows.len(), state, out);
            let of = (span.sequence, span.draft_row);
            step.cache.keep_of_draft(step.layer, of, place);
        }
    }

    /// Norms the outputs of heads, adds what bypasses the states, multiplies by the gate, and projects.
    fn finish(&self, step: &mut Step<'_>) {
        let (isa, hidden, dim) = (step.compute.isa, step.hidden, self.spec.head_dim);
        let out = self.out.view(step.store);
        let n = step.rows();
        let b = &mut *step.buffers;
        let buffers = [&mut b.heads_out, &mut b.q, &mut b.k, &mut b.v, &mut b.gate];
        let rows = buffers.map(|rows| Rows::new(rows, hidden));
        let formats = ActivationFormats::of(self.out.kinds());
        let (acts, threads) = (&mut b.acts, &b.threads);
        step.compute.pack(
            n,
            hidden,
            rows,
            acts,
            formats,
            threads,
            &|_, [y, q, k, v, g], _, put| {
                for (head, y) in y.chunks_exact_mut(dim).enumerate() {
                    if let Some(norm) = self.norms.get(head) {
                        norm.apply(isa, y);
                    }
                    let all = head * dim..(head + 1) * dim;
                    let products =
                        q[all.clone()].iter().zip(&k[all.clone()]).zip(&self.past[all.clone()]);
                    let past: f32 = products.map(|((q, k), past)| q * k * past).sum();
                    vec::add_times(isa, y, &v[all], past);
                }
                if self.gate.is_some() {
                    y.iter_mut().zip(g).for_each(|(y, g)| *y *= *g);
                }
                put(y);
            },
        );
        step.compute.project(&out, Rows::new(&mut b.y, hidden), &b.acts, &b.threads);
    }
}

impl Part for Rwkv7 {
    fn linears(&self) -> Vec<&Linear> {
        let adjusted = [&self.decay, &self.rate].into_iter().chain(&self.first_values);
        let adjusted = adjusted.chain(&self.gate).flat_map(Adjusted::linears);
        [&self.query, &self.key, &self.value]
            .into_iter()
            .chain(adjusted)
            .chain([&self.out])
            .collect()
    }

    fn linears_mut(&mut self) -> Vec<&mut Linear> {
        let adjusted = [&mut self.decay, &mut self.rate].into_iter().chain(&mut self.first_values);
        let adjusted = adjusted.chain(&mut self.gate).flat_map(Adjusted::linears_mut);
        let matrices = [&mut self.query, &mut self.key, &mut self.value].into_iter();
        matrices.chain(adjusted).chain([&mut self.out]).collect()
    }

    /// Returns none: it packs its inputs itself.
    fn input_formats(&self) -> ActivationFormats {
        ActivationFormats::of([])
    }

    fn forward(&self, step: &mut Step<'_>) {
        let hidden = step.hidden;
        shift(&self.norm, 0..hidden, step);
        self.project(step);
        self.correct(step);
        self.recur(step);
        if let Some(gate) = &self.gate {
            self.pack(5, &[&gate.first], step);
            let between: BetweenFn = |_, row| row.iter_mut().for_each(|x| *x = sigmoid(*x));
            gate.multiply(between, To::Gate, step);
        }
        if !self.spec.before_channel_mix {
            let some = step.keep_wanted_rows(|b, from, to| {
                for rows in [&mut b.heads_out, &mut b.q, &mut b.k, &mut b.v, &mut b.gate] {
                    Rows::new(rows, hidden).copy(from, to);
                }
            });
            if !some {
                return;
            }
        }
        self.finish(step);
    }
}
