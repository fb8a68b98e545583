//! `LlamaForCausalLM`: Llama 1, 2 and 3, SmolLM2, and all others of the same form. Hugging Face has
//! the rows of queries and keys in halves, GGUF's `llama` in pairs.

use super::config::Config;
use super::describe::{
    Architecture, Defaults, Dimensions, Group, INPUT_BIASES, MATRICES, MLP_BIASES, More,
    OUTPUT_BIAS, OUTPUT_NORM, Own, RMS, TWO_NORMS, USUAL,
};
use crate::ConvertError;
use crate::import::tensor::Entry;

pub(super) const LLAMA: Architecture = Architecture {
    gguf: "llama",
    classes: &["LlamaForCausalLM", "LLaMAForCausalLM", "LlamaModel"],
    model_types: &["llama"],
    fits: |_| true,
    naming: USUAL,
    defaults: Defaults {
        hidden: 4096,
        feed_forward: 11008,
        layers: 32,
        heads: 32,
        kv_heads: None,
        head_length: None,
        context: 2048,
        eps: 1e-6,
        theta: 10_000.0,
        local_theta: None,
        tied: false,
        partial: None,
        scalings: &[],
    },
    activation: ("hidden_act", "silu"),
    layer: &[
        Group::always(TWO_NORMS),
        Group::always(MATRICES),
        Group::if_said("attention_bias", INPUT_BIASES),
        Group::if_said("attention_bias", OUTPUT_BIAS),
        Group::if_said("mlp_bias", MLP_BIASES),
    ],
    outside: &[OUTPUT_NORM],
    more: |_, _| Ok(More::default()),
    experts: None,
    quantised: None,
    permuted: true,
    norm_add: 0.0,
    own_head_length: true,
    latent: false,
    eps_key: "rms_norm_eps",
    norm: RMS,
    own_output: true,
    never: &[],
    others: &[],
    keys,
};

/// The keys that only GGUF's `llama` has.
pub(super) fn keys(
    _config: &Config,
    dimensions: &Dimensions,
    own: &mut Own,
) -> Result<(), ConvertError> {
    // The limits of both are far lower.
    own.add("vocab_size", Entry::U32(dimensions.vocab as u32));
    own.add("rope.dimension_count", Entry::U32(dimensions.head as u32));
    Ok(())
}
