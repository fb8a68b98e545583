//! `NomicBertModel` (nomic-embed-text v1 and v1.5): a BERT with rotary embeddings, a gated feed-forward part and hardly any biases.
//!
//! Its configuration is GPT-2's, or, as `transformers` 5 writes it, BERT's. Of a gated part, `fc12` is activated and `fc11` multiplied by it.

use super::super::config::Config;
use super::super::dimensions::{MAX_CONTEXT, MAX_WIDTH};
use super::head::{self, Head};
use super::{
    EncoderPlan, Family, Known, MAX_LAYERS, Shapes, both, check_activation, check_flag, norm,
};
use crate::ConvertError;
use crate::import::tensor::Entry;

pub(super) const NOMIC_BERT: Family = Family {
    gguf: "nomic-bert",
    classes: &[("NomicBertModel", Head::Vectors)],
    model_types: &["nomic_bert"],
    prefixes: &["bert."],
    plan,
};

/// Positions that it was trained with. More need a scaling that the file does not have.
const TRAINED: u64 = 2048;

fn plan(config: &Config, _head: Head, shapes: &Shapes<'_>) -> Result<EncoderPlan, ConvertError> {
    // The names of its own code, and those of `transformers`.
    let count = |own, other, most, default| -> Result<u64, ConvertError> {
        Ok(match config.count(own, most)? {
            Some(n) => n,
            None => config.count(other, most)?.unwrap_or(default),
        })
    };
    if config.get("num_experts").is_some()
        || config.get("moe_every_n_layers").is_some_and(|n| *n != 0)
    {
        return Err(config.error(
            "a NomicBert with experts (v2) is not converted yet: take a GGUF file of it that another program made",
        ));
    }
    check_activation(config, "activation_function", "swiglu", &["swiglu"])?;
    check_activation(config, "hidden_act", "silu", &["silu"])?;
    for (flag, expected) in [
        ("prenorm", false),
        ("use_rms_norm", false),
        ("qkv_proj_bias", false),
        ("mlp_fc1_bias", false),
        ("mlp_fc2_bias", false),
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
        Known::new("mlp.fc11.weight", "ffn_up.weight", &[f, e]),
        Known::new("mlp.fc12.weight", "ffn_gate.weight", &[f, e]),
        Known::new("mlp.fc2.weight", "ffn_down.weight", &[e, f]),
    ];
    inside.extend(norm(both!("norm1"), both!("attn_output_norm"), e));
    inside.extend(norm(both!("norm2"), both!("layer_output_norm"), e));
    let keys = vec![
        ("block_count", Entry::U32(layers as u32)),
        ("context_length", Entry::U32(positions.min(trained) as u32)),
        ("embedding_length", Entry::U32(e as u32)),
        ("feed_forward_length", Entry::U32(f as u32)),
        ("attention.head_count", Entry::U32(heads as u32)),
        ("attention.layer_norm_epsilon", Entry::F32(eps as f32)),
        ("attention.causal", Entry::Bool(false)),
        ("rope.freq_base", Entry::F32(theta as f32)),
    ];
    Ok(EncoderPlan {
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
