//! The order of computation, the same at all levels: rows in panels of up to 6, keys and values in blocks of 64 positions.
//!
//! For each block and panel: scores into a small buffer, masks at the edges, online softmax, and the weighted values added to
//! the panel's sums. In decode keys and values are read in place; in prefill a block is widened into scratch once for all
//! panels, unless its elements are f32. The same is done with values that are the beginnings of keys: in the cache they are stored
//! across the positions, and are turned into rows on the way.

use std::ops::Range;

use super::micro::{
    Destination, F16, F32, KeyBytes, KeyLevels, Left, Right, Source, multiply, multiply_lines,
};
use super::{
    Ahead, AttentionParams, BLOCK, COLUMNS, HeadsOut, KvCache, KvType, LINE, Partial, RelativeBias,
    Tile, bytes, levels, padded, partial_len, partial_row_len, rotation,
};
use crate::lanes::{self, Lanes, Outlined, WIDEST};

/// Rows that share the loads of a key or value. Six rows × four vectors leave 8 of 32 registers.
pub(super) const PANEL: usize = 6;

/// Rows of one call and their running state.
struct RunningRows<'a> {
    rows: usize,
    /// Rows of every panel except the last.
    panel: usize,
    /// True if a block's elements are f32, which they become in scratch unless they are; then `rows` is a multiple of [`PANEL`].
    widen: bool,
    /// Row `r` is at position `first_pos + r / group`.
    first_pos: usize,
    group: usize,
    /// How far its token sees beyond that; rows that fill up a panel use the last token's.
    ahead: Ahead<'a>,
    tokens: usize,
    /// Positions outside are ignored.
    keys: Range<usize>,
    /// `[rows][k_dim]`.
    q: *const f32,
    /// `[rows][acc_stride]`.
    acc: *mut f32,
    acc_stride: usize,
    /// Running maximum and sum of row `r` at `m + r * ml_stride`, `l + r * ml_stride`.
    m: *mut f32,
    l: *mut f32,
    ml_stride: usize,
    /// Biases of the scores of the rows of a token.
    bias: Option<RelativeBias<'a>>,
    /// `[2][PANEL][BLOCK]`: scores, which become weights; and where values have scales, the weights multiplied by them.
    scores: *mut f32,
}

impl RunningRows<'_> {
    /// Returns the weights times scales, `[PANEL][BLOCK]`.
    #[inline(always)]
    fn weighted(&self) -> *mut f32 {
        self.scores.wrapping_add(PANEL * BLOCK)
    }

    /// Returns what is added to the scores of row `r`, from the first position of a block on.
    #[inline(always)]
    fn bias_of(&self, r: usize, block: usize) -> *const f32 {
        let Some(RelativeBias { values, reach }) = self.bias else { return std::ptr::null() };
        // Rows that fill up a panel take the last token's, and those of a single token the last head's.
        let pos = self.first_pos + (r / self.group).min(self.tokens - 1);
        let len = RelativeBias::len_for(reach);
        let head = (r % self.group).min(values.len() / len - 1) * len;
        values.as_ptr().wrapping_add(head + reach - 1 + block).wrapping_sub(pos)
    }

    /// Returns the part of a block that row `r` sees, relative to its start.
    #[inline(always)]
    fn visible(&self, params: &AttentionParams, r: usize, block: usize) -> Range<usize> {
        let t = r / self.group;
        let pos = self.first_pos + t;
        let v = params.visible_to(pos, self.ahead.end(t.min(self.tokens - 1), pos));
        let (start, end) = (v.start.max(self.keys.start), v.end.min(self.keys.end));
        start.max(block) - block..end.min(block + BLOCK).max(block) - block
    }
}

/// Returns the number of rows in a scratch for `rows`.
pub(super) const fn padded_rows(rows: usize) -> usize {
    rows.next_multiple_of(PANEL)
}

/// The scratch, divided.
struct Parts<'a> {
    q: &'a mut [f32],
    scores: &'a mut [f32],
    keys: &'a mut [f32],
    values: &'a mut [f32],
    acc: &'a mut [f32],
    ml: &'a mut [f32],
}

