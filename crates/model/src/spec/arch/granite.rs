//! `granite`: like `llama`, with four scales: of the embedding, of attention scores, of the output of a part before it is added
//! to the residual stream, and of the logits, which are divided by theirs (IBM's Granite 3 and 4, the dense models).

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{FeedForward, Mixer, ModelSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "granite", read };

pub(super) fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    read_with(keys, DenseSpec::read(keys)?)
}

/// Reads the network with this feed-forward part.
pub(super) fn read_with(
    keys: &Keys<'_, '_>,
    feed_forward: impl Into<FeedForward>,
) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = Mixer::Attention(AttentionSpec::read(keys)?);
    let mixers = std::iter::repeat_n(attention, sizes.layers);
    of_mixers(keys, sizes, mixers, &feed_forward.into())
}

/// Builds the network with these mixers.
pub(super) fn of_mixers(
    keys: &Keys<'_, '_>,
    sizes: Sizes,
    mixers: impl Iterator<Item = Mixer>,
    feed_forward: &FeedForward,
) -> Result<ModelSpec, SpecError> {
    let scale = keys.float("attention.scale", 0.0..1e6, "a positive number")?;
    // Files of models without positions state that their rotary embedding was not trained.
    let rotates = keys.get::<bool>("rope.scaling.finetuned")?.unwrap_or(true);
    let rope = rope(keys, AttentionSpec::key_dim(keys)?, sizes.context)?;
    let mut spec = sizes.of_mixers(keys, mixers, feed_forward, rope);
    for attention in spec.attention_layers_mut() {
        attention.scale = scale.filter(|scale| *scale != 0.0).unwrap_or(attention.scale);
        attention.rope = attention.rope.filter(|_| rotates);
    }
    spec.embedding_scale = keys.factor("embedding_scale")?;
    spec.logit_scale = 1.0 / keys.factor("logit_scale")?;
    let residual_scale = keys.factor("residual_scale")?;
    spec.layers.iter_mut().for_each(|layer| layer.residual_scale = residual_scale);
    Ok(spec)
}
