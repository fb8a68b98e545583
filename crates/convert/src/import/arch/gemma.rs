//! `GemmaForCausalLM`: the first Gemma, and CodeGemma: norms of inputs alone, and GELU. Norms multiply by their weight plus one; in GGUF the one is already
//! added.

use super::describe::{Architecture, Defaults, Group, MATRICES, TWO_NORMS};
use super::gemma2;

pub(super) const GEMMA: Architecture = Architecture {
    gguf: "gemma",
    classes: &["GemmaForCausalLM", "GemmaModel"],
    model_types: &["gemma"],
    defaults: Defaults {
        hidden: 3072,
        feed_forward: 24576,
        layers: 28,
        heads: 16,
        kv_heads: Some(16),
        ..gemma2::GEMMA2.defaults
    },
    layer: &[Group::always(TWO_NORMS), Group::always(MATRICES)],
    keys: |_, _, _| Ok(()),
    ..gemma2::GEMMA2
};
