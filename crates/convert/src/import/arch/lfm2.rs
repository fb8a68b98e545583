//! `Lfm2ForCausalLM` and `Lfm2MoeForCausalLM`: Liquid AI's LFM2: most layers are short convolutions, the others attention.

use super::config::Config;
use super::deepseek::{DENSE, SPARSE};
use super::describe::{
    Architecture, DOWN as JOINED_DOWN, Defaults, Dim, Dimensions, GATE_UP, Group, Layer, Mixture,
    More, Own, Part, TensorKind, When, matrix, norm, of_experts, vector,
};
use super::dimensions::MAX_WIDTH;
use super::llama;
use super::qwen3_next::{FULL, layers_said};
use crate::ConvertError;
use crate::import::tensor::Entry;

pub(super) const LFM2: Architecture = Architecture {
    gguf: "lfm2",
    classes: &["Lfm2ForCausalLM"],
    model_types: &["lfm2"],
    defaults: Defaults {
        hidden: 2560,
        feed_forward: 12288,
        kv_heads: Some(8),
        context: 128_000,
        eps: 1e-5,
        theta: 1e6,
        tied: true,
        ..llama::LLAMA.defaults
    },
    layer: &[
        Group::always(NORMS),
        Group::of_layers(FULL, ATTENTION),
        Group::of_layers(CONVOLUTION, CONVOLUTIONS),
        Group::always(FEED_FORWARD),
    ],
    outside: &[norm("embedding_norm.weight", "token_embd_norm.weight", Dim::Hidden)],
    more: |config, dimensions| {
        let feed_forward = Some(adjusted(config, dimensions.feed_forward)?);
        Ok(More { feed_forward, ..more(config, dimensions)? })
    },
    permuted: false,
    own_head_length: false,
    eps_key: "norm_eps",
    never: &["conv_bias"],
    keys,
    ..llama::LLAMA
};

pub(super) const LFM2_MOE: Architecture = Architecture {
    gguf: "lfm2moe",
    classes: &["Lfm2MoeForCausalLM"],
    model_types: &["lfm2_moe"],
    defaults: Defaults { hidden: 2048, feed_forward: 7168, ..LFM2.defaults },
    layer: &[
        Group::always(NORMS),
        Group::of_layers(FULL, ATTENTION),
        Group::of_layers(CONVOLUTION, CONVOLUTIONS),
        Group::of_layers(DENSE, FEED_FORWARD),
        Group::of_layers(SPARSE, ROUTER),
        Group { when: When::TraitStored(SPARSE, JOINED, false), parts: EXPERTS },
        Group { when: When::TraitStored(SPARSE, JOINED, true), parts: JOINED_EXPERTS },
    ],
    more: |config, dimensions| {
        let mut more = more(config, dimensions)?;
        let dense = dense_layers(config)?;
        for (n, layer) in (0..).zip(&mut more.layers) {
            layer.traits.push(if n < dense { DENSE } else { SPARSE });
        }
        Ok(more)
    },
    experts: Some(Mixture {
        count: 32,
        used: ("num_experts_per_tok", 4),
        width: Some(("moe_intermediate_size", 1792)),
        shared: None,
        normed: Some((true, true)),
    }),
    keys: |config, dimensions, own| {
        keys(config, dimensions, own)?;
        let scale = config.number("routed_scaling_factor", 1e-9..1e9)?.unwrap_or(1.0);
        if scale != 1.0 {
            own.add("expert_weights_scale", Entry::F32(scale as f32));
        }
        own.add("leading_dense_block_count", Entry::U32(dense_layers(config)? as u32));
        own.add("expert_gating_func", Entry::U32(2));
        Ok(())
    },
    ..LFM2
};

/// The trait of a layer that is a short convolution.
const CONVOLUTION: &str = "conv";
const TAPS_KEY: &str = "conv_L_cache";
const MAX_TAPS: u64 = 64;
const TAPS: Dim = Dim::Named(TAPS_KEY);
const THREE: Dim = Dim::Named("3 × hidden_size");

const NORMS: &[Part] = &[
    norm("operator_norm.weight", "attn_norm.weight", Dim::Hidden),
    norm("ffn_norm.weight", "ffn_norm.weight", Dim::Hidden),
];

const ATTENTION: &[Part] = &[
    matrix("self_attn.q_proj.weight", "attn_q.weight", Dim::Queries, Dim::Hidden),
    matrix("self_attn.k_proj.weight", "attn_k.weight", Dim::Keys, Dim::Hidden),
    matrix("self_attn.v_proj.weight", "attn_v.weight", Dim::Keys, Dim::Hidden),
    matrix("self_attn.out_proj.weight", "attn_output.weight", Dim::Hidden, Dim::Queries),
    norm("self_attn.q_layernorm.weight", "attn_q_norm.weight", Dim::Head),
    norm("self_attn.k_layernorm.weight", "attn_k_norm.weight", Dim::Head),
];

