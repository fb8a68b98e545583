//! The gated delta net (Yang, Kautz and Hatamizadeh 2024), as in Qwen3-Next and Qwen3.5: a short causal convolution of queries,
//! keys and values, the gated delta rule on a matrix for each value head, and a norm of its output followed by a gate.
//!
//! Its state, in f32, holds the inputs of the convolution's last tokens and the matrices. Every token is computed in the same
//! order of operations, alone or in a batch.

use alight_kernels::gate::silu_mul;
use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::{DeltaRule, Rows};
use alight_kernels::recurrent::COLUMNS;
use alight_kernels::{Isa, vec};

use super::convolution::{Columns, Convolution, MAX_TAPS};
use super::routing::{sigmoid, softplus};
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_WIDTH};
use crate::norm::Norm;
use crate::parts::buffers::WorkSize;
use crate::parts::step::Step;
use crate::parts::{MixerSpec, Part, PartSpec};
use crate::tensors::{LayerFinder, Linear, WeightError};

/// Maximum length of a head, far above any model's: a state grows with its square.
const MAX_HEAD: usize = 1024;

/// Reads the length of a head whose state is computed in blocks of columns.
///
/// # Errors
/// A length that no model can have, or that is not implemented.
pub(super) fn recurrent_head_dim(keys: &Keys<'_, '_>, key: &str) -> Result<usize, SpecError> {
    let head_dim = keys.dimension(key, MAX_HEAD)?;
    if !head_dim.is_multiple_of(COLUMNS) {
        let what = "a head whose length is not a multiple of 16";
        return Err(keys.unsupported(key, head_dim, what));
    }
    Ok(head_dim)
}

/// A gated delta net.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaNetSpec {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Length of a query, a key and a value.
    pub head_dim: usize,
    /// Number of tokens that the convolution looks at, including the current one.
    pub taps: usize,
    /// True if neighbouring value heads share a key head, and the file has the projections for rates and decays in one tensor,
    /// key head by key head. Otherwise value head `h` has key head `h mod key_heads`, and there are two tensors.
    pub neighbours: bool,
}

impl DeltaNetSpec {
    /// Reads its keys; value heads share key heads as in Qwen3.5's files.
    ///
    /// # Errors
    /// A size that no model can have, or that is not implemented.
    pub(crate) fn read(keys: &Keys<'_, '_>) -> Result<DeltaNetSpec, SpecError> {
        let taps = keys.dimension("ssm.conv_kernel", MAX_TAPS)?;
        let head_dim = recurrent_head_dim(keys, "ssm.state_size")?;
        let key_heads = keys.dimension("ssm.group_count", MAX_WIDTH)?;
        let value_heads = keys.dimension("ssm.time_step_rank", MAX_WIDTH)?;
        if !value_heads.is_multiple_of(key_heads) {
            let expected = format!("a multiple of the {key_heads} heads of keys");
            return Err(keys.value("ssm.time_step_rank", value_heads, expected));
        }
        let inner = keys.dimension("ssm.inner_size", MAX_WIDTH)?;
        if (2 * key_heads + value_heads).saturating_mul(head_dim) > 4 * MAX_WIDTH
            || inner != value_heads * head_dim
        {
            let expected = format!("{value_heads} heads of {head_dim}");
            return Err(keys.value("ssm.inner_size", inner, expected));
        }
        Ok(DeltaNetSpec { key_heads, value_heads, head_dim, taps, neighbours: false })
    }

    /// Returns the width of all values, and of the output.
    fn inner(&self) -> usize {
        self.value_heads * self.head_dim
    }

    /// Returns the width of queries, keys and values.
    fn mixed(&self) -> usize {
        2 * self.key_heads * self.head_dim + self.inner()
    }
}

impl PartSpec for DeltaNetSpec {
    fn find(
        &self,
        find: &LayerFinder<'_, '_, '_>,
        hidden: usize,
    ) -> Result<Box<dyn Part>, WeightError> {
        Ok(Box::new(DeltaNet::find(find, self, hidden)?))
    }

    /// Returns the sizes of its buffers: queries, keys and values before the convolution in `q` and after it in `mixed`, the gate of
    /// the output in `k`, decays in `v`, rates in `gate`; their common product, where there is one, in `heads_out`, which is not
    /// needed yet. Where all inputs are one product, it is in `mixed` first.
    fn work(&self, _hidden: usize) -> WorkSize {
        WorkSize {
            q: self.mixed(),
            mixed: self.mixed() + self.inner(),
            k: self.inner(),
            v: self.value_heads,
            gate: self.value_heads,
            heads_out: self.inner().max(2 * self.value_heads),
            widest_input: self.inner(),
            ..WorkSize::default()
        }
    }
}