impl Parts<'_> {
    /// Every part starts on a cache line.
    fn new(scratch: &mut [f32], rows: usize, k_dim: usize, v_dim: usize) -> Parts<'_> {
        let (rows, v) = (padded_rows(rows), padded(v_dim));
        let (q, rest) = scratch.split_at_mut((rows * k_dim).next_multiple_of(16));
        let (scores, rest) = rest.split_at_mut(2 * PANEL * BLOCK);
        let (keys, rest) = rest.split_at_mut(BLOCK * k_dim);
        let (values, rest) = rest.split_at_mut(BLOCK * v);
        let (acc, rest) = rest.split_at_mut(rows * v);
        Parts { q, scores, keys, values, acc, ml: &mut rest[..2 * rows] }
    }
}

/// See [`super::attend_partial`].
///
/// # Safety
/// The CPU has the features of `S`; lengths are as `super::attend_partial` checks them.
#[inline(always)]
pub(super) unsafe fn attend_partial<S: Lanes>(
    call: &Partial<'_>,
    partial: &mut [f32],
    scratch: &mut [f32],
) {
    let Partial { params, cache, kv_head, q, bias, pos, ref keys } = *call;
    let shape = cache.shape;
    let rows = q.len() / shape.k_dim;
    let parts = Parts::new(scratch, rows, shape.k_dim, shape.v_dim);
    let (pad, stride) = (padded(shape.v_dim), partial_row_len(shape.v_dim));
    for row in partial.chunks_exact_mut(stride) {
        row.fill(0.0);
        row[pad] = f32::NEG_INFINITY;
    }
    let scores = parts.scores.as_mut_ptr();
    let [k_block, v_block] = rotation::blocks(&shape);
    let widen = shape.shared || shape.ty == KvType::F32;
    if widen || k_block > 1 {
        let own = &mut parts.q[..q.len()];
        own.copy_from_slice(q);
        // SAFETY: the caller's features.
        unsafe { rotation::rotate_lanes::<S>(k_block, own) }
    }
    let state = if widen {
        // Full panels: the rows that fill up the last are zeros, and their results are dropped.
        let all = padded_rows(rows);
        parts.q[q.len()..all * shape.k_dim].fill(0.0);
        parts.acc[..all * pad].fill(0.0);
        let (m, l) = parts.ml.split_at_mut(all);
        m.fill(f32::NEG_INFINITY);
        l.fill(0.0);
        RunningRows {
            rows: all,
            panel: PANEL,
            widen: true,
            first_pos: pos,
            group: all,
            ahead: Ahead::Nothing,
            tokens: 1,
            keys: keys.clone(),
            q: parts.q.as_ptr(),
            acc: parts.acc.as_mut_ptr(),
            acc_stride: pad,
            m: m.as_mut_ptr(),
            l: l.as_mut_ptr(),
            ml_stride: 1,
            bias,
            scores,
        }
    } else {
        let acc = partial.as_mut_ptr();
        RunningRows {
            rows,
            // As evenly as possible.
            panel: rows.div_ceil(rows.div_ceil(PANEL)),
            widen: false,
            first_pos: pos,
            group: rows,
            ahead: Ahead::Nothing,
            tokens: 1,
            keys: keys.clone(),
            q: if k_block > 1 { parts.q.as_ptr() } else { q.as_ptr() },
            acc,
            acc_stride: stride,
            m: acc.wrapping_add(pad),
            l: acc.wrapping_add(pad + 1),
            ml_stride: stride,
            bias,
            scores,
        }
    };
    // SAFETY: the caller's features and lengths; the parts are sized for these rows.
    unsafe {
        let (state, keys, values) = (&state, parts.keys, parts.values);
        S::outline(Stream { params, cache, kv_head, state, keys, values });
    }
    if widen {
        let (m, l) = parts.ml.split_at(padded_rows(rows));
        for (r, row) in partial.chunks_exact_mut(stride).enumerate() {
            row[..pad].copy_from_slice(&parts.acc[r * pad..][..pad]);
            (row[pad], row[pad + 1]) = (m[r], l[r]);
        }
    }
    for row in partial.chunks_exact_mut(stride) {
        // SAFETY: the caller's features.
        unsafe { rotation::rotate_lanes::<S>(v_block, &mut row[..shape.v_dim]) }
    }
}

