//! `MixtralForCausalLM`: Mixtral 8x7B and 8x22B, `llama` in GGUF. Each expert is as wide as a dense layer would be.

use super::describe::{
    ATTENTION, Architecture, Defaults, Dim, EXPERTS_TOGETHER, Group, Mixture, Part, TWO_NORMS,
    When, matrix,
};
use super::mistral;

pub(super) const MIXTRAL: Architecture = Architecture {
    classes: &["MixtralForCausalLM", "MixtralModel"],
    model_types: &["mixtral"],
    defaults: Defaults {
        feed_forward: 14336,
        kv_heads: Some(8),
        context: 131_072,
        eps: 1e-5,
        theta: 1e6,
        ..mistral::MISTRAL.defaults
    },
    layer: &[
        Group::always(TWO_NORMS),
        Group::always(ATTENTION),
        EITHER_EXPERTS[0],
        EITHER_EXPERTS[1],
    ],
    experts: Some(Mixture {
        count: 8,
        used: ("num_experts_per_tok", 2),
        width: None,
        shared: None,
        normed: None,
    }),
    ..mistral::MISTRAL
};

/// The experts under their own names, or joined as other architectures have them.
pub(super) const EITHER_EXPERTS: [Group; 2] = [
    Group { when: When::Stored(JOINED, false), parts: EXPERTS },
    Group { when: When::Stored(JOINED, true), parts: EXPERTS_TOGETHER },
];

/// The name of joined experts.
pub(super) const JOINED: &str = "mlp.experts.gate_up_proj";

const EXPERTS: &[Part] = &[
    matrix("block_sparse_moe.gate.weight", "ffn_gate_inp.weight", Dim::Experts, Dim::Hidden),
    matrix(
        "block_sparse_moe.experts.*.w1.weight",
        "ffn_gate_exps.weight",
        Dim::ExpertWidth,
        Dim::Hidden,
    ),
    matrix(
        "block_sparse_moe.experts.*.w3.weight",
        "ffn_up_exps.weight",
        Dim::ExpertWidth,
        Dim::Hidden,
    ),
    matrix(
        "block_sparse_moe.experts.*.w2.weight",
        "ffn_down_exps.weight",
        Dim::Hidden,
        Dim::ExpertWidth,
    ),
];
