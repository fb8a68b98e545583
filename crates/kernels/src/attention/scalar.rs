//! The portable level: the same blocks and the same online softmax as the others, in loops that compilers vectorise for any CPU.
//!
//! A block of keys and values is widened once for all rows. Scores are computed with positions in lanes, and weighted sums with
//! columns in lanes, so that the order of each sum depends on its own elements only.

use std::ops::Range;

use super::{
    AttentionParams, BLOCK, COLUMNS, HeadsOut, KvCache, KvShape, KvType, LINE, Partial, Tile,
    bytes, padded, partial_len, partial_row_len,
};
use crate::half::f16_to_f32;

/// The running sums of a row.
struct State<'a> {
    /// `[v_dim]` and padding.
    acc: &'a mut [f32],
    /// The largest score, and the sum of the weights.
    max_and_sum: &'a mut [f32],
}

impl State<'_> {
    fn clear(self) {
        self.acc.fill(0.0);
        self.max_and_sum.fill(0.0);
        self.max_and_sum[0] = f32::NEG_INFINITY;
    }
}

/// Keys and values of positions of a block as floats.
struct Wide<'a> {
    shape: KvShape,
    /// The position of the first key and value: the first of a line.
    first: usize,
    /// `[positions / 16][k_dim][16]`
    keys: &'a mut [f32],
    /// `[positions][v_dim]`
    values: &'a mut [f32],
}

impl<'a> Wide<'a> {
    /// Returns space for a block, and the rest of the scratch.
    fn new(shape: KvShape, scratch: &'a mut [f32]) -> (Wide<'a>, &'a mut [f32]) {
        let (keys, rest) = scratch.split_at_mut(BLOCK * shape.k_dim);
        let (values, rest) = rest.split_at_mut(BLOCK * shape.v_dim);
        (Wide { shape, first: 0, keys, values }, rest)
    }

    /// Widens `positions`, which are in one block.
    fn fill(&mut self, cache: &KvCache<'_>, kv_head: usize, positions: &Range<usize>) {
        let shape = self.shape;
        self.first = positions.start / LINE * LINE;
        let page = self.first / shape.capacity;
        let before = page * shape.capacity;
        let (k_cache, v_cache) = (cache.keys(kv_head, page), cache.values(kv_head, page));
        let lines = (self.first - before) / LINE..(positions.end - before).div_ceil(LINE);
        let stored = LINE * shape.stored(shape.k_dim);
        for (n, keys) in lines.zip(self.keys.chunks_exact_mut(LINE * shape.k_dim)) {
            let line = &k_cache[n * stored..][..stored];
            match shape.ty {
                KvType::F16 => widen(line, keys),
                KvType::Q8_0 => {
                    for (i, key) in keys.iter_mut().enumerate() {
                        *key = bytes::key(line, shape.k_dim, i / LINE, i % LINE);
                    }
                }
            }
        }
        for (j, row) in (self.first..positions.end).zip(self.values.chunks_exact_mut(shape.v_dim)) {
            match shape.ty {
                _ if shape.shared => {
                    let line = &self.keys[(j - self.first) / LINE * LINE * shape.k_dim..];
                    for (d, value) in row.iter_mut().enumerate() {
                        *value = line[d * LINE + j % LINE];
                    }
                }
                KvType::F16 => {
                    for (c, row) in row.chunks_mut(COLUMNS).enumerate() {
                        let (at, _) = shape.value_columns(j - before, c * COLUMNS);
                        widen(&v_cache[at..][..row.len()], row);
                    }
                }
                KvType::Q8_0 => {
                    for (d, value) in row.iter_mut().enumerate() {
                        *value = bytes::value(v_cache, &shape, j - before, d);
                    }
                }
            }
        }
    }

    /// Adds `positions` to a row, whose query is `q`.
    fn attend(
        &self,
        params: &AttentionParams,
        q: &[f32],
        positions: Range<usize>,
        state: State<'_>,
    ) {
        let State { acc, max_and_sum } = state;
        let (m, v_dim) = (max_and_sum[0], self.shape.v_dim);
        let mut scores = [0f32; BLOCK];
        let mut n = (positions.start - self.first) / LINE;
        let end = (positions.end - self.first).div_ceil(LINE);
        while n < end {
            n += match end - n {
                1 => self.dots::<1>(n, q, &mut scores),
                _ => self.dots::<2>(n, q, &mut scores),
            };
        }
        let scores = &mut scores[positions.start - self.first..positions.end - self.first];
        let mut block_max = m;
        for score in scores.iter_mut() {
            *score *= params.scale;
            if let Some(cap) = params.softcap {
                *score = cap * (*score / cap).tanh();
            }
            block_max = block_max.max(*score);
        }
        // All scores are -inf so far: any finite reference gives weights of 0.
        let reference = if block_max == f32::NEG_INFINITY { 0.0 } else { block_max };
        let rescale = (m - reference).exp();
        let mut l = max_and_sum[1] * rescale;
        acc.iter_mut().for_each(|a| *a *= rescale);
        for score in scores.iter_mut() {
            *score = (*score - reference).exp();
            l += *score;
        }
        let acc = &mut acc[..v_dim];
        let values = &self.values[(positions.start - self.first) * v_dim..];
        // Four positions per load of a sum, whose additions stay in the order of the positions.
        let (fours, rest) = scores.as_chunks::<4>();
        for (p, values) in fours.iter().zip(values.chunks_exact(4 * v_dim)) {
            let (a, b) = values.split_at(2 * v_dim);
            let ((v0, v1), (v2, v3)) = (a.split_at(v_dim), b.split_at(v_dim));
            for d in 0..v_dim {
                acc[d] = acc[d] + p[0] * v0[d] + p[1] * v1[d] + p[2] * v2[d] + p[3] * v3[d];
            }
        }
        for (p, values) in rest.iter().zip(values[4 * fours.len() * v_dim..].chunks_exact(v_dim)) {
            for (a, value) in acc.iter_mut().zip(values) {
                *a += p * value;
            }
        }
        (max_and_sum[0], max_and_sum[1]) = (block_max, l);
    }

