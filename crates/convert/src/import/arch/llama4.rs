//! `Llama4ForConditionalGeneration` and `Llama4ForCausalLM`: the text part of Meta's Llama 4. Matrices of experts are transposed in the
//! source, with gate and up of all experts of a layer together. GGUF has no keys for most of what distinguishes the layers: the
//! assumptions of readers must hold.

use serde_json::Value;

use super::config::{Config, whole};
use super::deepseek::{DENSE, SPARSE};
use super::describe::{
    ATTENTION, Architecture, Defaults, Dim, Dimensions, Group, Layer, Mixture, More, Own, Part,
    TWO_NORMS, TensorKind, matrix, of_experts,
};
use super::dimensions::{MAX_CONTEXT, MAX_WIDTH};
use super::llama;
use crate::ConvertError;
use crate::import::tensor::Entry;

pub(super) const LLAMA4: Architecture = Architecture {
    gguf: "llama4",
    classes: &["Llama4ForConditionalGeneration", "Llama4ForCausalLM", "Llama4TextModel"],
    model_types: &["llama4", "llama4_text"],
    defaults: Defaults {
        hidden: 5120,
        feed_forward: 8192,
        layers: 48,
        heads: 40,
        kv_heads: Some(8),
        head_length: Some(128),
        context: 131_072,
        eps: 1e-5,
        theta: 500_000.0,
        ..llama::LLAMA.defaults
    },
    layer: &[
        Group::always(TWO_NORMS),
        Group::always(ATTENTION),
        Group::of_layers(DENSE, FEED_FORWARD),
        Group::of_layers(SPARSE, EXPERTS),
    ],
    more,
    experts: Some(Mixture {
        count: 16,
        used: ("num_experts_per_tok", 1),
        width: Some(("intermediate_size", 8192)),
        shared: None,
        normed: None,
    }),
    permuted: false,
    never: &["attention_bias"],
    others: &[
        ("vision_model.", PICTURES),
        ("multi_modal_projector.", PICTURES),
        ("model.vision_model.", PICTURES),
        ("model.multi_modal_projector.", PICTURES),
    ],
    keys,
    ..llama::LLAMA
};

const PICTURES: &str = "belongs to the part that sees pictures";

const FEED_FORWARD: &[Part] = &[
    matrix("feed_forward.gate_proj.weight", "ffn_gate.weight", Dim::FeedForward, Dim::Hidden),
    matrix("feed_forward.up_proj.weight", "ffn_up.weight", Dim::FeedForward, Dim::Hidden),
    matrix("feed_forward.down_proj.weight", "ffn_down.weight", Dim::Hidden, Dim::FeedForward),
];

/// The shared expert is as wide as any expert.
const EXPERTS: &[Part] = &[
    matrix("feed_forward.router.weight", "ffn_gate_inp.weight", Dim::Experts, Dim::Hidden),
    turned(GATE_UP, "ffn_gate_exps.weight", (Dim::Hidden, Dim::GateAndUp), (0, 2)),
    turned(GATE_UP, "ffn_up_exps.weight", (Dim::Hidden, Dim::GateAndUp), (1, 2)),
    turned(DOWN, "ffn_down_exps.weight", (Dim::ExpertWidth, Dim::Hidden), (0, 1)),
    matrix(SHARED_GATE, "ffn_gate_shexp.weight", Dim::ExpertWidth, Dim::Hidden),
    matrix(SHARED_UP, "ffn_up_shexp.weight", Dim::ExpertWidth, Dim::Hidden),
    matrix(SHARED_DOWN, "ffn_down_shexp.weight", Dim::Hidden, Dim::ExpertWidth),
];

const GATE_UP: &str = "feed_forward.experts.gate_up_proj";
const DOWN: &str = "feed_forward.experts.down_proj";
const SHARED_GATE: &str = "feed_forward.shared_expert.gate_proj.weight";
const SHARED_UP: &str = "feed_forward.shared_expert.up_proj.weight";
const SHARED_DOWN: &str = "feed_forward.shared_expert.down_proj.weight";

const fn turned(
    source: &'static str,
    gguf: &'static str,
    shape: (Dim, Dim),
    (part, of): (u64, u64),
) -> Part {
    of_experts(source, gguf, shape, TensorKind::Turned { part, of })
}

/// The last of every `PERIOD` layers sees the whole context and is not rotated; the others see their chunk
/// of it.
const PERIOD: u64 = 4;
/// Positions of a chunk, and the start and rate of the growth of queries, in readers of GGUF.
const CHUNK: u64 = 8192;
const FLOOR: f64 = 8192.0;
const GROWTH: f64 = 0.1;
/// With this number of experts, readers of GGUF do not norm queries and keys.
const EXPERTS_OF_MAVERICK: u64 = 128;
const STEP: &str = "interleave_moe_layer_step";

