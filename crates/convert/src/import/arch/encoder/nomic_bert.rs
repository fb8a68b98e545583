//! `NomicBertModel` (nomic-embed-text v1 and v1.5): a BERT with rotary embeddings, a gated feed-forward part and hardly any biases. Version 2 has
//! biases, GELU without a gate, and experts in every second layer (`nomic-bert-moe` in GGUF).
//!
//! Its configuration is GPT-2's, or, as `transformers` 5 writes it, BERT's. Of a gated part, `fc12` is activated and `fc11` multiplied by it.
//! The rows of all experts of a layer are one matrix, their second matrices transposed. The bias of their sum, which llama.cpp's converter
//! leaves out, has a name of our own.

use super::super::config::Config;
use super::super::dimensions::{MAX_CONTEXT, MAX_WIDTH};
use super::head::{self, Head};
use super::{
    EncoderPlan, Family, Known, LayersWithTensor, MAX_LAYERS, Shapes, both, check_activation,
    check_flag, linear, norm,
};
use crate::ConvertError;
use crate::import::tensor::{Entry, Place};

pub(super) const NOMIC_BERT: Family = Family {
    gguf: "nomic-bert",
    classes: &[("NomicBertModel", Head::Vectors)],
    model_types: &["nomic_bert"],
    prefixes: &["bert."],
    plan,
};

/// Positions that it was trained with. More need a scaling that the file does not have.
const TRAINED: u64 = 2048;
/// The same of version 2, whose configuration says more.
const TRAINED_WITH_EXPERTS: u64 = 512;
/// Maximum number of experts of a layer; the same as that of the program that runs them.
const MAX_EXPERTS: u64 = 1024;

/// The experts of some layers.
struct NomicMixture {
    count: u64,
    used: u64,
    /// Layers whose number has the remainder 1 by this have them.
    every: u64,
}

impl NomicMixture {
    /// Reads the experts of a configuration; `None` if it has none.
    fn read(config: &Config) -> Result<Option<NomicMixture>, ConvertError> {
        let every = match config.get("moe_every_n_layers") {
            Some(n) if *n == 0 => None,
            _ => config.count("moe_every_n_layers", MAX_LAYERS)?,
        };
        let Some(every) = every else {
            return match config.get("num_experts").filter(|n| **n != 0) {
                Some(n) => Err(config.wrong("num_experts", n, "0 without moe_every_n_layers")),
                None => Ok(None),
            };
        };
        for flag in ["expert_choice_router", "moe_normalize_expert_weights"] {
            check_flag(config, flag, false)?;
        }
        if let Some(shared) = config.get("num_shared_experts").filter(|n| **n != 0) {
            let expected = "0: nomic-bert-moe has no shared experts in GGUF";
            return Err(config.wrong("num_shared_experts", shared, expected));
        }
        let count = config.count("num_experts", MAX_EXPERTS)?.unwrap_or(8);
        let used = config.count("moe_top_k", count)?.unwrap_or(1);
        Ok(Some(NomicMixture { count, used, every }))
    }

    fn keys(&self) -> Vec<(&'static str, Entry)> {
        vec![
            ("moe_every_n_layers", Entry::U32(self.every as u32)),
            ("expert_count", Entry::U32(self.count as u32)),
            ("expert_used_count", Entry::U32(self.used as u32)),
        ]
    }

    /// The feed-forward parts of all layers.
    fn feed_forward(&self, e: u64, f: u64) -> Vec<Known> {
        let (count, which) = (self.count, (1 % self.every, self.every));
        let rows = [count * f, e];
        let each = (0..count).map(|expert| (expert * f, f)).collect();
        let experts = [
            Known::new("mlp.router.layer.weight", "ffn_gate_inp.weight", &[count, e]),
            Known {
                place: Place::Heads(each),
                ..Known::new("mlp.experts.mlp.w1", "ffn_up_exps.weight", &rows)
            },
            Known {
                place: Place::Transposed { rows: f, of: f },
                ..Known::new("mlp.experts.mlp.w2", "ffn_down_exps.weight", &rows)
            },
            Known::new("mlp.experts.bias", "ffn_moe_out.bias", &[e]),
        ];
        let experts = experts
            .map(|known| Known { layers: LayersWithTensor::Every(which.0, which.1), ..known });
        let dense = [
            linear(both!("mlp.fc1"), both!("ffn_up"), f, e),
            linear(both!("mlp.fc2"), both!("ffn_down"), e, f),
        ];
        let dense = dense.into_iter().flatten();
        let dense = dense
            .map(|known| Known { layers: LayersWithTensor::AllBut(which.0, which.1), ..known });
        experts.into_iter().chain(dense).collect()
    }
}

