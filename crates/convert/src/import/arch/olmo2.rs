//! `Olmo2ForCausalLM` and `Olmo3ForCausalLM`: the outputs of attention and feed-forward are normed, not their inputs, and
//! so are queries, and keys, over all heads together. OLMo 3 has sliding windows in three of every four layers.

use super::describe::{Architecture, Defaults, Dim, FOUR_NORMS, Group, MATRICES, Part, norm};
use super::llama;
use super::window::{Local, write};

pub(super) const OLMO2: Architecture = Architecture {
    gguf: "olmo2",
    classes: &["Olmo2ForCausalLM", "Olmo2Model"],
    model_types: &["olmo2"],
    defaults: Defaults { eps: 1e-5, ..llama::LLAMA.defaults },
    layer: &[Group::always(MATRICES), Group::always(NORMS)],
    permuted: false,
    own_head_length: false,
    never: &["attention_bias"],
    keys: |_, _, _| Ok(()),
    ..llama::LLAMA
};

pub(super) const OLMO3: Architecture = Architecture {
    classes: &["Olmo3ForCausalLM", "Olmo3Model"],
    model_types: &["olmo3"],
    defaults: Defaults { context: 65536, ..OLMO2.defaults },
    keys: |config, dimensions, own| {
        let local = Local { default_window: 4096, period: 4, key_of_period: None };
        write(config, dimensions.layers, &local, own)
    },
    ..OLMO2
};

const NORMS: &[Part] = &[
    norm("self_attn.q_norm.weight", "attn_q_norm.weight", Dim::Queries),
    norm("self_attn.k_norm.weight", "attn_k_norm.weight", Dim::Keys),
    FOUR_NORMS[1],
    FOUR_NORMS[3],
];
