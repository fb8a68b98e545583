//! Attention of a batch, and storing its keys and values in the cache.
//!
//! Decode rows are cut along the positions, so that one token of a model with one key/value head still occupies all threads; partial
//! results are merged (as in Flash-Decoding). Where a row is cut follows from its own position ([`AttendRows`]). Tokens of a prompt are
//! cut into tiles of tokens ([`Attend`]), and the result of a token does not depend on the others of its tile. So in either form the bits
//! of a row follow from its position and what it attends to.

use super::rows::{Cut, Rows, cut_rows, each_row};
use super::{Cost, Scratch, Threads};
use crate::Isa;
use crate::attention::{
    Ahead, AttentionLimits, AttentionParams, HeadsOut, KvCache, KvShape, KvWriter, LINE, PIECES,
    Partial, Queries, RelativeBias, SHORTEST_PIECE, Tile, attend_merge, attend_partial,
    attend_tile, chunk_positions, first_position, partial_len, piece_positions, tile_tokens,
};
use crate::matmul::Output;

/// Bytes of keys and values that a thread processes per nanosecond for one token, approximately.
const BYTES_PER_NS: usize = 6;

/// Products that a thread adds per nanosecond in the attention of several tokens, approximately.
const PRODUCTS_PER_NS: usize = 20;

/// Values that a thread stores per nanosecond, approximately.
const VALUES_PER_NS: usize = 1;

/// Below this many bytes of keys and values the caller works alone: waking other threads takes longer.
const ALONE_BYTES: usize = 24 * 1024;

/// Units that a thread takes at once, if they are short.
const SHORT_UNITS: usize = 4;

/// The attention of consecutive tokens.
#[derive(Clone, Copy)]
pub struct Attend<'a> {
    /// The SIMD level.
    pub isa: Isa,
    /// Turns products into scores.
    pub params: AttentionParams,
    /// Keys and values, including those of these tokens.
    pub cache: KvCache<'a>,
    /// Query heads per key/value head.
    pub group: usize,
    /// The sink of each query head, if they have any.
    pub sinks: Option<&'a [f32]>,
    /// Biases of the scores of each query head.
    pub bias: Option<RelativeBias<'a>>,
    /// The position of the first token.
    pub pos: usize,
    /// Number of tokens.
    pub tokens: usize,
    /// The positions after their own that they see, whose keys and values must be in the cache, too. A single decode token sees none
    /// after its own.
    pub ahead: Ahead<'a>,
}

impl Attend<'_> {
    /// Returns the f32 elements that [`run`](Attend::run) needs for partial results.
    pub fn partials(&self) -> usize {
        if self.tokens > 1 || self.bias.is_some() {
            return 0;
        }
        self.decoding(|rows| rows.partials())
    }

    /// Calls `f` with the first token as a decode row.
    fn decoding<R>(&self, f: impl FnOnce(AttendRows<'_>) -> R) -> R {
        let Attend { isa, params, group, sinks, bias, .. } = *self;
        let row = |_| (self.cache, self.pos);
        f(AttendRows { isa, params, group, sinks, bias, row: &row, rows: 1 })
    }

    /// Returns the sinks of the query heads of one key/value head.
    fn sinks_of(&self, kv_head: usize) -> Option<&[f32]> {
        self.sinks.map(|sinks| &sinks[kv_head * self.group..][..self.group])
    }

    /// Attends with `q` `[tokens, heads, k_dim]` into `out` `[tokens, heads, v_dim]`: one token as a decode row, several as tokens of a
    /// prompt, as one with a bias is. `partials` has space for [`partials`](Attend::partials).
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
        match self.tokens {
            1 if self.bias.is_none() => self.decoding(|rows| rows.run(threads, q, out, partials)),
            _ => self.tiles(threads, q, out),
        }
    }

    /// Attends with `q` `[tokens, heads, k_dim]` into `out` `[tokens, heads, v_dim]`, all tokens as those of a prompt.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn tiles<T: Threads>(&self, threads: &mut T, q: &[f32], out: &mut [f32]) {
        let (shape, group) = (self.cache.shape(), self.group);
        let kv = shape.kv_heads;
        let q = Queries { data: q, stride: kv * group * shape.k_dim };
        let out = HeadsOut::new(out, kv * group * shape.v_dim);
        let tile = tile_tokens(group);
        let tiles = self.tokens.div_ceil(tile);
        let last = self.pos + self.tokens - 1;
        let end = if let Ahead::To(end) = self.ahead { end } else { last + 1 };
        let seen = self.params.visible_to(last, end).len();
        let products = self.tokens * seen * kv * group * (shape.k_dim + shape.v_dim);
        let cost = Cost { take: 1, ..Cost::of(products / PRODUCTS_PER_NS) };
        threads.run(tiles * kv, cost, &|range, scratch| {
            scratch.with_attention(limits(&shape, tile * group), |scratch| {
                for unit in range {
                    // Later tiles see more positions: the long pieces run first, the short ones fill the gaps.
                    let (index, head) = (tiles - 1 - unit / kv, unit % kv);
                    let tokens = index * tile..((index + 1) * tile).min(self.tokens);
                    let heads = head * group..(head + 1) * group;
                    // SAFETY: units have different tokens or different heads.
                    let out = &mut unsafe { out.duplicate() };
                    let (params, cache, first_pos) = (&self.params, &self.cache, self.pos);
                    let sinks = self.sinks_of(head);
                    let bias = self.bias.map(|bias| bias.of_heads(head * group));
                    let (kv_head, ahead) = (head, self.ahead);
                    #[rustfmt::skip]
                    let call = Tile { params, cache, kv_head, q, heads, sinks, bias, tokens, first_pos, ahead };
                    attend_tile(self.isa, &call, out, scratch);
                }
            });
        });
    }
}

