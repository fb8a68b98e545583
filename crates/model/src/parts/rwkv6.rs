//! The mixers of RWKV-6 (Peng et al. 2024): linear attention on a matrix for each head, whose rows decay by factors that depend on the token. So do the shares
//! in which inputs are mixed with those of the token before. The state is laid out as that of RWKV-7.

use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::{HeadRows, LinearAttention, Rows};
use alight_kernels::vec;

use super::routing::sigmoid;
use super::rwkv::{Adjusted, Rwkv7Spec, To, head_norms};
use super::token_shift::{pack_shifted, shift};
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_WIDTH};
use crate::norm::Norm;
use crate::parts::buffers::WorkSize;
use crate::parts::step::Step;
use crate::parts::{MixerSpec, Part, PartSpec};
use crate::tensors::{LayerFinder, Linear, WeightError};

/// The inputs that have shares, in the order of the file.
const INPUTS: [char; 5] = ['w', 'k', 'v', 'r', 'g'];

/// A mixer of RWKV-6.
#[derive(Clone, Debug, PartialEq)]
pub struct Rwkv6Spec {
    /// Heads, and the parts of the state.
    pub state: Rwkv7Spec,
    /// Heads of keys and of values.
    pub kv_heads: usize,
    /// Length of the short rows from which the shares of the row before are computed, one for each input.
    pub share_rank: usize,
    /// True if the state is read before a token's value is added, which counts with factors of its own, and outputs are normed. Otherwise keys are multiplied by
    /// what decays take away, and queries scaled.
    pub bonus: bool,
}

impl Rwkv6Spec {
    /// Reads its keys.
    ///
    /// # Errors
    /// A size that no model can have, or that is not implemented.
    pub(crate) fn read(keys: &Keys<'_, '_>) -> Result<Rwkv6Spec, SpecError> {
        let state = Rwkv7Spec::read(keys)?;
        let key = "attention.head_count_kv";
        let heads = state.heads as u64;
        let kv_heads = keys.get::<u64>(key)?.filter(|count| *count > 0).unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(keys.value(key, kv_heads, format!("a divisor of the {heads} heads")));
        }
        Ok(Rwkv6Spec {
            kv_heads: kv_heads as usize,
            share_rank: keys.dimension("time_mix_extra_dim", MAX_WIDTH)?,
            bonus: true,
            state,
        })
    }
}

impl PartSpec for Rwkv6Spec {
    fn find(
        &self,
        find: &LayerFinder<'_, '_, '_>,
        hidden: usize,
    ) -> Result<Box<dyn Part>, WeightError> {
        Ok(Box::new(Rwkv6::find(find, self, hidden)?))
    }

    /// Returns the sizes of its buffers: normed rows with the rows before them in `mixed`, first the short rows of shares and then what heads put out in
    /// `heads_out`, shares and then the gate of the output in `up`, decays in `gate`.
    fn work(&self, hidden: usize) -> WorkSize {
        let work = self.state.work(hidden);
        WorkSize {
            heads_out: work.heads_out.max(INPUTS.len() * self.share_rank),
            widest_input: work.widest_input.max(self.share_rank),
            ..work
        }
    }
}

impl MixerSpec for Rwkv6Spec {
    fn state_len(&self) -> usize {
        self.state.state_len()
    }
}

/// The tensors of a mixer of RWKV-6.
#[derive(Debug)]
struct Rwkv6 {
    spec: Rwkv6Spec,
    /// `[hidden]`
    norm: Norm,
    /// Shares of the row before in what shares are computed from, `[hidden]`.
    share_of_shares: Vec<f32>,
    /// `[5 · share_rank, hidden]`
    short: Linear,
    /// A stack of five, `[hidden, share_rank]` each.
    shares: Linear,
    /// Added to them, `[5, hidden]`.
    base: Vec<f32>,
    decay: Adjusted,
    /// `[hidden, hidden]`
    query: Linear,
    /// `[kv_heads · head_dim, hidden]` each.
    key: Linear,
    value: Linear,
    /// `[hidden, hidden]` each.
    gate: Linear,
    out: Linear,
    /// Factors on the keys of a token for itself, `[hidden]`.
    bonus: Option<Vec<f32>>,
    /// Of each head, `[head_dim]`.
    norms: Vec<Norm>,
}

