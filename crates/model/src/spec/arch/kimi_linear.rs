//! `kimi-linear`: Kimi delta attention, and latent attention without rotation in layers with key heads; after leading dense layers a mixture of experts with
//! shared ones, chosen by the function that the file states with a bias that affects only the choice (Moonshot's Kimi Linear 48B-A3B).
//!
//! `bailingmoe3`: latent attention is rotated and has a gate for each head, logarithms of decays have a lower bound, and activations of some layers are limited
//! (inclusionAI's Ling 3).

use super::{Architecture, step35};
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_WIDTH};
use crate::parts::attention::OutputGate;
use crate::parts::dense::Activation;
use crate::parts::experts::{ExpertsSpec, SHARED_WIDTH, SharedExpert};
use crate::parts::kda::KdaSpec;
use crate::parts::latent_attention::LatentAttentionSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{Mixer, ModelSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "kimi-linear", read };

pub(super) const BAILING: Architecture = Architecture { name: "bailingmoe3", read: bailing };

/// The key of the number of key heads of each layer; 0: the layer has Kimi delta attention.
const KV_HEADS: &str = "attention.head_count_kv";

/// A network of layers that have this attention where there are key heads.
fn hybrid(
    keys: &Keys<'_, '_>,
    attention: LatentAttentionSpec,
    experts: ExpertsSpec,
) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let rope = rope(keys, attention.rotated, sizes.context)?;
    let kda = Mixer::Kda(KdaSpec::read(keys)?);
    let heads = keys.per_layer_in(KV_HEADS, sizes.layers, 0..=MAX_WIDTH)?;
    let heads = heads.ok_or_else(|| keys.missing(KV_HEADS))?;
    let attention = Mixer::LatentAttention(attention);
    let mixers = heads.iter().map(|heads| if *heads > 0 { &attention } else { &kda }.clone());
    let mut spec = sizes.of_mixers(keys, mixers, &experts.into(), rope);
    spec.put_dense_before_experts(keys)?;
    Ok(spec)
}

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let attention = LatentAttentionSpec { rotates: false, ..LatentAttentionSpec::read(keys)? };
    let mut experts = ExpertsSpec::read(keys, true)?;
    experts.routing.normalise = true;
    experts.routing = experts.routing.sigmoid_unless_said(keys)?;
    experts.shared = SharedExpert::as_wide_as(keys, experts.intermediate_size)?;
    hybrid(keys, attention, experts)
}

fn bailing(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let output_gate = OutputGate::OfHeads;
    let attention = LatentAttentionSpec { output_gate, ..LatentAttentionSpec::read(keys)? };
    let key = "kda.safe_gate";
    if keys.get::<bool>(key)? == Some(false) {
        return Err(keys.unsupported(key, false, "decays without a lower bound"));
    }
    let key = "kda.gate_lower_bound";
    if keys.get::<f32>(key)?.is_none() {
        return Err(keys.missing(key));
    }
    let mut experts = ExpertsSpec::read(keys, false)?;
    experts.shared = match keys.width_or_none(SHARED_WIDTH)? {
        Some(width) => Some(SharedExpert::new(width)),
        None => SharedExpert::as_wide_as(keys, experts.intermediate_size)?,
    };
    let mut spec = hybrid(keys, attention, experts)?;
    step35::limit(&mut spec, keys, Activation::LimitedSilu)?;
    Ok(spec)
}