/// See [`super::attend_tile`].
///
/// # Safety
/// The CPU has the features of `S`; lengths are as `super::attend_tile` checks them.
#[inline(always)]
pub(super) unsafe fn attend_tile<S: Lanes>(
    call: &Tile<'_>,
    out: &mut HeadsOut<'_>,
    scratch: &mut [f32],
) {
    let Tile { params, cache, kv_head, q, first_pos, ref heads, ref tokens, .. } = *call;
    let Tile { sinks, bias, ahead, .. } = *call;
    let shape = cache.shape;
    let group = heads.len();
    let rows = tokens.len() * group;
    let parts = Parts::new(scratch, rows, shape.k_dim, shape.v_dim);
    let mut packed = parts.q.chunks_exact_mut(shape.k_dim);
    for t in tokens.clone() {
        let heads = &q.data[t * q.stride + heads.start * shape.k_dim..][..group * shape.k_dim];
        for (q, packed) in heads.chunks_exact(shape.k_dim).zip(&mut packed) {
            packed.copy_from_slice(q);
        }
    }
    // Rows that fill up the last panel: their queries are zeros and their results are dropped.
    packed.for_each(|q| q.fill(0.0));
    let [k_block, v_block] = rotation::blocks(&shape);
    // SAFETY: the caller's features.
    unsafe { rotation::rotate_lanes::<S>(k_block, &mut parts.q[..rows * shape.k_dim]) }
    // Full panels even for few rows: with fewer rows a sum would be computed in another order.
    let all = padded_rows(rows);
    parts.acc.fill(0.0);
    let (m, l) = parts.ml.split_at_mut(all);
    m.fill(f32::NEG_INFINITY);
    l.fill(0.0);
    let pad = padded(shape.v_dim);
    let first = first_pos + tokens.start;
    let state = RunningRows {
        rows: all,
        panel: PANEL,
        widen: true,
        first_pos: first,
        group,
        ahead: match ahead {
            Ahead::Each(ends) => Ahead::Each(&ends[tokens.clone()]),
            other => other,
        },
        tokens: tokens.len(),
        keys: call.all_visible(),
        q: parts.q.as_ptr(),
        acc: parts.acc.as_mut_ptr(),
        acc_stride: pad,
        m: m.as_mut_ptr(),
        l: l.as_mut_ptr(),
        ml_stride: 1,
        bias,
        scores: parts.scores.as_mut_ptr(),
    };
    // SAFETY: the caller's features and lengths; the parts are sized for these rows.
    unsafe {
        let (state, keys, values) = (&state, parts.keys, parts.values);
        S::outline(Stream { params, cache, kv_head, state, keys, values });
    }
    for (i, t) in tokens.clone().enumerate() {
        for (j, h) in heads.clone().enumerate() {
            let r = i * group + j;
            let out = out.row(t, h, shape.v_dim);
            let inverse = match sinks {
                None if l[r] == 0.0 => 0.0,
                None => 1.0 / l[r],
                Some(sinks) => {
                    let most = m[r].max(sinks[j]);
                    // SAFETY: the caller's features.
                    let exp = |x| unsafe { lanes::exp_of_negative::<S>(x) };
                    let kept = exp(m[r] - most);
                    kept / (l[r] * kept + exp(sinks[j] - most))
                }
            };
            out.copy_from_slice(&parts.acc[r * pad..][..shape.v_dim]);
            // SAFETY: the caller's features.
            unsafe {
                lanes::map::<S>(out, lanes::Times(inverse));
                rotation::rotate_lanes::<S>(v_block, out);
            }
        }
    }
}

/// Processes all blocks of `state.keys` for all rows: a function that both halves share.
///
/// # Safety
/// When it runs, `state` must describe memory that exists, and `keys` and `values` must hold a block of f32 (values padded to
/// 16).
struct Stream<'a> {
    params: &'a AttentionParams,
    cache: &'a KvCache<'a>,
    kv_head: usize,
    state: &'a RunningRows<'a>,
    keys: &'a mut [f32],
    values: &'a mut [f32],
}

impl Outlined for Stream<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Lanes>(self) {
        let Stream { params, cache, kv_head, state, keys, values } = self;
        // SAFETY: by the caller's promise.
        unsafe { stream::<S>(params, cache, kv_head, state, keys, values) }
    }
}

