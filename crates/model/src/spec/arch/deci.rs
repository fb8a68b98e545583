//! `deci`: like `llama`, but layers differ: in their number of heads and their widths, and some have no attention, or a projection in place of it, or no
//! feed-forward part (NVIDIA's Llama Nemotron 51B, Super 49B and Ultra 253B; Deci's DeciLM).

use super::Architecture;
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_WIDTH};
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::parts::projection::ProjectionSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{FeedForward, LayerSpec, Mixer, ModelSpec, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "deci", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let rope = rope(keys, AttentionSpec::key_dim(keys)?, sizes.context)?;
    let key = "attention.head_count";
    let heads = keys.per_layer_in(key, sizes.layers, 0..=MAX_WIDTH)?;
    let heads = heads.ok_or_else(|| keys.missing(key))?;
    let attention = AttentionSpec::read_where_there(keys, sizes.layers)?;
    let mixers = attention.into_iter().zip(heads).map(|(attention, heads)| match attention {
        Some(attention) => Some(Mixer::Attention(attention)),
        None => (heads > 0).then_some(Mixer::Projection(ProjectionSpec {})),
    });
    let dense = DenseSpec::read_where_there(keys, sizes.layers)?;
    let layers = mixers
        .zip(dense)
        .map(|(mixer, dense)| LayerSpec::new(mixer, dense.map(FeedForward::Dense), Norms::INPUTS));
    let layers = layers.collect();
    Ok(sizes.network(keys, layers, vec![rope]))
}