fn more(config: &Config, dimensions: &Dimensions) -> Result<More, ConvertError> {
    let width = config.count("intermediate_size_mlp", MAX_WIDTH)?.unwrap_or(16384);
    let step = step(config)?;
    let is_sparse = |layer: u64| (layer + 1).is_multiple_of(step);
    let sparse: Vec<u64> = (0..dimensions.layers).filter(|layer| is_sparse(*layer)).collect();
    let expected = format!("{sparse:?}, which follows from {STEP}");
    as_expected(config, "moe_layers", &sparse, whole, &expected)?;
    let named = |layer| Layer::with(if is_sparse(layer) { SPARSE } else { DENSE });
    let layers = (0..dimensions.layers).map(named).collect();
    Ok(More { feed_forward: Some(width), layers, ..More::default() })
}

/// Returns the distance of layers with experts; the last of every `step` layers has them.
fn step(config: &Config) -> Result<u64, ConvertError> {
    Ok(config.count(STEP, MAX_WIDTH)?.unwrap_or(1))
}

/// Checks a list of the configuration, unless it is missing or empty.
fn as_expected<T: PartialEq>(
    config: &Config,
    key: &str,
    expected: &[T],
    read: impl Fn(&Value) -> Option<T>,
    words: &str,
) -> Result<(), ConvertError> {
    let Some(value) = config.get(key) else { return Ok(()) };
    let found = value.as_array().map(|values| values.iter().map(read).collect::<Option<Vec<_>>>());
    match found.flatten() {
        Some(found) if found.is_empty() || found == expected => Ok(()),
        _ => Err(config.wrong(key, value, words)),
    }
}

fn keys(config: &Config, dimensions: &Dimensions, own: &mut Own) -> Result<(), ConvertError> {
    layers_as_readers_have_them(config, dimensions)?;
    llama::keys(config, dimensions, own)?;
    own.add(STEP, Entry::U32(step(config)? as u32));
    let key = "attention_chunk_size";
    if let Some(null) = config.raw(key).filter(|value| value.is_null()) {
        return Err(config.wrong(key, null, "a number: readers of GGUF assume chunks"));
    }
    let chunk = config.count(key, MAX_CONTEXT)?.unwrap_or(CHUNK);
    if chunk != CHUNK {
        own.add("attention.sliding_window", Entry::U32(chunk as u32));
        own.notes.push(format!(
            "{key} is {chunk}, and some programs assume {CHUNK}: beyond {} tokens their answers differ",
            chunk.min(CHUNK)
        ));
    }
    Ok(())
}

/// Checks the properties for which GGUF has no keys.
fn layers_as_readers_have_them(
    config: &Config,
    dimensions: &Dimensions,
) -> Result<(), ConvertError> {
    let granted = "which readers of GGUF assume";
    let is_full = |layer: u64| (layer + 1).is_multiple_of(PERIOD);
    let all = 0..dimensions.layers;
    let rotated: Vec<bool> = all.clone().map(|layer| !is_full(layer)).collect();
    let expected = format!("0 for every {PERIOD}th layer and 1 for the others, {granted}");
    let read = |value: &Value| value.as_bool().or_else(|| whole(value).map(|n| n != 0));
    as_expected(config, "no_rope_layers", &rotated, read, &expected)?;
    let ty = |layer| if is_full(layer) { "full_attention" } else { "chunked_attention" };
    let types: Vec<String> = all.map(|layer| ty(layer).into()).collect();
    let expected = format!(
        "full_attention for every {PERIOD}th layer and chunked_attention for the others, {granted}"
    );
    let read = |value: &Value| value.as_str().map(str::to_owned);
    as_expected(config, "layer_types", &types, read, &expected)?;

    // It used to be a number.
    let key = "attn_temperature_tuning";
    if let Some(value) = config.get(key).filter(|value| **value == false || **value == 0) {
        return Err(config.wrong(key, value, &format!("true, {granted}")));
    }
    for (key, expected) in
        [("floor_scale", FLOOR), ("attn_scale", GROWTH), ("no_rope_layer_interval", PERIOD as f64)]
    {
        if let Some(found) = config.number(key, 0.0..1e9)?.filter(|found| *found != expected) {
            return Err(config.wrong(key, &found.into(), &format!("{expected}, {granted}")));
        }
    }
    let key = "use_qk_norm";
    let normed = config.get(key).is_none() || config.flag(key)?;
    let expected = dimensions.of(Dim::Experts) != EXPERTS_OF_MAVERICK;
    if normed != expected {
        let experts = dimensions.of(Dim::Experts);
        let expected = format!("{expected}, which readers of GGUF assume of {experts} experts");
        return Err(config.wrong(key, &normed.into(), &expected));
    }
    Ok(())
}
