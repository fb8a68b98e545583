//! `Qwen3NextForCausalLM`: Qwen3-Next-80B-A3B and Qwen3-Coder-Next: three of every four layers are gated delta nets, the
//! fourth is attention whose queries include a gate. In the source, a delta net's inputs are grouped by key head; GGUF has
//! all queries, all keys, all values, and the gates separately.

use serde_json::Value;

use super::config::{Config, shown};
use super::describe::{
    ATTENTION, Architecture, Defaults, Dim, Dimensions, EITHER_EXPERTS, Group, HEAD_NORMS, Layer,
    Mixture, More, Own, Part, Runs, SHARED_EXPERT, TWO_NORMS_RENAMED, TensorKind, matrix, vector,
};
use super::dimensions::MAX_WIDTH;
use super::qwen3;
use super::qwen3moe::every_layer_is_sparse;
use super::tensors::PREDICTS_FURTHER;
use crate::ConvertError;
use crate::import::tensor::Entry;

pub(super) const QWEN3_NEXT: Architecture = Architecture {
    gguf: "qwen3next",
    classes: &["Qwen3NextForCausalLM", "Qwen3NextModel"],
    model_types: &["qwen3_next"],
    defaults: Defaults {
        hidden: 2048,
        feed_forward: 5632,
        layers: 48,
        heads: 16,
        kv_heads: Some(2),
        head_length: Some(256),
        partial: Some(0.25),
        ..qwen3::QWEN3.defaults
    },
    layer: &[
        Group::always(TWO_NORMS_RENAMED),
        Group::of_layers(FULL, GATED_ATTENTION),
        Group::of_layers(FULL, HEAD_NORMS),
        Group::of_layers(LINEAR, TOGETHER),
        Group::of_layers(LINEAR, DELTA_NET),
        EITHER_EXPERTS[0],
        EITHER_EXPERTS[1],
        Group::always(SHARED_EXPERT),
    ],
    more,
    experts: Some(MIXTURE),
    norm_add: 1.0,
    others: &[("mtp.", PREDICTS_FURTHER), ("model.mtp.", PREDICTS_FURTHER)],
    keys: |config, dimensions, own| {
        every_layer_is_sparse(config)?;
        keys(config, dimensions, own)
    },
    ..qwen3::QWEN3
};

pub(super) const MIXTURE: Mixture = Mixture {
    count: 512,
    used: ("num_experts_per_tok", 10),
    width: Some(("moe_intermediate_size", 512)),
    shared: Some(("shared_expert_intermediate_size", 512)),
    normed: Some((true, true)),
};

/// Traits of layers.
pub(super) const FULL: &str = "full_attention";
pub(super) const LINEAR: &str = "linear_attention";

// Sizes of a delta net.
const KEY_HEADS: &str = "linear_num_key_heads";
const VALUE_HEADS: &str = "linear_num_value_heads";
const KEY_LENGTH: &str = "linear_key_head_dim";
const VALUE_LENGTH: &str = "linear_value_head_dim";
const TAPS: &str = "linear_conv_kernel_dim";
pub(super) const CHANNELS: Dim = Dim::Named("2 × key heads and value heads of linear attention");
pub(super) const VALUES: Dim = Dim::Named("all value heads of linear attention");
pub(super) const HEADS: Dim = Dim::Named(VALUE_HEADS);
const HEADS_TWICE: Dim = Dim::Named("2 × linear_num_value_heads");
const PROJECTED: Dim = Dim::Named("2 × key heads and 2 × value heads of linear attention");
const QUERIES_AND_GATES: Dim = Dim::Named("num_attention_heads × 2 × head_dim");

/// Attention whose queries include a gate.
pub(super) const GATED_ATTENTION: &[Part] = &[
    matrix("self_attn.q_proj.weight", "attn_q.weight", QUERIES_AND_GATES, Dim::Hidden),
    ATTENTION[1],
    ATTENTION[2],
    ATTENTION[3],
];

/// A delta net's input projections, grouped by key head.
const TOGETHER: &[Part] = &[
    taken("linear_attn.in_proj_qkvz.weight", "attn_qkv.weight", PROJECTED, |sizes| {
        of_key_heads(sizes, &[0, 1, 2])
    }),
    taken("linear_attn.in_proj_qkvz.weight", "attn_gate.weight", PROJECTED, |sizes| {
        of_key_heads(sizes, &[3])
    }),
    matrix("linear_attn.in_proj_ba.weight", "ssm_ba.weight", HEADS_TWICE, Dim::Hidden),
];

/// The rest of a delta net, with value heads in the order of the source.
const DELTA_NET: &[Part] = &[
    convolution(|sizes| vec![(0, sizes.of(CHANNELS))]),
    rates(|sizes| vec![(0, sizes.of(HEADS))]),
    vector("linear_attn.dt_bias", "ssm_dt.bias", HEADS),
    NORM,
    matrix("linear_attn.out_proj.weight", "ssm_out.weight", Dim::Hidden, VALUES),
];

/// The norm of a value head's output, which is stored as it is applied, unlike the others.
pub(super) const NORM: Part =
    vector("linear_attn.norm.weight", "ssm_norm.weight", Dim::Named(VALUE_LENGTH));

/// Rows of a matrix `[rows, hidden]`.
pub(super) const fn taken(source: &'static str, gguf: &'static str, rows: Dim, runs: Runs) -> Part {
    Part { kind: TensorKind::Rows(runs), ..matrix(source, gguf, rows, Dim::Hidden) }
}

