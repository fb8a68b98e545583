//! `Gemma4ForConditionalGeneration` and `Gemma4ForCausalLM`: the text part of Gemma 4. Layers with a sliding window have a different
//! head length from the others; the last layers may use keys and values of earlier ones; the small models add an input derived from
//! the token in every layer, and one model has a mixture of experts in addition to its feed-forward part.

use serde_json::{Map, Value};

use super::config::{Config, whole};
use super::deepseek::DENSE_PARTS;
use super::describe::{
    ATTENTION, Architecture, Defaults, Dim, Dimensions, FOUR_NORMS, Group, HEAD_NORMS, Layer,
    Mixture, More, OUTPUT_NORM, Own, Part, TensorKind, When, matrix, norm, of_experts, vector,
};
use super::dimensions::{MAX_CONTEXT, MAX_WIDTH};
use super::gemma2::{self, cap};
use super::rope::PROPORTIONAL;
use crate::ConvertError;
use crate::import::tensor::Entry;

/// The 31B model.
pub(super) const GEMMA4: Architecture = Architecture {
    gguf: "gemma4",
    classes: &["Gemma4ForConditionalGeneration", "Gemma4ForCausalLM", "Gemma4TextModel"],
    model_types: &["gemma4", "gemma4_text"],
    fits: |config| !has_experts(config) && !takes_from_token(config),
    defaults: Defaults {
        layers: 30,
        context: 131_072,
        theta: 1_000_000.0,
        local_theta: Some(10_000.0),
        scalings: &[PROPORTIONAL],
        ..gemma2::GEMMA2.defaults
    },
    layer: &[
        Group::always(FOUR_NORMS),
        Group::always(QUERIES),
        Group::of_layers(KEYS, OWN_KEYS),
        Group::of_layers(VALUES, OWN_VALUES),
        Group::of_layers(BORROWS, BORROWED),
        Group::always(DENSE_PARTS),
        SCALE,
    ],
    more,
    norm_add: 0.0,
    own_output: true,
    never: &["attention_bias"],
    others: &[
        ("model.vision_tower.", PICTURES),
        ("model.embed_vision.", PICTURES),
        ("model.audio_tower.", SOUND),
        ("model.embed_audio.", SOUND),
        ("vision_tower.", PICTURES),
        ("embed_vision.", PICTURES),
        ("audio_tower.", SOUND),
        ("embed_audio.", SOUND),
    ],
    keys,
    ..gemma2::GEMMA2
};

/// E2B and E4B.
pub(super) const GEMMA4_SMALL: Architecture = Architecture {
    fits: |config| !has_experts(config) && takes_from_token(config),
    layer: &[
        Group::always(FOUR_NORMS),
        Group::always(QUERIES),
        Group::of_layers(KEYS, OWN_KEYS),
        Group::of_layers(VALUES, OWN_VALUES),
        Group::of_layers(BORROWS, BORROWED),
        Group::always(DENSE_PARTS),
        SCALE,
        Group::always(FROM_TOKEN),
    ],
    outside: &[
        OUTPUT_NORM,
        matrix("embed_tokens_per_layer.weight", "per_layer_token_embd.weight", Dim::Vocab, TAKEN),
        matrix(
            "per_layer_model_projection.weight",
            "per_layer_model_proj.weight",
            TAKEN,
            Dim::Hidden,
        ),
        norm("per_layer_projection_norm.weight", "per_layer_proj_norm.weight", PER_LAYER),
    ],
    ..GEMMA4
};

/// 26B-A4B.
pub(super) const GEMMA4_MOE: Architecture = Architecture {
    fits: |config| has_experts(config) && !takes_from_token(config),
    layer: &[
        Group::always(FOUR_NORMS),
        Group::always(QUERIES),
        Group::of_layers(KEYS, OWN_KEYS),
        Group::of_layers(VALUES, OWN_VALUES),
        Group::of_layers(BORROWS, BORROWED),
        Group::always(DENSE_PARTS),
        SCALE,
        Group::always(EXPERTS),
    ],
    experts: Some(Mixture {
        count: 128,
        used: ("top_k_experts", 8),
        width: Some(("moe_intermediate_size", 704)),
        shared: None,
        normed: None,
    }),
    ..GEMMA4
};

