//! `gemma3`: norms on both sides of attention and feed-forward, normed queries and keys, a scaled
//! embedding, GELU gate, the two halves of a head rotate together, and local layers (five of six)
//! with a sliding window and a rotary base of their own.

use alight_formats::gguf::Value;
use alight_kernels::rope::{RopePairing, RopeParams, RopeScaling};

use crate::config::{Config, Gate, Keys, Local};
use crate::error::ConfigError;

/// Every sixth layer is global unless the file says otherwise.
const PERIOD: usize = 6;
/// Rotary base of the local layers unless the file says otherwise.
const LOCAL_BASE: f32 = 10_000.0;
/// The one size (27B) whose attention scale does not follow from the head's length.
const LAYERS_OF_27B: usize = 62;

pub(super) fn configure(config: Config, keys: &Keys<'_, '_>) -> Result<Config, ConfigError> {
    let cap = |key| {
        Ok::<_, ConfigError>(
            keys.float(key, 0.0..1e9, "a number that is not negative")?.filter(|cap| *cap > 0.0),
        )
    };
    let attention_scale = if config.layers == LAYERS_OF_27B {
        1.0 / ((config.embedding / config.heads) as f32).sqrt()
    } else {
        config.attention_scale
    };
    Ok(Config {
        local: local(&config, keys)?,
        rope_pairing: RopePairing::Halves,
        embedding_scale: (config.embedding as f32).sqrt(),
        attention_scale,
        attention_softcap: cap("attn_logit_softcapping")?,
        logit_softcap: cap("final_logit_softcapping")?,
        gate: Gate::GeluTanh,
        qk_norm: true,
        post_norms: true,
        ..config
    })
}

/// The local layers: none if there is no window (0 means none too).
fn local(config: &Config, keys: &Keys<'_, '_>) -> Result<Option<Local>, ConfigError> {
    let key = "attention.sliding_window";
    let window = match keys.get::<u64>(key)? {
        None | Some(0) => return Ok(None),
        // A window beyond any context is no window, but keeps the layers local.
        Some(window) => usize::try_from(window).unwrap_or(usize::MAX).min(1 << 30),
    };
    let base = keys.float("rope.freq_base_swa", 1.0..1e30, "from 1 to 1e30")?;
    Ok(Some(Local {
        window,
        rope: RopeParams {
            dims: config.rope.dims,
            base: base.unwrap_or(LOCAL_BASE),
            scaling: RopeScaling::None,
        },
        layers: pattern(config.layers, keys)?,
    }))
}

/// Which layers are local: the file's list of flags, or its period (0: all layers).
fn pattern(layers: usize, keys: &Keys<'_, '_>) -> Result<Vec<bool>, ConfigError> {
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
        Some(_) => keys.get::<u32>(key)?.map_or(PERIOD, |period| period as usize),
        None => PERIOD,
    };
    Ok((0..layers).map(|layer| period == 0 || layer % period < period - 1).collect())
}
