//! All buffers that a session's forward pass writes to, allocated once.
//!
//! Large buffers come from the allocator as zero pages, which use no memory until they are touched: a batch of 512 that never
//! occurs costs nothing.

use std::ops::Range;

use alight_kernels::attention::{AttentionLimits, AttentionScratch};
use alight_kernels::matmul::{Activations, MatmulScratch, Precision};
use alight_kernels::parallel::{self, Rows};
use alight_kernels::rope::{RopeParams, RopeTable};

use super::batch::Batch;
use super::row_adapters::RowAdapters;
use crate::cache::Cache;
use crate::parts::experts::{ExpertsBuffers, ExpertsWork};
use crate::parts::latent_attention::{LatentBuffers, LatentWork};
use crate::store::{MemoryShare, Store};
use crate::threads::PerThread;

/// The sizes of the buffers that a layer's parts write to: elements per token, and the sizes of attention's scratch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorkSize {
    /// Queries, keys, and values of all heads.
    pub(crate) q: usize,
    pub(crate) k: usize,
    pub(crate) v: usize,
    /// The outputs of attention of all heads.
    pub(crate) heads_out: usize,
    /// Queries, keys and values of a recurrent layer after its convolution, or queries before they are absorbed.
    pub(crate) mixed: usize,
    /// The gate and the values it is multiplied with, where both are needed as a whole.
    pub(crate) gate: usize,
    pub(crate) up: usize,
    /// The widest input of a matrix, except for the hidden size.
    pub(crate) widest_input: usize,
    /// The input of the last matrix of a dense feed-forward part, or of a mixture's shared network.
    pub(crate) activated: usize,
    /// Maximum number of query rows of one call of attention, and the lengths of keys and values.
    pub(crate) attention_rows: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) experts: ExpertsWork,
    pub(crate) latent: LatentWork,
}

impl WorkSize {
    /// Returns the f32 elements of the buffer in which a thread keeps products.
    fn room_for_products(&self, batch: usize) -> usize {
        // A dense part keeps the products of two matrices for each token, a mixture those of each slot and of its shared network.
        parallel::room_for_products((2 * batch).max(self.experts.slots(batch) + batch))
    }

    /// Returns the number of rows that projections are multiplied with in one call, each projection's counted.
    fn products(&self, batch: usize) -> usize {
        /// Projections that are multiplied with the same rows.
        const TOGETHER: usize = 4;
        (TOGETHER * batch).max(self.experts.slots(batch)).max(self.latent.slots(batch))
    }

    /// Returns the sizes sufficient for either of two parts.
    pub(crate) fn max(self, other: WorkSize) -> WorkSize {
        WorkSize {
            q: self.q.max(other.q),
            k: self.k.max(other.k),
            v: self.v.max(other.v),
            heads_out: self.heads_out.max(other.heads_out),
            mixed: self.mixed.max(other.mixed),
            gate: self.gate.max(other.gate),
            up: self.up.max(other.up),
            widest_input: self.widest_input.max(other.widest_input),
            activated: self.activated.max(other.activated),
            attention_rows: self.attention_rows.max(other.attention_rows),
            key_dim: self.key_dim.max(other.key_dim),
            value_dim: self.value_dim.max(other.value_dim),
            experts: self.experts.max(other.experts),
            latent: self.latent.max(other.latent),
        }
    }
}

/// The memory that one thread may write to.
pub(crate) struct Scratch {
    /// A normed row, `[hidden]`, or two; the inputs that layers get from a token, the gates of all heads, `[heads_out]`, or a row of
    /// weights as floats.
    pub(crate) row: Vec<f32>,
    pub(crate) matmul: MatmulScratch,
    /// Products that are kept until they are summed or packed.
    pub(crate) products: Vec<f32>,
    pub(crate) attention: AttentionScratch,
}

/// Cosines and sines of each row, for each of the model's rotary embeddings: `[rows, Σ 2 · pairs]`.
pub(crate) struct Angles {
    /// The number of pairs of each rotary embedding, and the index of its first cosine in a row; its sines follow.
    ropes: Vec<(usize, usize)>,
    pub(crate) width: usize,
    pub(crate) values: Vec<f32>,
}

