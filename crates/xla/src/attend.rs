//! `alight_attend`: keys and values of new tokens into the cache of a layer, and their attention to all that is in it.
//!
//! Arguments: q `f32[T, q_heads · k_dim]`, k `f32[T, kv_heads · k_dim]`, v `f32[T, kv_heads · v_dim]`, the caches of keys
//! `f16[L, …]` and values `f16[L, …]`, and `s32[]` each: layer, pos, window (0: none). Results: `f32[T, q_heads · v_dim]`, and
//! both caches, which have to be the arguments' memory (`input_output_aliases`): nothing of them is copied.
//!
//! Attributes, int64 unless said: `q_heads`, `kv_heads`, `k_dim`, `v_dim`, `capacity` (positions, a multiple of 16), `scale`
//! and `softcap` (float32; a cap of 0 is none), `devices` (int64 array: those that call at the same time), `threads`: how many
//! to use, 0 for those that are worth it.
//!
//! The layout of a layer's caches, and where numbers are rounded, is in `alight_kernels::attention`. The token at position
//! `p` sees positions `j ≤ p` with `p − j < window`. How the work is cut follows from shapes and positions, so bits do
//! not depend on the number of threads.

use alight_kernels::Isa;
use alight_kernels::attention::{
    AttentionLimits, AttentionParams, FEW_TOKENS, HeadsOut, KvCache, KvShape, KvWriter, LINE,
    Partial, Queries, Tile, attend_merge, attend_partial, attend_tile, first_position, partial_len,
    piece_positions, tile_tokens,
};
use alight_kernels::matmul::Output;

use crate::api::{CallFrame, Error, Handler};
use crate::arrays::{expect, scalar, size, slice, slice_mut};
use crate::frame::{Array, Frame, Refusal, handle};
use crate::scratch::{with_attention, with_floats};
use crate::team::Team;
use crate::{Stage, Target};

pub(crate) const TARGETS: &[Target] = &[Target {
    name: "alight_attend",
    platform: "cpu",
    stages: &[(Stage::Execute, alight_attend as Handler)],
    state: None,
}];

/// Bytes of keys and values that a thread attends one token to in a nanosecond, about.
const BYTES_PER_NS: usize = 6;

/// Products of several tokens' attention that a thread adds in a nanosecond, about.
const PRODUCTS_PER_NS: usize = 20;

/// Values that a thread stores in a nanosecond, about.
const VALUES_PER_NS: usize = 1;

/// The stage that calls, on every device.
///
/// # Safety
/// For XLA to call, with its frame.
unsafe extern "C" fn alight_attend(frame: *mut CallFrame) -> *mut Error {
    // SAFETY: passed on.
    unsafe { handle(frame, 0, execute) }
}

fn execute(frame: Frame<'_>) -> Result<(), Refusal> {
    run(frame).map_err(|Refusal(code, text)| Refusal(code, format!("alight_attend: {text}")))
}

