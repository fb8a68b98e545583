//! `Qwen2MoeForCausalLM`: Qwen1.5-MoE-A2.7B and Qwen2-57B-A14B. In addition to the experts there is a shared expert.

use super::describe::{
    ATTENTION, Architecture, Defaults, EITHER_EXPERTS, Group, INPUT_BIASES, Mixture, SHARED_EXPERT,
    TWO_NORMS,
};
use super::qwen2;
use super::qwen3moe::every_layer_is_sparse;

pub(super) const QWEN2MOE: Architecture = Architecture {
    gguf: "qwen2moe",
    classes: &["Qwen2MoeForCausalLM", "Qwen2MoeModel"],
    model_types: &["qwen2_moe"],
    defaults: Defaults {
        hidden: 2048,
        feed_forward: 5632,
        layers: 24,
        heads: 16,
        kv_heads: Some(16),
        ..qwen2::QWEN2.defaults
    },
    layer: &[
        Group::always(TWO_NORMS),
        Group::always(ATTENTION),
        Group::always(INPUT_BIASES),
        EITHER_EXPERTS[0],
        EITHER_EXPERTS[1],
        Group::always(SHARED_EXPERT),
    ],
    experts: Some(Mixture {
        count: 60,
        used: ("num_experts_per_tok", 4),
        width: Some(("moe_intermediate_size", 1408)),
        shared: Some(("shared_expert_intermediate_size", 5632)),
        normed: Some((false, false)),
    }),
    keys: |config, dimensions, own| {
        every_layer_is_sparse(config)?;
        qwen2::keys("qwen2moe", config, dimensions, own)
    },
    ..qwen2::QWEN2
};
