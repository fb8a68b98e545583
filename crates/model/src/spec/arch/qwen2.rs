//! `qwen2`: like `llama`, but with NeoX rotary pairs, and with biases of queries, keys and values, which are used if the file has
//! them (Qwen 2 and 2.5, and models distilled into them).

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{FeedForward, ModelSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "qwen2", read };

pub(super) fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    read_with(keys, DenseSpec::read(keys)?)
}

/// Reads the network with this feed-forward part.
pub(super) fn read_with(
    keys: &Keys<'_, '_>,
    feed_forward: impl Into<FeedForward>,
) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec { pairing: RopePairing::NeoX, ..AttentionSpec::read(keys)? };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    Ok(sizes.uniform(keys, attention, feed_forward, rope))
}
