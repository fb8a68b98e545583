//! `Exaone4ForCausalLM`: LG's EXAONE 4: the outputs of both parts are normed, and queries and keys; three of every four layers have a sliding window, and they
//! alone are rotated, if there is a window.

use super::describe::{Architecture, Defaults, FOUR_NORMS, Group, HEAD_NORMS, MATRICES, Part};
use super::llama;
use super::window::{Local, write};
use crate::import::tensor::Entry;

pub(super) const EXAONE4: Architecture = Architecture {
    gguf: "exaone4",
    classes: &["Exaone4ForCausalLM", "Exaone4Model"],
    model_types: &["exaone4"],
    defaults: Defaults {
        feed_forward: 16384,
        kv_heads: Some(32),
        eps: 1e-5,
        ..llama::LLAMA.defaults
    },
    layer: &[Group::always(NORMS), Group::always(MATRICES), Group::always(HEAD_NORMS)],
    permuted: false,
    keys: |config, dimensions, own| {
        own.add("vocab_size", Entry::U32(dimensions.vocab as u32));
        let local = Local {
            default_window: 4096,
            period: 4,
            key_of_period: Some("sliding_window_pattern"),
        };
        write(config, dimensions.layers, &local, own)
    },
    ..llama::LLAMA
};

const NORMS: &[Part] = &[FOUR_NORMS[1], FOUR_NORMS[3]];
