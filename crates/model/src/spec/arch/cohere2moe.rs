//! `cohere2moe`: like `cohere2`, with a mixture of experts after leading dense layers, chosen by their sigmoids; half of the sum of the experts and a shared
//! one counts. All but the first of four layers have a sliding window, and those and the dense layers are rotated (Cohere's Command A+ and North).

use super::{Architecture, command_r};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::experts::{ExpertsSpec, SHARED_WIDTH, SharedExpert};
use crate::spec::window::{window, windowed_after_first};
use crate::spec::{FeedForward, Mixer, ModelSpec, NormKind};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "cohere2moe", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut experts = ExpertsSpec::read(keys, false)?;
    experts.routing = experts.routing.sigmoid_unless_said(keys)?;
    experts.shared = SharedExpert::as_wide_as(keys, experts.intermediate_size)?;
    if let Some(shared) = &mut experts.shared {
        let width = keys.width_or_none(SHARED_WIDTH)?;
        shared.intermediate_size = width.unwrap_or(shared.intermediate_size);
        (shared.scale, experts.routing.scale) = (0.5, 0.5 * experts.routing.scale);
    }
    let rms = keys.get::<f32>("attention.layer_norm_rms_epsilon")?.is_some();
    let kind = if rms { NormKind::Rms } else { NormKind::Layer };
    let mut spec = command_r::read_with(keys, kind, experts)?;
    spec.put_dense_before_experts(keys)?;
    let window = window(keys, 0)?.ok_or_else(|| keys.missing("attention.sliding_window"))?;
    let windowed = windowed_after_first(keys, spec.layers.len(), 4)?;
    for (layer, windowed) in spec.layers.iter_mut().zip(windowed) {
        let dense = matches!(layer.feed_forward, Some(FeedForward::Dense(_)));
        if let Some(Mixer::Attention(attention)) = &mut layer.mixer {
            attention.mask = attention.mask.with_window(windowed.then_some(window));
            attention.rope = attention.rope.filter(|_| windowed || dense);
        }
    }
    Ok(spec)
}
