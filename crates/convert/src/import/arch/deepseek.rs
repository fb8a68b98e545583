//! `DeepseekV2ForCausalLM` and `DeepseekV3ForCausalLM`: DeepSeek V2, V2-Lite, V3, R1, Kimi-K2. Keys and values of all heads are
//! computed from one latent vector. The source has one matrix for this, and GGUF two for each head, with that of the keys
//! transposed, so that queries can be projected into the latent space instead.

use super::config::{Config, whole};
use super::describe::{
    ATTENTION, Architecture, Defaults, Dim, Dimensions, FURTHER, Group, Layer, MATRICES, Mixture,
    More, Own, Part, TWO_NORMS, TensorKind, either_experts_of, matrix, norm, vector,
};
use super::dimensions::MAX_WIDTH;
use super::llama;
use crate::ConvertError;
use crate::import::tensor::Entry;

pub(super) const DEEPSEEK_V3: Architecture = Architecture {
    gguf: "deepseek2",
    classes: &["DeepseekV3ForCausalLM", "DeepseekV3Model", "KimiK2ForCausalLM"],
    model_types: &["deepseek_v3", "kimi_k2"],
    defaults: Defaults {
        hidden: 7168,
        feed_forward: 18432,
        layers: 61,
        heads: 128,
        context: 4096,
        ..llama::LLAMA.defaults
    },
    layer: &[
        Group::always(TWO_NORMS),
        Group::of_layers(PLAIN_QUERIES, &[Q]),
        Group::of_layers(LATENT_QUERIES, QUERIES),
        Group::always(KEYS_AND_VALUES),
        Group::of_layers(DENSE, DENSE_PARTS),
        either_experts_of(SPARSE)[0],
        either_experts_of(SPARSE)[1],
        Group::of_layers(BIASED, &[CHOICE]),
        Group::of_layers(SHARED, SHARED_EXPERTS),
    ],
    more: |config, dimensions| more(config, dimensions, true),
    experts: Some(Mixture {
        count: 256,
        used: ("num_experts_per_tok", 8),
        width: Some(("moe_intermediate_size", 2048)),
        shared: None,
        normed: None,
    }),
    permuted: false,
    latent: true,
    never: &["attention_bias"],
    keys: |config, dimensions, own| keys(config, dimensions, own, true),
    ..llama::LLAMA
};

pub(super) const DEEPSEEK_V2: Architecture = Architecture {
    classes: &["DeepseekV2ForCausalLM", "DeepseekV2Model"],
    model_types: &["deepseek_v2"],
    defaults: Defaults {
        hidden: 4096,
        feed_forward: 11008,
        layers: 32,
        heads: 32,
        context: 2048,
        ..DEEPSEEK_V3.defaults
    },
    more: |config, dimensions| more(config, dimensions, false),
    experts: Some(Mixture {
        count: 64,
        used: ("num_experts_per_tok", 6),
        width: Some(("moe_intermediate_size", 1407)),
        shared: None,
        normed: None,
    }),
    keys: |config, dimensions, own| keys(config, dimensions, own, false),
    ..DEEPSEEK_V3
};

// Traits of layers.
const PLAIN_QUERIES: &str = "queries without a latent vector";
const LATENT_QUERIES: &str = "queries by a latent vector";
pub(super) const DENSE: &str = "dense";
pub(super) const SPARSE: &str = "a mixture of experts";
/// The choice of experts has a bias.
pub(super) const BIASED: &str = "biased";
/// There are experts that process all tokens.
pub(super) const SHARED: &str = "shared experts";

const QUERY_RANK: Dim = Dim::Named("q_lora_rank");
const RANK: Dim = Dim::Named("kv_lora_rank");
const PLAIN: Dim = Dim::Named("qk_nope_head_dim");
const ROTATED: Dim = Dim::Named("qk_rope_head_dim");
const VALUE: Dim = Dim::Named("v_head_dim");
const ALL_QUERIES: Dim = Dim::Named("num_attention_heads × (qk_nope_head_dim + qk_rope_head_dim)");
const LATENT: Dim = Dim::Named("kv_lora_rank + qk_rope_head_dim");
const ALL_KEYS: Dim = Dim::Named("num_attention_heads × (qk_nope_head_dim + v_head_dim)");
const ALL_VALUES: Dim = Dim::Named("num_attention_heads × v_head_dim");
pub(super) const SHARED_WIDTH: Dim = Dim::Named("n_shared_experts × moe_intermediate_size");

const Q: Part = matrix("self_attn.q_proj.weight", "attn_q.weight", ALL_QUERIES, Dim::Hidden);
const QUERIES: &[Part] = &[
    matrix("self_attn.q_a_proj.weight", "attn_q_a.weight", QUERY_RANK, Dim::Hidden),
    norm("self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight", QUERY_RANK),
    matrix("self_attn.q_b_proj.weight", "attn_q_b.weight", ALL_QUERIES, QUERY_RANK),
];

