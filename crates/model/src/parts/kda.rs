//! Kimi delta attention (Kimi Team 2025): a gated delta net whose states decay by a factor for each element of a key. Short causal convolutions of queries,
//! keys and values, the delta rule on a matrix for each head, and a norm of its output followed by a gate.
//!
//! Its state, in f32, holds the inputs of the convolutions' last tokens and the matrices. Every token is computed in the same order of operations, alone or
//! in a batch.

use alight_kernels::gate::sigmoid_mul;
use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::{HeadRows, LinearAttention, Rows};

use super::convolution::{Columns, Convolution, MAX_TAPS};
use super::delta_net::{recurrent_head_dim, to_length};
use super::routing::{sigmoid, softplus};
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_WIDTH};
use crate::norm::Norm;
use crate::parts::buffers::WorkSize;
use crate::parts::step::Step;
use crate::parts::{MixerSpec, Part, PartSpec};
use crate::tensors::{LayerFinder, Linear, WeightError};

/// Kimi delta attention.
#[derive(Clone, Debug, PartialEq)]
pub struct KdaSpec {
    /// Heads.
    pub heads: usize,
    /// Length of a query, a key and a value.
    pub head_dim: usize,
    /// Number of tokens that the convolutions look at, including the current one.
    pub taps: usize,
    /// The lower bound of the logarithms of decays, below 0; `None`: there is none.
    pub bound: Option<f32>,
}

impl KdaSpec {
    /// Reads its keys.
    ///
    /// # Errors
    /// A size that no model can have, or that is not implemented.
    pub(crate) fn read(keys: &Keys<'_, '_>) -> Result<KdaSpec, SpecError> {
        let taps = keys.dimension("ssm.conv_kernel", MAX_TAPS)?;
        let heads = keys.dimension("attention.head_count", MAX_WIDTH)?;
        let key = "kda.head_dim";
        let head_dim = recurrent_head_dim(keys, key)?;
        if heads * head_dim > MAX_WIDTH {
            let expected = format!("at most {} for {heads} heads", MAX_WIDTH / heads);
            return Err(keys.value(key, head_dim, expected));
        }
        let bound = keys.float("kda.gate_lower_bound", -1e6..0.0, "a number below 0")?;
        Ok(KdaSpec { heads, head_dim, taps, bound })
    }

    /// Returns the width of queries, of keys, of values and of the output.
    fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Returns the f32 elements of the state of each of the three convolutions.
    fn convolved_len(&self) -> usize {
        Convolution::state_len([self.taps, self.inner()])
    }

    /// Returns the width of queries, keys, values and rates after the convolutions.
    fn mixed(&self) -> usize {
        3 * self.inner() + self.heads
    }
}

impl PartSpec for KdaSpec {
    fn find(
        &self,
        find: &LayerFinder<'_, '_, '_>,
        hidden: usize,
    ) -> Result<Box<dyn Part>, WeightError> {
        Ok(Box::new(Kda::find(find, self, hidden)?))
    }

    /// Returns the sizes of its buffers: queries, keys and values before the convolutions in `q`, `k` and `v`, and after them, with rates, in `mixed`; decays
    /// in `gate`, the vectors under which states are corrected in `up`; the gate of the output in `q` when the queries there are no longer needed.
    fn work(&self, _hidden: usize) -> WorkSize {
        let inner = self.inner();
        WorkSize {
            q: inner,
            k: inner,
            v: inner,
            mixed: self.mixed(),
            gate: inner,
            up: inner,
            heads_out: inner,
            widest_input: inner,
            ..WorkSize::default()
        }
    }
}

impl MixerSpec for KdaSpec {
    /// Returns the f32 elements of its state: the convolutions', then [`LinearAttention::state_len`].
    fn state_len(&self) -> usize {
        3 * self.convolved_len() + LinearAttention::state_len(self.heads, self.head_dim)
    }
}

/// A projection from the hidden size to that of all heads: one, or two with a short row between them.
#[derive(Debug)]
struct TwoProjections {
    /// `[rank, hidden]`, or `[inner, hidden]`.
    first: Linear,
    /// `[inner, rank]`
    second: Option<Linear>,
}