const PICTURES: &str = "belongs to the part that sees pictures";
const SOUND: &str = "belongs to the part that hears";
const LENT: &str = "is not used: the layer has the keys and values of an earlier one";

/// Traits of layers.
const FULL: &str = "full_attention";
const WINDOWED: &str = "sliding_attention";
const KEYS: &str = "keys of its own";
const VALUES: &str = "values of its own";
const BORROWS: &str = "keys and values of an earlier layer";

const LOCAL_HEAD: Dim = Dim::Named("head_dim of layers with a sliding window");
const SHARED: Dim = Dim::Named(SHARED_KEY);
const SHARED_KEY: &str = "num_kv_shared_layers";
const PER_LAYER: Dim = Dim::Named(PER_LAYER_KEY);
const PER_LAYER_KEY: &str = "hidden_size_per_layer_input";
const TAKEN: Dim = Dim::Named("num_hidden_layers × hidden_size_per_layer_input");

const QUERIES: &[Part] = &[ATTENTION[0], ATTENTION[3], HEAD_NORMS[0]];
const OWN_KEYS: &[Part] = &[ATTENTION[1], HEAD_NORMS[1]];
const OWN_VALUES: &[Part] = &[ATTENTION[2]];
/// Files have them nevertheless.
const BORROWED: &[Part] = &[unused(ATTENTION[1]), unused(ATTENTION[2]), unused(HEAD_NORMS[1])];

const fn unused(part: Part) -> Part {
    Part { kind: TensorKind::Unused(LENT), ..part }
}

/// Factor for a layer's whole output.
const SCALE: Group = Group {
    when: When::Stored("layer_scalar", true),
    parts: &[vector("layer_scalar", "layer_output_scale.weight", Dim::One)],
};

/// The input of each layer that is derived from the token.
const FROM_TOKEN: &[Part] = &[
    matrix("per_layer_input_gate.weight", "inp_gate.weight", PER_LAYER, Dim::Hidden),
    matrix("per_layer_projection.weight", "proj.weight", Dim::Hidden, PER_LAYER),
    norm("post_per_layer_input_norm.weight", "post_norm.weight", Dim::Hidden),
];

const EXPERTS: &[Part] = &[
    matrix("router.proj.weight", "ffn_gate_inp.weight", Dim::Experts, Dim::Hidden),
    vector("router.scale", "ffn_gate_inp.scale", Dim::Hidden),
    vector("router.per_expert_scale", "ffn_down_exps.scale", Dim::Experts),
    of_experts("experts.gate_up_proj", "ffn_gate_up_exps.weight", GATE_UP, TensorKind::Plain),
    of_experts("experts.down_proj", "ffn_down_exps.weight", DOWN, TensorKind::Plain),
    norm("post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight", Dim::Hidden),
    norm("post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight", Dim::Hidden),
    norm("pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight", Dim::Hidden),
];

const GATE_UP: (Dim, Dim) = (Dim::GateAndUp, Dim::Hidden);
const DOWN: (Dim, Dim) = (Dim::Hidden, Dim::ExpertWidth);

fn has_experts(config: &Config) -> bool {
    config.get("enable_moe_block").is_some_and(|flag| *flag == true)
}

fn takes_from_token(config: &Config) -> bool {
    match config.raw(PER_LAYER_KEY) {
        None => true,
        Some(value) => !value.is_null() && *value != 0,
    }
}

/// The last of every `PERIOD` layers sees the whole context.
const PERIOD: u64 = 6;

