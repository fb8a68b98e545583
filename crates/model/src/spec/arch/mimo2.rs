//! `mimo2`: values are shorter than keys, and scaled; a list says which layers have a sliding window, their own number of heads, a rotary embedding of their
//! own, and, by what the file has, a sink for each head; dense layers and layers of experts, chosen by their sigmoids with a bias that affects only the
//! choice (Xiaomi's MiMo V2 Flash and V2.5).

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::experts::ExpertsSpec;
use crate::parts::routing::Gating;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::window::{set_unscaled_windows, windowed_layers};
use crate::spec::{Mixer, ModelSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "mimo2", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec::read_each(keys, sizes.layers)?;
    let rope = rope(keys, AttentionSpec::key_dim(keys)?, sizes.context)?;
    let mut experts = ExpertsSpec::read(keys, true)?;
    (experts.routing.gating, experts.routing.normalise) = (Gating::Sigmoid, true);
    let windowed = windowed_layers(keys, sizes.layers, 0)?;
    let value_scale = keys.factor("attention.value_scale")?;
    let mixers = attention.into_iter().enumerate().map(|(i, attention)| {
        let sinks = keys.gguf.tensor(&format!("blk.{i}.attn_sinks.weight"));
        Mixer::Attention(AttentionSpec {
            pairing: RopePairing::NeoX,
            sinks: sinks.map(|_| "attn_sinks.weight"),
            value_scale,
            ..attention
        })
    });
    let mut spec = sizes.of_mixers(keys, mixers, &experts.into(), rope);
    spec.put_dense_without_router(keys)?;
    set_unscaled_windows(&mut spec, keys, &windowed)?;
    Ok(spec)
}
