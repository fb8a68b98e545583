//! `Mamba2ForCausalLM`: Mamba 2 and Codestral Mamba: every layer is a Mamba-2 mixer alone.

use super::config::Config;
use super::describe::{
    Architecture, Defaults, Dim, Dimensions, Group, More, Naming, Own, Part, TensorKind, USUAL,
    matrix, norm, vector,
};
use super::dimensions::MAX_WIDTH;
use super::llama;
use crate::ConvertError;
use crate::import::tensor::Entry;

pub(super) const MAMBA2: Architecture = Architecture {
    gguf: "mamba2",
    classes: &["Mamba2ForCausalLM", "Mamba2Model"],
    model_types: &["mamba2"],
    naming: Naming {
        prefixes: &["backbone.", "model.backbone.", ""],
        embedding: "embeddings.weight",
        keys: &[("mamba_num_heads", "num_heads"), ("mamba_head_dim", "head_dim")],
        ..USUAL
    },
    defaults: Defaults {
        layers: 64,
        // There is no attention.
        heads: 1,
        eps: 1e-5,
        ..llama::LLAMA.defaults
    },
    layer: &[Group::always(LAYER)],
    outside: &[norm("norm_f.weight", "output_norm.weight", Dim::Hidden)],
    more,
    permuted: false,
    eps_key: "layer_norm_epsilon",
    never: &["use_bias"],
    keys,
    ..llama::LLAMA
};

const HEADS: Dim = Dim::Named("num_heads");
const GROUPS: Dim = Dim::Named("n_groups");
const KEY: Dim = Dim::Named("state_size");
const TAPS: Dim = Dim::Named("conv_kernel");
const INNER: Dim = Dim::Named("expand × hidden_size");
const MIXED: Dim = Dim::Named("inputs, keys and queries");
const PROJECTED: Dim = Dim::Named("gate, inputs, keys, queries and steps");

const LAYER: &[Part] = &[
    norm("norm.weight", "attn_norm.weight", Dim::Hidden),
    matrix("mixer.in_proj.weight", "ssm_in.weight", PROJECTED, Dim::Hidden),
    Part {
        source: "mixer.conv1d.weight",
        gguf: "ssm_conv1d.weight",
        shape: [Some(MIXED), Some(Dim::One), Some(TAPS), None],
        kind: TensorKind::Rows(|sizes| vec![(0, sizes.of(MIXED))]),
    },
    vector("mixer.conv1d.bias", "ssm_conv1d.bias", MIXED),
    vector("mixer.dt_bias", "ssm_dt.bias", HEADS),
    Part {
        kind: TensorKind::RatesOfRows(|sizes| sizes.of(HEADS)),
        ..vector("mixer.A_log", "ssm_a", HEADS)
    },
    Part {
        kind: TensorKind::VectorOfRows(|sizes| sizes.of(HEADS)),
        ..vector("mixer.D", "ssm_d", HEADS)
    },
    Part {
        kind: TensorKind::VectorOfRows(|sizes| sizes.of(GROUPS)),
        ..vector("mixer.norm.weight", "ssm_norm.weight", INNER)
    },
    matrix("mixer.out_proj.weight", "ssm_out.weight", Dim::Hidden, INNER),
];

/// The positions that llama.cpp's converter writes: the network has no limit.
const CONTEXT: u32 = 1 << 20;

/// Of what there is none.
const ATTENTION: &[&str] =
    &["attention.head_count_kv", "attention.key_length", "attention.value_length"];

fn more(config: &Config, dimensions: &Dimensions) -> Result<More, ConvertError> {
    let count = |key, most, default| config.count(key, most).map(|n| n.unwrap_or(default));
    let heads = count("mamba_num_heads", MAX_WIDTH, 128)?;
    let groups = count("n_groups", MAX_WIDTH, 8)?;
    let key = count("state_size", MAX_WIDTH, 128)?;
    let inner = count("expand", MAX_WIDTH / dimensions.hidden.max(1), 2)? * dimensions.hidden;
    let length = count("mamba_head_dim", MAX_WIDTH, 64)?;
    if heads.checked_mul(length) != Some(inner) || !inner.is_multiple_of(groups) {
        let expected = format!("{inner} (expand × hidden_size) / head_dim, {length}");
        return Err(config.wrong("num_heads", &heads.into(), &expected));
    }
    if !heads.is_multiple_of(groups) || groups.saturating_mul(key) > MAX_WIDTH {
        return Err(config.wrong(
            "n_groups",
            &groups.into(),
            &format!("a divisor of {heads} heads"),
        ));
    }
    let mixed = inner + 2 * groups * key;
    let sizes = vec![
        (HEADS, heads),
        (GROUPS, groups),
        (KEY, key),
        (TAPS, count("conv_kernel", 64, 4)?),
        (INNER, inner),
        (MIXED, mixed),
        (PROJECTED, inner + mixed + heads),
    ];
    Ok(More { sizes, ..More::default() })
}

fn keys(_: &Config, dimensions: &Dimensions, own: &mut Own) -> Result<(), ConvertError> {
    let there = |key: &str| !key.starts_with("rope.") && !ATTENTION.contains(&key);
    own.keys.retain(|(key, _)| there(key));
    for (key, entry) in &mut own.keys {
        match *key {
            "context_length" => *entry = Entry::U32(CONTEXT),
            "feed_forward_length" | "attention.head_count" => *entry = Entry::U32(0),
            _ => {}
        }
    }
    for (name, size) in [
        ("ssm.conv_kernel", TAPS),
        ("ssm.inner_size", INNER),
        ("ssm.state_size", KEY),
        ("ssm.time_step_rank", HEADS),
        ("ssm.group_count", GROUPS),
    ] {
        own.add(name, Entry::U32(dimensions.of(size) as u32));
    }
    Ok(())
}
