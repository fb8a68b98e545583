//! What the Gemmas have in common: norms on both sides of attention and feed-forward, a scaled
//! embedding, GELU gate, the two halves of a head rotate together, soft caps, and local layers
//! with a sliding window between the global ones.

use alight_formats::gguf::Value;
use alight_kernels::rope::RopePairing;

use crate::config::{Config, Gate, Keys};
use crate::error::ConfigError;

/// `layers_of_27b` tells the one size whose scale of q·k follows from the width of the model and
/// not from the head's length. No key says so: llama.cpp goes by the number of layers too.
pub(super) fn common(config: Config, layers_of_27b: usize) -> Config {
    let attention_scale = if config.layers == layers_of_27b {
        1.0 / ((config.embedding / config.heads) as f32).sqrt()
    } else {
        config.attention_scale
    };
    Config {
        rope_pairing: RopePairing::Halves,
        embedding_scale: (config.embedding as f32).sqrt(),
        attention_scale,
        gate: Gate::GeluTanh,
        post_norms: true,
        ..config
    }
}

/// A soft cap; 0 is none.
pub(super) fn cap(
    keys: &Keys<'_, '_>,
    key: &str,
    unless_said: f32,
) -> Result<Option<f32>, ConfigError> {
    let cap = keys.float(key, 0.0..1e9, "a number that is not negative")?.unwrap_or(unless_said);
    Ok(Some(cap).filter(|cap| *cap > 0.0))
}

/// The window of the local layers; 0 is none.
pub(super) fn window(
    keys: &Keys<'_, '_>,
    unless_said: usize,
) -> Result<Option<usize>, ConfigError> {
    let window = match keys.get::<u64>("attention.sliding_window")? {
        None => unless_said,
        // A window beyond any context is no window, but keeps the layers local.
        Some(window) => usize::try_from(window).unwrap_or(usize::MAX).min(1 << 30),
    };
    Ok(Some(window).filter(|window| *window > 0))
}

/// The rotary base of the local layers.
pub(super) fn local_base(keys: &Keys<'_, '_>, unless_said: f32) -> Result<f32, ConfigError> {
    let base = keys.float("rope.freq_base_swa", 1.0..1e30, "from 1 to 1e30")?;
    Ok(base.unwrap_or(unless_said))
}

/// Which layers are local: the file's list of flags, or all but the last of its period (0: all
/// layers).
pub(super) fn pattern(
    keys: &Keys<'_, '_>,
    layers: usize,
    unless_said: usize,
) -> Result<Vec<bool>, ConfigError> {
    let key = "attention.sliding_window_pattern";
    let period = match keys.gguf.get(&keys.name(key)) {
        Some(Value::Array(array)) => {
            let flags: Vec<bool> = match (array.iter_bool(), array.iter_int()) {
                (Some(flags), _) => flags.collect(),
                (_, Some(numbers)) => numbers.map(|number| number != 0).collect(),
                _ => Vec::new(),
            };
            if flags.len() < layers {
                let found = format!("an array of {} flags", flags.len());
                return Err(keys.value(key, found, format!("{layers}, one per layer")));
            }
            return Ok(flags[..layers].to_vec());
        }
        Some(_) => keys.get::<u32>(key)?.map_or(unless_said, |period| period as usize),
        None => unless_said,
    };
    Ok((0..layers).map(|layer| period == 0 || layer % period < period - 1).collect())
}
