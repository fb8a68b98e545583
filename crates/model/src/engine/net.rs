//! A network ready to run, and a run of it.
//!
//! For `n` rows a layer is this (regions of the pool in brackets; with one row the steps in between run on the caller's
//! thread, with several they are spread over the rows):
//! ```text
//!               x += contribution of the layer before; pack(norm(x))
//! [mixer]       for attention: [q k v], biases, norms, rotation, keys and values into the cache, [attend], pack, [o]
//!               x += contribution of the mixer; pack(norm(x))
//! [feed forward] for a dense one: [gate·up], pack, [down]
//!               for experts: [router], choice, sorting, [gate·up of the chosen], pack, [down, sum]
//! ```
//! Networks whose tokens have several residual streams predict all of them before a layer and correct them after it
//! (`parts/alt_up.rs`).
//!
//! In the last layer that stores something for later tokens, only the rows whose logits are asked for go on after the cache
//! is filled. Logits are computed for those rows.
//!
//! Invariants: a run allocates nothing; how work is cut follows from shapes and positions and never from the number of
//! threads, so neither do the results.

use std::f32::consts::FRAC_1_SQRT_2;
use std::sync::Arc;

use alight_kernels::attention::FEW_TOKENS;
use alight_kernels::matmul::ActivationFormats;
use alight_kernels::parallel::Rows;
use alight_kernels::rope::RopeTable;
use alight_kernels::vec;

use super::buffers::{BufferSizes, Buffers, WorkSize};
use super::compute::Compute;
use super::step::{Step, Want};
use crate::cache::{Cache, CacheError, Kv, States};
use crate::load::{LoadError, Store, arrival};
use crate::parts::alt_up::{self, AltUpWeights};
use crate::parts::norm::Norm;
use crate::parts::token_input::TokenInputs;
use crate::parts::{self, Contribution};
use crate::spec::ModelSpec;
use crate::weights::{LayerWeights, Weights};

/// A network ready to run: what it is, where its weights are, tables, and the threads.
pub(crate) struct Net<'m> {
    spec: &'m ModelSpec,
    weights: &'m Weights,
    store: &'m Store,
    compute: Compute<'m>,
    /// Frequencies of each of the model's rotary embeddings.
    ropes: Vec<RopeTable>,
    /// Those of the first in sequences that are not as long, or longer than they are now, if the model tells them apart.
    other_rope: Option<RopeTable>,
}

