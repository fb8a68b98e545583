//! `SmolLM3ForCausalLM`: as Llama, but every fourth layer does not rotate its queries and keys.

use serde_json::Value;

use super::config::{Config, whole};
use super::describe::{Architecture, Defaults, Dimensions, Own};
use super::llama;
use crate::ConvertError;

/// Readers of GGUF assume it.
const PERIOD: u64 = 4;

pub(super) const SMOLLM3: Architecture = Architecture {
    gguf: "smollm3",
    classes: &["SmolLM3ForCausalLM", "SmolLM3Model"],
    model_types: &["smollm3"],
    defaults: Defaults {
        hidden: 2048,
        layers: 36,
        heads: 16,
        kv_heads: Some(4),
        context: 32768,
        theta: 2e6,
        tied: true,
        ..llama::LLAMA.defaults
    },
    never: &["use_sliding_window"],
    keys,
    ..llama::LLAMA
};

fn keys(config: &Config, dimensions: &Dimensions, own: &mut Own) -> Result<(), ConvertError> {
    if let Some(period) = config.count("no_rope_layer_interval", u64::MAX)?
        && period != PERIOD
    {
        return Err(config.wrong("no_rope_layer_interval", &period.into(), "4"));
    }
    // 1 if a layer rotates.
    let rotates = |layer: u64| u64::from(!(layer + 1).is_multiple_of(PERIOD));
    match config.get("no_rope_layers") {
        None => {}
        Some(Value::Array(listed))
            if listed.iter().map(whole).eq((0..dimensions.layers).map(|n| Some(rotates(n)))) => {}
        Some(other) => {
            let expected = "1, 1, 1, 0 over and over: GGUF has no key for other layers";
            return Err(config.wrong("no_rope_layers", other, expected));
        }
    }
    llama::keys(config, dimensions, own)
}
