//! `starcoder2`: LayerNorm, biases everywhere, NeoX rotary pairs, and a feed-forward part without a gate, with GELU (BigCode's
//! StarCoder 2). Its files leave out the sliding window that it was trained with.

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::window::window;
use crate::spec::{Activation, InputMatrices, ModelSpec, NormKind};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "starcoder2", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read_with(keys, NormKind::Layer)?;
    let read = AttentionSpec::read(keys)?;
    let attention = AttentionSpec {
        pairing: RopePairing::NeoX,
        mask: read.mask.with_window(window(keys, 0)?),
        ..read
    };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let dense = DenseSpec {
        inputs: InputMatrices::Up,
        activation: Activation::GeluTanh,
        ..DenseSpec::read(keys)?
    };
    Ok(sizes.uniform(keys, attention, dense, rope))
}
