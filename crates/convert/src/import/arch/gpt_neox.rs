//! `GPTNeoXForCausalLM`: Pythia, GPT-NeoX and Dolly: LayerNorm and biases everywhere; queries, keys and values are one matrix, head by head in the source
//! and one after the other in GGUF.

use super::config::Config;
use super::describe::TWO_NORMS;
use super::describe::{
    Architecture, Defaults, Dim, Dimensions, Group, LAYER_NORM, Naming, Own, Part, TensorKind,
    USUAL, matrix, norm, vector,
};
use super::llama;
use super::nemotron::NORM_BIASES;
use crate::ConvertError;
use crate::import::tensor::Entry;

pub(super) const GPT_NEOX: Architecture = Architecture {
    gguf: "gptneox",
    classes: &["GPTNeoXForCausalLM", "GPTNeoXModel"],
    model_types: &["gpt_neox"],
    naming: Naming {
        prefixes: &["gpt_neox.", ""],
        embedding: "embed_in.weight",
        output: "embed_out.weight",
        keys: &[("partial_rotary_factor", "rotary_pct"), ("rope_theta", "rotary_emb_base")],
        ..USUAL
    },
    defaults: Defaults {
        hidden: 6144,
        feed_forward: 24576,
        layers: 44,
        heads: 64,
        eps: 1e-5,
        partial: Some(0.25),
        ..llama::LLAMA.defaults
    },
    activation: ("hidden_act", "gelu"),
    layer: &[Group::always(TWO_NORMS), Group::always(NORM_BIASES), Group::always(LAYER)],
    outside: &[
        norm("final_layer_norm.weight", "output_norm.weight", Dim::Hidden),
        vector("final_layer_norm.bias", "output_norm.bias", Dim::Hidden),
    ],
    permuted: false,
    own_head_length: false,
    eps_key: "layer_norm_eps",
    norm: LAYER_NORM,
    keys,
    ..llama::LLAMA
};

const LAYER: &[Part] = &[
    Part {
        kind: TensorKind::Rows(heads_apart),
        ..matrix("attention.query_key_value.weight", "attn_qkv.weight", Dim::Fused, Dim::Hidden)
    },
    Part {
        kind: TensorKind::Rows(heads_apart),
        ..vector("attention.query_key_value.bias", "attn_qkv.bias", Dim::Fused)
    },
    matrix("attention.dense.weight", "attn_output.weight", Dim::Hidden, Dim::Queries),
    vector("attention.dense.bias", "attn_output.bias", Dim::Hidden),
    matrix("mlp.dense_h_to_4h.weight", "ffn_up.weight", Dim::FeedForward, Dim::Hidden),
    vector("mlp.dense_h_to_4h.bias", "ffn_up.bias", Dim::FeedForward),
    matrix("mlp.dense_4h_to_h.weight", "ffn_down.weight", Dim::Hidden, Dim::FeedForward),
    vector("mlp.dense_4h_to_h.bias", "ffn_down.bias", Dim::Hidden),
    unused("attention.bias"),
    unused("attention.masked_bias"),
    unused("attention.rotary_emb.inv_freq"),
];

/// A tensor that old files have, and that follows from the configuration.
const fn unused(source: &'static str) -> Part {
    Part {
        kind: TensorKind::Unused("follows from the configuration"),
        ..vector(source, "", Dim::One)
    }
}

/// The rows of all queries, of all keys and of all values, of which the source has three for each head.
fn heads_apart(sizes: &Dimensions) -> Vec<(u64, u64)> {
    let part =
        |part: u64| (0..sizes.heads).map(move |head| ((3 * head + part) * sizes.head, sizes.head));
    (0..3).flat_map(part).collect()
}

fn keys(config: &Config, _: &Dimensions, own: &mut Own) -> Result<(), ConvertError> {
    if config.get("attention_bias").is_some_and(|biases| *biases == false) {
        return Err(config.wrong("attention_bias", &false.into(), "true"));
    }
    let key = "use_parallel_residual";
    let parallel = config.get(key).is_none() || config.flag(key)?;
    own.add(key, Entry::Bool(parallel));
    Ok(())
}
