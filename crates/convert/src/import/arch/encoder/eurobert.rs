//! `EuroBert…`: a Llama that looks both ways.

use super::super::config::Config;
use super::super::dimensions::{MAX_CONTEXT, MAX_WIDTH};
use super::head::{self, Head};
use super::{EncoderPlan, Family, Known, MAX_LAYERS, Shapes, check_activation, check_flag};
use crate::ConvertError;
use crate::import::tensor::Entry;

pub(super) const EUROBERT: Family = Family {
    gguf: "eurobert",
    classes: &[("EuroBertModel", Head::Vectors), ("EuroBertForMaskedLM", Head::Vectors)],
    model_types: &["eurobert"],
    prefixes: &["model."],
    plan,
};

const TOKENS: &str = "embed_tokens.weight";

fn plan(config: &Config, _head: Head, shapes: &Shapes<'_>) -> Result<EncoderPlan, ConvertError> {
    let count = |key, most, default| config.count(key, most).map(|n| n.unwrap_or(default));
    for flag in ["attention_bias", "mlp_bias"] {
        check_flag(config, flag, false)?;
    }
    check_activation(config, "hidden_act", "silu", &["silu"])?;
    if let Some(scaling) = config.get("rope_scaling") {
        return Err(config.wrong("rope_scaling", scaling, "none"));
    }
    let e = count("hidden_size", MAX_WIDTH, 768)?;
    let f = count("intermediate_size", MAX_WIDTH, 3072)?;
    let layers = count("num_hidden_layers", MAX_LAYERS, 12)?;
    let heads = count("num_attention_heads", MAX_WIDTH, 12)?;
    let kv_heads = count("num_key_value_heads", MAX_WIDTH, heads)?;
    if !e.is_multiple_of(heads) || !heads.is_multiple_of(kv_heads) {
        let expected =
            format!("a divisor of hidden_size, {e}, and a multiple of num_key_value_heads");
        return Err(config.wrong("num_attention_heads", &heads.into(), &expected));
    }
    let head_length = count("head_dim", MAX_WIDTH, e / heads)?;
    if head_length != e / heads {
        let expected = format!("hidden_size / num_attention_heads, {}", e / heads);
        return Err(config.wrong("head_dim", &head_length.into(), &expected));
    }
    let keys_width = kv_heads * head_length;
    let theta = match config.object("rope_parameters")?.and_then(|found| found.get("rope_theta")) {
        Some(value) => config.in_range("rope_parameters.rope_theta", value, 1.0..1e12)?,
        None => config.number("rope_theta", 1.0..1e12)?.unwrap_or(250_000.0),
    };
    let eps = config.number("rms_norm_eps", 0.0..1.0)?.unwrap_or(1e-5);
    let vocab = shapes.rows(TOKENS);
    let context = count("max_position_embeddings", MAX_CONTEXT, 8192)?;
    let keys = vec![
        ("block_count", Entry::U32(layers as u32)),
        ("context_length", Entry::U32(context as u32)),
        ("embedding_length", Entry::U32(e as u32)),
        ("feed_forward_length", Entry::U32(f as u32)),
        ("attention.head_count", Entry::U32(heads as u32)),
        ("attention.head_count_kv", Entry::U32(kv_heads as u32)),
        ("rope.freq_base", Entry::F32(theta as f32)),
        ("attention.layer_norm_rms_epsilon", Entry::F32(eps as f32)),
        ("attention.causal", Entry::Bool(false)),
        ("vocab_size", Entry::U32(vocab as u32)),
    ];
    let outside = vec![
        Known::new(TOKENS, "token_embd.weight", &[vocab, e]),
        Known::new("norm.weight", "output_norm.weight", &[e]),
    ];
    let inside = vec![
        Known::new("input_layernorm.weight", "attn_norm.weight", &[e]),
        Known::new("self_attn.q_proj.weight", "attn_q.weight", &[e, e]),
        Known::new("self_attn.k_proj.weight", "attn_k.weight", &[keys_width, e]),
        Known::new("self_attn.v_proj.weight", "attn_v.weight", &[keys_width, e]),
        Known::new("self_attn.o_proj.weight", "attn_output.weight", &[e, e]),
        Known::new("post_attention_layernorm.weight", "ffn_norm.weight", &[e]),
        Known::new("mlp.gate_proj.weight", "ffn_gate.weight", &[f, e]),
        Known::new("mlp.up_proj.weight", "ffn_up.weight", &[f, e]),
        Known::new("mlp.down_proj.weight", "ffn_down.weight", &[e, f]),
    ];
    Ok(EncoderPlan {
        gguf: None,
        keys,
        layers,
        layer: "layers.",
        outside,
        inside,
        others: vec![("lm_head.", head::PREDICTS)],
        vocab,
        token_types: 0,
        labels: None,
    })
}
