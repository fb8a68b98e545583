//! `Dots1ForCausalLM`: rednote's dots.llm1: a mixture of experts after leading dense layers, with routing as in DeepSeek V3, and norms of each head.

use super::deepseek::{
    BIASED, CHOICE, DENSE, DENSE_PARTS, SHARED, SHARED_EXPERTS, SPARSE, leading_dense_with_bias,
    routing,
};
use super::describe::{
    ATTENTION, Architecture, Defaults, Group, HEAD_NORMS, INPUT_BIASES, Mixture, TWO_NORMS,
    either_experts_of,
};
use super::llama;
use super::window::{lost, window};

pub(super) const DOTS1: Architecture = Architecture {
    gguf: "dots1",
    classes: &["Dots1ForCausalLM", "Dots1Model"],
    model_types: &["dots1"],
    defaults: Defaults {
        hidden: 4608,
        feed_forward: 10944,
        layers: 62,
        kv_heads: Some(32),
        context: 2048,
        ..llama::LLAMA.defaults
    },
    layer: &[
        Group::always(TWO_NORMS),
        Group::always(ATTENTION),
        Group::if_said("attention_bias", INPUT_BIASES),
        Group::always(HEAD_NORMS),
        Group::of_layers(DENSE, DENSE_PARTS),
        either_experts_of(SPARSE)[0],
        either_experts_of(SPARSE)[1],
        Group::of_layers(BIASED, &[CHOICE]),
        Group::of_layers(SHARED, SHARED_EXPERTS),
    ],
    more: |config, dimensions| leading_dense_with_bias(config, dimensions, 0),
    experts: Some(Mixture {
        count: 128,
        used: ("num_experts_per_tok", 6),
        width: Some(("moe_intermediate_size", 1408)),
        shared: None,
        normed: None,
    }),
    permuted: false,
    keys: |config, dimensions, own| {
        let slides =
            config.get("layer_types").is_some_and(|types| types.to_string().contains("sliding"));
        let window = window(config, Some(4096))?.filter(|_| slides);
        own.notes.extend(lost(window, dimensions.context, "dots1"));
        routing(config, own, "sigmoid", false)
    },
    ..llama::LLAMA
};