impl Angles {
    fn new(ropes: &[RopeParams], batch: usize) -> Angles {
        let mut width = 0;
        let ropes = ropes.iter().map(|rope| {
            let pairs = rope.dims / 2;
            width += 2 * pairs;
            (pairs, width - 2 * pairs)
        });
        let ropes = ropes.collect();
        Angles { ropes, width, values: vec![0.0; batch * width] }
    }

    /// Returns the ranges of cosines and sines of rotary embedding `rope` in a row of [`Angles::values`].
    pub(crate) fn parts(&self, rope: usize) -> [Range<usize>; 2] {
        let (pairs, first) = self.ropes[rope];
        [first..first + pairs, first + pairs..first + 2 * pairs]
    }

    /// Returns cosines and sines, `[pairs]` each, of row `row` for rotary embedding `rope`.
    pub(crate) fn of(&self, row: usize, rope: usize) -> (&[f32], &[f32]) {
        let row = &self.values[row * self.width..][..self.width];
        let [cos, sin] = self.parts(rope);
        (&row[cos], &row[sin])
    }

    /// Returns the ranges in a row that the tables write to: those of the cosines and sines of each.
    pub(crate) fn places<'t>(
        &self,
        tables: &'t [RopeTable],
    ) -> impl Iterator<Item = (&'t RopeTable, [Range<usize>; 2])> {
        tables.iter().enumerate().map(|(rope, table)| (table, self.parts(rope)))
    }
}

/// The buffers of a session.
pub(crate) struct Buffers {
    /// The rows that are computed.
    pub(crate) batch: Batch,
    /// Their adapters.
    pub(crate) adapters: RowAdapters,
    /// The residual stream, `[batch, hidden]`.
    pub(crate) x: Vec<f32>,
    /// The output of a part, which is added to it, `[batch, hidden]`.
    pub(crate) y: Vec<f32>,
    /// `[batch, heads · key_dim]`
    pub(crate) q: Vec<f32>,
    /// `[batch, kv_heads · key_dim]`
    pub(crate) k: Vec<f32>,
    /// `[batch, kv_heads · value_dim]`
    pub(crate) v: Vec<f32>,
    /// `[batch, heads · value_dim]`
    pub(crate) heads_out: Vec<f32>,
    /// `[batch, channels]`
    pub(crate) mixed: Vec<f32>,
    /// `[batch, intermediate]`
    pub(crate) gate: Vec<f32>,
    /// `[batch, intermediate]`
    pub(crate) up: Vec<f32>,
    /// The inputs that layers get from the tokens: `[batch, layers · width]`.
    pub(crate) token_inputs: Vec<f32>,
    /// Elements of a row of `token_inputs`.
    pub(crate) token_input_width: usize,
    /// The other residual streams of a token and the kept prediction of the first, or a state that its embedding is joined with:
    /// `[batch, streams]`.
    pub(crate) streams: Vec<f32>,
    /// Elements of a row of `streams`.
    pub(crate) stream_width: usize,
    /// The packed input of the next matrices.
    pub(crate) acts: Activations,
    /// The packed input of the last matrix of a dense feed-forward part, which is written while `acts` is read.
    pub(crate) activated: Activations,
    pub(crate) angles: Angles,
    /// Partial results of attention.
    pub(crate) partials: Vec<f32>,
    pub(crate) threads: PerThread<Scratch>,
    pub(crate) experts: ExpertsBuffers,
    /// Elements of a row of what was chosen before a mixer; 0: nothing was.
    pub(crate) choice_width: usize,
    pub(crate) latent: LatentBuffers,
    /// The maximum number of rows of a call.
    batch_size: usize,
    /// The largest number of rows that a call has had.
    rows_used: usize,
    /// The memory of these buffers and of the cache, which is not available to experts in slots.
    taken: MemoryShare,
}

/// The quantities that determine the sizes of buffers.
pub(crate) struct BufferSizes<'s> {
    /// Maximum number of rows of a call.
    pub(crate) batch: usize,
    /// The precision of activations of prompts.
    pub(crate) prompt: Precision,
    pub(crate) threads: usize,
    pub(crate) hidden_size: usize,
    /// The model's rotary embeddings.
    pub(crate) ropes: &'s [RopeParams],
    /// The maximum that a layer's parts need.
    pub(crate) work: WorkSize,
    /// True if experts are read when they are chosen.
    pub(crate) experts_read: bool,
    /// Elements of the inputs that all layers get from a token.
    pub(crate) token_inputs: usize,
    /// f32 elements of the other residual streams of a token.
    pub(crate) streams: usize,
    /// Length of a row that joins the embedding of a token with a state; 0 if there is none.
    pub(crate) joined: usize,
    /// Length of the longest input of the head's matrices; 0 if there are none.
    pub(crate) head: usize,
    /// f32 elements for the partial results of attention.
    pub(crate) partials: usize,
}