/// Returns the limits for attention of `rows` query rows.
fn limits(shape: &KvShape, rows: usize) -> AttentionLimits {
    AttentionLimits { rows, k_dim: shape.k_dim, v_dim: shape.v_dim }
}

/// The attention of decode rows: each has keys and values of a sequence, including its own, and attends to them up to its position.
#[derive(Clone, Copy)]
pub struct AttendRows<'a> {
    /// The SIMD level.
    pub isa: Isa,
    /// Turns products into scores.
    pub params: AttentionParams,
    /// Query heads per key/value head.
    pub group: usize,
    /// The sink of each query head, if they have any.
    pub sinks: Option<&'a [f32]>,
    /// Biases of the scores of each query head.
    pub bias: Option<RelativeBias<'a>>,
    /// Keys and values of a row, with the same heads for all rows, and its position.
    pub row: &'a (dyn Fn(usize) -> (KvCache<'a>, usize) + Sync),
    /// Number of rows.
    pub rows: usize,
}

/// How a row is cut into pieces.
struct Pieces {
    start: usize,
    end: usize,
    /// Positions of a piece, and number of pieces.
    positions: usize,
    count: usize,
}

impl AttendRows<'_> {
    /// Returns the f32 elements that [`run`](AttendRows::run) needs for partial results.
    pub fn partials(&self) -> usize {
        let results = |row| {
            let (cache, pos) = (self.row)(row);
            let shape = cache.shape();
            let results = shape.kv_heads * self.pieces(&shape, pos).count;
            results * partial_len(self.group, shape.v_dim)
        };
        (0..self.rows).map(results).sum()
    }

    /// Returns the largest value of [`partials`](AttendRows::partials) for a row at any position below `context`.
    pub fn most_partials(shape: &KvShape, group: usize, context: usize) -> usize {
        // A span is at most the context, plus what rounding its start down adds. A piece is shorter than the longest only if there are
        // few pieces, so the count is bounded either way.
        let span = context + SHORTEST_PIECE;
        let longest = chunk_positions(shape).next_multiple_of(SHORTEST_PIECE);
        let pieces = span.div_ceil(longest).max(PIECES.div_ceil(shape.kv_heads)) + 1;
        shape.kv_heads * pieces * partial_len(group, shape.v_dim)
    }

    fn pieces(&self, shape: &KvShape, pos: usize) -> Pieces {
        let start = first_position(&self.params, pos);
        let end = pos + 1;
        let positions = piece_positions(shape, end - start);
        Pieces { start, end, positions, count: (end - start).div_ceil(positions) }
    }

    /// Attends with `q` `[rows, heads, k_dim]` into `out` `[rows, heads, v_dim]`. `partials` has space for
    /// [`partials`](AttendRows::partials).
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
        if self.rows == 0 {
            return;
        }
        let (isa, group) = (self.isa, self.group);
        let shape = (self.row)(0).0.shape();
        let (kv, len) = (shape.kv_heads, partial_len(group, shape.v_dim));
        let (mut units, mut bytes) = (0, 0);
        for row in 0..self.rows {
            let Pieces { start, end, count, .. } = self.pieces(&shape, (self.row)(row).1);
            units += kv * count;
            bytes += (end - start) * kv * (shape.k_dim + shape.v_dim) * 2;
        }
        let cost = Cost {
            nanoseconds: bytes / BYTES_PER_NS,
            take: SHORT_UNITS,
            alone: bytes < ALONE_BYTES,
        };
        let partials = &mut partials[..units * len];
        let results = Output::new(partials, len);
        threads.run(units, cost, &|range, scratch| {
            scratch.with_attention(limits(&shape, group), |scratch| {
                let mut base = 0;
                for row in 0..self.rows {
                    let (cache, pos) = (self.row)(row);
                    let Pieces { start, end, positions, count } = self.pieces(&shape, pos);
                    for unit in range.start.max(base)..range.end.min(base + kv * count) {
                        let (head, piece) = ((unit - base) / count, (unit - base) % count);
                        let from = start + piece * positions;
                        let keys = from..(from + positions).min(end);
                        let heads = group * shape.k_dim;
                        let q = &q[(row * kv + head) * heads..][..heads];
                        // SAFETY: each unit has its own result.
                        let partial = unsafe { results.row_mut(unit, 0..len) };
                        let (params, cache) = (&self.params, &cache);
                        let bias = self.bias.map(|bias| bias.of_heads(head * group));
                        let call = Partial { params, cache, kv_head: head, q, bias, pos, keys };
                        attend_partial(isa, &call, partial, scratch);
                    }
                    base += kv * count;
                }
            });
        });
        let mut rest = &partials[..];
        for (row, out) in out.chunks_exact_mut(kv * group * shape.v_dim).take(self.rows).enumerate()
        {
            let Pieces { count, .. } = self.pieces(&shape, (self.row)(row).1);
            for (head, out) in out.chunks_exact_mut(group * shape.v_dim).enumerate() {
                let (own, others) = rest.split_at(count * len);
                rest = others;
                let sinks = self.sinks.map(|sinks| &sinks[head * group..][..group]);
                attend_merge(isa, shape.v_dim, group, own, sinks, out);
            }
        }
    }
}

