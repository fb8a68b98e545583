//! `GraniteMoeHybridForCausalLM`: IBM's Granite 4. In models with an H most layers are Mamba-2, the others attention without rotation; in
//! models without one all layers are attention, and they are `granite` or `granitemoe` in GGUF. Each kind exists with experts and
//! without: without them, the shared expert is the feed-forward part.

use serde_json::Value;

use super::config::Config;
use super::describe::{
    ATTENTION, Architecture, Dim, Dimensions, Group, Layer, Mixture, More, Own, Part, TWO_NORMS,
    TensorKind, matrix, vector,
};
use super::dimensions::MAX_WIDTH;
use super::granitemoe::{EXPERTS, GRANITEMOE_SHARED, SHARED};
use super::{granite, granitemoe};
use crate::ConvertError;
use crate::import::tensor::Entry;

pub(super) const HYBRID_MOE: Architecture = Architecture {
    gguf: "granitehybrid",
    layer: &[
        Group::always(TWO_NORMS),
        Group::of_layers(FULL, ATTENTION),
        Group::of_layers(MAMBA, MIXER),
        Group::always(EXPERTS),
        Group::always(SHARED),
    ],
    fits: |config| has_mamba(config) && has_experts(config),
    more: hybrid,
    keys: hybrid_keys,
    ..ATTENTION_MOE
};

pub(super) const HYBRID: Architecture = Architecture {
    layer: &[
        Group::always(TWO_NORMS),
        Group::of_layers(FULL, ATTENTION),
        Group::of_layers(MAMBA, MIXER),
        Group::always(DENSE),
    ],
    experts: None,
    fits: |config| has_mamba(config) && !has_experts(config),
    more: |config, dimensions| dense(config, hybrid(config, dimensions)?),
    ..HYBRID_MOE
};

pub(super) const ATTENTION_MOE: Architecture = Architecture {
    classes: &["GraniteMoeHybridForCausalLM", "GraniteMoeHybridModel"],
    model_types: &["granitemoehybrid"],
    experts: Some(Mixture { count: 8, ..granitemoe::MIXTURE_SHARED }),
    never: &["attention_bias", "mamba_proj_bias"],
    fits: |config| !has_mamba(config) && has_experts(config),
    keys: |config, dimensions, own| {
        rotates(config)?;
        granite::keys(config, dimensions, own)
    },
    ..GRANITEMOE_SHARED
};

pub(super) const ATTENTION_DENSE: Architecture = Architecture {
    gguf: "granite",
    layer: &[Group::always(TWO_NORMS), Group::always(ATTENTION), Group::always(DENSE)],
    experts: None,
    fits: |config| !has_mamba(config) && !has_experts(config),
    more: |config, _| dense(config, More::default()),
    ..ATTENTION_MOE
};

/// Traits of layers.
const FULL: &str = "attention";
const MAMBA: &str = "mamba";

// Sizes of a mixer.
const HEADS_KEY: &str = "mamba_n_heads";
const HEADS: Dim = Dim::Named(HEADS_KEY);
const GROUPS: Dim = Dim::Named("mamba_n_groups");
const KEY: Dim = Dim::Named("mamba_d_state");
const TAPS: Dim = Dim::Named("mamba_d_conv");
const INNER: Dim = Dim::Named("mamba_expand × hidden_size");
const MIXED: Dim = Dim::Named("inputs, keys and queries of Mamba");
const PROJECTED: Dim = Dim::Named("gate, inputs, keys, queries and steps of Mamba");
/// Limit for the length of a convolution.
const MAX_TAPS: u64 = 64;

const MIXER: &[Part] = &[
    matrix("mamba.in_proj.weight", "ssm_in.weight", PROJECTED, Dim::Hidden),
    Part {
        source: "mamba.conv1d.weight",
        gguf: "ssm_conv1d.weight",
        shape: [Some(MIXED), Some(Dim::One), Some(TAPS), None],
        kind: TensorKind::Rows(|sizes| vec![(0, sizes.of(MIXED))]),
    },
    vector("mamba.conv1d.bias", "ssm_conv1d.bias", MIXED),
    vector("mamba.dt_bias", "ssm_dt.bias", HEADS),
    of_rows("mamba.A_log", "ssm_a", HEADS, TensorKind::RatesOfRows(|sizes| sizes.of(HEADS))),
    of_rows("mamba.D", "ssm_d", HEADS, TensorKind::VectorOfRows(|sizes| sizes.of(HEADS))),
    of_rows(
        "mamba.norm.weight",
        "ssm_norm.weight",
        INNER,
        TensorKind::VectorOfRows(|sizes| sizes.of(GROUPS)),
    ),
    matrix("mamba.out_proj.weight", "ssm_out.weight", Dim::Hidden, INNER),
];

const fn of_rows(source: &'static str, gguf: &'static str, len: Dim, kind: TensorKind) -> Part {
    Part { kind, ..vector(source, gguf, len) }
}

/// The shared expert as feed-forward part, if there are no experts.
const DENSE: &[Part] = &[
    half("ffn_gate.weight", 0),
    half("ffn_up.weight", 1),
    matrix("shared_mlp.output_linear.weight", "ffn_down.weight", Dim::Hidden, Dim::FeedForward),
];

