//! `Glm4MoeForCausalLM`: Zhipu's GLM-4.5, 4.6 and 4.7: a mixture of experts after leading dense layers, with routing as in
//! DeepSeek V3, and half of a head rotates.

use super::deepseek::{
    BIASED, CHOICE, DENSE, DENSE_PARTS, SHARED, SHARED_EXPERTS, SPARSE, leading_dense_with_bias,
    routing,
};
use super::describe::{
    ATTENTION, Architecture, Defaults, Group, HEAD_NORMS, INPUT_BIASES, Mixture, TWO_NORMS_RENAMED,
    either_experts_of,
};
use super::llama;

pub(super) const GLM4_MOE: Architecture = Architecture {
    gguf: "glm4moe",
    classes: &["Glm4MoeForCausalLM", "Glm4MoeModel"],
    model_types: &["glm4_moe"],
    defaults: Defaults {
        feed_forward: 10944,
        layers: 46,
        heads: 96,
        kv_heads: Some(8),
        head_length: Some(128),
        context: 131_072,
        eps: 1e-5,
        partial: Some(0.5),
        ..llama::LLAMA.defaults
    },
    layer: &[
        Group::always(TWO_NORMS_RENAMED),
        Group::always(ATTENTION),
        Group::if_said("attention_bias", INPUT_BIASES),
        Group::if_said("use_qk_norm", HEAD_NORMS),
        Group::of_layers(DENSE, DENSE_PARTS),
        either_experts_of(SPARSE)[0],
        either_experts_of(SPARSE)[1],
        Group::of_layers(BIASED, &[CHOICE]),
        Group::of_layers(SHARED, SHARED_EXPERTS),
    ],
    more: |config, dimensions| leading_dense_with_bias(config, dimensions, 1),
    experts: Some(Mixture {
        count: 128,
        used: ("num_experts_per_tok", 8),
        width: Some(("moe_intermediate_size", 1408)),
        shared: None,
        normed: None,
    }),
    permuted: false,
    keys: |config, _, own| routing(config, own, "sigmoid", true),
    ..llama::LLAMA
};
