//! `lfm2`: most layers are short convolutions; those with key heads are attention, with norms per head and NeoX rotary pairs. The
//! last norm is called `token_embd_norm` (Liquid AI's LFM2).

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::{AttentionSpec, QkNorm};
use crate::parts::dense::DenseSpec;
use crate::parts::short_conv::ShortConvSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::window::window;
use crate::spec::{FeedForward, Mixer, ModelSpec};

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "lfm2", read: |keys| read_with(keys, DenseSpec::read(keys)?) };

/// Reads the network with this feed-forward part.
pub(super) fn read_with(
    keys: &Keys<'_, '_>,
    feed_forward: impl Into<FeedForward>,
) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let window = window(keys, 0)?;
    let attention = AttentionSpec::read_where_there(keys, sizes.layers)?;
    let convolution = Mixer::ShortConv(ShortConvSpec::read(keys)?);
    let rope = rope(keys, AttentionSpec::key_dim(keys)?, sizes.context)?;
    let mixers = attention.into_iter().map(|attention| match attention {
        None => convolution.clone(),
        Some(attention) => Mixer::Attention(AttentionSpec {
            pairing: RopePairing::NeoX,
            qk_norm: QkNorm::Heads,
            mask: attention.mask.with_window(window),
            ..attention
        }),
    });
    let mut spec = sizes.of_mixers(keys, mixers, &feed_forward.into(), rope);
    spec.output_norm = Some("token_embd_norm");
    Ok(spec)
}