fn run(frame: Frame<'_>) -> Result<(), Refusal> {
    let (arguments, results) = (frame.arguments()?, frame.results()?);
    let ([q, k, v, k_cache, v_cache, layer, pos, window], [out, new_k, new_v]) =
        (&arguments[..], &results[..])
    else {
        return Err(Refusal::argument(format!(
            "{} arguments and {} results, expected q, k, v, two caches, layer, pos and window, and three results",
            arguments.len(),
            results.len()
        )));
    };
    let attribute = |name: &str| size(name, frame.integer(name)?);
    let (q_heads, kv_heads) = (attribute("q_heads")?, attribute("kv_heads")?);
    let shape = KvShape {
        kv_heads,
        k_dim: attribute("k_dim")?,
        v_dim: attribute("v_dim")?,
        capacity: attribute("capacity")?,
    };
    if kv_heads == 0 || shape.k_dim == 0 || shape.v_dim == 0 || !q_heads.is_multiple_of(kv_heads) {
        return Err(Refusal::argument(format!(
            "{q_heads} query heads on {shape:?}, expected none of these to be 0, and query heads for each"
        )));
    }
    if !shape.capacity.is_multiple_of(LINE) {
        return Err(Refusal::argument(format!(
            "a capacity of {}, expected a multiple of {LINE}",
            shape.capacity
        )));
    }
    let tokens = usize::try_from(q.dims.first().copied().unwrap_or(0)).unwrap_or(0);
    let wide = |heads: usize, dim: usize| {
        heads.checked_mul(dim).ok_or_else(|| Refusal::argument("heads wider than any memory"))
    };
    expect("q", q, &[tokens, wide(q_heads, shape.k_dim)?])?;
    expect("k", k, &[tokens, wide(kv_heads, shape.k_dim)?])?;
    expect("v", v, &[tokens, wide(kv_heads, shape.v_dim)?])?;
    expect("the result", out, &[tokens, wide(q_heads, shape.v_dim)?])?;
    // SAFETY: XLA's arrays have the sizes that it says, dense and row-major (the default layout of a custom call), live for
    // the call; results overlap nothing but the caches they are aliased with, which are used through the results alone.
    let (q, k, v, out) = unsafe {
        (
            slice::<f32>("q", q)?,
            slice::<f32>("k", k)?,
            slice::<f32>("v", v)?,
            slice_mut::<f32>("the result", out)?,
        )
    };
    // SAFETY: as above.
    let [layer, pos, window] = unsafe {
        [
            size("layer", i64::from(scalar::<i32>("layer", layer)?))?,
            size("pos", i64::from(scalar::<i32>("pos", pos)?))?,
            size("window", i64::from(scalar::<i32>("window", window)?))?,
        ]
    };
    // SAFETY: as above.
    let (keys, values) = unsafe {
        (
            cache("keys", k_cache, new_k, layer, shape.kv_heads, shape.capacity, shape.k_dim)?,
            cache("values", v_cache, new_v, layer, shape.kv_heads, shape.capacity, shape.v_dim)?,
        )
    };
    if pos.checked_add(tokens).is_none_or(|end| end > shape.capacity) {
        return Err(Refusal::argument(format!(
            "{tokens} tokens from position {pos} on, where the cache has room for {}",
            shape.capacity
        )));
    }
    if tokens == 0 || q_heads == 0 {
        return Ok(());
    }
    let softcap = frame.float("softcap")?;
    let params = AttentionParams {
        scale: frame.float("scale")?,
        softcap: Some(softcap).filter(|cap| *cap != 0.0),
        window: Some(window).filter(|window| *window != 0),
    };
    let devices = frame.integers("devices")?.len();
    let team = Team::new(frame, frame.integer("threads")?, devices)?;
    let call = Call { isa: Isa::best(), params, shape, group: q_heads / kv_heads, pos, tokens };
    call.store(&team, keys, values, k, v);
    let cache = KvCache::new(shape, keys, values);
    match tokens <= FEW_TOKENS {
        true => call.few(&team, &cache, q, out),
        false => call.many(&team, &cache, q, out),
    }
    Ok(())
}

/// A layer's part of a cache `[L, …]`, in the memory of the result.
///
/// # Safety
/// Both arrays are there for `'a`, and nobody else uses them.
unsafe fn cache<'a>(
    what: &str,
    argument: &Array<'_>,
    result: &Array<'_>,
    layer: usize,
    heads: usize,
    capacity: usize,
    dim: usize,
) -> Result<&'a mut [u16], Refusal> {
    let refuse = |text: String| Err(Refusal::argument(format!("the cache of {what}: {text}")));
    if argument.dims != result.dims || argument.dtype != result.dtype {
        return refuse(format!("{:?} becomes {:?}", argument.dims, result.dims));
    }
    if argument.data != result.data {
        return refuse("its result is other memory, expected to be aliased with it".into());
    }
    // SAFETY: by the contract.
    let all = unsafe { slice_mut::<u16>("the cache", result)? };
    let length = heads.checked_mul(capacity).and_then(|n| n.checked_mul(dim));
    let layers = result.dims.first().and_then(|layers| usize::try_from(*layers).ok());
    let layers = layers.unwrap_or(0);
    if length.and_then(|length| length.checked_mul(layers)) != Some(all.len()) {
        return refuse(format!(
            "{:?}, expected [layers, …] with {heads} heads × {capacity} positions × {dim} for a layer",
            result.dims
        ));
    }
    if layer >= layers {
        return refuse(format!("layer {layer} of {layers}"));
    }
    let length = all.len() / layers;
    Ok(&mut all[layer * length..][..length])
}

/// What is the same for all parts of the work.
struct Call {
    isa: Isa,
    params: AttentionParams,
    shape: KvShape,
    /// Query heads on each key/value head.
    group: usize,
    pos: usize,
    tokens: usize,
}

