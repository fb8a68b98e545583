//! `deepseek`: like `llama`, with a mixture of experts after leading dense layers; the weights of experts are not normalised, and there are shared experts
//! (DeepSeekMoE 16B).

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::experts::{ExpertsSpec, SharedExpert};
use crate::parts::routing::Gating;
use crate::spec::ModelSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "deepseek", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec::read(keys)?;
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let mut experts = ExpertsSpec::read(keys, false)?;
    (experts.routing.gating, experts.routing.normalise) = (Gating::Softmax, false);
    experts.shared = SharedExpert::as_wide_as(keys, experts.intermediate_size)?;
    let mut spec = sizes.uniform(keys, attention, experts, rope);
    spec.put_dense_before_experts(keys)?;
    Ok(spec)
}
