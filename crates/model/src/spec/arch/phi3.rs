//! `phi3`: queries, keys and values in one matrix, gate and up in another (Phi-3, Phi-4). A window applies to all layers.

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::window::window;
use crate::spec::{InputMatrices, ModelSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "phi3", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let read = AttentionSpec::read(keys)?;
    let attention = AttentionSpec {
        pairing: RopePairing::NeoX,
        mask: read.mask.with_window(window(keys, 0)?),
        ..read
    };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let dense = DenseSpec { inputs: InputMatrices::Fused, ..DenseSpec::read(keys)? };
    Ok(sizes.uniform(keys, attention, dense, rope))
}
