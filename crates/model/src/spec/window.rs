//! The sliding windows that the keys of an architecture describe.

use alight_formats::gguf::Value;

use alight_kernels::rope::{RopeParams, RopeScaling};

use super::rope::rotated;
use super::{ModelSpec, SpecError};
use crate::keys::Keys;

/// Returns the width of the sliding window, `default` if the file does not state it; 0 means none.
///
/// # Errors
/// A value that is not a width.
pub(crate) fn window(keys: &Keys<'_, '_>, default: usize) -> Result<Option<usize>, SpecError> {
    let window = match keys.get::<u64>("attention.sliding_window")? {
        None => default,
        // A window beyond any context is no window, but keeps the layers' rotary embedding.
        Some(window) => usize::try_from(window).unwrap_or(usize::MAX).min(1 << 30),
    };
    Ok(Some(window).filter(|window| *window > 0))
}

/// Gives the attention of the layers flagged in `windowed` the window and the rotary embedding `rope`, which becomes the model's
/// last.
pub(crate) fn set_windows(
    spec: &mut ModelSpec,
    window: usize,
    windowed: &[bool],
    rope: RopeParams,
) {
    spec.ropes.push(rope);
    let last = spec.ropes.len() - 1;
    for (attention, _) in spec.attention_layers_mut().zip(windowed).filter(|(_, has)| **has) {
        attention.mask = attention.mask.with_window(Some(window));
        attention.rope = Some(last);
    }
}

/// Gives the layers flagged in `windowed` the window that the file states, if it states one, and a rotary embedding without scaling,
/// which then applies only to the other layers. Base and number of rotated elements are those of the other layers, or keys.
///
/// # Errors
/// A width, base or number that no model can have.
pub(crate) fn set_unscaled_windows(
    spec: &mut ModelSpec,
    keys: &Keys<'_, '_>,
    windowed: &[bool],
) -> Result<(), SpecError> {
    let Some(window) = window(keys, 0)? else { return Ok(()) };
    let base = keys.float("rope.freq_base_swa", 1.0..1e30, "from 1 to 1e30")?;
    let key_dim = spec.attention_layers().map(|attention| attention.key_dim).min().unwrap_or(0);
    let dims = rotated(keys, "rope.dimension_count_swa", key_dim)?;
    let others = &spec.ropes[0];
    let rope = RopeParams {
        dims: dims.unwrap_or(others.dims),
        base: base.unwrap_or(others.base),
        scaling: RopeScaling::None,
    };
    set_windows(spec, window, windowed, rope);
    Ok(())
}

/// Gives all but the last layer of each period the window, `default` wide if the file does not state it, and takes the rotary
/// embedding from the other layers. Without a window, all layers stay as they are.
///
/// # Errors
/// A width or list of flags that no model can have.
pub(crate) fn rotate_only_windows(
    spec: &mut ModelSpec,
    keys: &Keys<'_, '_>,
    default: usize,
    period: usize,
) -> Result<(), SpecError> {
    let Some(window) = window(keys, default)? else { return Ok(()) };
    let windowed = windowed_layers(keys, spec.layers.len(), period)?;
    for (attention, windowed) in spec.attention_layers_mut().zip(windowed) {
        attention.mask = attention.mask.with_window(windowed.then_some(window));
        attention.rope = attention.rope.filter(|_| windowed);
    }
    Ok(())
}

/// Returns a flag for each layer, true if it has a sliding window: the file's list of flags, or all but the last layer of each
/// period (0: all layers).
///
/// # Errors
/// A list that does not have one flag per layer.
pub(crate) fn windowed_layers(
    keys: &Keys<'_, '_>,
    layers: usize,
    period: usize,
) -> Result<Vec<bool>, SpecError> {
    let all_but_one = |layer: usize, period: usize| layer % period < period - 1;
    windowed_by(keys, layers, period, all_but_one)
}

/// As [`windowed_layers`], where all but the first layer of each period have a window.
///
/// # Errors
/// A list that does not have one flag per layer.
pub(crate) fn windowed_after_first(
    keys: &Keys<'_, '_>,
    layers: usize,
    period: usize,
) -> Result<Vec<bool>, SpecError> {
    windowed_by(keys, layers, period, |layer, period| layer % period > 0)
}

/// Returns a flag for each layer: the file's, or `windowed(layer, period)`.
fn windowed_by(
    keys: &Keys<'_, '_>,
    layers: usize,
    period: usize,
    windowed: impl Fn(usize, usize) -> bool,
) -> Result<Vec<bool>, SpecError> {
    let key = "attention.sliding_window_pattern";
    let period = match keys.find(key) {
        Some(Value::Array(array)) => return keys.flags(key, array, layers),
        Some(_) => keys.get::<u32>(key)?.map_or(period, |period| period as usize),
        None => period,
    };
    Ok((0..layers).map(|layer| period == 0 || windowed(layer, period)).collect())
}
