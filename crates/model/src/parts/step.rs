//! The data that a part of a layer reads and writes while it computes, except for its own weights.

use alight_kernels::attention::{AttentionParams, RelativeBias};
use alight_kernels::matmul::{ActivationFormats, RowCounts};
use alight_kernels::parallel::{Attend, AttendRows, Rows};

use super::batch::Role;
use super::buffers::Buffers;
use super::compute::Compute;
use crate::cache::Cache;
use crate::norm::Norm;
use crate::parts::Contribution;
use crate::parts::experts::Experts;
use crate::store::Store;

/// The current rows, and all data that a part reads and writes except for its own weights.
pub(crate) struct Step<'s> {
    pub(crate) compute: Compute<'s>,
    pub(crate) store: &'s Store,
    pub(crate) hidden: usize,
    pub(crate) norm_eps: f32,
    /// The index of the layer.
    pub(crate) layer: usize,
    /// The next layer with experts, and its experts, if the model's experts are read when they are chosen.
    pub(crate) next_experts: Option<(usize, &'s Experts)>,
    /// True if it is the last layer that stores data: rows that are not wanted are dropped when the cache is filled.
    pub(crate) last: bool,
    pub(crate) buffers: &'s mut Buffers,
    pub(crate) cache: &'s mut Cache,
}

/// The query heads of a layer's attention.
pub(crate) struct QueryHeads<'a> {
    pub(crate) params: AttentionParams,
    /// Query heads per key/value head.
    pub(crate) group: usize,
    /// The sink of each query head, if they have any.
    pub(crate) sinks: Option<&'a [f32]>,
    /// Biases of the scores of each query head, if there are any.
    pub(crate) bias: Option<RelativeBias<'a>>,
    /// Elements of a row of queries, and of a row of outputs.
    pub(crate) widths: [usize; 2],
    /// True if tokens of a prompt also see those after them.
    pub(crate) bidirectional: bool,
}

/// The order of a part's norm and the previous part's contribution: the part sees the contribution, or runs parallel to it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    AddThenNorm,
    NormThenAdd,
}

impl Step<'_> {
    /// Returns the number of rows of each precision.
    pub(crate) fn rows(&self) -> RowCounts {
        self.buffers.batch.counts()
    }

    /// Applies a pending contribution, and packs the residual stream for the next matrices, normed if there is a norm.
    pub(crate) fn pack_normed(
        &mut self,
        pending: Option<Contribution<'_>>,
        order: Order,
        norm: Option<&Norm>,
        formats: ActivationFormats,
    ) {
        let (compute, isa, hidden, n) = (self.compute, self.compute.isa, self.hidden, self.rows());
        let b = &mut *self.buffers;
        let rows = [Rows::new(&mut b.x, hidden), Rows::new(&mut b.y, hidden)];
        let (acts, threads) = (&mut b.acts, &b.threads);
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

    /// Computes attention of the rows, whose keys and values are in the cache of `layer`: `q` `[rows, heads, key_dim]` yields
    /// `heads_out` `[rows, heads, value_dim]`.
    pub(crate) fn attend(&mut self, layer: usize, heads: &QueryHeads<'_>) {
        let QueryHeads { params, group, sinks, bias, bidirectional, .. } = *heads;
        let [q_width, out_width] = heads.widths;
        let (isa, cache) = (self.compute.isa, &*self.cache);
        let b = &mut *self.buffers;
        let threads = &mut self.compute.threads(&b.threads);
        let batch = &b.batch;
        let row = |row: usize| {
            let (sequence, position) = batch.place(row);
            (cache.kv(layer, sequence), position)
        };
        let rows = b.batch.spans(Role::Decode).map(|span| span.rows.len()).sum();
        AttendRows { isa, params, group, sinks, bias, row: &row, rows }.run(
            threads,
            &b.q,
            &mut b.heads_out,
            &mut b.partials,
        );
        for span in b.batch.spans(Role::Prompt).filter(|span| !span.rows.is_empty()) {
            let cache = cache.kv(layer, span.sequence);
            let (pos, tokens, first) = (span.position, span.rows.len(), span.rows.start);
            let ahead = batch.ahead(span, bidirectional);
            let attend = Attend { isa, params, cache, group, sinks, bias, pos, tokens, ahead };
            let (q, out) = (&b.q[first * q_width..], &mut b.heads_out[first * out_width..]);
            attend.tiles(threads, q, out);
        }
    }

    /// In the last layer that stores data, keeps only the wanted rows of `x` and of the data that the mixer still needs:
    /// `keep(buffers, from, to)` copies row `from` to row `to`. A mixer calls it when the cache is filled. Returns true if there
    /// are any such rows.
    pub(crate) fn keep_wanted_rows(&mut self, keep: impl Fn(&mut Buffers, usize, usize)) -> bool {
        if self.last {
            self.buffers.keep_wanted(self.hidden, keep);
            self.compute.adapters.keep_wanted();
        }
        self.rows().all() > 0
    }
}
