//! `openelm`: queries, keys and values in one matrix, normed per head, NeoX rotary pairs; layers differ in their number of heads and their widths (Apple's
//! OpenELM).

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::{AttentionSpec, QkNorm};
use crate::parts::dense::DenseSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{FeedForward, LayerSpec, Mixer, ModelSpec, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "openelm", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let rope = rope(keys, AttentionSpec::key_dim(keys)?, sizes.context)?;
    let attention = AttentionSpec::read_each(keys, sizes.layers)?.into_iter();
    let dense = DenseSpec::read_where_there(keys, sizes.layers)?;
    let layers = attention.zip(dense).map(|(attention, dense)| {
        let (pairing, qk_norm) = (RopePairing::NeoX, QkNorm::Heads);
        let mixer = Mixer::Attention(AttentionSpec { pairing, qk_norm, ..attention });
        LayerSpec::new(Some(mixer), dense.map(FeedForward::Dense), Norms::INPUTS)
    });
    let layers = layers.collect();
    Ok(sizes.network(keys, layers, vec![rope]))
}
