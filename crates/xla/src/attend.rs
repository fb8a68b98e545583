//! `alight_attend`: writes keys and values of new tokens into the cache of a layer, and computes their attention to everything in
//! it.
//!
//! Arguments: q `f32[T, q_heads · k_dim]`, k `f32[T, kv_heads · k_dim]`, v `f32[T, kv_heads · v_dim]`, the caches of keys `f16[L,
//! …]` and values `f16[L, …]`, and `s32[]` each: layer, pos, window (0: none); sinks `f32[q_heads]`, a score of each query head
//! that belongs to no position, or `f32[0]`: none. Results: `f32[T, q_heads · v_dim]`, and both caches, which must be in the
//! arguments' memory (`input_output_aliases`): no part of them is copied.
//!
//! Attributes, int64 unless noted: `q_heads`, `kv_heads`, `k_dim`, `v_dim`, `capacity` (positions, a multiple of 16), `scale` and
//! `softcap` (float32; a cap of 0 is none), `devices` (int64 array: those that call at the same time), `threads`: the number of
//! threads, or 0 for as many as are worthwhile.
//!
//! The layout of a layer's caches, and where numbers are rounded, is described in `alight_kernels::attention`. The token at
//! position `p` sees positions `j ≤ p` with `p − j < window`. The division of the work follows from shapes and positions, so bits
//! do not depend on the number of threads.

use alight_kernels::Isa;
use alight_kernels::attention::{
    Ahead, AttentionParams, KvCache, KvShape, KvType, KvWriter, LINE, Window,
};
use alight_kernels::parallel::{Attend, store};

use crate::api::{CallFrame, Error, Handler};
use crate::arrays::{expect, scalar, size, slice, slice_mut};
use crate::frame::{Array, Frame, Refusal, handle};
use crate::scratch::with_floats;
use crate::team::Team;
use crate::{Stage, Target};

pub(crate) const TARGETS: &[Target] = &[Target {
    name: "alight_attend",
    platform: "cpu",
    stages: &[(Stage::Execute, alight_attend as Handler)],
    state: None,
}];

/// The stage that runs the call, on every device.
///
/// # Safety
/// Only XLA may call it, with its frame.
unsafe extern "C" fn alight_attend(frame: *mut CallFrame) -> *mut Error {
    // SAFETY: passed on.
    unsafe { handle(frame, 0, execute) }
}

fn execute(frame: Frame<'_>) -> Result<(), Refusal> {
    run(frame).map_err(|Refusal(code, text)| Refusal(code, format!("alight_attend: {text}")))
}

fn run(frame: Frame<'_>) -> Result<(), Refusal> {
    let (arguments, results) = (frame.arguments()?, frame.results()?);
    let ([q, k, v, k_cache, v_cache, layer, pos, window, sinks], [out, new_k, new_v]) =
        (&arguments[..], &results[..])
    else {
        return Err(Refusal::argument(format!(
            "{} arguments and {} results, expected q, k, v, two caches, layer, pos, window and sinks, and three results",
            arguments.len(),
            results.len()
        )));
    };
    let (q_heads, shape) = heads(frame)?;
    let kv_heads = shape.kv_heads;
    let tokens = usize::try_from(q.dims.first().copied().unwrap_or(0)).unwrap_or(0);
    let wide = |heads: usize, dim: usize| {
        heads.checked_mul(dim).ok_or_else(|| Refusal::argument("heads wider than any memory"))
    };
    expect("q", q, &[tokens, wide(q_heads, shape.k_dim)?])?;
    expect("k", k, &[tokens, wide(kv_heads, shape.k_dim)?])?;
    expect("v", v, &[tokens, wide(kv_heads, shape.v_dim)?])?;
    expect("the result", out, &[tokens, wide(q_heads, shape.v_dim)?])?;
    let has_sinks = sinks.count() != Some(0);
    expect("sinks", sinks, &[if has_sinks { q_heads } else { 0 }])?;
    // SAFETY: XLA's arrays have the sizes that it states, are dense and row-major (the default layout of a custom call) and live
    // for the call; results overlap nothing except the caches they are aliased with, which are used only through the results.
    let (q, k, v, sinks, out) = unsafe {
        (
            slice::<f32>("q", q)?,
            slice::<f32>("k", k)?,
            slice::<f32>("v", v)?,
            slice::<f32>("sinks", sinks)?,
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
            "{tokens} tokens from position {pos} on, where the cache holds {}",
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
        window: Some(window).filter(|window| *window != 0).map(Window::Sliding),
    };
    let devices = frame.integers("devices")?.len();
    let mut team = Team::new(frame, frame.integer("threads")?, devices)?;
    let isa = Isa::best();
    let writer = KvWriter::new(shape, keys, values);
    // SAFETY: the call has exclusive use of both buffers.
    unsafe { store(&mut team, isa, writer, [pos, tokens], k, v) };
    let cache = KvCache::new(shape, keys, values);
    let (group, sinks) = (q_heads / kv_heads, has_sinks.then_some(sinks));
    let ahead = Ahead::Nothing;
    let attend = Attend { isa, params, cache, group, sinks, bias: None, pos, tokens, ahead };
    with_floats(attend.partials(), |partials| attend.run(&mut team, q, out, partials));
    Ok(())
}

/// The number of query heads, and the shape of the cache.
fn heads(frame: Frame<'_>) -> Result<(usize, KvShape), Refusal> {
    let attribute = |name: &str| size(name, frame.integer(name)?);
    let (q_heads, kv_heads) = (attribute("q_heads")?, attribute("kv_heads")?);
    let shape = KvShape {
        kv_heads,
        k_dim: attribute("k_dim")?,
        v_dim: attribute("v_dim")?,
        capacity: attribute("capacity")?,
        shared: false,
        ty: KvType::F16,
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
    Ok((q_heads, shape))
}

/// A layer's part of a cache `[L, …]`, in the memory of the result.
///
/// # Safety
/// Both arrays are valid for `'a`, and are not used elsewhere.
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
