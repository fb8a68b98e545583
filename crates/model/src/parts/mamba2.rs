//! Mamba-2 (Dao and Gu 2024): a short causal convolution of inputs, keys and queries, a state for each head that decays by a
//! factor that depends on the token, and a norm of its output followed by a gate.
//!
//! Its state, in f32, holds the inputs of the convolution's last tokens and the matrices. Every token is computed in the same
//! order of operations, alone or in a batch.

use alight_kernels::gate::silu_mul;
use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::{Rows, StateSpace};
use alight_kernels::recurrent::COLUMNS;

use super::convolution::{Columns, Convolution, MAX_TAPS};
use super::routing::softplus;
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_WIDTH};
use crate::norm::Norm;
use crate::parts::buffers::WorkSize;
use crate::parts::step::Step;
use crate::parts::{MixerSpec, Part, PartSpec};
use crate::tensors::{LayerFinder, Linear, WeightError};

/// Maximum length of a key, far above any model's.
const MAX_LEN: usize = 4096;

/// A Mamba-2 mixer.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba2Spec {
    /// Heads.
    pub heads: usize,
    /// Groups of neighbouring heads that share keys and queries, and whose outputs are normed together; divides `heads`.
    pub groups: usize,
    /// Length of a head's input and output.
    pub head_dim: usize,
    /// Length of a key and a query.
    pub key_len: usize,
    /// Number of tokens that the convolution looks at, including the current one.
    pub taps: usize,
    /// True if the file may leave out the norm of the output.
    pub norm_optional: bool,
}

impl Mamba2Spec {
    /// Reads its keys.
    ///
    /// # Errors
    /// A size that no model can have, or that is not implemented.
    pub(crate) fn read(keys: &Keys<'_, '_>) -> Result<Mamba2Spec, SpecError> {
        let taps = keys.dimension("ssm.conv_kernel", MAX_TAPS)?;
        let key_len = keys.dimension("ssm.state_size", MAX_LEN)?;
        let groups = keys.dimension("ssm.group_count", MAX_WIDTH)?;
        let heads = keys.dimension("ssm.time_step_rank", MAX_WIDTH)?;
        let inner = keys.dimension("ssm.inner_size", MAX_WIDTH)?;
        if !key_len.is_multiple_of(4) {
            let what = "a length of keys that is not a multiple of 4";
            return Err(keys.unsupported("ssm.state_size", key_len, what));
        }
        if !heads.is_multiple_of(groups) {
            let expected = format!("a divisor of the {heads} heads");
            return Err(keys.value("ssm.group_count", groups, expected));
        }
        if groups * key_len > MAX_WIDTH {
            let expected = format!("at most {} keys of {key_len}", MAX_WIDTH / key_len);
            return Err(keys.value("ssm.group_count", groups, expected));
        }
        if !inner.is_multiple_of(heads) {
            let expected = format!("a multiple of the {heads} heads");
            return Err(keys.value("ssm.inner_size", inner, expected));
        }
        let head_dim = inner / heads;
        if !head_dim.is_multiple_of(COLUMNS) {
            let what = "heads whose length is not a multiple of 16";
            return Err(keys.unsupported("ssm.inner_size", inner, what));
        }
        Ok(Mamba2Spec { heads, groups, head_dim, key_len, taps, norm_optional: false })
    }

    /// Returns the width of all heads' inputs, and of the output.
    fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Returns the width of inputs, keys and queries.
    fn mixed(&self) -> usize {
        self.inner() + 2 * self.groups * self.key_len
    }

    /// Returns the width of the input projection: gate, inputs, keys, queries, and step lengths.
    fn projected(&self) -> usize {
        self.inner() + self.mixed() + self.heads
    }

    /// Returns the f32 elements of the convolution's state, `[taps − 1, mixed]`.
    fn convolved_len(&self) -> usize {
        Convolution::state_len([self.taps, self.mixed()])
    }
}

impl PartSpec for Mamba2Spec {
    fn find(
        &self,
        find: &LayerFinder<'_, '_, '_>,
        hidden: usize,
    ) -> Result<Box<dyn Part>, WeightError> {
        Ok(Box::new(Mamba2::find(find, self, hidden)?))
    }

    /// Returns the sizes of its buffers: the input projection in `q`, the result of the convolution in `mixed`, decays in `v`, step
    /// lengths in `gate`.
    fn work(&self, _hidden: usize) -> WorkSize {
        WorkSize {
            q: self.projected(),
            mixed: self.mixed(),
            v: self.heads,
            gate: self.heads,
            heads_out: self.inner(),
            widest_input: self.inner(),
            ..WorkSize::default()
        }
    }
}

impl MixerSpec for Mamba2Spec {
    /// Returns the f32 elements of its state: the convolution's, then [`StateSpace::state_len`].
    fn state_len(&self) -> usize {
        self.convolved_len() + StateSpace::state_len(self.heads, self.head_dim, self.key_len)
    }
}

/// The tensors of a Mamba-2 mixer.
#[derive(Debug)]
pub(crate) struct Mamba2 {
    spec: Mamba2Spec,
    /// `[projected, hidden]`
    input: Linear,
    /// `[hidden, inner]`
    out: Linear,
    /// Of inputs, keys and queries.
    convolution: Convolution,
    /// `[heads]`
    dt_bias: Vec<f32>,
    /// Rates of decay, at most 0: `[heads]`.
    a: Vec<f32>,
    /// Factors on the inputs that bypass the states, `[heads]`.
    d: Vec<f32>,
    /// Of each group, `[inner / groups]`; some files have none.
    norms: Vec<Norm>,
}