fn more(config: &Config, dimensions: &Dimensions) -> Result<More, ConvertError> {
    let windowed = windowed(config, dimensions.layers)?;
    let same = config.get("attention_k_eq_v").is_some() && config.flag("attention_k_eq_v")?;
    let first = first_borrowing(config, &windowed)?;
    let full = Full::read(config, &windowed, dimensions.kv_heads, same)?;
    if !dimensions.heads.is_multiple_of(full.kv_heads) {
        let expected = format!("a divisor of num_attention_heads, {}", dimensions.heads);
        return Err(config.wrong(GLOBAL_KV_HEADS, &full.kv_heads.into(), &expected));
    }
    if full.head % 2 != 0 || dimensions.heads.saturating_mul(full.head) > MAX_WIDTH {
        let expected = format!("even, and at most {}", MAX_WIDTH / dimensions.heads / 2 * 2);
        return Err(config.wrong(GLOBAL_HEAD, &full.head.into(), &expected));
    }
    let wide = config.get("use_double_wide_mlp").is_some() && config.flag("use_double_wide_mlp")?;
    let layer = |(n, windowed): (usize, &bool)| {
        let (head, kv_heads) = match windowed {
            true => (dimensions.head, dimensions.kv_heads),
            false => (full.head, full.kv_heads),
        };
        let mut traits = vec![if *windowed { WINDOWED } else { FULL }];
        match n < first {
            false => traits.push(BORROWS),
            true if same && !windowed => traits.push(KEYS),
            true => traits.extend([KEYS, VALUES]),
        }
        let width = dimensions.feed_forward * if wide && n >= first { 2 } else { 1 };
        let sizes = vec![
            (Dim::Head, head),
            (Dim::Queries, dimensions.heads * head),
            (Dim::Keys, kv_heads * head),
            (Dim::FeedForward, width),
        ];
        Layer { traits, sizes }
    };
    let layers: Vec<Layer> = windowed.iter().enumerate().map(layer).collect();
    let per_layer = match takes_from_token(config) {
        true => config.count(PER_LAYER_KEY, MAX_WIDTH)?.unwrap_or(256),
        false => 0,
    };
    let taken = dimensions.layers.saturating_mul(per_layer);
    if taken > MAX_WIDTH || dimensions.feed_forward > MAX_WIDTH / 2 {
        let expected = format!("at most {}", MAX_WIDTH / dimensions.layers);
        return Err(config.wrong(PER_LAYER_KEY, &per_layer.into(), &expected));
    }
    let sizes = vec![
        (LOCAL_HEAD, dimensions.head),
        (SHARED, (windowed.len() - first) as u64),
        (PER_LAYER, per_layer),
        (TAKEN, taken),
    ];
    let heads = |windowed| if windowed { dimensions.kv_heads } else { full.kv_heads };
    let kv_heads = match full.says_kv_heads {
        true => windowed.into_iter().map(heads).collect(),
        false => Vec::new(),
    };
    Ok(More { sizes, layers, kv_heads, head: Some(full.head), ..More::default() })
}

/// Returns for each layer whether it has a sliding window; the last has none.
fn windowed(config: &Config, layers: u64) -> Result<Vec<bool>, ConvertError> {
    let Some(value) = config.get("layer_types") else {
        let is_windowed = |n: u64| n != layers && !n.is_multiple_of(PERIOD);
        return Ok((1..=layers).map(is_windowed).collect());
    };
    let layers = super::qwen3_next::layers_said(config, layers, value, &[FULL, WINDOWED])?;
    let mut windowed: Vec<bool> = layers.iter().map(|layer| layer.traits == [WINDOWED]).collect();
    if let Some(last) = windowed.last_mut() {
        *last = false;
    }
    Ok(windowed)
}

/// Returns the first layer without keys and values of its own. Readers of GGUF use those of the two layers before it, the first
/// of which has a window.
fn first_borrowing(config: &Config, windowed: &[bool]) -> Result<usize, ConvertError> {
    let shared = match config.get(SHARED_KEY) {
        None => return Ok(windowed.len()),
        Some(value) if *value == 0 => return Ok(windowed.len()),
        Some(_) => config.count(SHARED_KEY, windowed.len() as u64)?.unwrap_or(0),
    };
    let first = windowed.len() - shared as usize;
    if first >= 2 && windowed[first - 2] && !windowed[first - 1] {
        return Ok(first);
    }
    let expected = "so few that a layer with a sliding window and one without (layer_types) come right before them";
    Err(config.wrong(SHARED_KEY, &shared.into(), expected))
}

const GLOBAL_HEAD: &str = "global_head_dim";
const GLOBAL_KV_HEADS: &str = "num_global_key_value_heads";

/// Heads of layers without a window.
struct Full {
    head: u64,
    kv_heads: u64,
    /// True if the configuration gives a separate number of key/value heads for them.
    says_kv_heads: bool,
}