impl Call {
    fn store(&self, team: &Team<'_>, keys: &mut [u16], values: &mut [u16], k: &[f32], v: &[f32]) {
        let (kd, vd) =
            (self.shape.kv_heads * self.shape.k_dim, self.shape.kv_heads * self.shape.v_dim);
        let writer = KvWriter::new(self.shape, keys, values);
        // Positions of one line of the key cache are one unit.
        let end = self.pos + self.tokens;
        let (first, last) = (self.pos / LINE, (end - 1) / LINE);
        let work = self.tokens * (kd + vd) / VALUES_PER_NS;
        team.run(last - first + 1, work, &|lines| {
            let from = ((first + lines.start) * LINE).max(self.pos);
            for at in from..((first + lines.end) * LINE).min(end) {
                let t = at - self.pos;
                // SAFETY: each position is one unit's.
                unsafe { writer.store(self.isa, at, &k[t * kd..][..kd], &v[t * vd..][..vd]) };
            }
        });
    }

    fn limits(&self, tokens: usize) -> AttentionLimits {
        let (k_dim, v_dim) = (self.shape.k_dim, self.shape.v_dim);
        AttentionLimits { rows: tokens * self.group, k_dim, v_dim }
    }

    /// Few tokens are cut along the positions, as the native engine does it.
    fn few(&self, team: &Team<'_>, cache: &KvCache<'_>, q: &[f32], out: &mut [f32]) {
        let Call { shape, group, .. } = *self;
        let (kv, end) = (shape.kv_heads, self.pos + self.tokens);
        let start = first_position(&self.params, self.pos);
        let piece = piece_positions(&shape, end - start);
        let pieces = (end - start).div_ceil(piece);
        let len = partial_len(group, shape.v_dim);
        let units = self.tokens * kv * pieces;
        let bytes = (end - start) * kv * (shape.k_dim + shape.v_dim) * 2 * self.tokens;
        with_floats(units * len, |partials| {
            let results = Output::new(partials, len);
            team.run(units, bytes / BYTES_PER_NS, &|range| {
                with_attention(self.limits(1), |scratch| {
                    for unit in range {
                        let (token, head) = (unit / (kv * pieces), unit / pieces % kv);
                        let from = start + unit % pieces * piece;
                        let heads = group * shape.k_dim;
                        let q = &q[(token * kv + head) * heads..][..heads];
                        // SAFETY: each unit has a result of its own.
                        let partial = unsafe { results.row_mut(unit, 0..len) };
                        let (pos, keys) = (self.pos + token, from..(from + piece).min(end));
                        let params = &self.params;
                        let call = Partial { params, cache, kv_head: head, q, pos, keys };
                        attend_partial(self.isa, &call, partial, scratch);
                    }
                });
            });
            let results = partials.chunks_exact(pieces * len);
            for (partials, out) in results.zip(out.chunks_exact_mut(group * shape.v_dim)) {
                attend_merge(self.isa, shape.v_dim, group, partials, out);
            }
        });
    }

    /// Many tokens are cut into tiles of them.
    fn many(&self, team: &Team<'_>, cache: &KvCache<'_>, q: &[f32], out: &mut [f32]) {
        let Call { shape, group, tokens, .. } = *self;
        let kv = shape.kv_heads;
        let queries = Queries { data: q, stride: kv * group * shape.k_dim };
        let out = HeadsOut::new(out, kv * group * shape.v_dim);
        let tile = tile_tokens(group);
        let tiles = tokens.div_ceil(tile);
        let seen = self.params.visible(self.pos + tokens - 1).len();
        let products = tokens * seen * kv * group * (shape.k_dim + shape.v_dim);
        team.run(tiles * kv, products / PRODUCTS_PER_NS, &|range| {
            with_attention(self.limits(tile), |scratch| {
                for unit in range {
                    // Later tiles see more positions: the long pieces first, the short ones fill the gaps.
                    let (index, head) = (tiles - 1 - unit / kv, unit % kv);
                    let tokens = index * tile..((index + 1) * tile).min(tokens);
                    let heads = head * group..(head + 1) * group;
                    // SAFETY: units have different tokens or different heads.
                    let mut out = unsafe { out.duplicate() };
                    let (params, q, first_pos) = (&self.params, queries, self.pos);
                    let call = Tile { params, cache, kv_head: head, q, heads, tokens, first_pos };
                    attend_tile(self.isa, &call, &mut out, scratch);
                }
            });
        });
    }
}
