//! The portable level: one row at a time, the same blocks and the same online softmax as the others.

use std::ops::Range;

use super::{
    AttentionParams, BLOCK, COLUMNS, HeadsOut, KvCache, KvType, LINE, Partial, Tile, bytes, padded,
    partial_len, partial_row_len,
};
use crate::half::f16_to_f32;

/// Running state of one row in `state[..partial_row_len]`; `keys` must be visible to the row.
fn attend_row(
    params: &AttentionParams,
    cache: &KvCache<'_>,
    kv_head: usize,
    q: &[f32],
    keys: Range<usize>,
    state: &mut [f32],
    scores: &mut [f32],
) {
    let shape = cache.shape;
    let (acc, rest) = state.split_at_mut(padded(shape.v_dim));
    acc.fill(0.0);
    rest.fill(0.0);
    let (mut m, mut l) = (f32::NEG_INFINITY, 0f32);
    let mut start = keys.start;
    while start < keys.end {
        let end = keys.end.min((start / BLOCK + 1) * BLOCK);
        let (page, before) = (start / shape.capacity, start / shape.capacity * shape.capacity);
        let (k_cache, v_cache) = (cache.keys(kv_head, page), cache.values(kv_head, page));
        let key = |j: usize, d: usize| {
            let line = LINE * shape.stored(shape.k_dim);
            let line = &k_cache[(j - before) / LINE * line..][..line];
            match shape.ty {
                KvType::F16 => f16_to_f32(line[d * LINE + j % LINE]),
                KvType::Q8_0 => bytes::key(line, shape.k_dim, d, j % LINE),
            }
        };
        let value = |j: usize, d: usize| match shape.ty {
            _ if shape.shared => key(j, d),
            KvType::F16 => {
                let (at, _) = shape.value_columns(j - before, d / COLUMNS * COLUMNS);
                f16_to_f32(v_cache[at + d % COLUMNS])
            }
            KvType::Q8_0 => bytes::value(v_cache, &shape, j - before, d),
        };
        let scores = &mut scores[..end - start];
        let mut block_max = m;
        for (j, score) in (start..end).zip(scores.iter_mut()) {
            let mut dot = 0f32;
            for (d, &qd) in q.iter().enumerate() {
                dot += qd * key(j, d);
            }
            *score = dot * params.scale;
            if let Some(cap) = params.softcap {
                *score = cap * (*score / cap).tanh();
            }
            block_max = block_max.max(*score);
        }
        // All scores -inf so far: any finite reference gives weights of 0.
        let reference = if block_max == f32::NEG_INFINITY { 0.0 } else { block_max };
        let rescale = (m - reference).exp();
        m = block_max;
        l *= rescale;
        acc.iter_mut().for_each(|a| *a *= rescale);
        for (j, &score) in (start..end).zip(scores.iter()) {
            let p = (score - reference).exp();
            l += p;
            for (d, a) in acc[..shape.v_dim].iter_mut().enumerate() {
                *a += p * value(j, d);
            }
        }
        start = end;
    }
    rest[0] = m;
    rest[1] = l;
}

pub(super) fn attend_partial(call: &Partial<'_>, out: &mut [f32], scratch: &mut [f32]) {
    let Partial { params, cache, kv_head, q, ref keys, .. } = *call;
    let rows = q.chunks_exact(cache.shape.k_dim);
    for (q, state) in rows.zip(out.chunks_exact_mut(partial_row_len(cache.shape.v_dim))) {
        attend_row(params, cache, kv_head, q, keys.clone(), state, scratch);
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
        let states = || {
            partials.chunks_exact(partial_len(rows, v_dim)).map(|p| &p[row * row_len..][..row_len])
        };
        let sink = sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[row]);
        let m = states().fold(sink, |m, s| m.max(s[pad]));
        let reference = if m == f32::NEG_INFINITY { 0.0 } else { m };
        out.fill(0.0);
        let mut l = (sink - reference).exp();
        for state in states().filter(|s| s[pad + 1] != 0.0) {
            let weight = (state[pad] - reference).exp();
            l += weight * state[pad + 1];
            out.iter_mut().zip(state).for_each(|(o, a)| *o += weight * a);
        }
        if l != 0.0 {
            out.iter_mut().for_each(|o| *o /= l);
        }
    }
}

pub(super) fn attend_tile(call: &Tile<'_>, out: &mut HeadsOut<'_>, scratch: &mut [f32]) {
    let Tile { params, cache, kv_head, q, first_pos, ref heads, ref tokens, sinks } = *call;
    let shape = cache.shape;
    let (scores, rest) = scratch.split_at_mut(BLOCK);
    let state = &mut rest[..partial_row_len(shape.v_dim)];
    for t in tokens.clone() {
        for (i, h) in heads.clone().enumerate() {
            let sink = sinks.map(|sinks| &sinks[i..=i]);
            let q = &q.data[t * q.stride + h * shape.k_dim..][..shape.k_dim];
            let visible = params.visible(first_pos + t);
            attend_row(params, cache, kv_head, q, visible, state, scores);
            attend_merge(shape.v_dim, 1, state, sink, out.row(t, h, shape.v_dim));
        }
    }
}