impl Full {
    /// Reads them: the publisher's files have keys for them, those of `transformers` 5 list the differences of each
    /// layer.
    fn read(
        config: &Config,
        windowed: &[bool],
        kv_heads: u64,
        same: bool,
    ) -> Result<Full, ConvertError> {
        let mut head = config.count(GLOBAL_HEAD, MAX_WIDTH)?;
        // If keys and values differ, the number is the same in all layers.
        let own = config.count(GLOBAL_KV_HEADS, MAX_WIDTH)?.filter(|_| same);
        let mut kv_own = own;
        if let Some(each) = config.object("per_layer_config")? {
            head = head.or(of_full(config, each, windowed, "head_dim")?);
            kv_own = kv_own.or(of_full(config, each, windowed, "num_key_value_heads")?);
        }
        Ok(Full {
            head: head.unwrap_or(512),
            kv_heads: kv_own.unwrap_or(kv_heads),
            says_kv_heads: kv_own.is_some(),
        })
    }
}

/// Returns the value of `key` for the layers without a window, from the settings of each layer; it must
/// be the same for all.
fn of_full(
    config: &Config,
    each: &Map<String, Value>,
    windowed: &[bool],
    key: &str,
) -> Result<Option<u64>, ConvertError> {
    let mut found = None;
    for (layer, settings) in each {
        let name = format!("per_layer_config.{layer}.{key}");
        let Some(value) = settings.get(key).filter(|value| !value.is_null()) else { continue };
        let is_full = layer.parse().ok().and_then(|n: usize| windowed.get(n)) == Some(&false);
        let number = whole(value).filter(|n| (1..=MAX_WIDTH).contains(n));
        match number {
            Some(number) if is_full && found.is_none_or(|found| found == number) => {
                found = Some(number);
            }
            _ => {
                let expected =
                    "one number, of all layers with full attention (layer_types) and of no others";
                return Err(config.wrong(&name, value, expected));
            }
        }
    }
    let all = windowed.iter().filter(|windowed| !**windowed).count();
    let given = each.values().filter(|settings| settings.get(key).is_some()).count();
    if found.is_some() && given != all {
        let problem = format!(
            "per_layer_config has {key} for {given} layers, expected {all}: all with full attention"
        );
        return Err(config.error(problem));
    }
    Ok(found)
}

fn keys(config: &Config, dimensions: &Dimensions, own: &mut Own) -> Result<(), ConvertError> {
    let full = config.object("rope_parameters")?.and_then(|sets| sets.get(FULL));
    let kind = full.and_then(|set| set.get("rope_type")).unwrap_or(&Value::Null);
    if *kind != PROPORTIONAL {
        let expected = format!("\"{PROPORTIONAL}\", which readers of GGUF assume");
        return Err(config.wrong("rope_parameters.full_attention.rope_type", kind, &expected));
    }
    if let Some(all) = config.get("use_bidirectional_attention").filter(|value| **value == "all") {
        let expected = "null or \"vision\": gemma4 sees no later tokens in GGUF";
        return Err(config.wrong("use_bidirectional_attention", all, expected));
    }
    let key = "final_logit_softcapping";
    if let Some(cap) = cap(config, key, None)? {
        own.add(key, Entry::F32(cap));
    }
    let window = config.count("sliding_window", MAX_CONTEXT)?.unwrap_or(512);
    own.add("attention.sliding_window", Entry::U32(window as u32));
    let windowed = (0..dimensions.layers).map(|layer| dimensions.has(layer, WINDOWED));
    own.add("attention.sliding_window_pattern", Entry::Bools(windowed.collect()));
    let local = dimensions.of(LOCAL_HEAD);
    for (key, size) in [
        ("attention.shared_kv_layers", dimensions.of(SHARED)),
        ("embedding_length_per_layer_input", dimensions.of(PER_LAYER)),
        ("attention.key_length_swa", local),
        ("attention.value_length_swa", local),
        ("rope.dimension_count", dimensions.head),
        ("rope.dimension_count_swa", local),
    ] {
        own.add(key, Entry::U32(size as u32));
    }
    Ok(())
}