const KEYS_AND_VALUES: &[Part] = &[
    matrix("self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight", LATENT, Dim::Hidden),
    norm("self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight", RANK),
    Part {
        kind: TensorKind::Transposed(|sizes| (sizes.of(PLAIN), sizes.of(PLAIN) + sizes.of(VALUE))),
        ..matrix("self_attn.kv_b_proj.weight", "attn_k_b.weight", ALL_KEYS, RANK)
    },
    Part {
        kind: TensorKind::Heads(values),
        ..matrix("self_attn.kv_b_proj.weight", "attn_v_b.weight", ALL_KEYS, RANK)
    },
    matrix("self_attn.o_proj.weight", "attn_output.weight", Dim::Hidden, ALL_VALUES),
];

/// Returns the rows of each head's values.
fn values(sizes: &Dimensions) -> Vec<(u64, u64)> {
    let (plain, value) = (sizes.of(PLAIN), sizes.of(VALUE));
    (0..sizes.heads).map(|head| (head * (plain + value) + plain, value)).collect()
}

pub(super) const DENSE_PARTS: &[Part] = MATRICES.split_at(ATTENTION.len()).1;

/// The matrices of a feed-forward part without a gate.
pub(super) const UNGATED: &[Part] = DENSE_PARTS.split_at(1).1;

/// Bias added to the probabilities for the choice of experts.
pub(super) const CHOICE: Part =
    vector("mlp.gate.e_score_correction_bias", "exp_probs_b.bias", Dim::Experts);

pub(super) const SHARED_EXPERTS: &[Part] = &[
    matrix(
        "mlp.shared_experts.gate_proj.weight",
        "ffn_gate_shexp.weight",
        SHARED_WIDTH,
        Dim::Hidden,
    ),
    matrix("mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight", SHARED_WIDTH, Dim::Hidden),
    matrix(
        "mlp.shared_experts.down_proj.weight",
        "ffn_down_shexp.weight",
        Dim::Hidden,
        SHARED_WIDTH,
    ),
];

/// Returns the length of the latent vector of queries, if they have one: `null` means that they
/// have none.
fn query_rank(config: &Config) -> Result<Option<u64>, ConvertError> {
    match config.raw("q_lora_rank") {
        None => Ok(Some(1536)),
        Some(_) => config.count("q_lora_rank", MAX_WIDTH),
    }
}

fn more(config: &Config, dimensions: &Dimensions, is_v3: bool) -> Result<More, ConvertError> {
    let count = |key, default| config.count(key, MAX_WIDTH).map(|n| n.unwrap_or(default));
    let (query_rank, rank) = (query_rank(config)?, count("kv_lora_rank", 512)?);
    let (plain, rotated) = (count("qk_nope_head_dim", 128)?, count("qk_rope_head_dim", 64)?);
    let (value, heads) = (count("v_head_dim", 128)?, dimensions.heads);
    if rotated % 2 != 0 {
        return Err(config.wrong("qk_rope_head_dim", &rotated.into(), "an even number"));
    }
    if heads.saturating_mul(plain + rotated + value) > MAX_WIDTH {
        let expected = format!("at most {} for these heads", MAX_WIDTH / (plain + rotated + value));
        return Err(config.wrong("num_attention_heads", &heads.into(), &expected));
    }
    let mut more = leading_dense(config, dimensions, if is_v3 { 3 } else { 0 })?;
    for layer in &mut more.layers {
        let queries = if query_rank.is_some() { LATENT_QUERIES } else { PLAIN_QUERIES };
        layer.traits.push(queries);
        if is_v3 && layer.traits.contains(&SPARSE) {
            layer.traits.push(BIASED);
        }
    }
    more.sizes.extend([
        (QUERY_RANK, query_rank.unwrap_or(0)),
        (RANK, rank),
        (PLAIN, plain),
        (ROTATED, rotated),
        (VALUE, value),
        (ALL_QUERIES, heads * (plain + rotated)),
        (LATENT, rank + rotated),
        (ALL_KEYS, heads * (plain + value)),
        (ALL_VALUES, heads * value),
    ]);
    Ok(more)
}

/// Returns the layers: the first few are dense, the others have a mixture of experts and shared
/// experts.
pub(super) fn leading_dense(
    config: &Config,
    dimensions: &Dimensions,
    default: u64,
) -> Result<More, ConvertError> {
    let dense = whole_number(config, "first_k_dense_replace")?.unwrap_or(default);
    let shared = whole_number(config, "n_shared_experts")?.unwrap_or(0);
    let layers = dense_then_sparse(dimensions, dense, shared);
    let further = whole_number(config, FURTHER)?.unwrap_or(0);
    let width = dimensions.of(Dim::ExpertWidth);
    if shared.saturating_mul(width) > MAX_WIDTH {
        let expected = format!("at most {} experts of width {width}", MAX_WIDTH / width);
        return Err(config.wrong("n_shared_experts", &shared.into(), &expected));
    }
    let sizes = vec![(Dim::Named(FURTHER), further), (SHARED_WIDTH, shared * width)];
    Ok(More { sizes, layers, ..More::default() })
}

