//! `GraniteForCausalLM`: IBM's dense Granite 3 and 4 models: as Llama, with four scales.

use super::config::Config;
use super::describe::{Architecture, Dimensions, Own};
use super::llama;
use crate::ConvertError;
use crate::import::tensor::Entry;

pub(super) const GRANITE: Architecture = Architecture {
    gguf: "granite",
    classes: &["GraniteForCausalLM", "GraniteModel"],
    model_types: &["granite"],
    keys,
    ..llama::LLAMA
};

/// The scales, each 1 by default.
const SCALES: [(&str, &str); 4] = [
    ("attention_multiplier", "attention.scale"),
    ("embedding_multiplier", "embedding_scale"),
    ("residual_multiplier", "residual_scale"),
    ("logits_scaling", "logit_scale"),
];

pub(super) fn keys(
    config: &Config,
    dimensions: &Dimensions,
    own: &mut Own,
) -> Result<(), ConvertError> {
    llama::keys(config, dimensions, own)?;
    for (source, gguf) in SCALES {
        let scale = config.number(source, 1e-9..1e9)?.unwrap_or(1.0);
        own.add(gguf, Entry::F32(scale as f32));
    }
    Ok(())
}
