//! `dbrx`: LayerNorm, queries, keys and values in one matrix and clamped, NeoX rotary pairs, and a mixture of experts in every layer, before which the norm is
//! called `attn_output_norm` (Databricks' DBRX).

use alight_kernels::rope::RopePairing;

use super::Architecture;
use super::olmo::clamp;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::experts::ExpertsSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{ModelSpec, NormKind, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "dbrx", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read_with(keys, NormKind::Layer)?;
    let attention = AttentionSpec {
        pairing: RopePairing::NeoX,
        clamp: clamp(keys)?,
        ..AttentionSpec::read(keys)?
    };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let mut spec = sizes.uniform(keys, attention, ExpertsSpec::read(keys, true)?, rope);
    let norms = Norms { feed_forward: Some("attn_output_norm"), ..Norms::INPUTS };
    spec.layers.iter_mut().for_each(|layer| layer.norms = norms);
    Ok(spec)
}
