//! `GPT2LMHeadModel`: GPT-2 and its relatives: learned positions, LayerNorm and biases everywhere, queries, keys and values in one matrix. The source has
//! its matrices transposed (`Conv1D`).

use serde_json::Value;

use super::config::Config;
use super::describe::{
    Architecture, Defaults, Dim, Dimensions, Group, LAYER_NORM, More, Naming, Own, Part,
    TensorKind, USUAL, matrix, norm, vector,
};
use super::llama;
use crate::ConvertError;

pub(super) const GPT2: Architecture = Architecture {
    gguf: "gpt2",
    classes: &["GPT2LMHeadModel", "GPT2Model"],
    model_types: &["gpt2"],
    naming: Naming {
        prefixes: &["transformer.", ""],
        embedding: "wte.weight",
        layers: "h.",
        keys: &[
            ("hidden_size", "n_embd"),
            ("intermediate_size", "n_inner"),
            ("num_hidden_layers", "n_layer"),
            ("num_attention_heads", "n_head"),
            ("max_position_embeddings", "n_positions"),
        ],
        ..USUAL
    },
    defaults: Defaults {
        hidden: 768,
        feed_forward: 4 * 768,
        layers: 12,
        heads: 12,
        context: 1024,
        eps: 1e-5,
        tied: true,
        ..llama::LLAMA.defaults
    },
    activation: ("activation_function", "gelu_new"),
    layer: &[Group::always(LAYER)],
    outside: &[
        matrix("wpe.weight", "position_embd.weight", POSITIONS, Dim::Hidden),
        norm("ln_f.weight", "output_norm.weight", Dim::Hidden),
        vector("ln_f.bias", "output_norm.bias", Dim::Hidden),
    ],
    more,
    permuted: false,
    own_head_length: false,
    eps_key: "layer_norm_epsilon",
    norm: LAYER_NORM,
    never: &["scale_attn_by_inverse_layer_idx", "add_cross_attention"],
    keys,
    ..llama::LLAMA
};

const POSITIONS: Dim = Dim::Named("n_positions");

const LAYER: &[Part] = &[
    norm("ln_1.weight", "attn_norm.weight", Dim::Hidden),
    vector("ln_1.bias", "attn_norm.bias", Dim::Hidden),
    transposed("attn.c_attn.weight", "attn_qkv.weight", Dim::Hidden, Dim::Fused),
    vector("attn.c_attn.bias", "attn_qkv.bias", Dim::Fused),
    transposed("attn.c_proj.weight", "attn_output.weight", Dim::Queries, Dim::Hidden),
    vector("attn.c_proj.bias", "attn_output.bias", Dim::Hidden),
    norm("ln_2.weight", "ffn_norm.weight", Dim::Hidden),
    vector("ln_2.bias", "ffn_norm.bias", Dim::Hidden),
    transposed("mlp.c_fc.weight", "ffn_up.weight", Dim::Hidden, Dim::FeedForward),
    vector("mlp.c_fc.bias", "ffn_up.bias", Dim::FeedForward),
    transposed("mlp.c_proj.weight", "ffn_down.weight", Dim::FeedForward, Dim::Hidden),
    vector("mlp.c_proj.bias", "ffn_down.bias", Dim::Hidden),
    mask("attn.bias"),
    mask("attn.masked_bias"),
];

/// A matrix of which the source has a row for each input.
const fn transposed(source: &'static str, gguf: &'static str, inputs: Dim, outputs: Dim) -> Part {
    Part { kind: TensorKind::Turned { part: 0, of: 1 }, ..matrix(source, gguf, inputs, outputs) }
}

/// A mask that old files have.
const fn mask(source: &'static str) -> Part {
    Part { kind: TensorKind::Unused("is a mask"), ..vector(source, "", Dim::One) }
}

fn more(config: &Config, dimensions: &Dimensions) -> Result<More, ConvertError> {
    // `n_inner` is null in most files.
    let follows = config.get("intermediate_size").is_none().then_some(4 * dimensions.hidden);
    Ok(More {
        sizes: vec![(POSITIONS, dimensions.context)],
        feed_forward: follows,
        ..More::default()
    })
}

fn keys(config: &Config, _: &Dimensions, _: &mut Own) -> Result<(), ConvertError> {
    match config.get("scale_attn_weights") {
        None | Some(Value::Bool(true)) => Ok(()),
        Some(other) => Err(config.wrong("scale_attn_weights", other, "true")),
    }
}