/// # Safety
/// As for [`Stream`]; the CPU has the features of `S`.
#[inline(always)]
unsafe fn stream<S: Lanes>(
    params: &AttentionParams,
    cache: &KvCache<'_>,
    kv_head: usize,
    state: &RunningRows<'_>,
    keys: &mut [f32],
    values: &mut [f32],
) {
    let shape = cache.shape;
    let (k_dim, v_dim) = (shape.k_dim, shape.v_dim);
    let (start, end) = (state.keys.start, state.keys.end);
    let mut block = start / BLOCK * BLOCK;
    while block < end {
        let (low, high) = (block.max(start), end.min(block + BLOCK));
        let (page, before) = (block / shape.capacity, block / shape.capacity * shape.capacity);
        let (k_cache, v_cache) = (cache.keys(kv_head, page), cache.values(kv_head, page));
        // Whole lines of keys: the capacity is a multiple of a line, so they exist.
        let lines = low / LINE * LINE..high.next_multiple_of(LINE);
        // SAFETY: low..high and lines are within the capacity; the rest is the caller's.
        unsafe {
            if shape.ty == KvType::F32 {
                let scales = std::ptr::null();
                let first = block - before;
                let p = k_cache.as_ptr().cast::<f32>().wrapping_add(first * k_dim);
                let k = Right { p, step: LINE, line: LINE * k_dim, scales, ahead: 0 };
                let v = |c| {
                    let (at, width) = shape.value_columns(first, c);
                    let p = v_cache.as_ptr().cast::<f32>().wrapping_add(at);
                    (Right { p, step: width, line: LINE, scales, ahead: 0 }, width)
                };
                panels::<S, F32>(params, k_dim, v_dim, state, block, k, v);
            } else if state.widen {
                let pad = padded(v_dim);
                let to = &mut keys[(lines.start - block) * k_dim..][..lines.len() * k_dim];
                let stored = shape.stored(k_dim);
                let from = &k_cache[(lines.start - before) * stored..(lines.end - before) * stored];
                match shape.ty {
                    KvType::F16 => widen_rows::<S>(from, from.len(), from.len(), to),
                    KvType::Q8_0 => bytes::widen_keys::<S>(from, k_dim, to),
                    KvType::Q4R => levels::widen_keys::<S>(from, k_dim, to),
                    KvType::F32 => unreachable!("f32 are read in place"),
                }
                if shape.shared {
                    let values = &mut values[(lines.start - block) * pad..];
                    let rows = values.chunks_exact_mut(LINE * pad);
                    for (line, rows) in to.chunks_exact(LINE * k_dim).zip(rows) {
                        to_rows(line, v_dim, pad, rows);
                    }
                } else if let KvType::Q8_0 | KvType::Q4R = shape.ty {
                    let to = &mut values[(low - block) * pad..];
                    let positions = low - before..high - before;
                    match shape.ty {
                        KvType::Q4R => {
                            levels::widen_values::<S>(v_cache, &shape, positions, pad, to);
                        }
                        _ => bytes::widen_values::<S>(v_cache, &shape, positions, pad, to),
                    }
                } else {
                    for c in (0..v_dim).step_by(COLUMNS) {
                        let (at, width) = shape.value_columns(low - before, c);
                        let from = &v_cache[at..at + (high - low) * width];
                        widen_rows::<S>(from, width, pad, &mut values[(low - block) * pad + c..]);
                    }
                }
                let scales = std::ptr::null();
                let k =
                    Right { p: keys.as_ptr(), step: LINE, line: LINE * k_dim, scales, ahead: 0 };
                let p = values.as_ptr();
                let v = |_| (Right { p, step: pad, line: LINE, scales, ahead: 0 }, pad);
                panels::<S, F32>(params, k_dim, pad, state, block, k, v);
            } else {
                // The block may reach beyond the page if that is the only one; only existing parts of it are accessed.
                let at = |block: usize| {
                    let page = block / shape.capacity;
                    (cache.keys(kv_head, page), cache.values(kv_head, page), block % shape.capacity)
                };
                let (k_cache, v_cache, first) = at(block);
                // The hardware cannot predict where the next block is, if it is in another page.
                let next = if block + BLOCK < end { block + BLOCK } else { block };
                let (k_next, v_next, first_next) = at(next);
                let stored = shape.stored(k_dim);
                let p = k_cache.as_ptr().wrapping_add(first * stored);
                let ahead = distance(p, k_next.as_ptr().wrapping_add(first_next * stored));
                if let KvType::Q8_0 | KvType::Q4R = shape.ty {
                    let is_levels = shape.ty == KvType::Q4R;
                    // Of a line and of a group of values, in bytes.
                    let (codes, step) = match is_levels {
                        true => (LINE / 2 * k_dim, levels::GROUP_BYTES),
                        false => (LINE * k_dim, bytes::GROUP),
                    };
                    let group = |pos, g| match is_levels {
                        true => levels::value_group(&shape, pos, g),
                        false => bytes::value_group(&shape, pos, g),
                    };
                    let scales = p.wrapping_byte_add(codes);
                    let (line, ahead) = (2 * LINE * stored, 2 * ahead);
                    let k = Right { p: p.cast(), step: LINE, line, scales, ahead };
                    let v = |c| {
                        let (at, scales) = group(first, c / bytes::GROUP);
                        let (next, _) = group(first_next, c / bytes::GROUP);
                        let p = v_cache.as_ptr().wrapping_byte_add(at);
                        let ahead = 2 * distance(p, v_next.as_ptr().wrapping_byte_add(next));
                        let scales = v_cache.as_ptr().wrapping_add(scales);
                        (Right { p: p.cast(), step, line: LINE, scales, ahead }, bytes::GROUP)
                    };
                    match is_levels {
                        true => panels::<S, KeyLevels>(params, k_dim, v_dim, state, block, k, v),
                        false => panels::<S, KeyBytes>(params, k_dim, v_dim, state, block, k, v),
                    }
                } else {
                    let scales = std::ptr::null();
                    let k = Right { p, step: LINE, line: LINE * k_dim, scales, ahead };
                    let v = |c| {
                        let (at, width) = shape.value_columns(first, c);
                        let p = v_cache.as_ptr().wrapping_add(at);
                        let (at, _) = shape.value_columns(first_next, c);
                        let ahead = distance(p, v_next.as_ptr().wrapping_add(at));
                        (Right { p, step: width, line: LINE, scales, ahead }, width)
                    };
                    panels::<S, F16>(params, k_dim, v_dim, state, block, k, v);
                }
            }
        }
        block += BLOCK;
    }
}

