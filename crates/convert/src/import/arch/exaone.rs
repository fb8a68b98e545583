//! `ExaoneForCausalLM`: LG's EXAONE 3 and 3.5: as Llama, with the names of GPT-2, and with the rows of queries and keys in halves, as GGUF's `exaone` has
//! them.

use super::describe::{Architecture, Defaults, Dim, Group, Naming, Part, USUAL, matrix, norm};
use super::llama;
use crate::import::tensor::Entry;

pub(super) const EXAONE: Architecture = Architecture {
    gguf: "exaone",
    classes: &["ExaoneForCausalLM", "ExaoneModel"],
    model_types: &["exaone"],
    naming: Naming {
        prefixes: &["transformer.", ""],
        embedding: "wte.weight",
        layers: "h.",
        keys: &[
            ("num_hidden_layers", "num_layers"),
            ("rms_norm_eps", "layer_norm_epsilon"),
            ("hidden_act", "activation_function"),
        ],
        ..USUAL
    },
    defaults: Defaults {
        feed_forward: 14336,
        kv_heads: Some(8),
        context: 4096,
        eps: 1e-5,
        theta: 500_000.0,
        ..llama::LLAMA.defaults
    },
    layer: &[Group::always(LAYER)],
    outside: &[norm("ln_f.weight", "output_norm.weight", Dim::Hidden)],
    permuted: false,
    never: &["attention_bias", "mlp_bias"],
    keys: |_, dimensions, own| {
        own.add("rope.dimension_count", Entry::U32(dimensions.head as u32));
        Ok(())
    },
    ..llama::LLAMA
};

const LAYER: &[Part] = &[
    norm("ln_1.weight", "attn_norm.weight", Dim::Hidden),
    norm("ln_2.weight", "ffn_norm.weight", Dim::Hidden),
    matrix("attn.attention.q_proj.weight", "attn_q.weight", Dim::Queries, Dim::Hidden),
    matrix("attn.attention.k_proj.weight", "attn_k.weight", Dim::Keys, Dim::Hidden),
    matrix("attn.attention.v_proj.weight", "attn_v.weight", Dim::Keys, Dim::Hidden),
    matrix("attn.attention.out_proj.weight", "attn_output.weight", Dim::Hidden, Dim::Queries),
    matrix("mlp.c_fc_0.weight", "ffn_gate.weight", Dim::FeedForward, Dim::Hidden),
    matrix("mlp.c_fc_1.weight", "ffn_up.weight", Dim::FeedForward, Dim::Hidden),
    matrix("mlp.c_proj.weight", "ffn_down.weight", Dim::Hidden, Dim::FeedForward),
];
