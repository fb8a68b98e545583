//! `exaone4`: norms of outputs instead of inputs; queries and keys are normed per head (LG's EXAONE 4). If there is a sliding
//! window, three out of four layers have it, and only those are rotated.

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::{AttentionSpec, QkNorm};
use crate::parts::dense::DenseSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::window::{window, windowed_layers};
use crate::spec::{ModelSpec, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "exaone4", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec {
        pairing: RopePairing::NeoX,
        qk_norm: QkNorm::Heads,
        ..AttentionSpec::read(keys)?
    };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let mut spec = sizes.uniform(keys, attention, DenseSpec::read(keys)?, rope);
    spec.layers.iter_mut().for_each(|layer| layer.norms = Norms::OUTPUTS);
    if let Some(window) = window(keys, 0)? {
        let windowed = windowed_layers(keys, spec.layers.len(), 4)?;
        for (attention, windowed) in spec.attention_layers_mut().zip(windowed) {
            attention.mask = attention.mask.with_window(windowed.then_some(window));
            attention.rope = attention.rope.filter(|_| windowed);
        }
    }
    Ok(spec)
}