/// Returns the distance in elements between two addresses, which need not be in one allocation.
#[inline(always)]
fn distance(from: *const u16, to: *const u16) -> isize {
    (to.addr() as isize).wrapping_sub(from.addr() as isize) / size_of::<u16>() as isize
}

/// Turns the first `dim` elements of a line of keys, `[k_dim][16]`, into the rows of 16 positions, at distances of `pitch`,
/// with zeros from `dim` on.
#[inline(always)]
fn to_rows(line: &[f32], dim: usize, pitch: usize, rows: &mut [f32]) {
    for c in (0..dim).step_by(LINE) {
        let width = LINE.min(dim - c);
        let elements = &line[c * LINE..][..width * LINE];
        for (p, row) in rows.chunks_exact_mut(pitch).enumerate() {
            let row = &mut row[c..c + LINE];
            for (x, elements) in row.iter_mut().zip(elements.chunks_exact(LINE)) {
                *x = elements[p];
            }
            row[width..].fill(0.0);
        }
    }
}

/// Widens rows of `n` f16 to f32 at distances of `pitch`, with zeros up to a multiple of 16.
///
/// # Safety
/// The CPU has the features of `S`.
#[inline(always)]
unsafe fn widen_rows<S: Lanes>(from: &[u16], n: usize, pitch: usize, to: &mut [f32]) {
    let rows = from.len() / n;
    assert!(rows == 0 || to.len() >= (rows - 1) * pitch + n.next_multiple_of(16));
    for (r, from) in from.chunks_exact(n).enumerate() {
        let (p, q) = (from.as_ptr(), to.as_mut_ptr().wrapping_add(r * pitch));
        let mut i = 0;
        // SAFETY: within the chunk and the asserted length; the caller's features.
        unsafe {
            while i + S::N <= n {
                S::store(q.add(i), S::load_f16(p.add(i)));
                i += S::N;
            }
            if i < n {
                S::store(q.add(i), S::load_f16_n(p.add(i), n - i));
                i += S::N;
            }
            while i < n.next_multiple_of(16) {
                S::store(q.add(i), S::splat(0.0));
                i += S::N;
            }
        }
    }
}

