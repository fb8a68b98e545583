//! `AfmoeForCausalLM`: Arcee's Trinity: norms of inputs and outputs, a gate of the outputs of heads, sliding windows in three of every four layers, and a
//! mixture of experts with shared ones after leading dense layers, chosen by their sigmoids with a bias for the choice only.

use super::config::Config;
use super::deepseek::{
    DENSE, DENSE_PARTS, SHARED, SHARED_EXPERTS, SHARED_WIDTH, SPARSE, dense_then_sparse,
};
use super::describe::{
    ATTENTION, Architecture, Defaults, Dim, Dimensions, Group, HEAD_NORMS, Mixture, More, Own,
    Part, When, matrix, norm, vector,
};
use super::dimensions::MAX_WIDTH;
use super::llama;
use super::window::{Local, write};
use crate::ConvertError;
use crate::import::tensor::Entry;

pub(super) const AFMOE: Architecture = Architecture {
    gguf: "afmoe",
    classes: &["AfmoeForCausalLM", "AfmoeModel"],
    model_types: &["afmoe"],
    defaults: Defaults {
        hidden: 2048,
        feed_forward: 6144,
        heads: 16,
        head_length: Some(128),
        context: 16384,
        eps: 1e-5,
        ..llama::LLAMA.defaults
    },
    layer: &[
        Group::always(NORMS),
        Group::always(ATTENTION),
        Group::always(HEAD_NORMS),
        Group::always(&[GATE]),
        Group::of_layers(DENSE, DENSE_PARTS),
        Group::of_layers(SPARSE, &[ROUTER, CHOICE]),
        Group { when: When::TraitStored(SPARSE, TOGETHER, false), parts: ONE_BY_ONE },
        Group { when: When::TraitStored(SPARSE, TOGETHER, true), parts: JOINED },
        Group::of_layers(SHARED, SHARED_EXPERTS),
    ],
    more,
    experts: Some(Mixture {
        count: 64,
        used: ("num_experts_per_tok", 6),
        width: Some(("moe_intermediate_size", 1408)),
        shared: None,
        normed: None,
    }),
    permuted: false,
    never: &["attention_bias"],
    keys,
    ..llama::LLAMA
};

const NORMS: &[Part] = &[
    norm("input_layernorm.weight", "attn_norm.weight", Dim::Hidden),
    norm("post_attention_layernorm.weight", "post_attention_norm.weight", Dim::Hidden),
    norm("pre_mlp_layernorm.weight", "ffn_norm.weight", Dim::Hidden),
    norm("post_mlp_layernorm.weight", "post_ffw_norm.weight", Dim::Hidden),
];

const GATE: Part =
    matrix("self_attn.gate_proj.weight", "attn_gate.weight", Dim::Queries, Dim::Hidden);
const ROUTER: Part =
    matrix("mlp.router.gate.weight", "ffn_gate_inp.weight", Dim::Experts, Dim::Hidden);
const CHOICE: Part = vector("mlp.expert_bias", "exp_probs_b.bias", Dim::Experts);

/// The experts without their router, in either form.
const TOGETHER: &str = "mlp.experts.gate_up_proj";
const ONE_BY_ONE: &[Part] = super::describe::EXPERTS.split_at(1).1;
const JOINED: &[Part] = super::describe::EXPERTS_TOGETHER.split_at(1).1;

fn more(config: &Config, dimensions: &Dimensions) -> Result<More, ConvertError> {
    let dense = config.count_or("num_dense_layers", 1, MAX_WIDTH)?;
    let shared = config.count_or("num_shared_experts", 2, MAX_WIDTH)?;
    let layers = dense_then_sparse(dimensions, dense, shared);
    let width = shared.saturating_mul(dimensions.of(Dim::ExpertWidth));
    if width > MAX_WIDTH {
        return Err(config.wrong(
            "num_shared_experts",
            &shared.into(),
            "fewer, for experts of this width",
        ));
    }
    Ok(More { sizes: vec![(SHARED_WIDTH, width)], layers, ..More::default() })
}

fn keys(config: &Config, dimensions: &Dimensions, own: &mut Own) -> Result<(), ConvertError> {
    // Readers of GGUF scale the embedding without a key.
    if config.get("mup_enabled").is_some_and(|enabled| *enabled == false) {
        return Err(config.wrong(
            "mup_enabled",
            &false.into(),
            "true, which is what afmoe has in GGUF",
        ));
    }
    llama::keys(config, dimensions, own)?;
    own.add(
        "expert_shared_count",
        Entry::U32(config.count_or("num_shared_experts", 2, MAX_WIDTH)? as u32),
    );
    own.add(
        "leading_dense_block_count",
        Entry::U32(config.count_or("num_dense_layers", 1, MAX_WIDTH)? as u32),
    );
    let normed = config.get("route_norm").is_none() || config.flag("route_norm")?;
    own.add("expert_weights_norm", Entry::Bool(normed));
    let scale = config.number("route_scale", 1e-9..1e9)?.unwrap_or(1.0);
    own.add("expert_weights_scale", Entry::F32(scale as f32));
    own.add("expert_gating_func", Entry::U32(2));
    let local = Local {
        default_window: 1024,
        period: 4,
        key_of_period: Some("global_attn_every_n_layers"),
    };
    write(config, dimensions.layers, &local, own)
}