impl TwoProjections {
    fn find(
        find: &LayerFinder<'_, '_, '_>,
        [first, second]: [&str; 2],
        [hidden, rank, inner]: [usize; 3],
    ) -> Result<TwoProjections, WeightError> {
        let two = find.has(second);
        Ok(TwoProjections {
            first: find.linear(first, hidden, if two { rank } else { inner })?,
            second: two.then(|| find.linear(second, rank, inner)).transpose()?,
        })
    }

    fn linears(&self) -> impl Iterator<Item = &Linear> {
        [&self.first].into_iter().chain(&self.second)
    }

    fn linears_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        [&mut self.first].into_iter().chain(&mut self.second)
    }
}

/// The tensors of Kimi delta attention.
#[derive(Debug)]
struct Kda {
    spec: KdaSpec,
    /// Queries, keys and values, `[inner, hidden]` each.
    inputs: [Linear; 3],
    /// `[heads, hidden]`
    rates: Linear,
    /// Inputs of decays.
    decays: TwoProjections,
    /// The gate of the output.
    gates: TwoProjections,
    /// `[hidden, inner]`
    out: Linear,
    /// Of queries, keys and values.
    convolutions: [Convolution; 3],
    /// `[inner]`
    dt_bias: Vec<f32>,
    /// Rates of decay, at least 0: `[heads]`.
    a: Vec<f32>,
    /// `[head_dim]`
    norm: Norm,
}