impl<'m> Net<'m> {
    pub(crate) fn new(
        spec: &'m ModelSpec,
        weights: &'m Weights,
        store: &'m Store,
        compute: Compute<'m>,
    ) -> Net<'m> {
        let ropes = spec.ropes.iter().map(RopeTable::new).collect();
        let other_rope = spec.long_context.rope.as_ref().map(RopeTable::new);
        Net { spec, weights, store, compute, ropes, other_rope }
    }

    /// Goes on as for long sequences, or back. What the cache holds is of no use then.
    pub(crate) fn exchange_ropes(&mut self) {
        if let Some(other) = &mut self.other_rope {
            std::mem::swap(&mut self.ropes[0], other);
        }
    }

    /// An empty cache of at least `context` positions.
    ///
    /// # Errors
    /// The system does not give the address space.
    pub(crate) fn cache(&self, context: usize) -> Result<Cache, CacheError> {
        let capacity = Kv::capacity_for(context);
        let layers = || self.spec.layers.iter().map(|layer| layer.mixer.as_ref());
        let shapes = layers().map(|mixer| mixer.and_then(|m| parts::kv_shape(m, capacity)));
        let kv = Kv::new(capacity, &shapes.collect::<Vec<_>>())?;
        Ok(Cache { kv, states: States::new(layers().map(|m| m.map_or(0, parts::state_len)))? })
    }

    /// Buffers for calls of up to `batch` tokens with this cache.
    pub(crate) fn buffers(&self, kv: &Kv, batch: usize) -> Buffers {
        let layers = self.spec.layers.iter();
        let work = layers.map(|layer| parts::work(layer, self.spec.hidden_size));
        let few = batch.min(FEW_TOKENS);
        let mixers = self.spec.mixers();
        let partials = mixers.map(|(_, mixer)| parts::most_partials(mixer, kv.capacity(), few));
        Buffers::new(&BufferSizes {
            batch,
            threads: self.compute.pool.threads(),
            hidden_size: self.spec.hidden_size,
            ropes: &self.spec.ropes,
            work: work.fold(WorkSize::default(), WorkSize::max),
            token_inputs: self.spec.layers.iter().map(|layer| layer.token_input).sum(),
            streams: if self.spec.alt_up { alt_up::row_len(self.spec.hidden_size) } else { 0 },
            partials: partials.max().unwrap_or(0),
        })
    }

    /// Runs `tokens`, which follow the `position` positions in the cache. Afterwards the cache holds them, and row `i` of
    /// `b.x` is the residual stream after the last layer of the `i`-th token that was wanted.
    ///
    /// The caller has checked that ids are in the vocabulary, that there are tokens, no more than the buffers' batch, and
    /// that the cache can hold them.
    ///
    /// # Errors
    /// The weights cannot be loaded. What the cache holds from `position` on is of no use then.
    pub(crate) fn run(
        &self,
        b: &mut Buffers,
        cache: &mut Cache,
        tokens: &[u32],
        position: usize,
        want: Want,
    ) -> Result<(), Arc<LoadError>> {
        self.embed(b, tokens, position)?;
        let mut step = Step {
            compute: self.compute,
            store: self.store,
            hidden: self.spec.hidden_size,
            norm_eps: self.spec.norm.eps,
            layer: 0,
            rows: tokens.len(),
            position,
            wanted: None,
            buffers: b,
            cache,
        };
        if let Some(alt_up) = &self.weights.alt_up {
            alt_up.begin(&mut step);
        }
        let mut pending = None;
        let last_filled = self.spec.mixers().rfind(|(_, mixer)| parts::fills_cache(mixer));
        for (index, (spec, w)) in self.spec.layers.iter().zip(&self.weights.layers).enumerate() {
            self.store.arrival().wait(arrival::layer(index))?;
            step.layer = index;
            step.wanted = last_filled.filter(|(last, _)| *last == index).map(|_| want);
            let contribution = |bias, norm: &'m Option<Norm>| Contribution {
                bias,
                norm: norm.as_ref(),
                scale: spec.residual_scale,
                output_scale: 1.0,
            };
            let laurel = w.laurel.as_ref();
            if let Some(alt_up) = &w.alt_up {
                alt_up.predict(&mut step);
            }
            if let (Some(mixer), Some(w)) = (&spec.mixer, &w.mixer) {
                let (norm, formats) = (w.norm.as_ref(), w.part.input_formats());
                match (laurel, norm) {
                    (Some(laurel), Some(norm)) => laurel.forward(norm, formats, &mut step),
                    _ => pack_normed(&mut step, pending, Order::AddThenNorm, norm, formats),
                }
                w.part.forward(mixer, &mut step);
                if step.wanted == Some(Want::Nothing) {
                    return Ok(());
                }
                let output_scale = if laurel.is_some() { FRAC_1_SQRT_2 } else { 1.0 };
                let bias = w.part.output_bias();
                pending = Some(Contribution { output_scale, ..contribution(bias, &w.output_norm) });
            }
            if let (Some(feed_forward), Some(w)) = (&spec.feed_forward, &w.feed_forward) {
                let (norm, formats) = (w.norm.as_ref(), w.part.input_formats());
                let order = if spec.parallel { Order::NormThenAdd } else { Order::AddThenNorm };
                pack_normed(&mut step, pending, order, norm, formats);
                w.part.forward(feed_forward, &mut step);
                pending = Some(contribution(w.part.output_bias(), &w.output_norm));
            }
            pending = end_layer(&mut step, w, pending);
        }
        if let Some(alt_up) = &self.weights.alt_up {
            alt_up.end(&mut step);
        }
        if let Some(contribution) = pending {
            let (isa, n, hidden) = (self.compute.isa, step.rows, step.hidden);
            let rows = [Rows::new(&mut b.x, hidden), Rows::new(&mut b.y, hidden)];
            self.compute.each_row(n, rows, &b.threads, &|_, [x, y], _| {
                contribution.add_to(isa, x, y);
            });
        }
        Ok(())
    }

    /// Fills the residual stream with the rows of the tokens, and the angles of their positions.
    fn embed(
        &self,
        b: &mut Buffers,
        tokens: &[u32],
        position: usize,
    ) -> Result<(), Arc<LoadError>> {
        let (isa, spec) = (self.compute.isa, self.spec);
        self.store.arrival().wait(arrival::EMBEDDING)?;
        let embed = self.weights.embed.view(self.store);
        let n = tokens.len();
        let rows = [Rows::new(&mut b.x, spec.hidden_size)];
        self.compute.each_row(n, rows, &b.threads, &|i, [x], _| {
            embed.dequantize_row(tokens[i] as usize, x);
            if spec.embedding_scale != 1.0 {
                vec::scale(isa, x, spec.embedding_scale);
            }
        });
        if let Some(inputs) = &self.weights.token_inputs {
            self.token_inputs(b, inputs, tokens);
        }
        let mut values = std::mem::take(&mut b.angles.values);
        let rows = [Rows::new(&mut values, b.angles.width)];
        let angles = &b.angles;
        self.compute.each_row(n, rows, &b.threads, &|i, [row], _| {
            for (table, [cos, sin]) in angles.places(&self.ropes) {
                let (head, tail) = row.split_at_mut(sin.start);
                table.fill(position + i, &mut head[cos], &mut tail[..sin.len()]);
            }
        });
        b.angles.values = values;
        Ok(())
    }

    /// What layers take from the tokens, whose embeddings are in the residual stream:
    /// `(√width · table[token] + norm(projection(x) / √hidden)) / √2`.
    fn token_inputs(&self, b: &mut Buffers, inputs: &TokenInputs, tokens: &[u32]) {
        let (isa, spec, n) = (self.compute.isa, self.spec, tokens.len());
        let (hidden, all) = (spec.hidden_size, b.token_input_width);
        let formats = ActivationFormats::of([inputs.projection.kind()]);
        let x = Rows::new(&mut b.x, hidden);
        self.compute.pack_rows(n, x, &mut b.acts, formats, &b.threads);
        let projection = inputs.projection.view(self.store);
        let rows = Rows::new(&mut b.token_inputs, all);
        self.compute.project(&projection, rows, &b.acts, &b.threads);
        let (table, width) = (inputs.table.view(self.store), inputs.norm.weight.len());
        let rows = [Rows::new(&mut b.token_inputs, all)];
        self.compute.each_row(n, rows, &b.threads, &|i, [row], scratch| {
            vec::scale(isa, row, 1.0 / (hidden as f32).sqrt());
            for slice in row.chunks_exact_mut(width) {
                inputs.norm.apply(isa, slice);
            }
            let own = &mut scratch.row[..all];
            table.dequantize_row(tokens[i] as usize, own);
            vec::scale(isa, own, (width as f32).sqrt());
            vec::add_assign(isa, row, own);
            vec::scale(isa, row, FRAC_1_SQRT_2);
        });
    }

    /// Computes the logits of the rows `first..first + n` of the residual stream into `logits` `[n, vocab]`.
    ///
    /// # Errors
    /// The output matrix cannot be loaded.
    pub(crate) fn logits(
        &self,
        b: &mut Buffers,
        first: usize,
        n: usize,
        logits: &mut [f32],
    ) -> Result<(), Arc<LoadError>> {
        let (isa, spec, w) = (self.compute.isa, self.spec, self.weights);
        let hidden = spec.hidden_size;
        let formats = ActivationFormats::of([w.output.kind()]);
        let rows = [Rows::starting_at(&mut b.x, hidden, first)];
        let (acts, threads) = (&mut b.acts, &b.threads);
        self.compute.pack(n, hidden, rows, acts, formats, threads, &|_, [x], scratch, put| {
            let row = &mut scratch.row[..hidden];
            w.output_norm.apply_to(isa, x, row);
            put(row);
        });
        self.store.arrival().wait(self.store.output_section())?;
        let output = w.output.view(self.store);
        let rows = Rows::new(logits, spec.vocab);
        let finish = |_: usize, columns: std::ops::Range<usize>, [row]: [&mut [f32]; 1]| {
            if let Some(bias) = &w.output_bias {
                vec::add_assign(isa, row, &bias[columns]);
            }
            if spec.logit_scale != 1.0 {
                vec::scale(isa, row, spec.logit_scale);
            }
            if let Some(cap) = spec.logit_softcap {
                vec::softcap(isa, row, cap);
            }
        };
        self.compute.multiply([[&output]], [[rows]], acts, threads, Some(&finish));
        Ok(())
    }
}

