//! `minicpm3`: latent attention with NeoX rotary pairs, and MiniCPM's factors, which are no keys (OpenBMB's MiniCPM 3 4B). `plm`: latent attention whose
//! queries are one projection, and a feed-forward part without a gate, whose activation is the square of ReLU (PLM 1.8B).

use alight_kernels::rope::RopePairing;

use super::Architecture;
use super::minicpm::set_factors;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::dense::DenseSpec;
use crate::parts::latent_attention::LatentAttentionSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{Activation, InputMatrices, Mixer, ModelSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "minicpm3", read };

pub(super) const PLM: Architecture = Architecture { name: "plm", read: plm };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = latent(keys, RopePairing::NeoX, DenseSpec::read(keys)?)?;
    set_factors(&mut spec);
    Ok(spec)
}

fn plm(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let (inputs, activation) = (InputMatrices::Up, Activation::ReluSquared);
    let dense = DenseSpec { inputs, activation, ..DenseSpec::read(keys)? };
    latent(keys, RopePairing::Interleaved, dense)
}

fn latent(
    keys: &Keys<'_, '_>,
    pairing: RopePairing,
    dense: DenseSpec,
) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = LatentAttentionSpec { pairing, ..LatentAttentionSpec::read(keys)? };
    let rope = rope(keys, attention.rotated, sizes.context)?;
    Ok(sizes.of_layers(keys, Mixer::LatentAttention(attention), dense, rope))
}