/// Returns the layers, of which the first `dense` are dense; the others have `shared` shared experts.
pub(super) fn dense_then_sparse(dimensions: &Dimensions, dense: u64, shared: u64) -> Vec<Layer> {
    let layer = |n| {
        let mut layer = Layer::with(if n < dense { DENSE } else { SPARSE });
        if n >= dense && shared > 0 {
            layer.traits.push(SHARED);
        }
        layer
    };
    (0..dimensions.layers).map(layer).collect()
}

/// As [`leading_dense`], with a bias for the choice of experts.
pub(super) fn leading_dense_with_bias(
    config: &Config,
    dimensions: &Dimensions,
    default: u64,
) -> Result<More, ConvertError> {
    let mut more = leading_dense(config, dimensions, default)?;
    let sparse = more.layers.iter_mut().filter(|layer| layer.traits.contains(&SPARSE));
    sparse.for_each(|layer| layer.traits.push(BIASED));
    Ok(more)
}

/// Returns a whole number, which may be 0.
fn whole_number(config: &Config, key: &str) -> Result<Option<u64>, ConvertError> {
    match config.get(key) {
        Some(value) if whole(value) == Some(0) => Ok(Some(0)),
        _ => config.count(key, MAX_WIDTH),
    }
}

fn keys(
    config: &Config,
    dimensions: &Dimensions,
    own: &mut Own,
    is_v3: bool,
) -> Result<(), ConvertError> {
    let size = |dim| dimensions.of(dim) as u32;
    if query_rank(config)?.is_some() {
        own.add("attention.q_lora_rank", Entry::U32(size(QUERY_RANK)));
    }
    for (key, value) in [
        ("vocab_size", dimensions.vocab as u32),
        ("attention.kv_lora_rank", size(RANK)),
        ("attention.key_length", size(LATENT)),
        ("attention.value_length", size(RANK)),
        ("attention.key_length_mla", size(PLAIN) + size(ROTATED)),
        ("attention.value_length_mla", size(VALUE)),
        ("rope.dimension_count", size(ROTATED)),
    ] {
        own.add(key, Entry::U32(value));
    }
    let default = if is_v3 { "sigmoid" } else { "softmax" };
    routing(config, own, default, is_v3)?;
    let key = "mscale_all_dim";
    for name in ["rope_scaling", "rope_parameters"] {
        let parameters = config.object(name)?;
        let Some(value) = parameters.and_then(|parameters| parameters.get(key)) else { continue };
        let value = config.in_range(&format!("{name}.{key}"), value, 0.0..1e3)?;
        // A tenth, for historical reasons.
        own.add("rope.scaling.yarn_log_multiplier", Entry::F32((0.1 * value) as f32));
        break;
    }
    let method = config.word("topk_method")?;
    if !is_v3 && method == Some("group_limited_greedy") {
        own.notes.push(
            "readers of GGUF rank groups of experts by the sum of their two best, and the original by their \
             best alone (topk_method group_limited_greedy): some tokens take other experts"
                .into(),
        );
    }
    Ok(())
}

/// Writes the choice of experts, in DeepSeek's terms. `scoring`, the function that converts the router's outputs to
/// probabilities, and `normed`, whether the weights are normalised to sum to 1, are the defaults for the configuration.
pub(super) fn routing(
    config: &Config,
    own: &mut Own,
    scoring: &str,
    normed: bool,
) -> Result<(), ConvertError> {
    for (key, gguf) in [
        ("first_k_dense_replace", "leading_dense_block_count"),
        ("n_shared_experts", "expert_shared_count"),
        ("n_group", "expert_group_count"),
        ("topk_group", "expert_group_used_count"),
    ] {
        if let Some(value) = whole_number(config, key)? {
            own.add(gguf, Entry::U32(value as u32));
        }
    }
    let scale = config.number("routed_scaling_factor", 1e-9..1e9)?;
    own.add("expert_weights_scale", Entry::F32(scale.unwrap_or(1.0) as f32));
    let configured = config.get("norm_topk_prob").is_some();
    let normed = if configured { config.flag("norm_topk_prob")? } else { normed };
    own.add("expert_weights_norm", Entry::Bool(normed));
    let function = match config.word("scoring_func")?.unwrap_or(scoring) {
        "softmax" => 1,
        "sigmoid" => 2,
        other => {
            let expected = "\"softmax\" or \"sigmoid\"";
            return Err(config.wrong("scoring_func", &other.into(), expected));
        }
    };
    own.add("expert_gating_func", Entry::U32(function));
    Ok(())
}