/// The taps of the convolution, `[channels, 1, taps]`.
pub(super) const fn convolution(runs: Runs) -> Part {
    Part {
        source: "linear_attn.conv1d.weight",
        gguf: "ssm_conv1d.weight",
        shape: [Some(CHANNELS), Some(Dim::One), Some(Dim::Named(TAPS)), None],
        kind: TensorKind::Rows(runs),
    }
}

/// The decay rates of value heads.
pub(super) const fn rates(runs: Runs) -> Part {
    Part { kind: TensorKind::Rates(runs), ..vector("linear_attn.A_log", "ssm_a", HEADS) }
}

/// Returns the rows of these parts of each key head: its query, its key, its values, their gates.
fn of_key_heads(sizes: &Dimensions, parts: &[usize]) -> Vec<(u64, u64)> {
    let [keys, key, values, value] = delta_net(sizes);
    let lengths = [key, key, values / keys * value, values / keys * value];
    let all: u64 = lengths.iter().sum();
    let of = |part: usize| {
        let (before, length) = (lengths[..part].iter().sum::<u64>(), lengths[part]);
        (0..keys).map(move |head| (head * all + before, length))
    };
    parts.iter().flat_map(|part| of(*part)).collect()
}

/// Returns the number of key heads, their length, the number of value heads, and their length.
pub(super) fn delta_net(sizes: &Dimensions) -> [u64; 4] {
    [KEY_HEADS, KEY_LENGTH, VALUE_HEADS, VALUE_LENGTH].map(|name| sizes.of(Dim::Named(name)))
}

pub(super) fn more(config: &Config, dimensions: &Dimensions) -> Result<More, ConvertError> {
    let count = |key, default| config.count(key, MAX_WIDTH).map(|n| n.unwrap_or(default));
    let (keys, values) = (count(KEY_HEADS, 16)?, count(VALUE_HEADS, 32)?);
    let (key, value) = (count(KEY_LENGTH, 128)?, count(VALUE_LENGTH, 128)?);
    if !values.is_multiple_of(keys) {
        let expected = format!("a multiple of {KEY_HEADS}, {keys}");
        return Err(config.wrong(VALUE_HEADS, &values.into(), &expected));
    }
    if key != value {
        let expected = format!("{key}, {KEY_LENGTH}: GGUF has one length for both");
        return Err(config.wrong(VALUE_LENGTH, &value.into(), &expected));
    }
    if values.saturating_mul(value) > MAX_WIDTH {
        let expected = format!("at most {} for {values} heads", MAX_WIDTH / values);
        return Err(config.wrong(VALUE_LENGTH, &value.into(), &expected));
    }
    let sizes = vec![
        (Dim::Named(KEY_HEADS), keys),
        (HEADS, values),
        (Dim::Named(KEY_LENGTH), key),
        (Dim::Named(VALUE_LENGTH), value),
        (Dim::Named(TAPS), count(TAPS, 4)?),
        (CHANNELS, 2 * keys * key + values * value),
        (VALUES, values * value),
        (HEADS_TWICE, 2 * values),
        (PROJECTED, 2 * keys * key + 2 * values * value),
        (QUERIES_AND_GATES, 2 * dimensions.of(Dim::Queries)),
    ];
    let known = [FULL, LINEAR];
    let layers = match config.get("layer_types") {
        Some(value) => layers_said(config, dimensions.layers, value, &known)?,
        None => {
            let period = count("full_attention_interval", PERIOD)?;
            let named = |n: u64| if (n + 1).is_multiple_of(period) { FULL } else { LINEAR };
            (0..dimensions.layers).map(|n| Layer::with(named(n))).collect()
        }
    };
    Ok(More { sizes, layers, ..More::default() })
}

/// Reads the layers from a list of their types, which must be among the known ones.
pub(super) fn layers_said(
    config: &Config,
    layers: u64,
    value: &Value,
    known: &[&'static str],
) -> Result<Vec<Layer>, ConvertError> {
    let types = value.as_array().filter(|types| types.len() as u64 == layers);
    let Some(types) = types else {
        let expected = format!("an array of {layers} types, one for each layer");
        return Err(config.wrong("layer_types", value, &expected));
    };
    let layer = |ty: &Value| {
        let found = known.iter().find(|known| ty.as_str() == Some(known));
        found.map(|known| Layer::with(known)).ok_or_else(|| {
            let expected = known.join("\" or \"");
            config.error(format!("layer_types has {}, expected \"{expected}\"", shown(ty)))
        })
    };
    types.iter().map(layer).collect()
}

/// The last of every `PERIOD` layers is full attention.
const PERIOD: u64 = 4;

pub(super) fn keys(
    config: &Config,
    dimensions: &Dimensions,
    own: &mut Own,
) -> Result<(), ConvertError> {
    let [keys, key, values, value] = delta_net(dimensions);
    let interval = config.count("full_attention_interval", MAX_WIDTH)?.unwrap_or(PERIOD);
    for (name, size) in [
        ("ssm.conv_kernel", dimensions.of(Dim::Named(TAPS))),
        ("ssm.state_size", key),
        ("ssm.group_count", keys),
        ("ssm.time_step_rank", values),
        ("ssm.inner_size", values * value),
        ("full_attention_interval", interval),
    ] {
        own.add(name, Entry::U32(size as u32));
    }
    if config.get("layer_types").is_some() {
        let is_recurrent = |layer| dimensions.has(layer, LINEAR);
        let recurrent = (0..dimensions.layers).map(is_recurrent).collect();
        own.add("attention.recurrent_layers", Entry::Bools(recurrent));
    }
    Ok(())
}