const fn half(gguf: &'static str, half: u64) -> Part {
    let source = "shared_mlp.input_linear.weight";
    Part { kind: TensorKind::Half(half), ..matrix(source, gguf, Dim::FusedUp, Dim::Hidden) }
}

/// Returns the types of layers, by either name.
fn types(config: &Config) -> Option<&Value> {
    config.get("layer_types").or_else(|| config.get("layers_block_type"))
}

/// Returns the trait of a layer of this type; `transformers` 5 has other names for the same types.
fn kind(ty: &Value) -> Option<&'static str> {
    match ty.as_str()? {
        "attention" | "full_attention" => Some(FULL),
        "mamba" | "linear_attention" => Some(MAMBA),
        _ => None,
    }
}

/// True if a layer is Mamba-2: by default all are.
fn has_mamba(config: &Config) -> bool {
    let types = types(config).and_then(Value::as_array);
    types.is_none_or(|types| types.iter().any(|ty| kind(ty) != Some(FULL)))
}

fn has_experts(config: &Config) -> bool {
    config.get("num_local_experts").is_none_or(|count| *count != 0)
}

/// The intermediate size is that of the shared expert.
fn dense(config: &Config, more: More) -> Result<More, ConvertError> {
    let width = config.count("shared_intermediate_size", MAX_WIDTH)?.unwrap_or(1024);
    Ok(More { feed_forward: Some(width), ..more })
}

/// Checks that positions rotate: in GGUF's architectures with attention only, they do.
fn rotates(config: &Config) -> Result<(), ConvertError> {
    match config.get("position_embedding_type") {
        Some(value) if value == "rope" => Ok(()),
        found => {
            let expected = "\"rope\": without Mamba's layers GGUF has no other";
            Err(config.wrong("position_embedding_type", found.unwrap_or(&Value::Null), expected))
        }
    }
}

fn hybrid(config: &Config, dimensions: &Dimensions) -> Result<More, ConvertError> {
    let count = |key, most, default| config.count(key, most).map(|n| n.unwrap_or(default));
    let heads = count(HEADS_KEY, MAX_WIDTH, 128)?;
    let groups = count("mamba_n_groups", MAX_WIDTH, 1)?;
    let key = count("mamba_d_state", MAX_WIDTH, 256)?;
    let inner = count("mamba_expand", MAX_WIDTH / dimensions.hidden.max(1), 2)? * dimensions.hidden;
    let length = config.get("mamba_d_head").filter(|length| **length != "auto");
    if !inner.is_multiple_of(heads) || length.is_some_and(|n| *n != inner / heads) {
        let expected = format!("a divisor of {inner}, mamba_expand × hidden_size, by mamba_d_head");
        return Err(config.wrong(HEADS_KEY, &heads.into(), &expected));
    }
    if !heads.is_multiple_of(groups) || groups.saturating_mul(key) > MAX_WIDTH {
        let expected =
            format!("a divisor of the {heads} heads, and at most {} keys", MAX_WIDTH / key);
        return Err(config.wrong("mamba_n_groups", &groups.into(), &expected));
    }
    let mixed = inner + 2 * groups * key;
    let sizes = vec![
        (HEADS, heads),
        (GROUPS, groups),
        (KEY, key),
        (TAPS, count("mamba_d_conv", MAX_TAPS, 4)?),
        (INNER, inner),
        (MIXED, mixed),
        (PROJECTED, inner + mixed + heads),
    ];
    let layers = layers(config, dimensions.layers)?;
    let of_keys = |layer: &Layer| if layer.traits == [FULL] { dimensions.kv_heads } else { 0 };
    let kv_heads = layers.iter().map(of_keys).collect();
    Ok(More { sizes, layers, kv_heads, ..More::default() })
}

/// Returns the trait of each layer.
fn layers(config: &Config, count: u64) -> Result<Vec<Layer>, ConvertError> {
    let Some(value) = types(config) else {
        return Ok((0..count).map(|_| Layer::with(MAMBA)).collect());
    };
    let kinds = value.as_array().filter(|types| types.len() as u64 == count);
    let kinds = kinds.and_then(|types| types.iter().map(kind).collect::<Option<Vec<_>>>());
    match kinds {
        Some(kinds) => Ok(kinds.into_iter().map(Layer::with).collect()),
        None => {
            let expected = format!("{count} times \"mamba\" or \"attention\"");
            Err(config.wrong("layer_types", value, &expected))
        }
    }
}

fn hybrid_keys(
    config: &Config,
    dimensions: &Dimensions,
    own: &mut Own,
) -> Result<(), ConvertError> {
    granite::keys(config, dimensions, own)?;
    for (name, size) in [
        ("ssm.conv_kernel", TAPS),
        ("ssm.state_size", KEY),
        ("ssm.group_count", GROUPS),
        ("ssm.inner_size", INNER),
        ("ssm.time_step_rank", HEADS),
    ] {
        own.add(name, Entry::U32(dimensions.of(size) as u32));
    }
    let rotates = config.get("position_embedding_type").is_some_and(|ty| ty == "rope");
    own.add("rope.scaling.finetuned", Entry::Bool(rotates));
    Ok(())
}
