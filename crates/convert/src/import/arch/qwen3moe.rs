//! `Qwen3MoeForCausalLM`: Qwen3-30B-A3B and 235B-A22B, a mixture of experts in every layer.

use serde_json::Value;

use super::config::Config;
use super::describe::{
    ATTENTION, Architecture, EITHER_EXPERTS, Group, HEAD_NORMS, Mixture, TWO_NORMS,
};
use super::{qwen2, qwen3};
use crate::ConvertError;

pub(super) const QWEN3MOE: Architecture = Architecture {
    gguf: "qwen3moe",
    classes: &["Qwen3MoeForCausalLM", "Qwen3MoeModel"],
    model_types: &["qwen3_moe"],
    layer: &[
        Group::always(TWO_NORMS),
        Group::always(ATTENTION),
        Group::always(HEAD_NORMS),
        EITHER_EXPERTS[0],
        EITHER_EXPERTS[1],
    ],
    experts: Some(Mixture {
        count: 128,
        used: ("num_experts_per_tok", 8),
        width: Some(("moe_intermediate_size", 768)),
        shared: None,
        normed: Some((false, true)),
    }),
    keys: |config, dimensions, own| {
        every_layer_is_sparse(config)?;
        qwen2::keys("qwen3moe", config, dimensions, own)
    },
    ..qwen3::QWEN3
};

/// Readers of GGUF expect experts in every layer.
pub(super) fn every_layer_is_sparse(config: &Config) -> Result<(), ConvertError> {
    if let Some(step) = config.count("decoder_sparse_step", u64::MAX)?.filter(|step| *step != 1) {
        return Err(config.wrong("decoder_sparse_step", &step.into(), "1"));
    }
    match config.get("mlp_only_layers") {
        None => Ok(()),
        Some(Value::Array(layers)) if layers.is_empty() => Ok(()),
        Some(other) => Err(config.wrong("mlp_only_layers", other, "an empty array")),
    }
}