impl MixerSpec for DeltaNetSpec {
    /// Returns the f32 elements of its state: `[taps − 1, mixed]`, then [`DeltaRule::state_len`].
    fn state_len(&self) -> usize {
        Convolution::state_len([self.taps, self.mixed()])
            + DeltaRule::state_len(self.value_heads, self.head_dim)
    }
}

/// The tensors of a gated delta net.
#[derive(Debug)]
pub(crate) struct DeltaNet {
    spec: DeltaNetSpec,
    inputs: Inputs,
    rates: Rates,
    /// `[hidden, inner]`
    out: Linear,
    /// Of queries, keys and values.
    convolution: Convolution,
    /// `[value_heads]`
    dt_bias: Vec<f32>,
    /// Rates of decay of the logarithms, at most 0: `[value_heads]`.
    a: Vec<f32>,
    /// `[head_dim]`
    norm: Norm,
}

/// The projections for queries, keys, values and the gate of the output (z).
#[derive(Debug)]
enum Inputs {
    /// Queries, keys and values, `[mixed, hidden]`; the gate, `[inner, hidden]`.
    Apart([Linear; 2]),
    /// `[mixed + inner, hidden]`: for each key head the rows of its query, its key, its value heads' values, and their gates.
    Together(Linear),
}

impl Inputs {
    fn linears(&self) -> &[Linear] {
        match self {
            Inputs::Apart(both) => both,
            Inputs::Together(all) => std::slice::from_ref(all),
        }
    }

    fn linears_mut(&mut self) -> &mut [Linear] {
        match self {
            Inputs::Apart(both) => both,
            Inputs::Together(all) => std::slice::from_mut(all),
        }
    }
}

/// The projections for decays (alpha) and rates (beta).
#[derive(Debug)]
enum Rates {
    /// Alpha and beta, `[value_heads, hidden]` each.
    Apart([Linear; 2]),
    /// `[2 · value_heads, hidden]`: for each key head the rows of its value heads' betas, then of their alphas.
    Together(Linear),
}

impl Rates {
    fn linears(&self) -> &[Linear] {
        match self {
            Rates::Apart(both) => both,
            Rates::Together(both) => std::slice::from_ref(both),
        }
    }

    fn linears_mut(&mut self) -> &mut [Linear] {
        match self {
            Rates::Apart(both) => both,
            Rates::Together(both) => std::slice::from_mut(both),
        }
    }
}

