//! `step35`: queries and keys may be normed per head; the outputs of heads may have a gate, one for each head; a list says which layers have a sliding
//! window, their own number of heads, and a rotary embedding of their own, on twice as many elements; dense layers and layers of experts with a shared one,
//! by what the file has, chosen by their sigmoids with a bias that affects only the choice. Activations of some layers are limited (StepFun's Step 3.5).

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_WIDTH};
use crate::parts::attention::{AttentionSpec, OutputGate, QkNorm};
use crate::parts::dense::Activation;
use crate::parts::experts::{ExpertsSpec, SharedExpert};
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::window::{set_unscaled_windows, windowed_layers};
use crate::spec::{FeedForward, Mixer, ModelSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "step35", read };

/// Limits up to this are none.
const NO_LIMIT: f32 = 1e-6;

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec::read_each(keys, sizes.layers)?;
    let key_dim = AttentionSpec::key_dim(keys)?;
    let mut rope = rope(keys, key_dim, sizes.context)?;
    let all = rope.dims;
    if !all.is_multiple_of(4) {
        let expected = "a multiple of 4: half as many are rotated without a window".into();
        return Err(keys.value("rope.dimension_count", all, expected));
    }
    rope.dims /= 2;
    let mut experts = ExpertsSpec::read(keys, false)?;
    experts.routing = experts.routing.sigmoid_unless_said(keys)?;
    experts.shared = SharedExpert::read(keys)?;
    let windowed = windowed_layers(keys, sizes.layers, 0)?;
    let mixers = attention.into_iter().enumerate().map(|(i, attention)| {
        let gated = keys.gguf.tensor(&format!("blk.{i}.attn_gate.weight")).is_some();
        Mixer::Attention(AttentionSpec {
            pairing: RopePairing::NeoX,
            qk_norm: QkNorm::HeadsIfThere,
            output_gate: if gated { OutputGate::OfHeads } else { OutputGate::None },
            ..attention
        })
    });
    let mut spec = sizes.of_mixers(keys, mixers, &experts.into(), rope);
    spec.put_dense_without_router(keys)?;
    set_unscaled_windows(&mut spec, keys, &windowed)?;
    if keys.optional_dimension("rope.dimension_count_swa", MAX_WIDTH)?.is_none() {
        spec.ropes.iter_mut().skip(1).for_each(|rope| rope.dims = all);
    }
    limit(&mut spec, keys, Activation::LimitedSilu)?;
    Ok(spec)
}

/// Limits the activations of layers for which keys have limits: `swiglu_clamp_exp` of experts, `swiglu_clamp_shexp` of shared experts and of dense parts.
///
/// # Errors
/// Lists that do not have one limit per layer.
pub(super) fn limit(
    spec: &mut ModelSpec,
    keys: &Keys<'_, '_>,
    limited: fn(f32) -> Activation,
) -> Result<(), SpecError> {
    let layers = spec.layers.len();
    let of = |key| {
        let found = keys.floats_per_layer(key, layers, 0.0..1e30)?;
        Ok::<_, SpecError>(found.unwrap_or_else(|| vec![0.0; layers]))
    };
    let limits = of("swiglu_clamp_exp")?.into_iter().zip(of("swiglu_clamp_shexp")?);
    for (layer, (routed, shared)) in spec.layers.iter_mut().zip(limits) {
        let activation = |most: f32| match most > NO_LIMIT {
            true => limited(most),
            false => Activation::Silu,
        };
        match &mut layer.feed_forward {
            Some(FeedForward::Dense(dense)) => dense.activation = activation(shared),
            Some(FeedForward::Experts(experts)) => {
                experts.activation = activation(routed);
                if let Some(own) = &mut experts.shared {
                    own.activation = Some(activation(shared));
                }
            }
            _ => {}
        }
    }
    Ok(())
}