impl Kda {
    fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &KdaSpec,
        hidden: usize,
    ) -> Result<Kda, WeightError> {
        let (inner, size) = (spec.inner(), [spec.taps, spec.inner()]);
        let inputs = if find.has("attn_qkv") {
            let part = |i: usize| {
                let rows = i * inner..(i + 1) * inner;
                find.rows_of("attn_qkv", [hidden, 3 * inner], rows).map(Linear::from)
            };
            [part(0)?, part(1)?, part(2)?]
        } else {
            let one = |name| find.linear(name, hidden, inner);
            [one("attn_q")?, one("attn_k")?, one("attn_v")?]
        };
        let convolution = |name| Convolution::find(find, name, size, true);
        let low_rank = |names| TwoProjections::find(find, names, [hidden, spec.head_dim, inner]);
        // The files of some models have them with the other sign.
        let a = find.numbers("ssm_a", spec.heads)?;
        Ok(Kda {
            spec: spec.clone(),
            inputs,
            rates: find.linear("ssm_beta", hidden, spec.heads)?,
            decays: low_rank(["ssm_f_a", "ssm_f_b"])?,
            gates: low_rank(["ssm_g_a", "ssm_g_b"])?,
            out: find.linear("attn_output", inner, hidden)?,
            convolutions: [
                convolution("ssm_conv1d_q")?,
                convolution("ssm_conv1d_k")?,
                convolution("ssm_conv1d_v")?,
            ],
            dt_bias: find.numbers("ssm_dt.bias", inner)?,
            a: a.into_iter().map(f32::abs).collect(),
            norm: find.norm("ssm_norm", spec.head_dim)?,
        })
    }

    /// Computes the products with the input: queries, keys and values into `q`, `k` and `v`, what decays and gates follow from into `heads_out` and `up`, rates
    /// into `gate`.
    fn project(&self, step: &mut Step<'_>) {
        let (inner, store) = (self.spec.inner(), step.store);
        let [q, k, v] = self.inputs.each_ref().map(|linear| linear.view(store));
        let [decays, gates] = [&self.decays, &self.gates].map(|both| both.first.view(store));
        let rates = self.rates.view(store);
        let b = &mut *step.buffers;
        let outputs = [
            [Rows::new(&mut b.q, inner)],
            [Rows::new(&mut b.k, inner)],
            [Rows::new(&mut b.v, inner)],
            [Rows::new(&mut b.heads_out, self.decays.first.rows())],
            [Rows::new(&mut b.up, self.gates.first.rows())],
            [Rows::new(&mut b.gate, self.spec.heads)],
        ];
        let products = [[&q], [&k], [&v], [&decays], [&gates], [&rates]];
        step.compute.multiply(products, outputs, &b.acts, &b.threads, None);
    }

    /// Applies the convolutions and the norms of queries and keys, into `mixed`, to which it adds rates; the convolutions' parts of the state become those of
    /// the last row.
    fn mix(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let (isa, eps) = (step.compute.isa, step.norm_eps);
        let (inner, heads, width) = (spec.inner(), spec.heads, spec.mixed());
        let each = spec.convolved_len();
        let b = &mut *step.buffers;
        for span in b.batch.all_spans() {
            let state = step.cache.state(step.layer, span.sequence);
            let (earlier, _) = state.split_at_mut(3 * each);
            let (first, n) = (span.rows.start, span.rows.len());
            let inputs = [&b.q, &b.k, &b.v];
            let inputs =
                inputs.map(|x| Columns { rows: &x[first * inner..], stride: inner, first: 0 });
            let before = &*earlier;
            let rates = &b.gate[first * heads..];
            let rows = [Rows::starting_at(&mut b.mixed, width, first)];
            step.compute.each_row(n, rows, &b.threads, &|i, [mixed], _| {
                let parts = mixed.chunks_exact_mut(inner).zip(&self.convolutions);
                for (part, (mixed, convolution)) in parts.enumerate() {
                    let before = &before[part * each..][..each];
                    convolution.apply(isa, before, inputs[part], i, mixed);
                }
                let unit = 1.0 / (spec.head_dim as f32).sqrt();
                to_length(isa, &mut mixed[..inner], spec.head_dim, unit, eps);
                to_length(isa, &mut mixed[inner..2 * inner], spec.head_dim, 1.0, eps);
                let rates = rates[i * heads..][..heads].iter();
                mixed[3 * inner..].iter_mut().zip(rates).for_each(|(to, x)| *to = sigmoid(*x));
            });
            let states = earlier.chunks_exact_mut(each.max(1)).zip(inputs);
            for ((state, inputs), convolution) in states.zip(&self.convolutions) {
                convolution.keep(state, inputs, n);
            }
            let of = (span.sequence, span.draft_row);
            step.cache.keep_of_draft(step.layer, of, 0..3 * each);
        }
    }

    /// Computes what decays follow from into `gate`, and the gates of the output into `q`.
    fn expand(&self, step: &mut Step<'_>) {
        let (inner, compute, n) = (self.spec.inner(), step.compute, step.rows());
        for (which, both) in [&self.decays, &self.gates].into_iter().enumerate() {
            let rank = both.first.rows();
            let second = both.second.as_ref().map(|linear| linear.view(step.store));
            let b = &mut *step.buffers;
            let (from, to) = match which {
                0 => (&mut b.heads_out, &mut b.gate),
                _ => (&mut b.up, &mut b.q),
            };
            let rows = Rows::new(from, rank);
            match (second, &both.second) {
                (Some(second), Some(linear)) => {
                    let formats = ActivationFormats::of(linear.kinds());
                    compute.pack_rows(n, rows, &mut b.acts, formats, &b.threads);
                    compute.project(&second, Rows::new(to, inner), &b.acts, &b.threads);
                }
                _ => {
                    let rows = [rows, Rows::new(to, inner)];
                    let copy = |_: usize, [from, to]: [&mut [f32]; 2], _: &mut _| {
                        to.copy_from_slice(from);
                    };
                    compute.each_row(n.all(), rows, &b.threads, &copy);
                }
            }
        }
    }

    /// Computes decays in `gate`, the vectors under which states are corrected in `up`, and multiplies keys by rates.
    fn decay(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let (inner, dim) = (spec.inner(), spec.head_dim);
        let n = step.rows().all();
        let b = &mut *step.buffers;
        let rows = [
            Rows::new(&mut b.gate, inner),
            Rows::new(&mut b.up, inner),
            Rows::new(&mut b.mixed, spec.mixed()),
        ];
        step.compute.each_row(n, rows, &b.threads, &|_, [decays, from, mixed], _| {
            let (vectors, rates) = mixed.split_at_mut(3 * inner);
            let keys = vectors[inner..2 * inner].iter_mut();
            let pairs = decays.iter_mut().zip(from).zip(keys).zip(&self.dt_bias);
            for (i, (((decay, from), key), bias)) in pairs.enumerate() {
                let (a, x) = (self.a[i / dim], *decay + bias);
                let logarithm = match spec.bound {
                    None => -a * softplus(x),
                    Some(bound) => bound * sigmoid(a * x),
                };
                *decay = libm::expf(logarithm);
                *from = -*key * *decay;
                *key *= rates[i / dim];
            }
        });
    }

    /// Applies the delta rule to the rows: `[rows, inner]` into `heads_out`.
    fn recur(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let (inner, width) = (spec.inner(), spec.mixed());
        let b = &mut *step.buffers;
        for span in b.batch.all_spans() {
            let state = step.cache.state(step.layer, span.sequence);
            let (convolved, all) = (3 * spec.convolved_len(), state.len());
            let (_, state) = state.split_at_mut(convolved);
            let first = span.rows.start;
            let mixed = |part: usize| HeadRows {
                rows: &b.mixed[first * width + part * inner..],
                stride: width,
            };
            let decays = HeadRows { rows: &b.gate[first * inner..], stride: inner };
            let corrected = HeadRows { rows: &b.up[first * inner..], stride: inner };
            let attention = LinearAttention {
                heads: spec.heads,
                dim: spec.head_dim,
                queries: mixed(0),
                keys: mixed(1),
                values: mixed(2),
                decays,
                moved: Some([corrected, mixed(1)]),
                bonus: None,
            };
            let out = Rows::starting_at(&mut b.heads_out, inner, first);
            let threads = &mut step.compute.threads(&b.threads);
            attention.run(threads, step.compute.isa, span.rows.len(), state, out);
            let of = (span.sequence, span.draft_row);
            step.cache.keep_of_draft(step.layer, of, convolved..all);
        }
    }
}

