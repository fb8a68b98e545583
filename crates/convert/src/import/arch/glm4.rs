//! `Glm4ForCausalLM`: Zhipu's dense GLM-4-0414 models: norms before and after both parts, half of a head rotates, gate and up
//! are one tensor.

use super::describe::{
    ATTENTION, Architecture, Defaults, Dim, Group, INPUT_BIASES, Part, matrix, norm,
};
use super::llama;

pub(super) const GLM4: Architecture = Architecture {
    gguf: "glm4",
    classes: &["Glm4ForCausalLM", "Glm4Model"],
    model_types: &["glm4"],
    defaults: Defaults {
        feed_forward: 13696,
        layers: 40,
        kv_heads: Some(2),
        head_length: Some(128),
        context: 131_072,
        eps: 1.5625e-7,
        partial: Some(0.5),
        ..llama::LLAMA.defaults
    },
    layer: &[
        Group::always(NORMS),
        Group::always(ATTENTION),
        Group::always(FUSED),
        Group::if_said("attention_bias", INPUT_BIASES),
    ],
    permuted: false,
    keys: |_, _, _| Ok(()),
    ..llama::LLAMA
};

const NORMS: &[Part] = &[
    norm("input_layernorm.weight", "attn_norm.weight", Dim::Hidden),
    norm("post_self_attn_layernorm.weight", "post_attention_norm.weight", Dim::Hidden),
    norm("post_attention_layernorm.weight", "ffn_norm.weight", Dim::Hidden),
    norm("post_mlp_layernorm.weight", "post_ffw_norm.weight", Dim::Hidden),
];

const FUSED: &[Part] = &[
    matrix("mlp.gate_up_proj.weight", "ffn_up.weight", Dim::FusedUp, Dim::Hidden),
    matrix("mlp.down_proj.weight", "ffn_down.weight", Dim::Hidden, Dim::FeedForward),
];