impl Rwkv6 {
    fn find(
        find: &LayerFinder<'_, '_, '_>,
        spec: &Rwkv6Spec,
        hidden: usize,
    ) -> Result<Rwkv6, WeightError> {
        let (rank, inputs) = (spec.share_rank, INPUTS.len());
        let kv = spec.kv_heads * spec.state.head_dim;
        let matrix = |name: &str, rows| find.linear(&format!("time_mix_{name}"), hidden, rows);
        let vector = |name: &str| find.numbers(&format!("time_mix_{name}.weight"), hidden);
        let base = match find.has("time_mix_lerp_fused") {
            true => find.numbers("time_mix_lerp_fused.weight", inputs * hidden)?,
            // Old files have them one by one.
            false => INPUTS
                .map(|input| vector(&format!("lerp_{input}")))
                .into_iter()
                .collect::<Result<Vec<_>, WeightError>>()?
                .concat(),
        };
        let names = ["time_mix_decay_w1", "time_mix_decay_w2"];
        Ok(Rwkv6 {
            norm: find.norm("attn_norm", hidden)?,
            share_of_shares: vector("lerp_x")?,
            short: matrix("w1", inputs * rank)?,
            shares: find.experts("time_mix_w2", [rank, hidden, inputs], 1, inputs)?.into(),
            base,
            decay: Adjusted::find(find, names, Some("time_mix_decay"), hidden)?,
            query: matrix("receptance", hidden)?,
            key: matrix("key", kv)?,
            value: matrix("value", kv)?,
            gate: matrix("gate", hidden)?,
            out: matrix("output", hidden)?,
            bonus: spec.bonus.then(|| vector("first")).transpose()?,
            norms: if spec.bonus { head_norms(find, spec.state.head_dim, hidden)? } else { vec![] },
            spec: spec.clone(),
        })
    }

    /// Computes the short rows of shares.
    fn shorten(&self, step: &mut Step<'_>) {
        let compute = step.compute;
        let (isa, n, width) = (compute.isa, step.rows().all(), self.short.rows());
        pack_shifted(&self.share_of_shares, ActivationFormats::of(self.short.kinds()), step);
        let short = self.short.view(step.store);
        let b = &mut *step.buffers;
        compute.project(&short, Rows::new(&mut b.heads_out, width), &b.acts, &b.threads);
        let rows = [Rows::new(&mut b.heads_out, width)];
        compute.each_row(n, rows, &b.threads, &|_, [row], _| vec::softcap(isa, row, 1.0));
    }

    /// Packs the inputs `of` of the projection `linear`: rows mixed with the rows before them in the tokens' shares.
    fn pack(&self, of: char, linear: &Linear, step: &mut Step<'_>) {
        let (compute, hidden, n) = (step.compute, step.hidden, step.rows());
        let (rank, width) = (self.spec.share_rank, self.short.rows());
        let index = INPUTS.iter().position(|input| *input == of).unwrap_or(0);
        let shares = self.shares.part(index, step.store);
        let base = &self.base[index * hidden..][..hidden];
        let b = &mut *step.buffers;
        let rows = [Rows::new(&mut b.heads_out, width)];
        let formats = ActivationFormats::of(self.shares.kinds());
        let (acts, threads) = (&mut b.acts, &b.threads);
        compute.pack(n, rank, rows, acts, formats, threads, &|_, [row], _, put| {
            put(&row[index * rank..][..rank]);
        });
        compute.project(&shares, Rows::new(&mut b.up, hidden), &b.acts, &b.threads);
        let rows = [Rows::new(&mut b.mixed, 2 * hidden), Rows::new(&mut b.up, hidden)];
        let formats = ActivationFormats::of(linear.kinds());
        let (acts, threads) = (&mut b.acts, &b.threads);
        compute.pack(n, hidden, rows, acts, formats, threads, &|_, [row, shares], _, put| {
            let (now, before) = row.split_at(hidden);
            for (((share, base), now), before) in shares.iter_mut().zip(base).zip(now).zip(before) {
                *share = (before - now) * (*share + base) + now;
            }
            put(shares);
        });
    }

    /// Computes decays, queries, keys, values, and at last gates, into `up`.
    fn project(&self, step: &mut Step<'_>) {
        let (compute, hidden, n) = (step.compute, step.hidden, step.rows().all());
        let (isa, dim) = (compute.isa, self.spec.state.head_dim);
        self.pack('w', &self.decay.first, step);
        self.decay.multiply(|isa, row| vec::softcap(isa, row, 1.0), To::Gate, step);
        let b = &mut *step.buffers;
        let rows = [Rows::new(&mut b.gate, hidden)];
        compute.each_row(n, rows, &b.threads, &|_, [row], _| {
            for (decay, base) in row.iter_mut().zip(&self.decay.base) {
                *decay = libm::expf(-libm::expf(*decay + base));
            }
        });
        self.spread('k', &self.key, step);
        self.spread('v', &self.value, step);
        self.pack('r', &self.query, step);
        let query = self.query.view(step.store);
        let b = &mut *step.buffers;
        compute.project(&query, Rows::new(&mut b.q, hidden), &b.acts, &b.threads);
        if self.bonus.is_none() {
            let scale = 1.0 / (dim as f32).sqrt();
            let buffers = [&mut b.q, &mut b.k, &mut b.gate];
            let rows = buffers.map(|rows| Rows::new(rows, hidden));
            compute.each_row(n, rows, &b.threads, &|_, [query, key, decay], _| {
                vec::scale(isa, query, scale);
                key.iter_mut().zip(decay).for_each(|(key, decay)| *key -= *key * *decay);
            });
        }
        self.pack('g', &self.gate, step);
        let gate = self.gate.view(step.store);
        let b = &mut *step.buffers;
        compute.project(&gate, Rows::new(&mut b.up, hidden), &b.acts, &b.threads);
    }

