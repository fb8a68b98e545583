//! `olmo2`: norms of outputs instead of inputs; queries and keys are normed over all heads together (Ai2's OLMo 2). In OLMo 3,
//! three out of four layers have a sliding window, and RoPE scaling applies only to the fourth.

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::{AttentionSpec, QkNorm};
use crate::parts::dense::DenseSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::window::{set_unscaled_windows, windowed_layers};
use crate::spec::{ModelSpec, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "olmo2", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec {
        pairing: RopePairing::NeoX,
        qk_norm: QkNorm::Whole,
        ..AttentionSpec::read(keys)?
    };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let mut spec = sizes.uniform(keys, attention, DenseSpec::read(keys)?, rope);
    spec.layers.iter_mut().for_each(|layer| layer.norms = Norms::OUTPUTS);
    let windowed = windowed_layers(keys, spec.layers.len(), 4)?;
    set_unscaled_windows(&mut spec, keys, &windowed)?;
    Ok(spec)
}
