//! `stablelm`: LayerNorm, NeoX rotary pairs on part of each head. In the 12B, heads are normed, each with its own weights, and
//! the feed-forward part is parallel to attention (Stability's StableLM 3B and 2).

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{ModelSpec, NormKind, Norms, QkNorm};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "stablelm", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read_with(keys, NormKind::Layer)?;
    let attention = AttentionSpec {
        pairing: RopePairing::NeoX,
        qk_norm: QkNorm::OwnHeadsIfThere,
        ..AttentionSpec::read(keys)?
    };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let mut spec = sizes.uniform(keys, attention, DenseSpec::read(keys)?, rope);
    // Parallel feed-forward parts have no norm of their own.
    if keys.gguf.tensor("blk.0.ffn_norm.weight").is_none() {
        for layer in &mut spec.layers {
            (layer.norms, layer.parallel) = (Norms::SHARED, true);
        }
    }
    Ok(spec)
}
