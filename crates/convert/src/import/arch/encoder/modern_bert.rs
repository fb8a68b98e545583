//! `ModernBert…`: norms before the parts, rotary embeddings with two bases, and windows in all layers but every third.

use super::super::config::Config;
use super::super::dimensions::{MAX_CONTEXT, MAX_WIDTH};
use super::head::{self, Head};
use super::{
    EncoderPlan, Family, Known, LayersWithTensor, MAX_LAYERS, Shapes, check_activation, check_flag,
};
use crate::ConvertError;
use crate::import::tensor::Entry;

pub(super) const MODERN_BERT: Family = Family {
    gguf: "modern-bert",
    classes: &[
        ("ModernBertModel", Head::Vectors),
        ("ModernBertForMaskedLM", Head::Vectors),
        ("ModernBertForSequenceClassification", Head::Scores),
    ],
    model_types: &["modernbert"],
    prefixes: &["model."],
    plan,
};

const TOKENS: &str = "embeddings.tok_embeddings.weight";

fn plan(config: &Config, head: Head, shapes: &Shapes<'_>) -> Result<EncoderPlan, ConvertError> {
    let count = |key, most, default| config.count(key, most).map(|n| n.unwrap_or(default));
    for flag in ["attention_bias", "mlp_bias", "norm_bias", "classifier_bias"] {
        check_flag(config, flag, false)?;
    }
    check_activation(config, "hidden_activation", "gelu", &["gelu", "silu"])?;
    check_activation(config, "position_embedding_type", "absolute", &["absolute", "sans_pos"])?;
    let e = count("hidden_size", MAX_WIDTH, 768)?;
    let f = count("intermediate_size", MAX_WIDTH, 1152)?;
    let layers = count("num_hidden_layers", MAX_LAYERS, 22)?;
    let heads = count("num_attention_heads", MAX_WIDTH, 12)?;
    if !e.is_multiple_of(heads) {
        let expected = format!("a divisor of hidden_size, {e}");
        return Err(config.wrong("num_attention_heads", &heads.into(), &expected));
    }
    let vocab = shapes.rows(TOKENS);
    let eps = config.number("norm_eps", 0.0..1.0)?.unwrap_or(1e-5);
    let (global, local) = thetas(config)?;
    let pattern = pattern(config, layers)?;
    let mut keys = vec![
        ("block_count", Entry::U32(layers as u32)),
        ("context_length", Entry::U32(count("max_position_embeddings", MAX_CONTEXT, 8192)? as u32)),
        ("embedding_length", Entry::U32(e as u32)),
        ("feed_forward_length", Entry::U32(f as u32)),
        ("attention.head_count", Entry::U32(heads as u32)),
        ("attention.layer_norm_epsilon", Entry::F32(eps as f32)),
        ("attention.causal", Entry::Bool(false)),
        (
            "attention.sliding_window",
            Entry::U32(count("local_attention", MAX_CONTEXT, 128)? as u32),
        ),
        ("attention.sliding_window_pattern", pattern),
        ("rope.freq_base", Entry::F32(global as f32)),
        ("rope.freq_base_swa", Entry::F32(local as f32)),
        ("rope.scaling.type", Entry::Str("none".into())),
        ("vocab_size", Entry::U32(vocab as u32)),
    ];
    if let Some(activation) = config.word("hidden_activation")?.filter(|word| *word != "gelu") {
        keys.push(("hidden_activation", Entry::Str(activation.into())));
    }
    let mut outside = vec![
        Known::new(TOKENS, "token_embd.weight", &[vocab, e]),
        Known::new("embeddings.norm.weight", "token_embd_norm.weight", &[e]),
        Known::new("final_norm.weight", "output_norm.weight", &[e]),
    ];
    let mut others = vec![("decoder.", head::PREDICTS)];
    let labels = match head {
        Head::Vectors => {
            others.extend([("head.", head::PREDICTS), ("classifier.", "belongs to another head")]);
            None
        }
        Head::Scores => {
            check_activation(config, "classifier_activation", "gelu", &["gelu"])?;
            let pooling = match config.word("classifier_pooling")?.unwrap_or("cls") {
                "mean" => 1,
                "cls" => 2,
                other => {
                    let expected = "\"cls\" or \"mean\"";
                    return Err(config.wrong("classifier_pooling", &other.into(), expected));
                }
            };
            keys.push(("classifier.pooling_type", Entry::U32(pooling)));
            let labels = shapes.rows("classifier.weight");
            outside.extend([
                Known::new("head.dense.weight", "cls.weight", &[e, e]),
                Known::new("head.norm.weight", "cls.norm.weight", &[e]),
                Known::new("classifier.weight", "cls.output.weight", &[labels, e]),
                Known::new("classifier.bias", "cls.output.bias", &[labels]),
            ]);
            Some(head::labels(config, labels)?)
        }
    };
    let inside = vec![
        // The first layer follows the norm of the embeddings.
        Known {
            layers: LayersWithTensor::From(1),
            ..Known::new("attn_norm.weight", "attn_norm.weight", &[e])
        },
        Known::new("attn.Wqkv.weight", "attn_qkv.weight", &[3 * e, e]),
        Known::new("attn.Wo.weight", "attn_output.weight", &[e, e]),
        Known::new("mlp_norm.weight", "ffn_norm.weight", &[e]),
        Known::new("mlp.Wi.weight", "ffn_up.weight", &[2 * f, e]),
        Known::new("mlp.Wo.weight", "ffn_down.weight", &[e, f]),
    ];
    let (layer, token_types) = ("layers.", 0);
    Ok(EncoderPlan {
        gguf: None,
        keys,
        layers,
        layer,
        outside,
        inside,
        others,
        vocab,
        token_types,
        labels,
    })
}

