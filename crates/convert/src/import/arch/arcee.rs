//! `ArceeForCausalLM`: Arcee's AFM: as Llama, with a feed-forward part without a gate, whose activation is the square of ReLU.

use super::deepseek::UNGATED;
use super::describe::{
    ATTENTION, Architecture, Defaults, Dim, Group, INPUT_BIASES, OUTPUT_BIAS, Part, TWO_NORMS,
    vector,
};
use super::llama;

pub(super) const ARCEE: Architecture = Architecture {
    gguf: "arcee",
    classes: &["ArceeForCausalLM", "ArceeModel"],
    model_types: &["arcee"],
    defaults: Defaults {
        hidden: 2560,
        feed_forward: 18432,
        context: 4096,
        eps: 1e-5,
        ..llama::LLAMA.defaults
    },
    activation: ("hidden_act", "relu2"),
    layer: &[
        Group::always(TWO_NORMS),
        Group::always(ATTENTION),
        Group::always(UNGATED),
        Group::if_said("attention_bias", INPUT_BIASES),
        Group::if_said("attention_bias", OUTPUT_BIAS),
        Group::if_said("mlp_bias", UNGATED_BIASES),
    ],
    ..llama::LLAMA
};

/// Biases of a feed-forward part without a gate.
pub(super) const UNGATED_BIASES: &[Part] = &[
    vector("mlp.up_proj.bias", "ffn_up.bias", Dim::FeedForward),
    vector("mlp.down_proj.bias", "ffn_down.bias", Dim::Hidden),
];