const CONVOLUTIONS: &[Part] = &[
    Part {
        source: "conv.conv.weight",
        gguf: "shortconv.conv.weight",
        shape: [Some(Dim::Hidden), Some(Dim::One), Some(TAPS), None],
        kind: TensorKind::Rows(|sizes| vec![(0, sizes.hidden)]),
    },
    matrix("conv.in_proj.weight", "shortconv.in_proj.weight", THREE, Dim::Hidden),
    matrix("conv.out_proj.weight", "shortconv.out_proj.weight", Dim::Hidden, Dim::Hidden),
];

const FEED_FORWARD: &[Part] = &[
    matrix("feed_forward.w1.weight", "ffn_gate.weight", Dim::FeedForward, Dim::Hidden),
    matrix("feed_forward.w3.weight", "ffn_up.weight", Dim::FeedForward, Dim::Hidden),
    matrix("feed_forward.w2.weight", "ffn_down.weight", Dim::Hidden, Dim::FeedForward),
];

const GATE: &str = "feed_forward.experts.*.w1.weight";
const UP: &str = "feed_forward.experts.*.w3.weight";
const DOWN: &str = "feed_forward.experts.*.w2.weight";
const JOINED: &str = "feed_forward.experts.gate_up_proj";
const ROUTER: &[Part] = &[
    matrix("feed_forward.gate.weight", "ffn_gate_inp.weight", Dim::Experts, Dim::Hidden),
    vector("feed_forward.expert_bias", "exp_probs_b.bias", Dim::Experts),
];
const JOINED_EXPERTS: &[Part] = &[
    of_experts(JOINED, "ffn_gate_exps.weight", GATE_UP, TensorKind::Half(0)),
    of_experts(JOINED, "ffn_up_exps.weight", GATE_UP, TensorKind::Half(1)),
    of_experts(
        "feed_forward.experts.down_proj",
        "ffn_down_exps.weight",
        JOINED_DOWN,
        TensorKind::Plain,
    ),
];
const EXPERTS: &[Part] = &[
    matrix(GATE, "ffn_gate_exps.weight", Dim::ExpertWidth, Dim::Hidden),
    matrix(UP, "ffn_up_exps.weight", Dim::ExpertWidth, Dim::Hidden),
    matrix(DOWN, "ffn_down_exps.weight", Dim::Hidden, Dim::ExpertWidth),
];

/// Returns the actual intermediate size: two thirds of the configured one, times a factor, rounded up to a
/// multiple.
fn adjusted(config: &Config, configured: u64) -> Result<u64, ConvertError> {
    let configured = config.count("block_ff_dim", MAX_WIDTH)?.unwrap_or(configured);
    let key = "block_auto_adjust_ff_dim";
    if config.get(key).is_some() && !config.flag(key)? {
        return Ok(configured);
    }
    let factor = config.number("block_ffn_dim_multiplier", 1e-3..1e3)?.unwrap_or(1.0);
    let multiple = config.count("block_multiple_of", MAX_WIDTH)?.unwrap_or(256);
    let adjusted = ((2 * configured / 3) as f64 * factor) as u64;
    Ok((adjusted.div_ceil(multiple) * multiple).clamp(1, MAX_WIDTH))
}

/// Returns the number of layers without experts, which come first.
fn dense_layers(config: &Config) -> Result<u64, ConvertError> {
    Ok(config.count("num_dense_layers", MAX_WIDTH)?.unwrap_or(2))
}

fn more(config: &Config, dimensions: &Dimensions) -> Result<More, ConvertError> {
    let layers = match (config.get("layer_types"), config.get("full_attn_idxs")) {
        (Some(value), _) => layers_said(config, dimensions.layers, value, &[FULL, CONVOLUTION])?,
        (None, Some(indices)) => {
            let all = indices.as_array();
            let is_full = |layer: u64| all.is_some_and(|all| all.contains(&layer.into()));
            let named = |layer| Layer::with(if is_full(layer) { FULL } else { CONVOLUTION });
            (0..dimensions.layers).map(named).collect()
        }
        (None, None) => {
            let problem =
                "layer_types is missing, and full_attn_idxs too: which layers are attention?";
            return Err(config.error(problem));
        }
    };
    let heads = |layer: &Layer| if layer.traits == [FULL] { dimensions.kv_heads } else { 0 };
    let taps = config.count(TAPS_KEY, MAX_TAPS)?.unwrap_or(3);
    Ok(More {
        kv_heads: layers.iter().map(heads).collect(),
        sizes: vec![(TAPS, taps), (THREE, 3 * dimensions.hidden)],
        layers,
        ..More::default()
    })
}

fn keys(_config: &Config, dimensions: &Dimensions, own: &mut Own) -> Result<(), ConvertError> {
    own.add("vocab_size", Entry::U32(dimensions.vocab as u32));
    own.add("shortconv.l_cache", Entry::U32(dimensions.of(TAPS) as u32));
    Ok(())
}
