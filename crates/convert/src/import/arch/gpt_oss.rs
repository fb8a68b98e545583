//! `GptOssForCausalLM`: OpenAI's gpt-oss 20B and 120B, whose experts are MXFP4 and are kept bit for bit.

use super::config::Config;
use super::describe::{
    ATTENTION, Architecture, Defaults, Dim, Dimensions, Group, INPUT_BIASES, Mixture, OUTPUT_BIAS,
    Own, Part, TWO_NORMS_RENAMED, TensorKind, matrix, vector,
};
use super::llama;
use super::window::{Local, write};
use crate::ConvertError;

pub(super) const GPT_OSS: Architecture = Architecture {
    gguf: "gpt-oss",
    classes: &["GptOssForCausalLM", "GptOssModel"],
    model_types: &["gpt_oss"],
    defaults: Defaults {
        hidden: 2880,
        feed_forward: 2880,
        layers: 36,
        heads: 64,
        kv_heads: Some(8),
        head_length: Some(64),
        context: 131_072,
        eps: 1e-5,
        theta: 150_000.0,
        ..llama::LLAMA.defaults
    },
    layer: &[
        Group::always(TWO_NORMS_RENAMED),
        Group::always(ATTENTION),
        Group::always(INPUT_BIASES),
        Group::always(OUTPUT_BIAS),
        Group::always(SINKS_AND_EXPERTS),
    ],
    experts: Some(Mixture {
        count: 128,
        used: ("num_experts_per_tok", 4),
        width: Some(("intermediate_size", 2880)),
        shared: None,
        normed: None,
    }),
    quantised: Some("mxfp4"),
    permuted: false,
    keys,
    ..llama::LLAMA
};

/// Rows of gate and up alternate in one tensor, gate first.
const SINKS_AND_EXPERTS: &[Part] = &[
    vector("self_attn.sinks", "attn_sinks.weight", Dim::Heads),
    matrix("mlp.router.weight", "ffn_gate_inp.weight", Dim::Experts, Dim::Hidden),
    vector("mlp.router.bias", "ffn_gate_inp.bias", Dim::Experts),
    blocks("mlp.experts.gate_up_proj_blocks", "ffn_gate_exps.weight", GATE_AND_UP, (0, 2)),
    blocks("mlp.experts.gate_up_proj_blocks", "ffn_up_exps.weight", GATE_AND_UP, (1, 2)),
    scales("mlp.experts.gate_up_proj_scales", GATE_AND_UP),
    numbers("mlp.experts.gate_up_proj_bias", "ffn_gate_exps.bias", Dim::GateAndUp, (0, 2)),
    numbers("mlp.experts.gate_up_proj_bias", "ffn_up_exps.bias", Dim::GateAndUp, (1, 2)),
    blocks("mlp.experts.down_proj_blocks", "ffn_down_exps.weight", DOWN, (0, 1)),
    scales("mlp.experts.down_proj_scales", DOWN),
    numbers("mlp.experts.down_proj_bias", "ffn_down_exps.bias", Dim::Hidden, (0, 1)),
];

/// Rows of an expert, and blocks of a row.
const GATE_AND_UP: (Dim, Dim) = (Dim::GateAndUp, Dim::HiddenBlocks);
const DOWN: (Dim, Dim) = (Dim::Hidden, Dim::WidthBlocks);

const fn blocks(
    source: &'static str,
    gguf: &'static str,
    (rows, blocks): (Dim, Dim),
    (first, step): (u64, u64),
) -> Part {
    let shape = [Some(Dim::Experts), Some(rows), Some(blocks), Some(Dim::BlockBytes)];
    Part { source, gguf, shape, kind: TensorKind::Blocks { first, step } }
}

const fn scales(source: &'static str, (rows, blocks): (Dim, Dim)) -> Part {
    let shape = [Some(Dim::Experts), Some(rows), Some(blocks), None];
    Part { source, gguf: "", shape, kind: TensorKind::Scales }
}

const fn numbers(
    source: &'static str,
    gguf: &'static str,
    rows: Dim,
    (first, step): (u64, u64),
) -> Part {
    let shape = [Some(Dim::Experts), Some(rows), None, None];
    Part { source, gguf, shape, kind: TensorKind::Numbers { first, step } }
}

fn keys(config: &Config, dimensions: &Dimensions, own: &mut Own) -> Result<(), ConvertError> {
    for (key, extent) in [("hidden_size", Dim::Hidden), ("intermediate_size", Dim::ExpertWidth)] {
        let extent = dimensions.of(extent);
        if !extent.is_multiple_of(32) {
            return Err(config.wrong(
                key,
                &extent.into(),
                "a multiple of 32, the length of a block",
            ));
        }
    }
    let limit = config.number("swiglu_limit", 0.0..1e9)?;
    if let Some(limit) = limit.filter(|limit| *limit != 7.0) {
        let expected = "7, which readers of GGUF assume";
        return Err(config.wrong("swiglu_limit", &limit.into(), expected));
    }
    let local = Local { default_window: 128, period: 2, key_of_period: None };
    write(config, dimensions.layers, &local, own)
}
