//! `exaone`: like `llama`, with NeoX rotary pairs (LG's EXAONE 3, 3.5 and Deep). `pangu-embedded`: the same, with biases (Huawei's openPangu Embedded).
//! `plamo`: the same, and both parts of a layer take what one norm puts out (Preferred Networks' PLaMo 13B).

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{ModelSpec, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "exaone", read };

pub(super) const PANGU: Architecture = Architecture { name: "pangu-embedded", read };

pub(super) const PLAMO: Architecture = Architecture { name: "plamo", read: parallel };

fn parallel(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = read(keys)?;
    for layer in &mut spec.layers {
        (layer.norms, layer.parallel) = (Norms::SHARED, true);
    }
    Ok(spec)
}

pub(super) fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec { pairing: RopePairing::NeoX, ..AttentionSpec::read(keys)? };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    Ok(sizes.uniform(keys, attention, DenseSpec::read(keys)?, rope))
}