impl Buffers {
    /// Creates buffers of these sizes. `taken` is still empty.
    pub(crate) fn new(sizes: &BufferSizes<'_>, taken: MemoryShare) -> Buffers {
        let BufferSizes { batch, threads, hidden_size, ropes, work, .. } = *sizes;
        let BufferSizes { token_inputs, streams, joined, head, .. } = *sizes;
        let limits = AttentionLimits {
            rows: work.attention_rows,
            k_dim: work.key_dim,
            v_dim: work.value_dim,
        };
        let rows = |width: usize| vec![0.0; batch * width];
        Buffers {
            batch: Batch::new(batch, sizes.prompt),
            adapters: RowAdapters::new(batch, work.products(batch)),
            x: rows(hidden_size),
            y: rows(hidden_size),
            q: rows(work.q),
            k: rows(work.k),
            v: rows(work.v),
            heads_out: rows(work.heads_out),
            mixed: rows(work.mixed),
            gate: rows(work.gate),
            up: rows(work.up),
            token_inputs: rows(token_inputs),
            token_input_width: token_inputs,
            streams: rows(streams),
            stream_width: streams,
            acts: Activations::new(batch, work.widest_input.max(hidden_size).max(joined).max(head)),
            activated: Activations::new(batch, work.activated),
            angles: Angles::new(ropes, batch),
            partials: vec![0.0; sizes.partials],
            experts: ExpertsBuffers::new(&work.experts, batch, hidden_size, sizes.experts_read),
            choice_width: 0,
            latent: LatentBuffers::new(&work.latent, batch),
            batch_size: batch,
            rows_used: 0,
            taken,
            threads: PerThread::new(threads, || Scratch {
                row: vec![
                    0.0;
                    hidden_size
                        .max(token_inputs)
                        .max(work.heads_out)
                        .max(work.latent.longest())
                        .max(joined)
                ],
                matmul: MatmulScratch::new(),
                products: vec![0.0; work.room_for_products(batch)],
                attention: AttentionScratch::new(limits),
            }),
        }
    }

    /// Reports the memory of these buffers and of the cache for the current rows, before they are computed.
    pub(crate) fn take(&mut self, store: &Store, cache: &Cache) {
        let Some(slots) = store.slots() else { return };
        self.rows_used = self.rows_used.max(self.batch.counts().all());
        // The system provides the memory of a row when it is first used.
        let rows = self.bytes() / self.batch_size.max(1) * self.rows_used;
        self.taken.set((cache.touched() + rows) as u64, slots);
    }

    /// Returns the approximate bytes in use when all rows have been used.
    fn bytes(&self) -> usize {
        let rows = [&self.x, &self.y, &self.q, &self.k, &self.v, &self.heads_out, &self.mixed];
        let rows =
            rows.into_iter().chain([&self.gate, &self.up, &self.token_inputs, &self.streams]);
        let rows = rows.chain([&self.angles.values]).map(Vec::len).sum::<usize>();
        let packed = self.acts.usual_bytes() + self.activated.usual_bytes();
        rows * size_of::<f32>() + packed + self.experts.bytes()
    }

    /// Keeps only the wanted rows of the residual stream, `[batch, hidden]`, and of the other buffers with a row for each token:
    /// `keep(buffers, from, to)` copies row `from` of any further buffer to row `to`.
    pub(crate) fn keep_wanted(&mut self, hidden: usize, keep: impl Fn(&mut Buffers, usize, usize)) {
        let widths = [self.token_input_width, self.angles.width, self.stream_width];
        let choice = self.choice_width;
        let mut batch = std::mem::take(&mut self.batch);
        batch.keep_wanted(|from, to| {
            Rows::new(&mut self.x, hidden).copy(from, to);
            Rows::new(&mut self.token_inputs, widths[0]).copy(from, to);
            Rows::new(&mut self.angles.values, widths[1]).copy(from, to);
            Rows::new(&mut self.streams, widths[2]).copy(from, to);
            self.experts.copy_choice(choice, from, to);
            keep(self, from, to);
        });
        self.batch = batch;
    }
}