/// Processes one block for every panel. `v(c)` returns the values from column `c` on and how many columns are stored together
/// there.
///
/// # Safety
/// The CPU has the features of `S`; `state` describes memory that exists; keys (whole lines) and
/// values exist for every position of the block that a row sees.
#[inline(always)]
unsafe fn panels<S: Lanes, B: Source>(
    params: &AttentionParams,
    k_dim: usize,
    v_cols: usize,
    state: &RunningRows<'_>,
    block: usize,
    k: Right<B::E>,
    v: impl Fn(usize) -> (Right<B::E>, usize),
) {
    let mut row = 0;
    while row < state.rows {
        let n = state.panel.min(state.rows - row);
        // Later rows see no earlier start and no earlier end.
        let low = state.visible(params, row, block).start;
        let high = state.visible(params, row + n - 1, block).end;
        if low < high {
            let (first, last) = (low / LINE * LINE, high.next_multiple_of(LINE));
            let mut rescale = [0f32; 16];
            // SAFETY: the caller's; columns stay within the block, rows within the panel.
            unsafe {
                let q = Left { p: state.q.add(row * k_dim), row: k_dim };
                let k = k.skip_lines(first / LINE);
                let p = state.scores.add(first);
                let scores = Destination { p, row: BLOCK, rescale: None };
                rows::<S, B, true>(n, q, k, k_dim, last - first, scores);
                let weights =
                    Weights { params, state, block, row, n, first, last, rescale: &mut rescale };
                S::outline(weights);
                let p = Left { p: state.scores.add(low), row: BLOCK };
                let mut c = 0;
                while c < v_cols {
                    let (v, width) = v(c);
                    let v = Right { p: v.p.wrapping_add(low * v.step), ..v };
                    let p = if B::Values::WEIGHTED {
                        S::outline(Weigh { state, n, first, last, scales: v.scales });
                        Left { p: state.weighted().add(low), ..p }
                    } else {
                        p
                    };
                    let acc = Destination {
                        p: state.acc.add(row * state.acc_stride + c),
                        row: state.acc_stride,
                        rescale: Some(rescale.as_ptr()),
                    };
                    rows::<S, B::Values, false>(n, p, v, high - low, width, acc);
                    c += width;
                }
            }
        }
        row += n;
    }
}

/// [`multiply`] for `n` rows, with keys or with values; blocks of f32 are used with full panels only.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn rows<S: Lanes, B: Source, const KEYS: bool>(
    n: usize,
    left: Left,
    right: Right<B::E>,
    k: usize,
    width: usize,
    sums: Destination,
) {
    macro_rules! go {
        ($r:expr) => {
            // SAFETY: the caller's.
            unsafe {
                if KEYS && !B::WIDE {
                    multiply_lines::<S, B, { $r }>(left, right, k, width, sums)
                } else {
                    multiply::<S, B, { $r }>(left, right, k, width, sums)
                }
            }
        };
    }
    match if B::WIDE { PANEL } else { n } {
        1 => go!(1),
        2 => go!(2),
        3 => go!(3),
        4 => go!(4),
        5 => go!(5),
        _ => go!(6),
    }
}

/// Turns the products of a panel's columns `first..last` into weights: scale, soft cap, masks, online softmax. Updates `m` and
/// `l` and returns the factors by which earlier sums shrink.
struct Weights<'a> {
    params: &'a AttentionParams,
    state: &'a RunningRows<'a>,
    block: usize,
    row: usize,
    n: usize,
    first: usize,
    last: usize,
    rescale: &'a mut [f32; 16],
}

