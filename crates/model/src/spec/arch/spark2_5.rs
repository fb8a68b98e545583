//! `spark2_5`: the outputs of heads have a gate, one for each head; a list says which layers have a sliding window, their own number of heads, and a rotary
//! embedding of their own; GELU (iFlytek's Spark X2.5).

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::{AttentionSpec, OutputGate};
use crate::parts::dense::DenseSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::window::{set_unscaled_windows, windowed_layers};
use crate::spec::{Activation, Mixer, ModelSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "spark2_5", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec::read_each(keys, sizes.layers)?;
    let rope = rope(keys, AttentionSpec::key_dim(keys)?, sizes.context)?;
    let windowed = windowed_layers(keys, sizes.layers, 0)?;
    let (pairing, output_gate) = (RopePairing::NeoX, OutputGate::OfHeads);
    let mixers = attention
        .into_iter()
        .map(|attention| Mixer::Attention(AttentionSpec { pairing, output_gate, ..attention }));
    let dense = DenseSpec { activation: Activation::GeluTanh, ..DenseSpec::read(keys)? };
    let mut spec = sizes.of_mixers(keys, mixers, &dense.into(), rope);
    set_unscaled_windows(&mut spec, keys, &windowed)?;
    Ok(spec)
}
