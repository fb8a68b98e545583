//! The rotary embedding that the keys of an architecture describe.

use alight_kernels::rope::{RopeParams, RopeScaling, yarn_magnitude};

use super::{LongContext, SpecError};
use crate::keys::{Keys, MAX_CONTEXT, MAX_WIDTH};

/// The rotary embedding of heads of `key_dim` elements in a model that was trained for `context` positions.
///
/// # Errors
/// A value that cannot be computed with, or a scaling that is not implemented.
pub(crate) fn rope(
    keys: &Keys<'_, '_>,
    key_dim: usize,
    context: usize,
) -> Result<RopeParams, SpecError> {
    rope_with(keys, key_dim, context, magnitude)
}

/// The number of elements of a head of `key_dim` that are rotated, if `key` states it.
///
/// # Errors
/// An odd number, or more than a head has.
pub(crate) fn rotated(
    keys: &Keys<'_, '_>,
    key: &str,
    key_dim: usize,
) -> Result<Option<usize>, SpecError> {
    let dims = keys.optional_dimension(key, MAX_WIDTH)?;
    match dims.filter(|dims| *dims > key_dim || !dims.is_multiple_of(2)) {
        Some(dims) => {
            Err(keys.value(key, dims, format!("an even number up to the head's {key_dim}")))
        }
        None => Ok(dims),
    }
}

/// The key of the share of YaRN's magnitude that is in the scale of attention.
pub(crate) const LOG_MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";

/// Keys that apply to YaRN alone.
const OF_YARN: [&str; 4] = [
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    LOG_MULTIPLIER,
];

/// YaRN's magnitude for a context stretched by `factor`, with `multiplier` on the logarithm.
pub(crate) fn magnitude(multiplier: f32, factor: f32) -> f32 {
    1.0 + 0.1 * multiplier * libm::logf(factor).max(0.0)
}

/// As [`rope`], where `counted(multiplier, factor)` is the part of YaRN's magnitude that the model's makers have put into the
/// scale of attention.
///
/// # Errors
/// As [`rope`].
pub(crate) fn rope_with(
    keys: &Keys<'_, '_>,
    key_dim: usize,
    context: usize,
    counted: impl Fn(f32, f32) -> f32,
) -> Result<RopeParams, SpecError> {
    let dims = rotated(keys, "rope.dimension_count", key_dim)?;
    let dims = match dims {
        Some(dims) => dims,
        None if key_dim.is_multiple_of(2) => key_dim,
        None => {
            return Err(keys.value("attention.key_length", key_dim, "an even number".into()));
        }
    };
    let positive = |key, range| keys.float(key, range, "a positive number");
    let base = keys.float("rope.freq_base", 1.0..1e30, "from 1 to 1e30")?.unwrap_or(10_000.0);
    // 0 stands for no scaling: some converters write it.
    let factor = |key| match keys.get::<f32>(key)? {
        Some(0.0) => Ok(Some(1.0)),
        _ => positive(key, 1e-6..1e9),
    };
    let older = "rope.scale_linear";
    let factor = match factor("rope.scaling.factor")? {
        Some(factor) => {
            keys.do_not_apply(&[older]);
            Some(factor)
        }
        None => factor(older)?,
    }
    .unwrap_or(1.0);
    let key = "rope.scaling.type";
    let kind = keys.get::<&str>(key)?.unwrap_or("linear");
    if kind != "yarn" {
        keys.do_not_apply(&OF_YARN);
    }
    let scaling = match kind {
        // The factors are tensors.
        "none" | "longrope" => RopeScaling::None,
        "linear" if factor == 1.0 => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor },
        "yarn" => {
            let original = "rope.scaling.original_context_length";
            let blended = "rope.scaling.yarn_ext_factor";
            if let Some(other) = keys.get::<f32>(blended)?.filter(|share| *share != 1.0) {
                return Err(keys.unsupported(blended, other, "a share other than 1"));
            }
            if base <= 1.0 {
                return Err(keys.value("rope.freq_base", base, "above 1 for YaRN".into()));
            }
            // Either a factor on YaRN's own magnitude, or the magnitude itself (Hugging Face's `attention_factor`, which
            // llama.cpp writes and does not read).
            let attn_factor = match positive("rope.scaling.yarn_attn_factor", 1e-6..1e6)? {
                Some(magnitude) => magnitude / yarn_magnitude(f64::from(factor)) as f32,
                None => positive("rope.scaling.attn_factor", 1e-6..1e6)?.unwrap_or(1.0),
            };
            let expected = "a number that is not negative";
            let multiplier = keys.float(LOG_MULTIPLIER, 0.0..1e6, expected)?.unwrap_or(0.0);
            let attn_factor = attn_factor / counted(multiplier, factor);
            RopeScaling::Yarn {
                factor,
                orig_ctx: keys.optional_dimension(original, MAX_CONTEXT)?.unwrap_or(context),
                ext_factor: 1.0,
                attn_factor,
                beta_fast: positive("rope.scaling.yarn_beta_fast", 1e-6..1e6)?.unwrap_or(32.0),
                beta_slow: positive("rope.scaling.yarn_beta_slow", 1e-6..1e6)?.unwrap_or(1.0),
            }
        }
        other => return Err(keys.unsupported(key, other, "this RoPE scaling")),
    };
    Ok(RopeParams { dims, base, scaling })
}

/// The keys of LongRoPE, for a model that was trained for `context` positions; its factors are tensors.
///
/// # Errors
/// A value that cannot be computed with.
pub(crate) fn long_context(keys: &Keys<'_, '_>, context: usize) -> Result<LongContext, SpecError> {
    let original = "rope.scaling.original_context_length";
    let magnitude = keys.float("rope.scaling.attn_factor", 1e-6..1e6, "a positive number")?;
    Ok(LongContext {
        original: keys.optional_dimension(original, MAX_CONTEXT)?.unwrap_or(context),
        magnitude: magnitude.unwrap_or(1.0),
        announced: keys.get::<&str>("rope.scaling.type")? == Some("longrope"),
        rope: None,
    })
}