impl Part for Kda {
    fn linears(&self) -> Vec<&Linear> {
        let low_rank = self.decays.linears().chain(self.gates.linears());
        self.inputs.iter().chain([&self.rates]).chain(low_rank).chain([&self.out]).collect()
    }

    fn linears_mut(&mut self) -> Vec<&mut Linear> {
        let low_rank = self.decays.linears_mut().chain(self.gates.linears_mut());
        let inputs = self.inputs.iter_mut().chain([&mut self.rates]);
        inputs.chain(low_rank).chain([&mut self.out]).collect()
    }

    fn input_formats(&self) -> ActivationFormats {
        let others = [&self.rates, &self.decays.first, &self.gates.first];
        ActivationFormats::of(self.inputs.iter().chain(others).flat_map(Linear::kinds))
    }

    fn forward(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let (isa, inner) = (step.compute.isa, spec.inner());
        let out = self.out.view(step.store);
        self.project(step);
        self.mix(step);
        self.expand(step);
        self.decay(step);
        self.recur(step);
        let some = step.keep_wanted_rows(|b, from, to| {
            Rows::new(&mut b.heads_out, inner).copy(from, to);
            Rows::new(&mut b.q, inner).copy(from, to);
        });
        if !some {
            return;
        }
        let b = &mut *step.buffers;
        let rows = [Rows::new(&mut b.heads_out, inner), Rows::new(&mut b.q, inner)];
        let formats = ActivationFormats::of(self.out.kinds());
        let (acts, threads) = (&mut b.acts, &b.threads);
        let n = b.batch.counts();
        step.compute.pack(n, inner, rows, acts, formats, threads, &|_, [y, gate], _, put| {
            y.chunks_exact_mut(spec.head_dim).for_each(|head| self.norm.apply(isa, head));
            sigmoid_mul(isa, gate, y);
            put(gate);
        });
        step.compute.project(&out, Rows::new(&mut b.y, step.hidden), &b.acts, &b.threads);
    }
}
