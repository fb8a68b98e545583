//! `OlmoeForCausalLM`: OLMoE: a mixture of experts in every layer, each as wide as a dense layer would be; queries, and keys, are normed over all heads
//! together.

use super::describe::{
    ATTENTION, Architecture, Defaults, EITHER_EXPERTS, Group, Mixture, TWO_NORMS,
};
use super::llama;
use super::minimax_m2::NORMS;

pub(super) const OLMOE: Architecture = Architecture {
    gguf: "olmoe",
    classes: &["OlmoeForCausalLM", "OlmoeModel"],
    model_types: &["olmoe"],
    defaults: Defaults {
        hidden: 2048,
        feed_forward: 2048,
        layers: 16,
        heads: 16,
        context: 4096,
        eps: 1e-5,
        ..llama::LLAMA.defaults
    },
    layer: &[
        Group::always(TWO_NORMS),
        Group::always(ATTENTION),
        Group::always(NORMS),
        EITHER_EXPERTS[0],
        EITHER_EXPERTS[1],
    ],
    experts: Some(Mixture {
        count: 64,
        used: ("num_experts_per_tok", 8),
        width: None,
        shared: None,
        normed: Some((false, false)),
    }),
    permuted: false,
    own_head_length: false,
    never: &["attention_bias"],
    keys: |config, _, _| match config.get("clip_qkv") {
        None => Ok(()),
        Some(clip) => Err(config.wrong("clip_qkv", clip, "null: olmoe clips nothing in GGUF")),
    },
    ..llama::LLAMA
};
