//! `command-r`: LayerNorm without biases, a feed-forward part that runs parallel to attention on the same input, and a factor on
//! the logits. The largest model norms heads, each with its own weights (Cohere's Command R and R+).

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{ModelSpec, NormKind, Norms, QkNorm};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "command-r", read };

pub(super) fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read_with(keys, NormKind::Layer)?;
    let attention =
        AttentionSpec { qk_norm: QkNorm::OwnHeadsIfThere, ..AttentionSpec::read(keys)? };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let mut spec = sizes.uniform(keys, attention, DenseSpec::read(keys)?, rope);
    spec.logit_scale = keys.factor("logit_scale")?;
    for layer in &mut spec.layers {
        (layer.norms, layer.parallel) = (Norms::SHARED, true);
    }
    Ok(spec)
}
