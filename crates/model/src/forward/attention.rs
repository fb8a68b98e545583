//! Attention of a batch: who computes what.
//!
//! Few tokens (a decode step) are cut along the positions, so that one token of a model with one
//! key/value head still occupies all threads; partial results are merged. Many tokens are cut into
//! tiles of tokens. Neither cut depends on the number of threads.

use alight_kernels::attention::{
    AttentionParams, FEW_TOKENS, HeadsOut, KvCache, KvShape, PIECES, Queries,
    SHORTEST_PIECE as SHORTEST, attend_merge, attend_partial, attend_tile, chunk_positions,
    first_position, partial_len, piece_positions, tile_tokens,
};
use alight_kernels::matmul::Output;

use super::Net;
use super::buffers::Scratch;
use crate::config::Config;
use crate::pool::PerThread;

/// Below so many bytes of keys and values the caller does it alone: waking others takes longer.
const ALONE_BYTES: usize = 24 * 1024;

/// f32 elements that the partial results of `tokens` tokens can take.
pub(super) fn most_partials(c: &Config, shape: &KvShape, tokens: usize) -> usize {
    // A span is at most the capacity, plus what rounding its start down adds. A piece is
    // shorter than the longest only if there are few, so the count is bounded by either.
    let span = shape.capacity + SHORTEST;
    let longest = chunk_positions(shape).next_multiple_of(SHORTEST);
    let pieces = span.div_ceil(longest).max(PIECES.div_ceil(shape.kv_heads)) + 1;
    tokens * shape.kv_heads * pieces * partial_len(c.group(), c.value_dim)
}

impl Net<'_> {
    /// Attends the `n` tokens from position `pos` on: `q` `[n, heads, key_dim]` gives `out`
    /// `[n, heads, value_dim]`. Their keys and values are in the cache.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn attend(
        &self,
        params: &AttentionParams,
        cache: &KvCache<'_>,
        pos: usize,
        n: usize,
        q: Output<'_>,
        out: Output<'_>,
        partials: &mut [f32],
        threads: &PerThread<Scratch>,
    ) {
        let c = self.config;
        let (qd, od) = (c.heads * c.key_dim, c.heads * c.value_dim);
        if n > FEW_TOKENS {
            // SAFETY: no one else uses the rows while attention runs. They lie one behind the other,
            // so all of them are one long row.
            let (q, out) = unsafe { (q.row_mut(0, 0..n * qd), out.row_mut(0, 0..n * od)) };
            let q = Queries { data: q, stride: qd };
            return self.attend_tiles(params, cache, pos, n, q, HeadsOut::new(out, od), threads);
        }
        let (isa, shape, group) = (self.isa, cache.shape(), c.group());
        let start = first_position(params, pos);
        let end = pos + n;
        let piece = piece_positions(&shape, end - start);
        let pieces = (end - start).div_ceil(piece);
        let len = partial_len(group, c.value_dim);
        let per_token = c.kv_heads * pieces;
        let results = Output::new(partials, len);
        let work = |unit: usize, thread: usize| {
            let (token, head, part) = (unit / per_token, unit / pieces % c.kv_heads, unit % pieces);
            let from = start + part * piece;
            let rows = head * group * c.key_dim..(head + 1) * group * c.key_dim;
            // SAFETY: queries are only read while attention runs; each unit has a result of its
            // own, and each thread's scratch is one unit's at a time.
            let (q, partial, scratch) = unsafe {
                (
                    &*q.row_mut(token, rows),
                    results.row_mut(unit, 0..len),
                    &mut threads.get(thread).attention,
                )
            };
            let keys = from..(from + piece).min(end);
            attend_partial(isa, params, cache, head, q, pos + token, keys, partial, scratch);
        };
        let bytes = (end - start) * shape.kv_heads * (shape.k_dim + shape.v_dim) * 2 * n;
        if bytes < ALONE_BYTES {
            (0..n * per_token).for_each(|unit| work(unit, 0));
        } else {
            self.pool.run(n * per_token, 4, &|units, thread| {
                units.for_each(|unit| work(unit, thread));
            });
        }
        for token in 0..n {
            for head in 0..c.kv_heads {
                let first = (token * c.kv_heads + head) * pieces * len;
                let rows = head * group * c.value_dim..(head + 1) * group * c.value_dim;
                // SAFETY: no region is in flight.
                let out = unsafe { out.row_mut(token, rows) };
                let parts = &partials[first..first + pieces * len];
                attend_merge(isa, c.value_dim, group, parts, out);
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn attend_tiles(
        &self,
        params: &AttentionParams,
        cache: &KvCache<'_>,
        pos: usize,
        n: usize,
        q: Queries<'_>,
        out: HeadsOut<'_>,
        threads: &PerThread<Scratch>,
    ) {
        let (isa, c) = (self.isa, self.config);
        let group = c.group();
        let tile = tile_tokens(group);
        let tiles = n.div_ceil(tile);
        self.pool.run_each(tiles * c.kv_heads, &|unit, thread| {
            // Later tiles see more positions: the long pieces first, the short ones fill the gaps.
            let (index, head) = (tiles - 1 - unit / c.kv_heads, unit % c.kv_heads);
            let tokens = index * tile..((index + 1) * tile).min(n);
            let heads = head * group..(head + 1) * group;
            // SAFETY: units have different tokens or different heads; each thread's scratch is one
            // unit's at a time.
            let (mut out, scratch) =
                unsafe { (out.duplicate(), &mut threads.get(thread).attention) };
            attend_tile(isa, params, cache, head, q, heads, tokens, pos, &mut out, scratch);
        });
    }
}
