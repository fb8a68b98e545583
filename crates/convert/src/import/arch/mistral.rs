//! `MistralForCausalLM`: `llama` in GGUF, which has no sliding window.

use super::config::Config;
use super::describe::{Architecture, Defaults, Dimensions, Group, MATRICES, Own, TWO_NORMS};
use super::llama;
use super::window::{lost, window};
use crate::ConvertError;

pub(super) const MISTRAL: Architecture = Architecture {
    gguf: "llama",
    classes: &["MistralForCausalLM", "MistralModel"],
    model_types: &["mistral"],
    defaults: Defaults {
        feed_forward: 14336,
        kv_heads: Some(8),
        context: 131_072,
        ..llama::LLAMA.defaults
    },
    layer: &[Group::always(TWO_NORMS), Group::always(MATRICES)],
    keys,
    ..llama::LLAMA
};

fn keys(config: &Config, dimensions: &Dimensions, own: &mut Own) -> Result<(), ConvertError> {
    own.notes.extend(lost(window(config, Some(4096))?, dimensions.context, "llama"));
    llama::keys(config, dimensions, own)
}
