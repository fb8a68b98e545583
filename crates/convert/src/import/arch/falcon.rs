//! `FalconForCausalLM`: Falcon 7B to 180B: LayerNorm, both parts of a layer with the same input, and queries, keys and values in one matrix, of which the
//! source has groups of heads one after the other.

use super::config::Config;
use super::describe::{
    Architecture, Defaults, Dim, Dimensions, Group, LAYER_NORM, Naming, Own, Part, TensorKind,
    USUAL, When, matrix, norm, vector,
};
use super::dimensions::MAX_WIDTH;
use super::{describe::More, llama};
use crate::ConvertError;
use crate::import::tensor::Entry;

pub(super) const FALCON: Architecture = Architecture {
    gguf: "falcon",
    classes: &["FalconForCausalLM", "RWForCausalLM", "FalconModel"],
    model_types: &["falcon", "RefinedWeb", "RefinedWebModel"],
    naming: Naming {
        prefixes: &["transformer.", ""],
        embedding: "word_embeddings.weight",
        layers: "h.",
        keys: &[
            ("num_hidden_layers", "n_layer"),
            ("num_attention_heads", "n_head"),
            ("num_kv_heads", "n_head_kv"),
            ("num_key_value_heads", "num_kv_heads"),
            ("intermediate_size", "ffn_hidden_size"),
        ],
        ..USUAL
    },
    defaults: Defaults {
        hidden: 4544,
        feed_forward: 4 * 4544,
        heads: 71,
        kv_heads: Some(1),
        context: 2048,
        eps: 1e-5,
        tied: true,
        ..llama::LLAMA.defaults
    },
    activation: ("activation", "gelu"),
    layer: &[
        Group { when: When::Stored("ln_attn.weight", false), parts: ONE_NORM },
        Group { when: When::Stored("ln_attn.weight", true), parts: TWO_NORMS },
        Group::always(LAYER),
    ],
    outside: &[
        norm("ln_f.weight", "output_norm.weight", Dim::Hidden),
        vector("ln_f.bias", "output_norm.bias", Dim::Hidden),
    ],
    more,
    permuted: false,
    own_head_length: false,
    eps_key: "layer_norm_epsilon",
    norm: LAYER_NORM,
    never: &["alibi", "bias"],
    keys,
    ..llama::LLAMA
};

const ONE_NORM: &[Part] = &[
    norm("input_layernorm.weight", "attn_norm.weight", Dim::Hidden),
    vector("input_layernorm.bias", "attn_norm.bias", Dim::Hidden),
];

const TWO_NORMS: &[Part] = &[
    norm("ln_mlp.weight", "attn_norm.weight", Dim::Hidden),
    vector("ln_mlp.bias", "attn_norm.bias", Dim::Hidden),
    norm("ln_attn.weight", "attn_norm_2.weight", Dim::Hidden),
    vector("ln_attn.bias", "attn_norm_2.bias", Dim::Hidden),
];

const LAYER: &[Part] = &[
    Part {
        kind: TensorKind::Rows(groups_apart),
        ..matrix(
            "self_attention.query_key_value.weight",
            "attn_qkv.weight",
            Dim::Fused,
            Dim::Hidden,
        )
    },
    matrix("self_attention.dense.weight", "attn_output.weight", Dim::Hidden, Dim::Queries),
    matrix("mlp.dense_h_to_4h.weight", "ffn_up.weight", Dim::FeedForward, Dim::Hidden),
    matrix("mlp.dense_4h_to_h.weight", "ffn_down.weight", Dim::Hidden, Dim::FeedForward),
];

/// The rows of all queries, of all keys and of all values, of which the source has the queries of a group before its key and its value.
fn groups_apart(sizes: &Dimensions) -> Vec<(u64, u64)> {
    let Dimensions { kv_heads, head, .. } = *sizes;
    let queries = sizes.heads / kv_heads;
    let rows = |first: u64, count: u64| {
        (0..kv_heads).map(move |group| ((group * (queries + 2) + first) * head, count * head))
    };
    rows(0, queries).chain(rows(queries, 1)).chain(rows(queries + 1, 1)).collect()
}

fn more(config: &Config, dimensions: &Dimensions) -> Result<More, ConvertError> {
    // Without groups, all queries have one key.
    if !config.flag("new_decoder_architecture")? {
        let expected = "without new_decoder_architecture";
        if config.get("multi_query").is_some_and(|one| *one == false) {
            return Err(config.wrong("multi_query", &false.into(), &format!("true {expected}")));
        }
        if dimensions.kv_heads != 1 {
            let count = dimensions.kv_heads.into();
            return Err(config.wrong("num_kv_heads", &count, &format!("1 {expected}")));
        }
    }
    if config.get("parallel_attn").is_some_and(|parallel| *parallel == false) {
        return Err(config.wrong("parallel_attn", &false.into(), "true"));
    }
    let width = config.count("intermediate_size", MAX_WIDTH)?;
    Ok(More { feed_forward: Some(width.unwrap_or(4 * dimensions.hidden)), ..More::default() })
}

fn keys(_: &Config, _: &Dimensions, own: &mut Own) -> Result<(), ConvertError> {
    own.add("tensor_data_layout", Entry::Str("jploski".into()));
    Ok(())
}