impl DeltaNet {
    pub(super) fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &DeltaNetSpec,
        hidden: usize,
    ) -> Result<DeltaNet, WeightError> {
        let (heads, inner, mixed) = (spec.value_heads, spec.inner(), spec.mixed());
        let size = [spec.taps, mixed];
        Ok(DeltaNet {
            spec: spec.clone(),
            inputs: match spec.neighbours && find.has("ssm_in") {
                false => Inputs::Apart([
                    find.linear("attn_qkv", hidden, mixed)?,
                    find.linear("attn_gate", hidden, inner)?,
                ]),
                true => Inputs::Together(find.linear("ssm_in", hidden, mixed + inner)?),
            },
            rates: match spec.neighbours {
                false => Rates::Apart([
                    find.linear("ssm_alpha", hidden, heads)?,
                    find.linear("ssm_beta", hidden, heads)?,
                ]),
                true => Rates::Together(find.linear("ssm_ba", hidden, 2 * heads)?),
            },
            out: find.linear("ssm_out", inner, hidden)?,
            convolution: Convolution::find(find, "ssm_conv1d", size, true)?,
            dt_bias: find.vector("ssm_dt.bias", heads)?,
            a: find.vector("ssm_a", heads)?,
            norm: find.norm("ssm_norm", spec.head_dim)?,
        })
    }

    /// Computes queries, keys and values into `q`, the gate of the output into `k`, and the inputs of decays and rates into `v`
    /// and `gate`.
    fn project(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let store = step.store;
        let heads = spec.value_heads;
        let b = &mut *step.buffers;
        let (compute, acts, threads) = (step.compute, &b.acts, &b.threads);
        let mixed = [Rows::new(&mut b.q, spec.mixed())];
        let gates = [Rows::new(&mut b.k, spec.inner())];
        match (&self.inputs, &self.rates) {
            (Inputs::Apart([qkv, z]), Rates::Apart([alpha, beta])) => {
                let rates = [[Rows::new(&mut b.v, heads)], [Rows::new(&mut b.gate, heads)]];
                let [alphas, betas] = rates;
                let products = [
                    [&qkv.view(store)],
                    [&z.view(store)],
                    [&alpha.view(store)],
                    [&beta.view(store)],
                ];
                compute.multiply(products, [mixed, gates, alphas, betas], acts, threads, None);
            }
            (Inputs::Apart([qkv, z]), Rates::Together(both)) => {
                let rates = [Rows::new(&mut b.heads_out, 2 * heads)];
                let products = [[&qkv.view(store)], [&z.view(store)], [&both.view(store)]];
                compute.multiply(products, [mixed, gates, rates], acts, threads, None);
                split_rates(spec, step);
            }
            (Inputs::Together(all), Rates::Together(both)) => {
                // The convolution does not write to `mixed` yet.
                let inputs = [Rows::new(&mut b.mixed, spec.mixed() + spec.inner())];
                let rates = [Rows::new(&mut b.heads_out, 2 * heads)];
                let products = [[&all.view(store)], [&both.view(store)]];
                compute.multiply(products, [inputs, rates], acts, threads, None);
                split_inputs(spec, step);
                split_rates(spec, step);
            }
            (Inputs::Together(_), Rates::Apart(_)) => {
                unreachable!("where inputs are one tensor, rates are, too")
            }
        }
    }

    /// Applies the convolution and the norms of queries and keys, and computes decays and rates; the convolution's part of the
    /// state becomes that of the last row.
    fn mix(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let (isa, eps, width) = (step.compute.isa, step.norm_eps, spec.mixed());
        let heads = spec.value_heads;
        let b = &mut *step.buffers;
        for span in b.batch.all_spans() {
            let state = step.cache.state(step.layer, span.sequence);
            let convolved = Convolution::state_len([spec.taps, width]);
            let (earlier, _) = state.split_at_mut(convolved);
            let (first, n) = (span.rows.start, span.rows.len());
            let inputs = Columns { rows: &b.q[first * width..], stride: width, first: 0 };
            let before = &*earlier;
            let rows = [
                Rows::starting_at(&mut b.mixed, width, first),
                Rows::starting_at(&mut b.v, heads, first),
                Rows::starting_at(&mut b.gate, heads, first),
            ];
            step.compute.each_row(n, rows, &b.threads, &|i, [mixed, alpha, beta], _| {
                self.convolution.apply(isa, before, inputs, i, mixed);
                let (queries, rest) = mixed.split_at_mut(spec.key_heads * spec.head_dim);
                let keys = &mut rest[..spec.key_heads * spec.head_dim];
                let unit = 1.0 / (spec.head_dim as f32).sqrt();
                to_length(isa, queries, spec.head_dim, unit, eps);
                to_length(isa, keys, spec.head_dim, 1.0, eps);
                for ((alpha, bias), a) in alpha.iter_mut().zip(&self.dt_bias).zip(&self.a) {
                    *alpha = libm::expf(a * softplus(*alpha + bias));
                }
                beta.iter_mut().for_each(|beta| *beta = sigmoid(*beta));
            });
            self.convolution.keep(earlier, inputs, n);
            let of = (span.sequence, span.draft_row);
            step.cache.keep_of_draft(step.layer, of, 0..convolved);
        }
    }
}

impl Part for DeltaNet {
    fn linears(&self) -> Vec<&Linear> {
        let inputs = self.inputs.linears().iter();
        inputs.chain(self.rates.linears()).chain([&self.out]).collect()
    }

    fn linears_mut(&mut self) -> Vec<&mut Linear> {
        let inputs = self.inputs.linears_mut().iter_mut();
        inputs.chain(self.rates.linears_mut()).chain([&mut self.out]).collect()
    }

    fn input_formats(&self) -> ActivationFormats {
        let inputs = self.inputs.linears().iter().chain(self.rates.linears());
        ActivationFormats::of(inputs.flat_map(Linear::kinds))
    }