    /// Computes the products of a query with `L` lines of keys from line `n` on; returns `L`.
    #[inline(always)]
    fn dots<const L: usize>(&self, n: usize, q: &[f32], scores: &mut [f32; BLOCK]) -> usize {
        let (keys, _) = self.keys[n * LINE * q.len()..].as_chunks::<LINE>();
        let mut dots = [[0f32; LINE]; L];
        for (d, qd) in q.iter().enumerate() {
            for (i, dots) in dots.iter_mut().enumerate() {
                let keys = &keys[i * q.len() + d];
                for p in 0..LINE {
                    dots[p] += qd * keys[p];
                }
            }
        }
        scores[n * LINE..][..L * LINE].copy_from_slice(dots.as_flattened());
        L
    }
}

/// Applies [`f16_to_f32`] to every element.
fn widen(from: &[u16], to: &mut [f32]) {
    from.iter().zip(to).for_each(|(&x, y)| *y = f16_to_f32(x));
}

/// Cuts `keys` into blocks.
fn blocks(keys: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let first = keys.start / BLOCK;
    let last = keys.end.div_ceil(BLOCK).max(first);
    (first..last).map(move |b| keys.start.max(BLOCK * b)..keys.end.min(BLOCK * (b + 1)))
}

pub(super) fn attend_partial(call: &Partial<'_>, out: &mut [f32], scratch: &mut [f32]) {
    let Partial { params, cache, kv_head, q, ref keys, .. } = *call;
    let shape = cache.shape;
    let row_len = partial_row_len(shape.v_dim);
    for row in out.chunks_exact_mut(row_len) {
        let (acc, max_and_sum) = row.split_at_mut(padded(shape.v_dim));
        State { acc, max_and_sum }.clear();
    }
    let (mut wide, _) = Wide::new(shape, scratch);
    for positions in blocks(keys.clone()) {
        wide.fill(cache, kv_head, &positions);
        for (q, row) in q.chunks_exact(shape.k_dim).zip(out.chunks_exact_mut(row_len)) {
            let (acc, max_and_sum) = row.split_at_mut(padded(shape.v_dim));
            wide.attend(params, q, positions.clone(), State { acc, max_and_sum });
        }
    }
}

/// Joins the partial sums of a row: of each the sums, largest score and sum of weights.
fn merge<'a>(
    states: impl Iterator<Item = (&'a [f32], f32, f32)> + Clone,
    sink: f32,
    out: &mut [f32],
) {
    let m = states.clone().fold(sink, |largest, (_, m, _)| largest.max(m));
    let reference = if m == f32::NEG_INFINITY { 0.0 } else { m };
    out.fill(0.0);
    let mut sum = (sink - reference).exp();
    for (acc, m, l) in states.filter(|(.., l)| *l != 0.0) {
        let weight = (m - reference).exp();
        sum += weight * l;
        out.iter_mut().zip(acc).for_each(|(o, a)| *o += weight * a);
    }
    if sum != 0.0 {
        out.iter_mut().for_each(|o| *o /= sum);
    }
}

pub(super) fn attend_merge(
    v_dim: usize,
    rows: usize,
    partials: &[f32],
    sinks: Option<&[f32]>,
    out: &mut [f32],
) {
    let pad = padded(v_dim);
    let row_len = partial_row_len(v_dim);
    for (row, out) in out.chunks_exact_mut(v_dim).enumerate() {
        let states = partials.chunks_exact(partial_len(rows, v_dim)).map(|partial| {
            let state = &partial[row * row_len..][..row_len];
            (&state[..pad], state[pad], state[pad + 1])
        });
        merge(states, sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[row]), out);
    }
}

pub(super) fn attend_tile(call: &Tile<'_>, out: &mut HeadsOut<'_>, scratch: &mut [f32]) {
    let Tile { params, cache, kv_head, q, ref heads, ref tokens, sinks, .. } = *call;
    let shape = cache.shape;
    let (mut wide, rest) = Wide::new(shape, scratch);
    let pad = padded(shape.v_dim);
    let row_len = pad + 2;
    let rows = tokens.clone().flat_map(|t| heads.clone().map(move |h| (t, h)));
    let states = &mut rest[..tokens.len() * heads.len() * row_len];
    for state in states.chunks_exact_mut(row_len) {
        let (acc, max_and_sum) = state.split_at_mut(pad);
        State { acc, max_and_sum }.clear();
    }
    for block in blocks(call.all_visible()) {
        wide.fill(cache, kv_head, &block);
        for ((t, h), state) in rows.clone().zip(states.chunks_exact_mut(row_len)) {
            let visible = call.visible(t);
            let positions = visible.start.max(block.start)..visible.end.min(block.end);
            if positions.is_empty() {
                continue;
            }
            let q = &q.data[t * q.stride + h * shape.k_dim..][..shape.k_dim];
            let (acc, max_and_sum) = state.split_at_mut(pad);
            wide.attend(params, q, positions, State { acc, max_and_sum });
        }
    }
    for ((t, h), state) in rows.zip(states.chunks_exact(row_len)) {
        let sink = sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[h - heads.start]);
        let state = (&state[..pad], state[pad], state[pad + 1]);
        merge(std::iter::once(state), sink, out.row(t, h, shape.v_dim));
    }
}
