//! `ernie4_5-moe`: like `ernie4_5`; after leading dense layers, every layer or every n-th has a mixture of experts, chosen with a bias that affects only the
//! choice, and a shared one (Baidu's ERNIE 4.5 21B-A3B and 300B-A47B).

use super::Architecture;
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_LAYERS};
use crate::parts::attention::AttentionSpec;
use crate::parts::dense::DenseSpec;
use crate::parts::experts::{ExpertsSpec, SHARED_WIDTH, SharedExpert};
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
    let shared = keys.width_or_none(SHARED_WIDTH)?;
    experts.shared = shared.map(|width| SharedExpert { intermediate_size: width, gated: false });
    let step = keys.dimension("interleave_moe_layer_step", MAX_LAYERS)?;
    let mut spec = sizes.uniform(keys, attention, experts, rope);
    spec.put_dense_before_experts(keys)?;
    if step > 1 {
        let dense = DenseSpec::read_beside_experts(keys)?;
        let others = spec.layers.iter_mut().enumerate();
        let others = others.filter(|(i, _)| !(i + 1).is_multiple_of(step));
        others.for_each(|(_, layer)| layer.feed_forward = Some(dense.clone().into()));
    }
    Ok(spec)
}