    fn forward(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let (isa, inner, out) = (step.compute.isa, spec.inner(), self.out.view(step.store));
        self.project(step);
        self.mix(step);
        recur(spec, step);
        let some = step.keep_wanted_rows(|b, from, to| {
            Rows::new(&mut b.heads_out, inner).copy(from, to);
            Rows::new(&mut b.k, inner).copy(from, to);
        });
        if !some {
            return;
        }
        let b = &mut *step.buffers;
        let rows = [Rows::new(&mut b.heads_out, inner), Rows::new(&mut b.k, inner)];
        let formats = ActivationFormats::of(self.out.kinds());
        let (acts, threads) = (&mut b.acts, &b.threads);
        let n = b.batch.counts();
        step.compute.pack(n, inner, rows, acts, formats, threads, &|_, [y, z], _, put| {
            y.chunks_exact_mut(spec.head_dim).for_each(|head| self.norm.apply(isa, head));
            silu_mul(isa, z, y);
            put(z);
        });
        step.compute.project(&out, Rows::new(&mut b.y, step.hidden), &b.acts, &b.threads);
    }
}

/// Splits the inputs of rates and decays, key head by key head in `heads_out`, into `gate` and `v`.
fn split_rates(spec: &DeltaNetSpec, step: &mut Step<'_>) {
    let (heads, group) = (spec.value_heads, spec.value_heads / spec.key_heads);
    let (n, b) = (step.rows().all(), &mut *step.buffers);
    let both = &b.heads_out;
    let rows = [Rows::new(&mut b.v, heads), Rows::new(&mut b.gate, heads)];
    step.compute.each_row(n, rows, &b.threads, &|i, [alphas, betas], _| {
        let both = both[i * 2 * heads..][..2 * heads].chunks_exact(2 * group);
        let own = alphas.chunks_exact_mut(group).zip(betas.chunks_exact_mut(group));
        for (both, (alpha, beta)) in both.zip(own) {
            beta.copy_from_slice(&both[..group]);
            alpha.copy_from_slice(&both[group..]);
        }
    });
}

/// Splits queries, keys, values and gates of the output, key head by key head in `mixed`, into `q` and `k`.
fn split_inputs(spec: &DeltaNetSpec, step: &mut Step<'_>) {
    let (dim, width) = (spec.head_dim, spec.mixed() + spec.inner());
    let values = spec.inner() / spec.key_heads;
    let (n, b) = (step.rows().all(), &mut *step.buffers);
    let all = &b.mixed;
    let rows = [Rows::new(&mut b.q, spec.mixed()), Rows::new(&mut b.k, spec.inner())];
    step.compute.each_row(n, rows, &b.threads, &|i, [mixed, gates], _| {
        let (queries, rest) = mixed.split_at_mut(spec.key_heads * dim);
        let (keys, all_values) = rest.split_at_mut(spec.key_heads * dim);
        let heads = all[i * width..][..width].chunks_exact(width / spec.key_heads);
        for (head, all) in heads.enumerate() {
            queries[head * dim..][..dim].copy_from_slice(&all[..dim]);
            keys[head * dim..][..dim].copy_from_slice(&all[dim..2 * dim]);
            let (own_values, own_gates) = all[2 * dim..].split_at(values);
            all_values[head * values..][..values].copy_from_slice(own_values);
            gates[head * values..][..values].copy_from_slice(own_gates);
        }
    });
}

/// Scales each head of `dim` elements to a length: `x · length / √(Σx² + eps)`.
pub(super) fn to_length(isa: Isa, x: &mut [f32], dim: usize, length: f32, eps: f32) {
    for head in x.chunks_exact_mut(dim) {
        let scale = length / vec::root_of_squares(vec::dot(isa, head, head) + eps);
        vec::scale(isa, head, scale);
    }
}

/// Applies the delta rule to the rows: `[rows, inner]` into `heads_out`.
fn recur(spec: &DeltaNetSpec, step: &mut Step<'_>) {
    let b = &mut *step.buffers;
    for span in b.batch.all_spans() {
        let state = step.cache.state(step.layer, span.sequence);
        let (convolved, all) = (Convolution::state_len([spec.taps, spec.mixed()]), state.len());
        let (_, state) = state.split_at_mut(convolved);
        let first = span.rows.start;
        let rule = DeltaRule {
            key_heads: spec.key_heads,
            value_heads: spec.value_heads,
            dim: spec.head_dim,
            neighbours: spec.neighbours,
            mixed: &b.mixed[first * spec.mixed()..],
            decays: &b.v[first * spec.value_heads..],
            rates: &b.gate[first * spec.value_heads..],
        };
        let out = Rows::starting_at(&mut b.heads_out, spec.inner(), first);
        let threads = &mut step.compute.threads(&b.threads);
        rule.run(threads, step.compute.isa, span.rows.len(), state, out);
        let of = (span.sequence, span.draft_row);
        step.cache.keep_of_draft(step.layer, of, convolved..all);
    }
}
