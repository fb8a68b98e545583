//! `NemotronForCausalLM`: Nemotron-4 and Minitron: LayerNorm, whose weights GGUF has plus one; half of a head rotates; a feed-forward part without a gate,
//! whose activation is the square of ReLU.

use super::arcee::UNGATED_BIASES;
use super::config::Config;
use super::deepseek::UNGATED;
use super::describe::{
    ATTENTION, Architecture, Defaults, Dim, Dimensions, Group, INPUT_BIASES, LAYER_NORM,
    OUTPUT_BIAS, OUTPUT_NORM, Own, Part, TWO_NORMS, vector,
};
use super::llama;
use crate::ConvertError;
use crate::import::tensor::Entry;

pub(super) const NEMOTRON: Architecture = Architecture {
    gguf: "nemotron",
    classes: &["NemotronForCausalLM", "NemotronModel"],
    model_types: &["nemotron"],
    defaults: Defaults {
        hidden: 6144,
        feed_forward: 24576,
        heads: 48,
        context: 4096,
        eps: 1e-5,
        partial: Some(0.5),
        ..llama::LLAMA.defaults
    },
    activation: ("hidden_act", "relu2"),
    layer: &[
        Group::always(TWO_NORMS),
        Group::always(NORM_BIASES),
        Group::always(ATTENTION),
        Group::always(UNGATED),
        Group::if_said("attention_bias", INPUT_BIASES),
        Group::if_said("attention_bias", OUTPUT_BIAS),
        Group::if_said("mlp_bias", UNGATED_BIASES),
    ],
    outside: &[OUTPUT_NORM, OUTPUT_NORM_BIAS],
    permuted: false,
    norm_add: 1.0,
    eps_key: "norm_eps",
    norm: LAYER_NORM,
    keys,
    ..llama::LLAMA
};

/// Biases of the norms of inputs, and of the one before the output.
pub(super) const NORM_BIASES: &[Part] = &[
    vector("input_layernorm.bias", "attn_norm.bias", Dim::Hidden),
    vector("post_attention_layernorm.bias", "ffn_norm.bias", Dim::Hidden),
];
pub(super) const OUTPUT_NORM_BIAS: Part = vector("norm.bias", "output_norm.bias", Dim::Hidden);

fn keys(_: &Config, dimensions: &Dimensions, own: &mut Own) -> Result<(), ConvertError> {
    own.add("vocab_size", Entry::U32(dimensions.vocab as u32));
    if own.keys.iter().all(|(key, _)| *key != "rope.scaling.type") {
        own.add("rope.scaling.type", Entry::Str("none".into()));
    }
    Ok(())
}
