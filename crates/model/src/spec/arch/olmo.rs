//! `olmo`: like `llama`, with LayerNorm without weights, and queries, keys and values that are clamped in some models (Ai2's first OLMo).

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{ModelSpec, NormKind};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "olmo", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read_with(keys, NormKind::Unweighted)?;
    let clamp = clamp(keys)?;
    let attention = AttentionSpec { clamp, ..AttentionSpec::read(keys)? };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    Ok(sizes.uniform(keys, attention, DenseSpec::read(keys)?, rope))
}

/// The limit of queries, keys and values; 0 or no value: none.
///
/// # Errors
/// A number that is negative or infinite.
pub(super) fn clamp(keys: &Keys<'_, '_>) -> Result<Option<f32>, SpecError> {
    let clamp = keys.float("attention.clamp_kqv", 0.0..1e30, "a number that is not negative")?;
    Ok(clamp.filter(|clamp| *clamp != 0.0))
}
