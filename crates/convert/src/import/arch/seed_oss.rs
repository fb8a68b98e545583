//! `SeedOssForCausalLM`: ByteDance's Seed-OSS. Queries, keys and values have biases; the head length is
//! independent of the hidden size.

use super::describe::{Architecture, Defaults, Group, INPUT_BIASES, MATRICES, TWO_NORMS_RENAMED};
use super::llama;

pub(super) const SEED_OSS: Architecture = Architecture {
    gguf: "seed_oss",
    classes: &["SeedOssForCausalLM"],
    model_types: &["seed_oss"],
    defaults: Defaults {
        feed_forward: 27648,
        layers: 64,
        heads: 80,
        kv_heads: Some(8),
        head_length: Some(128),
        context: 524_288,
        ..llama::LLAMA.defaults
    },
    layer: &[
        Group::always(TWO_NORMS_RENAMED),
        Group::always(MATRICES),
        Group::always(INPUT_BIASES),
    ],
    permuted: false,
    never: &["attention_out_bias", "mlp_bias"],
    keys: |_, _, _| Ok(()),
    ..llama::LLAMA
};
