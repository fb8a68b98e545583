//! `MiniMaxM2ForCausalLM`: MiniMax M2: a mixture of experts in every layer, chosen by their sigmoids with a bias for the choice
//! only; queries and keys are normed over all heads together, and half of a head rotates.

use super::config::Config;
use super::describe::{
    ATTENTION, Architecture, Defaults, Dim, Dimensions, Group, Mixture, Own, Part, TWO_NORMS, When,
    norm, vector,
};
use super::{llama, mixtral};
use crate::ConvertError;
use crate::import::tensor::Entry;

pub(super) const MINIMAX_M2: Architecture = Architecture {
    gguf: "minimax-m2",
    classes: &["MiniMaxM2ForCausalLM", "MiniMaxM2Model"],
    model_types: &["minimax_m2"],
    defaults: Defaults {
        hidden: 3072,
        feed_forward: 1536,
        layers: 62,
        heads: 48,
        kv_heads: Some(8),
        head_length: Some(128),
        context: 196_608,
        theta: 5e6,
        partial: Some(0.5),
        ..llama::LLAMA.defaults
    },
    layer: &[
        Group::always(TWO_NORMS),
        Group::always(ATTENTION),
        Group::always(NORMS),
        mixtral::EITHER_EXPERTS[0],
        mixtral::EITHER_EXPERTS[1],
        Group { when: When::Stored(mixtral::JOINED, false), parts: &[CHOICE] },
        Group { when: When::Stored(mixtral::JOINED, true), parts: &[CHOICE_BESIDE_JOINED] },
    ],
    experts: Some(Mixture {
        count: 256,
        used: ("num_experts_per_tok", 8),
        width: Some(("intermediate_size", 1536)),
        shared: None,
        normed: None,
    }),
    permuted: false,
    keys,
    ..llama::LLAMA
};

pub(super) const NORMS: &[Part] = &[
    norm("self_attn.q_norm.weight", "attn_q_norm.weight", Dim::Queries),
    norm("self_attn.k_norm.weight", "attn_k_norm.weight", Dim::Keys),
];

const CHOICE: Part =
    vector("block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias", Dim::Experts);

const CHOICE_BESIDE_JOINED: Part =
    vector("mlp.e_score_correction_bias", "exp_probs_b.bias", Dim::Experts);

fn keys(config: &Config, dimensions: &Dimensions, own: &mut Own) -> Result<(), ConvertError> {
    // The published configuration gives this, and no share.
    let key = "rotary_dim";
    let written = own.keys.iter_mut().find(|(key, _)| *key == "rope.dimension_count");
    if let (Some(rotated), Some((_, entry))) = (config.count(key, dimensions.head)?, written) {
        if rotated % 2 != 0 {
            return Err(config.wrong(key, &rotated.into(), "an even number"));
        }
        *entry = Entry::U32(rotated as u32);
    }
    if let Some(found) = config.word("scoring_func")?.filter(|found| *found != "sigmoid") {
        return Err(config.wrong("scoring_func", &found.into(), "\"sigmoid\""));
    }
    own.add("expert_gating_func", Entry::U32(2));
    Ok(())
}
