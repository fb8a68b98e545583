//! `StableLmForCausalLM`: StableLM 2 1.6B and StableLM 3B: LayerNorm, and a quarter of a head rotates. (The 12B, with a norm of each head and parts of a layer
//! that have the same input, is refused.)

use super::describe::{
    Architecture, Defaults, Group, INPUT_BIASES, LAYER_NORM, MATRICES, OUTPUT_NORM, TWO_NORMS,
};
use super::llama;
use super::nemotron::{NORM_BIASES, OUTPUT_NORM_BIAS};
use crate::import::tensor::Entry;

pub(super) const STABLELM: Architecture = Architecture {
    gguf: "stablelm",
    classes: &["StableLmForCausalLM", "StableLMEpochForCausalLM", "StableLmModel"],
    model_types: &["stablelm", "stablelm_epoch"],
    defaults: Defaults {
        hidden: 2560,
        feed_forward: 6912,
        context: 4096,
        eps: 1e-5,
        partial: Some(0.25),
        ..llama::LLAMA.defaults
    },
    layer: &[
        Group::always(TWO_NORMS),
        Group::always(NORM_BIASES),
        Group::always(MATRICES),
        Group::if_said("use_qkv_bias", INPUT_BIASES),
    ],
    outside: &[OUTPUT_NORM, OUTPUT_NORM_BIAS],
    permuted: false,
    own_head_length: false,
    eps_key: "layer_norm_eps",
    norm: LAYER_NORM,
    never: &["qk_layernorm", "use_parallel_residual"],
    keys: |_, _, own| {
        own.add("use_parallel_residual", Entry::Bool(false));
        Ok(())
    },
    ..llama::LLAMA
};
