//! `qwen3`: NeoX rotary pairs, queries and keys are normed per head instead of having biases, and a head's length is a
//! key of its own, not a share of the hidden size.

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::keys::Keys;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{ModelSpec, QkNorm, SpecError};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "qwen3", read };

pub(super) fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec {
        pairing: RopePairing::NeoX,
        qk_norm: QkNorm::Heads,
        ..AttentionSpec::read(keys)?
    };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    Ok(sizes.uniform(keys, attention, DenseSpec::read(keys)?, rope))
}
