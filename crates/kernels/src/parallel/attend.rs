//! Attention of a batch, and its keys and values into the cache.
//!
//! Few tokens (a decode step) are cut along the positions, so that one token of a model with one
//! key/value head still occupies all threads; partial results are merged (as Flash-Decoding does).
//! Many tokens are cut into tiles of tokens.

use super::rows::{Cut, Rows, cut_rows, each_row};
use super::{Cost, Scratch, Threads};
use crate::Isa;
use crate::attention::{
    AttentionLimits, AttentionParams, FEW_TOKENS, HeadsOut, KvCache, KvShape, KvWriter, LINE,
    PIECES, Partial, Queries, SHORTEST_PIECE, Tile, attend_merge, attend_partial, attend_tile,
    chunk_positions, first_position, partial_len, piece_positions, tile_tokens,
};
use crate::matmul::Output;

/// Bytes of keys and values that a thread attends one token to in a nanosecond, about.
const BYTES_PER_NS: usize = 6;

/// Products of several tokens' attention that a thread adds in a nanosecond, about.
const PRODUCTS_PER_NS: usize = 20;

/// Values that a thread stores in a nanosecond, about.
const VALUES_PER_NS: usize = 1;

/// Below so many bytes of keys and values the caller does it alone: waking others takes longer.
const ALONE_BYTES: usize = 24 * 1024;

/// Units that a thread takes at once, where they are short.
const SHORT_UNITS: usize = 4;

/// The attention of tokens that follow one another.
#[derive(Clone, Copy)]
pub struct Attend<'a> {
    /// The SIMD level.
    pub isa: Isa,
    /// What turns products into scores.
    pub params: AttentionParams,
    /// Keys and values, of these tokens too.
    pub cache: KvCache<'a>,
    /// Query heads on each key/value head.
    pub group: usize,
    /// The sink of each query head, if they have any.
    pub sinks: Option<&'a [f32]>,
    /// The position of the first token.
    pub pos: usize,
    /// How many tokens there are.
    pub tokens: usize,
}

/// How few tokens are cut.
struct Pieces {
    start: usize,
    end: usize,
    /// Positions of a piece, and how many pieces.
    positions: usize,
    count: usize,
}

