//! `deepseek2`: latent attention, and a mixture of experts with a shared expert, after leading dense layers (DeepSeek V2,
//! V2-Lite, V3 and R1, Kimi-K2, GLM-4.7-Flash, Mistral Large 3). `mistral4` (Mistral Small 4) is the same network. So are `deepseek32` (DeepSeek V3.2) and
//! `glm-dsa` (GLM-5) as long as a text has no more positions than a token chooses of longer ones, which are refused.

use alight_kernels::rope::RopeScaling;

use super::Architecture;
use super::minimax_m3::chosen;
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_CONTEXT};
use crate::parts::attention::Temperature;
use crate::parts::experts::{ExpertsSpec, SharedExpert};
use crate::parts::latent_attention::LatentAttentionSpec;
use crate::parts::routing::Routing;
use crate::spec::rope::{LOG_MULTIPLIER, magnitude, rope_with};
use crate::spec::sizes::Sizes;
use crate::spec::{FeedForward, Mixer, ModelSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "deepseek2", read };

pub(super) const DEEPSEEK32: Architecture =
    Architecture { name: "deepseek32", read: |keys| selecting(keys, |routing, _| Ok(routing)) };

pub(super) const GLM_DSA: Architecture =
    Architecture { name: "glm-dsa", read: |keys| selecting(keys, Routing::sigmoid_unless_said) };

pub(super) const MISTRAL4: Architecture = Architecture { name: "mistral4", read };

/// GLM-4.7-Flash's number of layers (without and with the layer that predicts further tokens) and of tokens. Its early files
/// leave out the router's gating function.
const GLM_FLASH: ([usize; 2], usize) = ([47, 48], 154_880);

/// The part of YaRN's magnitude that is not applied to cosines and sines: all of it, if the scale of attention contains any of it.
/// (All of these models have the same multiplier for both.)
fn counted(tenth: f32, factor: f32) -> f32 {
    if tenth == 0.0 { 1.0 } else { magnitude(1.0, factor) }
}

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let mut attention = LatentAttentionSpec::read(keys)?;
    let rope = rope_with(keys, attention.rotated, sizes.context, counted)?;
    if let RopeScaling::Yarn { factor, .. } = rope.scaling {
        // These files store a tenth of the multiplier.
        let tenth = keys.get::<f32>(LOG_MULTIPLIER)?.unwrap_or(0.0);
        let magnitude = magnitude(10.0 * tenth, factor);
        attention.scale *= magnitude * magnitude;
    }
    attention.temperature = temperature(keys)?;
    let mut experts = ExpertsSpec::read(keys, false)?;
    if GLM_FLASH.0.contains(&sizes.layers) && GLM_FLASH.1 == sizes.vocab {
        experts.routing = experts.routing.sigmoid_unless_said(keys)?;
    }
    experts.shared = SharedExpert::as_wide_as(keys, experts.intermediate_size)?;
    let mixer = Mixer::LatentAttention(attention);
    let mut spec = sizes.of_layers(keys, mixer, experts, rope);
    spec.put_dense_before_experts(keys)?;
    Ok(spec.with_mtp())
}

/// Reads a network whose tokens choose the positions that they see in texts longer than a number that a key states.
fn selecting(
    keys: &Keys<'_, '_>,
    routing: fn(Routing, &Keys<'_, '_>) -> Result<Routing, SpecError>,
) -> Result<ModelSpec, SpecError> {
    let mut spec = read(keys)?;
    // Without what chooses them, tokens see all positions.
    let chooses = keys.gguf.tensor("blk.0.indexer.attn_q_b.weight").is_some();
    // Of longer texts, which are refused.
    keys.do_not_apply_under("attention.indexer.");
    let reach = chosen(keys, "attention.indexer.top_k")?.filter(|_| chooses);
    for layer in &mut spec.layers {
        if let Some(Mixer::LatentAttention(attention)) = &mut layer.mixer {
            attention.reach = reach;
        }
        if let Some(FeedForward::Experts(experts)) = &mut layer.feed_forward {
            experts.routing = routing(experts.routing.clone(), keys)?;
        }
    }
    // The layer that predicts further tokens chooses positions, too.
    spec.mtp_layer = None;
    Ok(spec)
}

/// The factor on queries at distant positions, in Mistral Large 3.
fn temperature(keys: &Keys<'_, '_>) -> Result<Option<Temperature>, SpecError> {
    let scale = keys.float("attention.temperature_scale", 0.0..1e6, "a number from 0 on")?;
    let Some(scale) = scale.filter(|scale| *scale != 0.0) else { return Ok(None) };
    let length = match keys.optional_dimension("attention.temperature_length", MAX_CONTEXT)? {
        Some(length) => length,
        None => keys.dimension("rope.scaling.original_context_length", MAX_CONTEXT)?,
    };
    Ok(Some(Temperature { scale, length, offset: 0 }))
}
