//! `olmoe`: a mixture of experts in every layer, whose weights are not normalised; NeoX rotary pairs; queries and keys
//! are normed over all heads together (Ai2's OLMoE).

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::{AttentionSpec, QkNorm};
use crate::parts::experts::ExpertsSpec;
use crate::spec::ModelSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "olmoe", read };

pub(super) fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec {
        pairing: RopePairing::NeoX,
        qk_norm: QkNorm::Whole,
        ..AttentionSpec::read(keys)?
    };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    Ok(sizes.uniform(keys, attention, ExpertsSpec::read(keys, false)?, rope))
}
