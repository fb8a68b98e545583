//! `Gemma3ForCausalLM`, and the text part of `Gemma3ForConditionalGeneration`: as Gemma 2 without
//! soft caps, with normed queries and keys, and sliding-window layers with their own rotary base.
//!
//! EmbeddingGemma is the same network without a causal mask. Its window is that of both sides together, which `transformers` halves
//! where it reads it.

use serde_json::Value;

use super::config::Config;
use super::describe::{
    Architecture, Defaults, Dimensions, FOUR_NORMS, Group, HEAD_NORMS, MATRICES, Own,
};
use super::gemma2::{self, cap, scale};
use super::window::{Local, write};
use crate::ConvertError;
use crate::import::tensor::Entry;

/// As in Gemma 2.
const LAYERS_OF_27B: u64 = 62;
const PICTURES: &str = "belongs to the part that sees pictures";

pub(super) const GEMMA3: Architecture = Architecture {
    gguf: "gemma3",
    classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    model_types: &["gemma3", "gemma3_text"],
    defaults: Defaults {
        context: 131_072,
        theta: 1_000_000.0,
        local_theta: Some(10_000.0),
        ..gemma2::GEMMA2.defaults
    },
    layer: &[Group::always(FOUR_NORMS), Group::always(MATRICES), Group::always(HEAD_NORMS)],
    own_output: true,
    others: &[
        ("vision_tower.", PICTURES),
        ("multi_modal_projector.", PICTURES),
        ("model.vision_tower.", PICTURES),
        ("model.multi_modal_projector.", PICTURES),
    ],
    keys,
    ..gemma2::GEMMA2
};

/// EmbeddingGemma.
pub(super) const EMBEDDING: Architecture = Architecture {
    gguf: "gemma-embedding",
    classes: &["Gemma3TextModel"],
    model_types: GEMMA3.model_types,
    never: &["attention_bias"],
    fits: |config| config.get("use_bidirectional_attention") == Some(&Value::Bool(true)),
    keys: |config, dimensions, own| {
        own.add("attention.causal", Entry::Bool(false));
        keys(config, dimensions, own)
    },
    ..GEMMA3
};

fn keys(config: &Config, dimensions: &Dimensions, own: &mut Own) -> Result<(), ConvertError> {
    scale(config, dimensions, LAYERS_OF_27B)?;
    let key = "attn_logit_softcapping";
    if let (Some(value), Some(_)) = (config.get(key), cap(config, key, None)?) {
        return Err(config.wrong(key, value, "null: gemma3 caps no attention in GGUF"));
    }
    let key = "final_logit_softcapping";
    if let Some(cap) = cap(config, key, None)? {
        own.add(key, Entry::F32(cap));
    }
    let key_of_period = Some("sliding_window_pattern");
    write(config, dimensions.layers, &Local { default_window: 4096, period: 6, key_of_period }, own)
}
