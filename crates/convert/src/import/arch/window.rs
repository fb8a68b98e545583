//! Layers with a sliding window.

use serde_json::Value;

use super::config::{Config, shown};
use super::describe::Own;
use super::dimensions::MAX_CONTEXT;
use crate::ConvertError;
use crate::import::tensor::Entry;

/// The default properties of an architecture's local layers.
pub(super) struct Local {
    pub(super) default_window: u64,
    /// The last of every `period` layers is global. Readers of GGUF assume it.
    pub(super) period: u64,
    /// The key that overrides it.
    pub(super) key_of_period: Option<&'static str>,
}

/// Returns the window; `null` means none.
pub(super) fn window(config: &Config, default: Option<u64>) -> Result<Option<u64>, ConvertError> {
    match config.raw("sliding_window") {
        None => Ok(default),
        Some(_) => config.count("sliding_window", MAX_CONTEXT),
    }
}

/// Returns a note if GGUF has no key for a window.
pub(super) fn lost(window: Option<u64>, context: u64, gguf: &str) -> Option<String> {
    let window = window.filter(|window| *window < context)?;
    Some(format!(
        "the sliding window of {window} tokens is left out, as {gguf} has none in GGUF: beyond \
         {window} tokens answers differ from the original's"
    ))
}

/// Writes the window, and the list of layers that have it if it differs from the readers' default.
pub(super) fn write(
    config: &Config,
    layers: u64,
    local: &Local,
    own: &mut Own,
) -> Result<(), ConvertError> {
    let Some(window) = window(config, Some(local.default_window))? else {
        if local.key_of_period.is_some() {
            return Ok(());
        }
        let expected =
            "a number: readers of GGUF take this architecture's local layers for granted";
        return Err(config.wrong("sliding_window", &Value::Null, expected));
    };
    let pattern = pattern(config, layers, local)?;
    if !pattern.contains(&true) && local.key_of_period.is_some() {
        return Ok(());
    }
    own.add("attention.sliding_window", Entry::U32(window as u32));
    if pattern != periodic(layers, local.period) {
        own.add("attention.sliding_window_pattern", Entry::Bools(pattern));
    }
    Ok(())
}

/// Returns for each layer whether it is local: from a list of types, a period, or by default.
fn pattern(config: &Config, layers: u64, local: &Local) -> Result<Vec<bool>, ConvertError> {
    if let Some(value) = config.get("layer_types") {
        let types = value.as_array().filter(|types| types.len() as u64 == layers);
        let Some(types) = types else {
            let expected = format!("an array of {layers} types, one for each layer");
            return Err(config.wrong("layer_types", value, &expected));
        };
        let known = |ty: &Value| match ty.as_str() {
            Some("sliding_attention") => Ok(true),
            Some("full_attention") => Ok(false),
            _ => Err(config.error(format!(
                "layer_types has {}, expected \"sliding_attention\" or \"full_attention\"",
                shown(ty)
            ))),
        };
        return types.iter().map(known).collect();
    }
    // Some versions of transformers wrote it with an underscore.
    let period = match local.key_of_period {
        Some(key) => {
            config.count(key, MAX_CONTEXT)?.or(config.count(&format!("_{key}"), MAX_CONTEXT)?)
        }
        None => None,
    };
    Ok(periodic(layers, period.unwrap_or(local.period)))
}

/// The last of every `period` layers is global.
fn periodic(layers: u64, period: u64) -> Vec<bool> {
    (1..=layers).map(|layer| layer % period != 0).collect()
}