    /// Computes keys or values, and gives each head those of its group.
    fn spread(&self, of: char, linear: &Linear, step: &mut Step<'_>) {
        let (compute, hidden, n) = (step.compute, step.hidden, step.rows().all());
        let (dim, kv) = (self.spec.state.head_dim, linear.rows());
        let group = hidden / kv * dim;
        self.pack(of, linear, step);
        let view = linear.view(step.store);
        let b = &mut *step.buffers;
        compute.project(&view, Rows::new(&mut b.y, kv), &b.acts, &b.threads);
        let to = if of == 'k' { &mut b.k } else { &mut b.v };
        let rows = [Rows::new(&mut b.y, kv), Rows::new(to, hidden)];
        compute.each_row(n, rows, &b.threads, &|_, [few, all], _| {
            for (few, group) in few.chunks_exact(dim).zip(all.chunks_exact_mut(group)) {
                group.chunks_exact_mut(dim).for_each(|head| head.copy_from_slice(few));
            }
        });
    }

    /// Applies the recurrence to the rows: `[rows, hidden]` into `heads_out`.
    fn recur(&self, step: &mut Step<'_>) {
        let (state, hidden) = (&self.spec.state, step.hidden);
        let b = &mut *step.buffers;
        for span in b.batch.all_spans() {
            let place = state.matrices();
            let matrices = &mut step.cache.state(step.layer, span.sequence)[place.clone()];
            let first = span.rows.start;
            let [queries, keys, values, decays] = [&b.q, &b.k, &b.v, &b.gate]
                .map(|rows| HeadRows { rows: &rows[first * hidden..], stride: hidden });
            let attention = LinearAttention {
                heads: state.heads,
                dim: state.head_dim,
                queries,
                keys,
                values,
                decays,
                moved: None,
                bonus: self.bonus.as_deref(),
            };
            let out = Rows::starting_at(&mut b.heads_out, hidden, first);
            let threads = &mut step.compute.threads(&b.threads);
            attention.run(threads, step.compute.isa, span.rows.len(), matrices, out);
            let of = (span.sequence, span.draft_row);
            step.cache.keep_of_draft(step.layer, of, place);
        }
    }

    /// Norms the outputs of heads, multiplies by the gate, and projects.
    fn finish(&self, step: &mut Step<'_>) {
        let (isa, hidden, dim) = (step.compute.isa, step.hidden, self.spec.state.head_dim);
        let out = self.out.view(step.store);
        let n = step.rows();
        let b = &mut *step.buffers;
        let rows = [Rows::new(&mut b.heads_out, hidden), Rows::new(&mut b.up, hidden)];
        let formats = ActivationFormats::of(self.out.kinds());
        let (acts, threads) = (&mut b.acts, &b.threads);
        step.compute.pack(n, hidden, rows, acts, formats, threads, &|_, [y, gates], _, put| {
            for (norm, y) in self.norms.iter().zip(y.chunks_exact_mut(dim)) {
                norm.apply(isa, y);
            }
            for (y, gate) in y.iter_mut().zip(&*gates) {
                *y *= sigmoid(*gate) * if self.bonus.is_some() { *gate } else { 1.0 };
            }
            put(y);
        });
        step.compute.project(&out, Rows::new(&mut b.y, hidden), &b.acts, &b.threads);
    }
}

impl Part for Rwkv6 {
    fn linears(&self) -> Vec<&Linear> {
        let [first, second] = self.decay.linears();
        let all = [&self.short, &self.shares, first, second, &self.key, &self.value];
        all.into_iter().chain([&self.query, &self.gate, &self.out]).collect()
    }

    fn linears_mut(&mut self) -> Vec<&mut Linear> {
        let [first, second] = self.decay.linears_mut();
        let all = [&mut self.short, &mut self.shares, first, second];
        let rest = [&mut self.key, &mut self.value, &mut self.query, &mut self.gate, &mut self.out];
        all.into_iter().chain(rest).collect()
    }

    /// Returns none: it packs its inputs itself.
    fn input_formats(&self) -> ActivationFormats {
        ActivationFormats::of([])
    }

    fn forward(&self, step: &mut Step<'_>) {
        let hidden = step.hidden;
        shift(&self.norm, 0..hidden, step);
        self.shorten(step);
        self.project(step);
        self.recur(step);
        if !self.spec.state.before_channel_mix {
            let some = step.keep_wanted_rows(|b, from, to| {
                for rows in [&mut b.heads_out, &mut b.up] {
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