impl Outlined for Weights<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Lanes>(self) {
        let Weights { params, state, block, row, n, first, last, rescale } = self;
        // Columns that every row of the panel sees need no mask.
        let all =
            state.visible(params, row + n - 1, block).start..state.visible(params, row, block).end;
        let mask = all.start > first || all.end < last;
        // SAFETY: `panels` vouches for rows and columns, `last - first` is a multiple of 16; the
        // caller has the features.
        unsafe {
            let scale = S::splat(params.scale);
            let (mut shift, mut reference) = ([0f32; 16], [0f32; PANEL]);
            for r in 0..n {
                let scores = state.scores.add(r * BLOCK);
                let mut max = S::splat(f32::NEG_INFINITY);
                for c in (first..last).step_by(S::N) {
                    let s = S::mul(S::load(scores.add(c)), scale);
                    S::store(scores.add(c), s);
                    max = S::max(s, max);
                }
                if state.bias.is_some() {
                    // A row's numbers exist for all columns of its lines, whatever it sees of them.
                    let bias = state.bias_of(row + r, block);
                    for c in (first..last).step_by(S::N) {
                        let s = S::add(S::load(scores.add(c)), S::load(bias.add(c)));
                        S::store(scores.add(c), s);
                    }
                }
                if let Some(cap) = params.softcap {
                    for c in (first..last).step_by(S::N) {
                        let s = lanes::softcap::<S>(S::load(scores.add(c)), cap);
                        S::store(scores.add(c), s);
                    }
                }
                if mask {
                    let seen = state.visible(params, row + r, block);
                    for c in (first..seen.start.min(last)).chain(seen.end.max(first)..last) {
                        scores.add(c).write(f32::NEG_INFINITY);
                    }
                }
                if mask || params.softcap.is_some() || state.bias.is_some() {
                    max = S::splat(f32::NEG_INFINITY);
                    for c in (first..last).step_by(S::N) {
                        max = S::max(S::load(scores.add(c)), max);
                    }
                }
                let m = state.m.add((row + r) * state.ml_stride);
                // Levels differ in which zero they find the largest: a positive one.
                let new = S::largest(max).max(*m) + 0.0;
                // All scores are -inf so far: any finite reference gives weights of 0.
                reference[r] = if new == f32::NEG_INFINITY { 0.0 } else { new };
                shift[r] = *m - reference[r];
                *m = new;
            }
            S::store(rescale.as_mut_ptr(), lanes::exp_negative::<S>(S::load(shift.as_ptr())));
            for r in 0..n {
                let scores = state.scores.add(r * BLOCK);
                let reference = S::splat(reference[r]);
                let mut sums = [S::splat(0.0); WIDEST / 8];
                for line in (first..last).step_by(WIDEST) {
                    for (j, sum) in sums[..WIDEST / S::N].iter_mut().enumerate() {
                        let scores = scores.add(line + j * S::N);
                        let s = S::sub(S::load(scores), reference);
                        let p = lanes::exp_negative::<S>(s);
                        S::store(scores, p);
                        *sum = S::add(*sum, p);
                    }
                }
                let l = state.l.add((row + r) * state.ml_stride);
                *l = *l * rescale[r] + lanes::sum_widest::<S>(sums);
            }
        }
    }
}

/// Multiplies the weights of a panel's columns `first..last` by the scales of the values there.
struct Weigh<'a> {
    state: &'a RunningRows<'a>,
    n: usize,
    first: usize,
    last: usize,
    /// The scale of the block's first position.
    scales: *const u16,
}

impl Outlined for Weigh<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Lanes>(self) {
        let Weigh { state, n, first, last, scales } = self;
        for c in (first..last).step_by(S::N) {
            // SAFETY: `panels` vouches for rows and columns, of which whole lines exist; the caller has the features.
            unsafe {
                let scale = S::load_f16(scales.add(c));
                for at in (0..n).map(|r| r * BLOCK + c) {
                    S::store(
                        state.weighted().add(at),
                        S::mul(S::load(state.scores.add(at)), scale),
                    );
                }
            }
        }
    }
}

/// See [`super::attend_merge`].
///
/// # Safety
/// The CPU has the features of `S`; lengths are as `super::attend_merge` checks them.
#[inline(always)]
pub(super) unsafe fn attend_merge<S: Lanes>(
    v_dim: usize,
    rows: usize,
    partials: &[f32],
    sinks: Option<&[f32]>,
    out: &mut [f32],
) {
    let (pad, stride) = (padded(v_dim), partial_row_len(v_dim));
    for (row, out) in out.chunks_exact_mut(v_dim).enumerate() {
        let states = || {
            partials.chunks_exact(partial_len(rows, v_dim)).map(|p| &p[row * stride..][..stride])
        };
        let sink = sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[row]);
        let m = states().fold(sink, |m, s| m.max(s[pad]));
        let reference = if m == f32::NEG_INFINITY { 0.0 } else { m };
        out.fill(0.0);
        // SAFETY: the caller's features.
        let exp = |x| unsafe { lanes::exp_of_negative::<S>(x) };
        let mut l = exp(sink - reference);
        for state in states().filter(|s| s[pad + 1] != 0.0) {
            let weight = exp(state[pad] - reference);
            l += weight * state[pad + 1];
            // SAFETY: a state is at least as long as a row; the caller's features.
            unsafe { lanes::zip::<S>(out, state, lanes::AddTimes(weight)) }
        }
        let inverse = if l == 0.0 { 0.0 } else { 1.0 / l };
        // SAFETY: the caller's features.
        unsafe { lanes::map::<S>(out, lanes::Times(inverse)) }
    }
}