fn plan(config: &Config, _head: Head, shapes: &Shapes<'_>) -> Result<EncoderPlan, ConvertError> {
    // The names of its own code, and those of `transformers`.
    let count = |own, other, most, default| -> Result<u64, ConvertError> {
        Ok(match config.count(own, most)? {
            Some(n) => n,
            None => config.count(other, most)?.unwrap_or(default),
        })
    };
    let mixture = NomicMixture::read(config)?;
    let biased = mixture.is_some();
    let activation = if biased { "gelu" } else { "swiglu" };
    check_activation(config, "activation_function", activation, &[activation])?;
    check_activation(config, "hidden_act", "silu", &["silu"])?;
    for (flag, expected) in [
        ("prenorm", false),
        ("use_rms_norm", false),
        ("qkv_proj_bias", biased),
        ("mlp_fc1_bias", biased),
        ("mlp_fc2_bias", biased),
        ("rotary_emb_interleaved", false),
        ("parallel_block", false),
        ("causal", false),
    ] {
        check_flag(config, flag, expected)?;
    }
    for (key, expected) in [("rotary_emb_fraction", 1.0)] {
        if let Some(value) = config.get(key).filter(|value| value.as_f64() != Some(expected)) {
            return Err(config.wrong(key, value, "1, for which GGUF has no key"));
        }
    }
    let e = count("n_embd", "hidden_size", MAX_WIDTH, 768)?;
    let f = count("n_inner", "intermediate_size", MAX_WIDTH, 4 * e)?;
    let layers = count("n_layer", "num_hidden_layers", MAX_LAYERS, 12)?;
    let heads = count("n_head", "num_attention_heads", MAX_WIDTH, 12)?;
    if !e.is_multiple_of(heads) {
        return Err(config.wrong("n_head", &heads.into(), &format!("a divisor of n_embd, {e}")));
    }
    let positions = count("n_positions", "max_position_embeddings", MAX_CONTEXT, TRAINED)?;
    let trained = count("max_trained_positions", "max_trained_positions", MAX_CONTEXT, TRAINED)?;
    let trained = if biased { trained.min(TRAINED_WITH_EXPERTS) } else { trained };
    let newer = config.object("rope_parameters")?;
    if let Some(kind) =
        newer.and_then(|rope| rope.get("rope_type")).filter(|kind| *kind != "default")
    {
        return Err(config.wrong("rope_parameters.rope_type", kind, "\"default\""));
    }
    let theta = match newer.and_then(|rope| rope.get("rope_theta")) {
        Some(value) => config.in_range("rope_parameters.rope_theta", value, 1.0..1e12)?,
        None => config.number("rotary_emb_base", 1.0..1e12)?.unwrap_or(10_000.0),
    };
    let eps = match config.number("layer_norm_epsilon", 0.0..1.0)? {
        Some(eps) => eps,
        None => config.number("layer_norm_eps", 0.0..1.0)?.unwrap_or(1e-12),
    };
    let (types, tokens) =
        ("embeddings.token_type_embeddings.weight", "embeddings.word_embeddings.weight");
    let (vocab, kinds) = (shapes.rows(tokens), shapes.rows(types));
    let mut outside = vec![Known::new(tokens, "token_embd.weight", &[vocab, e])];
    outside.extend(norm(both!("emb_ln"), both!("token_embd_norm"), e));
    if kinds > 0 {
        outside.push(Known::new(types, "token_types.weight", &[kinds, e]));
    }
    let mut inside = vec![
        Known::new("attn.Wqkv.weight", "attn_qkv.weight", &[3 * e, e]),
        Known::new("attn.out_proj.weight", "attn_output.weight", &[e, e]),
    ];
    match &mixture {
        Some(mixture) => {
            inside.push(Known::new("attn.Wqkv.bias", "attn_qkv.bias", &[3 * e]));
            inside.push(Known::new("attn.out_proj.bias", "attn_output.bias", &[e]));
            inside.extend(mixture.feed_forward(e, f));
        }
        None => inside.extend([
            Known::new("mlp.fc11.weight", "ffn_up.weight", &[f, e]),
            Known::new("mlp.fc12.weight", "ffn_gate.weight", &[f, e]),
            Known::new("mlp.fc2.weight", "ffn_down.weight", &[e, f]),
        ]),
    }
    inside.extend(norm(both!("norm1"), both!("attn_output_norm"), e));
    inside.extend(norm(both!("norm2"), both!("layer_output_norm"), e));
    let mut keys = vec![
        ("block_count", Entry::U32(layers as u32)),
        ("context_length", Entry::U32(positions.min(trained) as u32)),
        ("embedding_length", Entry::U32(e as u32)),
        ("feed_forward_length", Entry::U32(f as u32)),
        ("attention.head_count", Entry::U32(heads as u32)),
        ("attention.layer_norm_epsilon", Entry::F32(eps as f32)),
        ("attention.causal", Entry::Bool(false)),
        ("rope.freq_base", Entry::F32(theta as f32)),
    ];
    keys.extend(mixture.iter().flat_map(NomicMixture::keys));
    Ok(EncoderPlan {
        gguf: mixture.is_some().then_some("nomic-bert-moe"),
        keys,
        layers,
        layer: "encoder.layers.",
        outside,
        inside,
        others: vec![("cls.", head::PREDICTS), ("pooler.", head::POOLER)],
        vocab,
        token_types: kinds.max(1),
        labels: None,
    })
}
