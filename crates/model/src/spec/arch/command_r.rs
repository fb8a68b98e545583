//! `command-r`: LayerNorm without biases, a feed-forward part that runs parallel to attention on the same input, and a factor on
//! the logits. The largest model norms heads, each with its own weights (Cohere's Command R and R+).

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{FeedForward, ModelSpec, NormKind, Norms, QkNorm};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "command-r", read };

pub(super) fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    read_with(keys, NormKind::Layer, DenseSpec::read(keys)?)
}

/// Reads the network with these norms and this feed-forward part.
pub(super) fn read_with(
    keys: &Keys<'_, '_>,
    norms: NormKind,
    feed_forward: impl Into<FeedForward>,
) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read_with(keys, norms)?;
    let attention =
        AttentionSpec { qk_norm: QkNorm::OwnHeadsIfThere, ..AttentionSpec::read(keys)? };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let mut spec = sizes.uniform(keys, attention, feed_forward, rope);
    spec.logit_scale = keys.factor("logit_scale")?;
    for layer in &mut spec.layers {
        (layer.norms, layer.parallel) = (Norms::SHARED, true);
    }
    Ok(spec)
}
