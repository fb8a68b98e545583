//! `rwkv7`: layers of RWKV-7's mixer and of its feed-forward part, which sees the token before, too; LayerNorm, and a norm of the embedding (RWKV-7 "Goose").
//! `arwkv7`: the mixer in layers of Qwen 2, with RMSNorm and a gated feed-forward part (ARWKV-7).

use std::ops::Range;

use super::Architecture;
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_WIDTH};
use crate::parts::channel_mix::ChannelMixSpec;
use crate::parts::dense::DenseSpec;
use crate::parts::rwkv::Rwkv7Spec;
use crate::spec::sizes::Sizes;
use crate::spec::{EmbeddingNorm, FeedForward, LayerSpec, Mixer, ModelSpec, NormKind, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "rwkv7", read };

pub(super) const IN_QWEN: Architecture = Architecture { name: "arwkv7", read: in_qwen };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mixer = Rwkv7Spec { before_channel_mix: true, ..Rwkv7Spec::read(keys)? };
    let place = mixer.channel_mix();
    with_channel_mix(keys, Mixer::Rwkv7(mixer), place, false)
}

/// Reads a network of layers of this mixer and of RWKV's feed-forward part, whose state is at `place`.
pub(super) fn with_channel_mix(
    keys: &Keys<'_, '_>,
    mixer: Mixer,
    place: Range<usize>,
    receptance: bool,
) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read_with(keys, NormKind::Layer)?;
    let feed_forward = FeedForward::ChannelMix(ChannelMixSpec {
        intermediate_size: keys.dimension("feed_forward_length", MAX_WIDTH)?,
        receptance,
        place,
    });
    let layer = LayerSpec::new(Some(mixer), Some(feed_forward), Norms::NONE);
    let layers = vec![layer; sizes.layers];
    let mut spec = sizes.network(keys, layers, Vec::new());
    spec.embedding_norm = EmbeddingNorm::Named("token_embd_norm");
    Ok(spec)
}

fn in_qwen(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    with_dense(keys, Mixer::Rwkv7(Rwkv7Spec::read(keys)?))
}

/// Reads a network of layers of this mixer, which has its own norm, and of a dense part.
pub(super) fn with_dense(keys: &Keys<'_, '_>, mixer: Mixer) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let dense = FeedForward::Dense(DenseSpec::read(keys)?);
    let norms = Norms { mixer: None, ..Norms::INPUTS };
    let layers = vec![LayerSpec::new(Some(mixer), Some(dense), norms); sizes.layers];
    Ok(sizes.network(keys, layers, Vec::new()))
}
