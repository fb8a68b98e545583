//! `Starcoder2ForCausalLM`: LayerNorm and biases everywhere, and a feed-forward part without a gate, whose activation is GELU.

use super::describe::{
    ATTENTION, Architecture, Defaults, Dim, Group, INPUT_BIASES, LAYER_NORM, OUTPUT_BIAS,
    OUTPUT_NORM, Part, TWO_NORMS, matrix, vector,
};
use super::llama;
use super::nemotron::{NORM_BIASES, OUTPUT_NORM_BIAS};
use super::window::{lost, window};

pub(super) const STARCODER2: Architecture = Architecture {
    gguf: "starcoder2",
    classes: &["Starcoder2ForCausalLM", "Starcoder2Model"],
    model_types: &["starcoder2"],
    defaults: Defaults {
        hidden: 3072,
        feed_forward: 12288,
        layers: 30,
        heads: 24,
        kv_heads: Some(2),
        context: 4096,
        eps: 1e-5,
        tied: true,
        ..llama::LLAMA.defaults
    },
    activation: ("hidden_act", "gelu_pytorch_tanh"),
    layer: &[
        Group::always(TWO_NORMS),
        Group::always(NORM_BIASES),
        Group::always(ATTENTION),
        Group::always(INPUT_BIASES),
        Group::always(OUTPUT_BIAS),
        Group::always(FEED_FORWARD),
    ],
    outside: &[OUTPUT_NORM, OUTPUT_NORM_BIAS],
    permuted: false,
    own_head_length: false,
    eps_key: "norm_epsilon",
    norm: LAYER_NORM,
    keys: |config, dimensions, own| {
        own.notes.extend(lost(window(config, None)?, dimensions.context, "starcoder2"));
        Ok(())
    },
    ..llama::LLAMA
};

const FEED_FORWARD: &[Part] = &[
    matrix("mlp.c_fc.weight", "ffn_up.weight", Dim::FeedForward, Dim::Hidden),
    vector("mlp.c_fc.bias", "ffn_up.bias", Dim::FeedForward),
    matrix("mlp.c_proj.weight", "ffn_down.weight", Dim::Hidden, Dim::FeedForward),
    vector("mlp.c_proj.bias", "ffn_down.bias", Dim::Hidden),
];