/// Cuts positions from `pos` on into units: those of one line of the key cache are one unit.
fn lines(pos: usize) -> Cut {
    Cut { rows: LINE, skipped: pos % LINE, take: SHORT_UNITS }
}

/// Stores keys `k` `[n, kv_heads, k_dim]` and values `v` `[n, kv_heads, v_dim]` from position `pos` on.
///
/// # Panics
/// If the cache has fewer positions, or a slice is too short.
///
/// # Safety
/// These positions are not read or written elsewhere meanwhile.
pub unsafe fn store<T: Threads>(
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
        // SAFETY: each position belongs to one row, and each row to one unit; the caller promises that nothing else accesses them.
        unsafe { writer.store(isa, pos + i, &k[i * kd..][..kd], &v[i * vd..][..vd]) };
    });
}

/// Returns where keys and values of a row are stored, and at which position: `f(row)`.
pub type TargetFn<'a> = dyn Fn(usize) -> (KvWriter<'a>, usize) + Sync + 'a;

/// Stores keys and values of `n` rows, after `prepare(i, [q, k, v])` has computed the rows of queries, keys and values. Where rows are
/// consecutive from position `first` on, `following` is `first`.
///
/// # Panics
/// As [`store`].
///
/// # Safety
/// `target` gives each row a position that no other row has in the same pages, and these positions are not read or written elsewhere
/// meanwhile.
pub unsafe fn store_rows<T: Threads>(
    threads: &mut T,
    isa: Isa,
    target: &TargetFn<'_>,
    (n, following): (usize, Option<usize>),
    rows: [Rows<'_>; 3],
    prepare: &(dyn Fn(usize, [&mut [f32]; 3]) + Sync),
) {
    let cut = following.map_or(Cut::default(), lines);
    each_row(threads, n, cut, rows, &|i, [q, k, v], _| {
        prepare(i, [&mut *q, &mut *k, &mut *v]);
        let (writer, pos) = target(i);
        // SAFETY: each row belongs to one unit; the caller promises that each has its own position.
        unsafe { writer.store(isa, pos, k, v) };
    });
}