impl Attend<'_> {
    /// f32 elements that [`run`](Attend::run) needs for partial results.
    pub fn partials(&self) -> usize {
        if self.tokens > FEW_TOKENS {
            return 0;
        }
        let shape = self.cache.shape();
        let results = self.tokens * shape.kv_heads * self.pieces().count;
        results * partial_len(self.group, shape.v_dim)
    }

    /// The most of [`partials`](Attend::partials) that `tokens` tokens can need at any position.
    pub fn most_partials(shape: &KvShape, group: usize, tokens: usize) -> usize {
        // A span is at most the capacity, plus what rounding its start down adds. A piece is
        // shorter than the longest only if there are few, so the count is bounded by either.
        let span = shape.capacity + SHORTEST_PIECE;
        let longest = chunk_positions(shape).next_multiple_of(SHORTEST_PIECE);
        let pieces = span.div_ceil(longest).max(PIECES.div_ceil(shape.kv_heads)) + 1;
        tokens.min(FEW_TOKENS) * shape.kv_heads * pieces * partial_len(group, shape.v_dim)
    }

    fn pieces(&self) -> Pieces {
        let start = first_position(&self.params, self.pos);
        let end = self.pos + self.tokens;
        let positions = piece_positions(&self.cache.shape(), end - start);
        Pieces { start, end, positions, count: (end - start).div_ceil(positions) }
    }

    /// The sinks of the query heads on one key/value head.
    fn sinks_of(&self, kv_head: usize) -> Option<&[f32]> {
        self.sinks.map(|sinks| &sinks[kv_head * self.group..][..self.group])
    }

    fn limits(&self, tokens: usize) -> AttentionLimits {
        let KvShape { k_dim, v_dim, .. } = self.cache.shape();
        AttentionLimits { rows: tokens * self.group, k_dim, v_dim }
    }

    /// `q` `[tokens, heads, k_dim]` gives `out` `[tokens, heads, v_dim]`. `partials` has room for
    /// [`partials`](Attend::partials).
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn run<T: Threads>(
        &self,
        threads: &mut T,
        q: &[f32],
        out: &mut [f32],
        partials: &mut [f32],
    ) {
        match self.tokens <= FEW_TOKENS {
            true => self.few(threads, q, out, partials),
            false => self.many(threads, q, out),
        }
    }

    fn few<T: Threads>(&self, threads: &mut T, q: &[f32], out: &mut [f32], partials: &mut [f32]) {
        let (shape, group) = (self.cache.shape(), self.group);
        let kv = shape.kv_heads;
        let Pieces { start, end, positions, count } = self.pieces();
        let len = partial_len(group, shape.v_dim);
        let units = self.tokens * kv * count;
        let bytes = (end - start) * kv * (shape.k_dim + shape.v_dim) * 2 * self.tokens;
        let cost = Cost {
            nanoseconds: bytes / BYTES_PER_NS,
            take: SHORT_UNITS,
            alone: bytes < ALONE_BYTES,
        };
        let partials = &mut partials[..units * len];
        let results = Output::new(partials, len);
        threads.run(units, cost, &|range, scratch| {
            scratch.with_attention(self.limits(1), |scratch| {
                for unit in range {
                    let (token, head) = (unit / (kv * count), unit / count % kv);
                    let from = start + unit % count * positions;
                    let keys = from..(from + positions).min(end);
                    let heads = group * shape.k_dim;
                    let q = &q[(token * kv + head) * heads..][..heads];
                    // SAFETY: each unit has a result of its own.
                    let partial = unsafe { results.row_mut(unit, 0..len) };
                    let (params, cache) = (&self.params, &self.cache);
                    let pos = self.pos + token;
                    let call = Partial { params, cache, kv_head: head, q, pos, keys };
                    attend_partial(self.isa, &call, partial, scratch);
                }
            });
        });
        let out = out.chunks_exact_mut(group * shape.v_dim);
        for (i, (partials, out)) in partials.chunks_exact(count * len).zip(out).enumerate() {
            let sinks = self.sinks_of(i % kv);
            attend_merge(self.isa, shape.v_dim, group, partials, sinks, out);
        }
    }

    fn many<T: Threads>(&self, threads: &mut T, q: &[f32], out: &mut [f32]) {
        let (shape, group) = (self.cache.shape(), self.group);
        let kv = shape.kv_heads;
        let q = Queries { data: q, stride: kv * group * shape.k_dim };
        let out = HeadsOut::new(out, kv * group * shape.v_dim);
        let tile = tile_tokens(group);
        let tiles = self.tokens.div_ceil(tile);
        let seen = self.params.visible(self.pos + self.tokens - 1).len();
        let products = self.tokens * seen * kv * group * (shape.k_dim + shape.v_dim);
        let cost = Cost { take: 1, ..Cost::of(products / PRODUCTS_PER_NS) };
        threads.run(tiles * kv, cost, &|range, scratch| {
            scratch.with_attention(self.limits(tile), |scratch| {
                for unit in range {
                    // Later tiles see more positions: the long pieces first, the short ones fill
                    // the gaps.
                    let (index, head) = (tiles - 1 - unit / kv, unit % kv);
                    let tokens = index * tile..((index + 1) * tile).min(self.tokens);
                    let heads = head * group..(head + 1) * group;
                    // SAFETY: units have different tokens or different heads.
                    let out = &mut unsafe { out.duplicate() };
                    let (params, cache, first_pos) = (&self.params, &self.cache, self.pos);
                    let sinks = self.sinks_of(head);
                    let call =
                        Tile { params, cache, kv_head: head, q, heads, sinks, tokens, first_pos };
                    attend_tile(self.isa, &call, out, scratch);
                }
            });
        });
    }
}

/// Units of positions from `pos` on: those of one line of the key cache are one.
fn lines(pos: usize) -> Cut {
    Cut { rows: LINE, skipped: pos % LINE, take: SHORT_UNITS }
}

/// Stores keys `k` `[n, kv_heads, k_dim]` and values `v` `[n, kv_heads, v_dim]` from position `pos` on.
///
/// # Panics
/// If the cache has fewer positions, or a slice is too short.
pub fn store<T: Threads>(
    threads: &mut T,
    isa: Isa,
    writer: KvWriter<'_>,
    [pos, n]: [usize; 2],
    k: &[f32],
    v: &[f32],
) {
    let [kd, vd] = writer.widths();
    let cost = n * (kd + vd) / VALUES_PER_NS;
    cut_rows(threads, n, lines(pos), cost, [], &|i, [], _| {
        // SAFETY: each position is one row's, and each row one unit's.
        unsafe { writer.store(isa, pos + i, &k[i * kd..][..kd], &v[i * vd..][..vd]) };
    });
}

/// As [`store`], where the rows of queries, keys and values are first made by `prepare(i, [q, k, v])`.
///
/// # Panics
/// As [`store`].
pub fn store_rows<T: Threads>(
    threads: &mut T,
    isa: Isa,
    writer: KvWriter<'_>,
    [pos, n]: [usize; 2],
    rows: [Rows<'_>; 3],
    prepare: &(dyn Fn(usize, [&mut [f32]; 3]) + Sync),
) {
    each_row(threads, n, lines(pos), rows, &|i, [q, k, v], _| {
        prepare(i, [&mut *q, &mut *k, &mut *v]);
        // SAFETY: each position is one row's, and each row one unit's.
        unsafe { writer.store(isa, pos + i, k, v) };
    });
}
