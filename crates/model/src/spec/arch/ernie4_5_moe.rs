//! `ernie4_5-moe`: like `ernie4_5`; after leading dense layers, every layer or every n-th has a mixture of experts, chosen with a bias that affects only the
//! choice, and a shared one (Baidu's ERNIE 4.5 21B-A3B and 300B-A47B).

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::AttentionSpec;
use crate::parts::experts::{ExpertsSpec, SharedExpert};
use crate::parts::routing::Gating;
use crate::spec::ModelSpec;
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "ernie4_5-moe", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec::read(keys)?;
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let mut experts = ExpertsSpec::read(keys, true)?;
    (experts.routing.gating, experts.routing.normalise) = (Gating::Softmax, true);
    experts.shared = SharedExpert::read(keys)?;
    let mut spec = sizes.uniform(keys, attention, experts, rope);
    spec.put_dense_before_experts(keys)?;
    spec.put_dense_between_experts(keys)?;
    Ok(spec)
}
