//! `qwen3`: NeoX rotary pairs; queries and keys are normed per head instead of having biases; the head's length has its own key
//! and is not a fraction of the hidden size.

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{FeedForward, ModelSpec, QkNorm};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "qwen3", read };

pub(super) fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    read_with(keys, DenseSpec::read(keys)?)
}

/// Reads the network with this feed-forward part.
pub(super) fn read_with(
    keys: &Keys<'_, '_>,
    feed_forward: impl Into<FeedForward>,
) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec {
        pairing: RopePairing::NeoX,
        qk_norm: QkNorm::Heads,
        ..AttentionSpec::read(keys)?
    };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    Ok(sizes.uniform(keys, attention, feed_forward, rope))
}
