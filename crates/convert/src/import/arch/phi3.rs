//! `Phi3ForCausalLM`: Microsoft's Phi-3 and Phi-4: queries, keys and values in one tensor, gate and up in another, in GGUF as
//! in the source. Models for long contexts have two lists of factors (longrope), which become tensors.

use super::config::{Config, whole};
use super::describe::{
    Architecture, Defaults, Dim, Dimensions, Group, Own, Part, TWO_NORMS, matrix,
};
use super::dimensions::MAX_CONTEXT;
use super::llama;
use super::window::window;
use crate::ConvertError;
use crate::import::tensor::Entry;

pub(super) const PHI3: Architecture = Architecture {
    gguf: "phi3",
    classes: &["Phi3ForCausalLM", "Phi3Model"],
    model_types: &["phi3"],
    defaults: Defaults {
        hidden: 3072,
        feed_forward: 8192,
        context: 4096,
        eps: 1e-5,
        partial: Some(1.0),
        scalings: &["longrope", "su"],
        ..llama::LLAMA.defaults
    },
    layer: &[Group::always(TWO_NORMS), Group::always(FUSED)],
    permuted: false,
    own_head_length: false,
    never: &["attention_bias"],
    keys,
    ..llama::LLAMA
};

const FUSED: &[Part] = &[
    matrix("self_attn.qkv_proj.weight", "attn_qkv.weight", Dim::Fused, Dim::Hidden),
    matrix("self_attn.o_proj.weight", "attn_output.weight", Dim::Hidden, Dim::Queries),
    matrix("mlp.gate_up_proj.weight", "ffn_up.weight", Dim::FusedUp, Dim::Hidden),
    matrix("mlp.down_proj.weight", "ffn_down.weight", Dim::Hidden, Dim::FeedForward),
];

fn keys(config: &Config, dimensions: &Dimensions, own: &mut Own) -> Result<(), ConvertError> {
    let key = "original_max_position_embeddings";
    let inner = config.object("rope_parameters")?.and_then(|parameters| parameters.get(key));
    let inner = inner.and_then(whole).filter(|original| (1..=MAX_CONTEXT).contains(original));
    let original = inner.or(config.count(key, MAX_CONTEXT)?).unwrap_or(dimensions.context);
    own.add("rope.scaling.original_context_length", Entry::U32(original as u32));
    // 0 means none.
    own.add("attention.sliding_window", Entry::U32(window(config, None)?.unwrap_or(0) as u32));
    Ok(())
}
