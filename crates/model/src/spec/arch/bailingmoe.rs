//! `bailingmoe`: like `llama`, with a mixture of experts and shared ones in every layer; a head is as long as what is rotated of it (inclusionAI's Ling lite
//! and plus). `bailingmoe2`: queries and keys are normed per head and rotated in part, in NeoX pairs; there may be leading dense layers, groups of
//! experts, and a bias that affects only their choice (Ling and Ring 2).

use super::{Architecture, qwen3};
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_WIDTH};
use crate::parts::attention::AttentionSpec;
use crate::parts::experts::{ExpertsSpec, SHARED_WIDTH, SharedExpert};
use crate::parts::routing::Gating;
use crate::spec::ModelSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "bailingmoe", read };

pub(super) const SECOND: Architecture = Architecture { name: "bailingmoe2", read: second };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = attention(keys)?;
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let mut experts = ExpertsSpec::read(keys, false)?;
    experts.routing.gating = Gating::Softmax;
    experts.shared = SharedExpert::as_wide_as(keys, experts.intermediate_size)?;
    Ok(sizes.uniform(keys, attention, experts, rope))
}

/// Attention whose heads have as many elements as are rotated.
fn attention(keys: &Keys<'_, '_>) -> Result<AttentionSpec, SpecError> {
    let read = AttentionSpec::read(keys)?;
    let key = "rope.dimension_count";
    let dim = keys.optional_dimension(key, MAX_WIDTH)?.unwrap_or(read.key_dim);
    if read.heads * dim > MAX_WIDTH {
        let expected = format!("at most {} for {} heads", MAX_WIDTH / read.heads, read.heads);
        return Err(keys.value(key, dim, expected));
    }
    Ok(AttentionSpec {
        mask: read.mask,
        ..AttentionSpec::new([read.heads, read.kv_heads], [dim; 2])
    })
}

fn second(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut experts = ExpertsSpec::read(keys, false)?;
    let width = keys.width_or_none(SHARED_WIDTH)?.unwrap_or(experts.intermediate_size);
    experts.shared = SharedExpert::as_wide_as(keys, width)?;
    let mut spec = qwen3::read_with(keys, experts)?;
    spec.put_dense_before_experts(keys)?;
    Ok(spec)
}