/// Whether the part that comes next takes what the part before has added, or runs parallel to it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    AddThenNorm,
    NormThenAdd,
}

/// What comes after a layer's feed-forward part: the correction of its streams, and what it takes from the token. Returns what is
/// then pending.
fn end_layer<'m>(
    step: &mut Step<'_>,
    w: &'m LayerWeights,
    pending: Option<Contribution<'m>>,
) -> Option<Contribution<'m>> {
    let last = match (&w.alt_up, &w.token_input) {
        (None, None) => pending,
        (None, Some(input)) => {
            pack_normed(step, pending, Order::AddThenNorm, None, input.input_formats());
            input.forward(step);
            let norm = Some(&input.norm);
            Some(Contribution { bias: None, norm, scale: 1.0, output_scale: 1.0 })
        }
        (Some(alt_up), input) => {
            alt_up.correct(pending, step);
            if let Some(input) = input {
                alt_up.pack_scaled(input.input_formats(), step);
                input.forward(step);
                AltUpWeights::add_to_others(&input.norm, step);
            }
            None
        }
    };
    last.map(|last| Contribution { output_scale: w.output_scale, ..last })
}

/// Carries out a pending contribution, and packs the residual stream for the step's next matrices, normed if there is a
/// norm.
fn pack_normed(
    step: &mut Step<'_>,
    pending: Option<Contribution<'_>>,
    order: Order,
    norm: Option<&Norm>,
    formats: ActivationFormats,
) {
    let (compute, isa, hidden) = (step.compute, step.compute.isa, step.hidden);
    let b = &mut *step.buffers;
    let rows = [Rows::new(&mut b.x, hidden), Rows::new(&mut b.y, hidden)];
    let (n, acts, threads) = (step.rows, &mut b.acts, &b.threads);
    compute.pack(n, hidden, rows, acts, formats, threads, &|_, [x, y], scratch, put| {
        let mut add = |x: &mut [f32]| {
            if let Some(contribution) = &pending {
                contribution.add_to(isa, x, y);
            }
        };
        if order == Order::AddThenNorm {
            add(x);
        }
        match norm {
            Some(norm) => {
                let row = &mut scratch.row[..hidden];
                norm.apply_to(isa, x, row);
                put(row);
            }
            None => put(x),
        }
        if order == Order::NormThenAdd {
            add(x);
        }
    });
}
