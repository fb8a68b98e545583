//! `exaone`: like `llama`, with NeoX rotary pairs (LG's EXAONE 3, 3.5 and Deep).

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::ModelSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "exaone", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec { pairing: RopePairing::NeoX, ..AttentionSpec::read(keys)? };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    Ok(sizes.uniform(keys, attention, DenseSpec::read(keys)?, rope))
}
