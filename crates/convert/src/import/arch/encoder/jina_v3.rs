//! `JinaEmbeddingsV3Model`, as `transformers` has it: an XLM-R whose queries and keys are rotated. Its tasks are adapters in folders of their own.
//!
//! The first form of the model (`XLMRobertaModel` with `lora_adaptations`) has the adapters of all tasks among its weights, and is refused by name.

use super::super::config::Config;
use super::super::dimensions::{MAX_CONTEXT, MAX_WIDTH};
use super::bert::{Sizes, TOKENS, TYPES};
use super::head::{self, Head};
use super::{EncoderPlan, Family, Known, Shapes, both, linear, norm};
use crate::ConvertError;
use crate::import::tensor::Entry;

pub(super) const JINA_V3: Family = Family {
    gguf: "jina-bert-v3",
    classes: &[
        ("JinaEmbeddingsV3Model", Head::Vectors),
        ("JinaEmbeddingsV3ForMaskedLM", Head::Vectors),
    ],
    model_types: &["jina_embeddings_v3"],
    prefixes: &["roberta."],
    plan,
};

/// The key of the first form.
const ADAPTATIONS: &str = "lora_adaptations";

/// Refuses the first form.
pub(super) fn refuse_adaptations(config: &Config) -> Result<(), ConvertError> {
    match config.get(ADAPTATIONS) {
        None => Ok(()),
        Some(found) => {
            let expected = "none: take the folder of the same model that transformers reads without code of its own \
                            (jina-embeddings-v3-hf), in which each task is an adapter in a folder";
            Err(config.wrong(ADAPTATIONS, found, expected))
        }
    }
}

fn plan(config: &Config, _head: Head, shapes: &Shapes<'_>) -> Result<EncoderPlan, ConvertError> {
    let count = |key, most, default| config.count(key, most).map(|n| n.unwrap_or(default));
    let sizes = Sizes {
        layers: count("num_hidden_layers", super::MAX_LAYERS, 24)?,
        hidden: count("hidden_size", MAX_WIDTH, 1024)?,
        feed_forward: count("intermediate_size", MAX_WIDTH, 4096)?,
        heads: count("num_attention_heads", MAX_WIDTH, 16)?,
        positions: count("max_position_embeddings", MAX_CONTEXT, 8194)?,
        types: count("type_vocab_size", MAX_WIDTH, 1)?,
        vocab: shapes.rows(TOKENS),
        eps: config.number("layer_norm_eps", 0.0..1.0)?.unwrap_or(1e-5),
    };
    super::check_activation(config, "hidden_act", "gelu", &["gelu"])?;
    let sizes = sizes.check(config)?;
    let rope = config.object("rope_parameters")?;
    if let Some(kind) =
        rope.and_then(|rope| rope.get("rope_type")).filter(|kind| *kind != "default")
    {
        return Err(config.wrong("rope_parameters.rope_type", kind, "\"default\""));
    }
    let theta = match rope.and_then(|rope| rope.get("rope_theta")) {
        Some(value) => config.in_range("rope_parameters.rope_theta", value, 1.0..1e12)?,
        None => 20_000.0,
    };
    let (e, f) = (sizes.hidden, sizes.feed_forward);
    let mut outside = vec![Known::new(TOKENS, "token_embd.weight", &[sizes.vocab, e])];
    outside.extend(norm(both!("embeddings.LayerNorm"), both!("token_embd_norm"), e));
    if sizes.types > 0 {
        outside.push(Known::new(TYPES, "token_types.weight", &[sizes.types, e]));
    }
    let inside = [
        linear(both!("self_attn.q_proj"), both!("attn_q"), e, e),
        linear(both!("self_attn.k_proj"), both!("attn_k"), e, e),
        linear(both!("self_attn.v_proj"), both!("attn_v"), e, e),
        linear(both!("self_attn.o_proj"), both!("attn_output"), e, e),
        norm(both!("post_attention_layernorm"), both!("attn_output_norm"), e),
        linear(both!("mlp.fc1"), both!("ffn_up"), f, e),
        linear(both!("mlp.fc2"), both!("ffn_down"), e, f),
        norm(both!("post_mlp_layernorm"), both!("layer_output_norm"), e),
    ]
    .concat();
    let mut keys = sizes.keys(sizes.positions);
    keys.push(("rope.freq_base", Entry::F32(theta as f32)));
    Ok(EncoderPlan {
        gguf: None,
        keys,
        layers: sizes.layers,
        layer: "layers.",
        inside,
        outside,
        others: vec![
            ("lm_head.", head::PREDICTS),
            ("pooler.", head::POOLER),
            ("embeddings.position_ids", head::POSITIONS),
        ],
        vocab: sizes.vocab,
        token_types: sizes.types.max(1),
        labels: None,
    })
}
