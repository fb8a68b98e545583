//! `nemotron`: LayerNorm, NeoX rotary pairs on part of each head, and a feed-forward part without a gate, whose activation is the square of ReLU
//! (NVIDIA's Nemotron-4 and Minitron). `jais2`: the same, with biases everywhere and whole heads rotated (Jais 2).

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{Activation, InputMatrices, ModelSpec, NormKind};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "nemotron", read };

pub(super) const JAIS2: Architecture = Architecture { name: "jais2", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read_with(keys, NormKind::Layer)?;
    let attention = AttentionSpec { pairing: RopePairing::NeoX, ..AttentionSpec::read(keys)? };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let dense = DenseSpec {
        inputs: InputMatrices::Up,
        activation: Activation::ReluSquared,
        ..DenseSpec::read(keys)?
    };
    Ok(sizes.uniform(keys, attention, dense, rope))
}