/// Returns the bases of the rotary embeddings: of layers without a window, and with one. `transformers` 5 has them in `rope_parameters`.
fn thetas(config: &Config) -> Result<(f64, f64), ConvertError> {
    const LIMITS: std::ops::Range<f64> = 1.0..1e12;
    let found = config.object("rope_parameters")?;
    let of = |kind: &str, key: &str, default: f64| {
        let newer = found.and_then(|found| found.get(kind)?.get("rope_theta"));
        match newer {
            Some(value) => config.in_range("rope_parameters.rope_theta", value, LIMITS),
            None => Ok(config.number(key, LIMITS)?.unwrap_or(default)),
        }
    };
    Ok((
        of("full_attention", "global_rope_theta", 160_000.0)?,
        of("sliding_attention", "local_rope_theta", 10_000.0)?,
    ))
}

/// Returns which layers have windows: every how many has none, or for each whether it has one.
fn pattern(config: &Config, layers: u64) -> Result<Entry, ConvertError> {
    let Some(value) = config.get("layer_types") else {
        let every = config.count("global_attn_every_n_layers", MAX_LAYERS)?.unwrap_or(3);
        return Ok(Entry::U32(every as u32));
    };
    let windows = value.as_array().map(|all| {
        all.iter().map(|kind| match kind.as_str() {
            Some("sliding_attention") => Some(true),
            Some("full_attention") => Some(false),
            _ => None,
        })
    });
    let windows: Option<Vec<bool>> = windows.and_then(Iterator::collect);
    let Some(windows) = windows.filter(|windows| windows.len() as u64 == layers) else {
        let expected = format!("sliding_attention or full_attention for each of {layers} layers");
        return Err(config.wrong("layer_types", value, &expected));
    };
    let every = (1..=layers).find(|every| {
        (0..).zip(&windows).all(|(layer, window)| *window != u64::is_multiple_of(layer, *every))
    });
    Ok(every.map_or(Entry::Bools(windows), |every| Entry::U32(every as u32)))
}
