//! `phimoe`: a mixture of experts in every layer, LayerNorm, biases, NeoX rotary pairs (Phi-3.5-MoE). A window applies to all
//! layers.

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::experts::ExpertsSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::window::window;
use crate::spec::{ModelSpec, NormKind};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "phimoe", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read_with(keys, NormKind::Layer)?;
    let read = AttentionSpec::read(keys)?;
    let attention = AttentionSpec {
        pairing: RopePairing::NeoX,
        mask: read.mask.with_window(window(keys, 0)?),
        ..read
    };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    Ok(sizes.uniform(keys, attention, ExpertsSpec::read(keys, true)?, rope))
}
