//! `GraniteMoeForCausalLM` and `GraniteMoeSharedForCausalLM`: IBM's Granite 3 1B-A400M and 3B-A800M. Gate and up of the
//! experts are one tensor, gate first; the same holds for the shared expert, if there is one.

use super::describe::{
    ATTENTION, Architecture, DOWN, Dim, GATE_UP, Group, Mixture, Part, TWO_NORMS, TensorKind,
    matrix, of_experts,
};
use super::granite;

pub(super) const GRANITEMOE: Architecture = Architecture {
    gguf: "granitemoe",
    classes: &["GraniteMoeForCausalLM", "GraniteMoeModel"],
    model_types: &["granitemoe"],
    layer: &[Group::always(TWO_NORMS), Group::always(ATTENTION), Group::always(EXPERTS)],
    experts: Some(MIXTURE),
    never: &["attention_bias"],
    ..granite::GRANITE
};

pub(super) const GRANITEMOE_SHARED: Architecture = Architecture {
    classes: &["GraniteMoeSharedForCausalLM", "GraniteMoeSharedModel"],
    model_types: &["granitemoeshared"],
    layer: &[
        Group::always(TWO_NORMS),
        Group::always(ATTENTION),
        Group::always(EXPERTS),
        Group::always(SHARED),
    ],
    experts: Some(MIXTURE_SHARED),
    ..GRANITEMOE
};

pub(super) const MIXTURE_SHARED: Mixture =
    Mixture { shared: Some(("shared_intermediate_size", 1024)), ..MIXTURE };

const MIXTURE: Mixture =
    Mixture { count: 8, used: ("num_experts_per_tok", 2), width: None, shared: None, normed: None };

pub(super) const EXPERTS: &[Part] = &[
    matrix(
        "block_sparse_moe.router.layer.weight",
        "ffn_gate_inp.weight",
        Dim::Experts,
        Dim::Hidden,
    ),
    of_experts(
        "block_sparse_moe.input_linear.weight",
        "ffn_gate_exps.weight",
        GATE_UP,
        TensorKind::Half(0),
    ),
    of_experts(
        "block_sparse_moe.input_linear.weight",
        "ffn_up_exps.weight",
        GATE_UP,
        TensorKind::Half(1),
    ),
    of_experts(
        "block_sparse_moe.output_linear.weight",
        "ffn_down_exps.weight",
        DOWN,
        TensorKind::Plain,
    ),
];

pub(super) const SHARED: &[Part] = &[
    half("shared_mlp.input_linear.weight", "ffn_gate_shexp.weight", 0),
    half("shared_mlp.input_linear.weight", "ffn_up_shexp.weight", 1),
    matrix(
        "shared_mlp.output_linear.weight",
        "ffn_down_shexp.weight",
        Dim::Hidden,
        Dim::SharedWidth,
    ),
];

const fn half(source: &'static str, gguf: &'static str, half: u64) -> Part {
    Part { kind: TensorKind::Half(half), ..matrix(source, gguf, Dim::SharedGateAndUp, Dim::Hidden) }
}
