//! `gpt-oss`: a mixture of experts in every layer, chosen by their logits, with biases and a clamped activation; attention with
//! biases and sinks, with a sliding window in every second layer, starting with the first; NeoX rotary pairs. The norm before the
//! feed-forward part is called `post_attention_norm` (OpenAI's gpt-oss 20B and 120B).

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::Activation;
use crate::parts::experts::ExpertsSpec;
use crate::parts::routing::{Gating, Routing};
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::window::{window, windowed_layers};
use crate::spec::{FeedForward, ModelSpec, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "gpt-oss", read };

/// Ollama's files of the same network, with other names: `attn_qkv` is one tensor, and so is `ffn_gate_up_exps`, whose rows
/// alternate between gate and up.
pub(super) const OLLAMAS: Architecture = Architecture { name: "gptoss", read: read_ollamas };

const NORMS: Norms = Norms { feed_forward: Some("post_attention_norm"), ..Norms::INPUTS };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec {
        pairing: RopePairing::NeoX,
        sinks: Some("attn_sinks.weight"),
        ..AttentionSpec::read(keys)?
    };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let found = ExpertsSpec::read(keys, false)?;
    let routing = Routing { gating: Gating::SoftmaxOfChosen, ..found.routing };
    let experts = ExpertsSpec { routing, activation: Activation::ClampedSilu, ..found };
    let mut spec = sizes.uniform(keys, attention, experts, rope);
    spec.layers.iter_mut().for_each(|layer| layer.norms = NORMS);
    if let Some(window) = window(keys, 0)? {
        let windowed = windowed_layers(keys, spec.layers.len(), 2)?;
        for (attention, windowed) in spec.attention_layers_mut().zip(windowed) {
            attention.mask = attention.mask.with_window(windowed.then_some(window));
        }
    }
    Ok(spec)
}

fn read_ollamas(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = read(keys)?;
    for attention in spec.attention_layers_mut() {
        (attention.sinks, attention.output) = (Some("attn_sinks"), "attn_out");
    }
    for layer in &mut spec.layers {
        if let Some(FeedForward::Experts(experts)) = &mut layer.feed_forward {
            experts.interleaved = true;
        }
        layer.norms = Norms::INPUTS;
    }
    Ok(spec)
}
