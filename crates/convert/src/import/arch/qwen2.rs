//! `Qwen2ForCausalLM`: Qwen 2 and 2.5. Queries, keys and values have biases.

use super::config::Config;
use super::describe::{
    Architecture, Defaults, Dimensions, Group, INPUT_BIASES, MATRICES, Own, TWO_NORMS,
};
use super::llama;
use super::window::{lost, window};
use crate::ConvertError;

pub(super) const QWEN2: Architecture = Architecture {
    gguf: "qwen2",
    classes: &["Qwen2ForCausalLM", "Qwen2Model"],
    model_types: &["qwen2"],
    defaults: Defaults {
        feed_forward: 22016,
        kv_heads: Some(32),
        context: 32768,
        ..llama::LLAMA.defaults
    },
    layer: &[Group::always(TWO_NORMS), Group::always(MATRICES), Group::always(INPUT_BIASES)],
    permuted: false,
    own_head_length: false,
    keys: |config, dimensions, own| keys("qwen2", config, dimensions, own),
    ..llama::LLAMA
};

/// Layers from `max_window_layers` on have a sliding window, if it is enabled.
pub(super) fn keys(
    gguf: &str,
    config: &Config,
    dimensions: &Dimensions,
    own: &mut Own,
) -> Result<(), ConvertError> {
    if config.flag("use_sliding_window")? {
        own.notes.extend(lost(window(config, Some(4096))?, dimensions.context, gguf));
    }
    Ok(())
}
