//! `nemotron_h`: each layer is either a mixer (Mamba-2, or attention without positions) or a feed-forward part without a gate
//! (Nemotron-H, Nemotron Nano 2). `nemotron_h_moe`: the feed-forward parts are mixtures of experts with a shared expert, chosen
//! by their sigmoids with a bias that affects only the choice; they may work on a shorter row, and differ between layers
//! (Nemotron 3 Nano, Super and Puzzle).

use super::Architecture;
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_WIDTH};
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::{Activation, DenseSpec};
use crate::parts::experts::{EXPERT_WIDTH, ExpertsSpec, SHARED_WIDTH, SharedExpert};
use crate::parts::latent_experts::LatentExpertsSpec;
use crate::parts::mamba2::Mamba2Spec;
use crate::parts::routing::{Routing, USED};
use crate::spec::sizes::Sizes;
use crate::spec::{FeedForward, InputMatrices, LayerSpec, Mixer, ModelSpec, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "nemotron_h", read };

pub(super) const MIXTURE: Architecture = Architecture { name: "nemotron_h_moe", read };

/// The key of the width of each layer's feed-forward part; 0: the layer is a mixer.
const WIDTHS: &str = "feed_forward_length";

/// The norm before a layer's one part.
const NORMS: Norms = Norms { feed_forward: Norms::INPUTS.mixer, ..Norms::INPUTS };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let widths = keys.per_layer_in(WIDTHS, sizes.layers, 0..=MAX_WIDTH)?;
    let widths = widths.ok_or_else(|| keys.missing(WIDTHS))?;
    let attention = AttentionSpec::read_where_there(keys, sizes.layers)?;
    if widths.iter().all(|width| *width > 0) {
        let expected = "0 for a layer that is a mixer: without one, no token sees another";
        return Err(keys.value(WIDTHS, "not 0 for any layer", expected.into()));
    }
    let mamba = Mixer::Mamba2(Mamba2Spec::read(keys)?);
    let feed_forwards = match keys.get::<u64>("expert_count")?.unwrap_or(0) {
        0 => dense(keys, &widths)?,
        _ => mixtures(keys, &widths, sizes.hidden_size)?,
    };
    let layers = attention.into_iter().zip(feed_forwards).map(|(attention, feed_forward)| {
        let attention =
            attention.map(|spec| Mixer::Attention(AttentionSpec { rope: None, ..spec }));
        let mixer = attention.unwrap_or_else(|| mamba.clone());
        LayerSpec::new(feed_forward.is_none().then_some(mixer), feed_forward, NORMS)
    });
    let layers = layers.collect();
    Ok(sizes.network(keys, layers, Vec::new()))
}

fn ungated(intermediate_size: usize) -> DenseSpec {
    let (activation, inputs) = (Activation::ReluSquared, InputMatrices::Up);
    DenseSpec { activation, inputs, ..DenseSpec::new(intermediate_size) }
}

/// A dense part for each layer whose width is not 0.
fn dense(keys: &Keys<'_, '_>, widths: &[usize]) -> Result<Vec<Option<FeedForward>>, SpecError> {
    DenseSpec::refuse_experts(keys)?;
    let part = |width: &usize| (*width > 0).then(|| ungated(*width).into());
    Ok(widths.iter().map(part).collect())
}

/// A mixture of experts for each layer whose width is not 0.
fn mixtures(
    keys: &Keys<'_, '_>,
    widths: &[usize],
    hidden: usize,
) -> Result<Vec<Option<FeedForward>>, SpecError> {
    let (layers, experts) = (widths.len(), Routing::experts(keys)?);
    let used = keys.per_layer_in(USED, layers, 0..=experts)?;
    let used = used.ok_or_else(|| keys.missing(USED))?;
    // Early files store the total width of a token's experts.
    let each = keys.per_layer_in(EXPERT_WIDTH, layers, 0..=MAX_WIDTH)?;
    let each = each.unwrap_or_else(|| {
        let shares = widths.iter().zip(&used);
        shares.map(|(width, used)| width / (*used).max(1)).collect()
    });
    let shared = keys.width_or_none(SHARED_WIDTH)?;
    let latent = match keys.get::<u64>("moe_latent_size")?.unwrap_or(0) {
        0 => None,
        _ => keys.optional_dimension("moe_latent_size", hidden)?,
    };
    let part = |((all, used), width): ((&usize, &usize), &usize)| match (*all, *used, *width) {
        (0, ..) => Ok(None),
        (_, 0, _) => Err(keys.value(USED, 0, "at least one where there is a mixture".into())),
        (_, _, 0) => Err(keys.value(EXPERT_WIDTH, 0, "a width where there is a mixture".into())),
        (_, used, width) => {
            let routing = Routing::read_used(keys, used, false)?.sigmoid_unless_said(keys)?;
            let experts = ExpertsSpec {
                activation: Activation::ReluSquared,
                gated: false,
                ..ExpertsSpec::new(keys, routing, width)?
            };
            Ok(Some(with_shared(experts, shared, latent)))
        }
    };
    widths.iter().zip(&used).zip(&each).map(part).collect()
}

/// The experts with a shared expert of width `shared`, on rows of length `latent` if they have a length of their own.
fn with_shared(experts: ExpertsSpec, shared: Option<usize>, latent: Option<usize>) -> FeedForward {
    match latent {
        None => ExpertsSpec { shared: shared.map(SharedExpert::new), ..experts }.into(),
        Some(latent_size) => FeedForward::LatentExperts(LatentExpertsSpec {
            latent_size,
            experts,
            shared: shared.map(ungated),
        }),
    }
}
