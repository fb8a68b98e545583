//! `qwen`: queries, keys and values in one matrix with biases, NeoX rotary pairs; the key of the feed-forward part's width is that of gate and up
//! together (Alibaba's first Qwen).

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::ModelSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "qwen", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec { pairing: RopePairing::NeoX, ..AttentionSpec::read(keys)? };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let mut dense = DenseSpec::read(keys)?;
    if dense.intermediate_size < 2 {
        let expected = "at least 2, the width of gate and up together".into();
        return Err(keys.value("feed_forward_length", dense.intermediate_size, expected));
    }
    dense.intermediate_size /= 2;
    Ok(sizes.uniform(keys, attention, dense, rope))
}