impl Mamba2 {
    pub(super) fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &Mamba2Spec,
        hidden: usize,
    ) -> Result<Mamba2, WeightError> {
        let (heads, inner) = (spec.heads, spec.inner());
        let size = [spec.taps, spec.mixed()];
        Ok(Mamba2 {
            spec: spec.clone(),
            input: find.linear("ssm_in", hidden, spec.projected())?,
            out: find.linear("ssm_out", inner, hidden)?,
            convolution: Convolution::find(find, "ssm_conv1d", size, true)?,
            dt_bias: find.vector("ssm_dt.bias", heads)?,
            a: find.table("ssm_a", [1, heads])?,
            d: find.table("ssm_d", [1, heads])?,
            norms: match find.has("ssm_norm") || !spec.norm_optional {
                true => find.norms("ssm_norm", [inner / spec.groups, spec.groups])?,
                false => Vec::new(),
            },
        })
    }

    /// Applies the convolution, and computes decays and step lengths; the convolution's part of the state becomes that of the
    /// last row.
    fn mix(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let (isa, heads, all) = (step.compute.isa, spec.heads, spec.projected());
        let b = &mut *step.buffers;
        for span in b.batch.all_spans() {
            let state = step.cache.state(step.layer, span.sequence);
            let (earlier, _) = state.split_at_mut(spec.convolved_len());
            let (first, n) = (span.rows.start, span.rows.len());
            let projected = &b.q[first * all..];
            let inputs = Columns { rows: projected, stride: all, first: spec.inner() };
            let before = &*earlier;
            let rows = [
                Rows::starting_at(&mut b.mixed, spec.mixed(), first),
                Rows::starting_at(&mut b.v, heads, first),
                Rows::starting_at(&mut b.gate, heads, first),
            ];
            step.compute.each_row(n, rows, &b.threads, &|i, [mixed, decays, steps], _| {
                self.convolution.apply(isa, before, inputs, i, mixed);
                let lengths = &projected[i * all + all - heads..][..heads];
                for (head, (decay, step)) in decays.iter_mut().zip(steps).enumerate() {
                    *step = softplus(lengths[head] + self.dt_bias[head]);
                    *decay = libm::expf(*step * self.a[head]);
                }
            });
            self.convolution.keep(earlier, inputs, n);
            let of = (span.sequence, span.draft_row);
            step.cache.keep_of_draft(step.layer, of, 0..spec.convolved_len());
        }
    }

    /// Applies the recurrence to the rows: `[rows, inner]` into `heads_out`.
    fn recur(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let b = &mut *step.buffers;
        for span in b.batch.all_spans() {
            let state = step.cache.state(step.layer, span.sequence);
            let all = state.len();
            let (_, state) = state.split_at_mut(spec.convolved_len());
            let first = span.rows.start;
            let space = StateSpace {
                heads: spec.heads,
                groups: spec.groups,
                dim: spec.head_dim,
                len: spec.key_len,
                mixed: &b.mixed[first * spec.mixed()..],
                decays: &b.v[first * spec.heads..],
                rates: &b.gate[first * spec.heads..],
                past: &self.d,
            };
            let out = Rows::starting_at(&mut b.heads_out, spec.inner(), first);
            let threads = &mut step.compute.threads(&b.threads);
            space.run(threads, step.compute.isa, span.rows.len(), state, out);
            let of = (span.sequence, span.draft_row);
            step.cache.keep_of_draft(step.layer, of, spec.convolved_len()..all);
        }
    }
}

impl Part for Mamba2 {
    fn linears(&self) -> Vec<&Linear> {
        vec![&self.input, &self.out]
    }

    fn linears_mut(&mut self) -> Vec<&mut Linear> {
        vec![&mut self.input, &mut self.out]
    }

    fn input_formats(&self) -> ActivationFormats {
        ActivationFormats::of(self.input.kinds())
    }

    fn forward(&self, step: &mut Step<'_>) {
        let spec = &self.spec;
        let (isa, inner, all) = (step.compute.isa, spec.inner(), spec.projected());
        let (input, out) = (self.input.view(step.store), self.out.view(step.store));
        let b = &mut *step.buffers;
        step.compute.project(&input, Rows::new(&mut b.q, all), &b.acts, &b.threads);
        self.mix(step);
        self.recur(step);
        let some = step.keep_wanted_rows(|b, from, to| {
            Rows::new(&mut b.heads_out, inner).copy(from, to);
            Rows::new(&mut b.q, all).copy(from, to);
        });
        if !some {
            return;
        }
        let b = &mut *step.buffers;
        let rows = [Rows::new(&mut b.heads_out, inner), Rows::new(&mut b.q, all)];
        let formats = ActivationFormats::of(self.out.kinds());
        let (acts, threads) = (&mut b.acts, &b.threads);
        let n = b.batch.counts();
        step.compute.pack(n, inner, rows, acts, formats, threads, &|_, [y, z], _, put| {
            let z = &mut z[..inner];
            silu_mul(isa, z, y);
            for (group, norm) in z.chunks_exact_mut(inner / spec.groups).zip(&self.norms) {
                norm.apply(isa, group);
            }
            put(z);
        });
        step.compute.project(&out, Rows::new(&mut b.y, step.hidden), &b.acts, &b.threads);
    }
}
