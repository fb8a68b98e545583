//! `CohereForCausalLM` and `Cohere2ForCausalLM`: Command R, R+, R7B and A, Aya: one LayerNorm without a bias before both parts of a layer, and a factor on the
//! logits. Cohere 2 has sliding windows in three of every four layers.

use super::config::Config;
use super::describe::{
    Architecture, Defaults, Dim, Dimensions, Group, LAYER_NORM, MATRICES, Own, Part, norm,
};
use super::dimensions::MAX_CONTEXT;
use super::llama;
use super::window::{Local, write};
use crate::ConvertError;
use crate::import::tensor::Entry;

pub(super) const COHERE: Architecture = Architecture {
    gguf: "command-r",
    classes: &["CohereForCausalLM", "CohereModel"],
    model_types: &["cohere"],
    defaults: Defaults {
        hidden: 8192,
        feed_forward: 22528,
        layers: 40,
        heads: 64,
        context: 8192,
        eps: 1e-5,
        tied: true,
        ..llama::LLAMA.defaults
    },
    layer: &[
        Group::always(&[NORM]),
        Group::always(MATRICES),
        Group::if_said("use_qk_norm", HEAD_NORMS),
    ],
    permuted: false,
    own_head_length: false,
    eps_key: "layer_norm_eps",
    norm: LAYER_NORM,
    own_output: false,
    never: &["attention_bias"],
    keys: |config, _, own| {
        // Models of 2024 have the context that they were trained for under another name.
        let context = config.count("model_max_length", MAX_CONTEXT)?;
        let written = own.keys.iter_mut().find(|(key, _)| *key == "context_length");
        if let (Some(context), Some((_, entry))) = (context, written) {
            *entry = Entry::U32(context as u32);
        }
        factor(config, own)
    },
    ..llama::LLAMA
};

pub(super) const COHERE2: Architecture = Architecture {
    gguf: "cohere2",
    classes: &["Cohere2ForCausalLM", "Cohere2Model"],
    model_types: &["cohere2"],
    layer: &[Group::always(&[NORM]), Group::always(MATRICES)],
    keys: cohere2,
    ..COHERE
};

const NORM: Part = norm("input_layernorm.weight", "attn_norm.weight", Dim::Hidden);

/// Norms of each head, each with its own weights.
const HEAD_NORMS: &[Part] = &[
    Part {
        shape: [Some(Dim::Heads), Some(Dim::Head), None, None],
        ..norm("self_attn.q_norm.weight", "attn_q_norm.weight", Dim::Head)
    },
    Part {
        shape: [Some(Dim::KeyHeads), Some(Dim::Head), None, None],
        ..norm("self_attn.k_norm.weight", "attn_k_norm.weight", Dim::Head)
    },
];

fn factor(config: &Config, own: &mut Own) -> Result<(), ConvertError> {
    let scale = config.number("logit_scale", 1e-9..1e9)?.unwrap_or(0.0625);
    own.add("logit_scale", Entry::F32(scale as f32));
    own.add("rope.scaling.type", Entry::Str("none".into()));
    Ok(())
}

fn cohere2(config: &Config, dimensions: &Dimensions, own: &mut Own) -> Result<(), ConvertError> {
    factor(config, own)?;
    let local = Local { default_window: 4096, period: 4, key_of_period: None };
    write(config, dimensions.layers, &local, own)?;
    own.add("vocab_size", Entry::U32(dimensions.vocab as u32));
    own.add("rope.dimension_count", Entry::U32(dimensions.head as u32));
    Ok(())
}
