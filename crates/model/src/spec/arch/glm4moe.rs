//! `glm4moe`: after leading dense layers, a mixture of experts with a shared expert, chosen by their sigmoids with a bias that
//! affects only the choice; NeoX rotary pairs on part of a head; the larger models norm queries and keys per head. The norm
//! before the feed-forward part is called `post_attention_norm` (Zhipu's GLM-4.5, 4.6 and 4.7).

use alight_kernels::rope::RopePairing;

use super::Architecture;
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::attention::{AttentionSpec, QkNorm};
use crate::parts::experts::{ExpertsSpec, SharedExpert};
use crate::spec::rope::rope;
use crate::spec::sizes::Sizes;
use crate::spec::{ModelSpec, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "glm4moe", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::read(keys)?;
    let attention = AttentionSpec {
        pairing: RopePairing::NeoX,
        qk_norm: QkNorm::HeadsIfThere,
        ..AttentionSpec::read(keys)?
    };
    let rope = rope(keys, attention.key_dim, sizes.context)?;
    let mut experts = ExpertsSpec::read(keys, false)?;
    experts.routing = experts.routing.sigmoid_unless_said(keys)?;
    experts.shared = SharedExpert::as_wide_as(keys, experts.intermediate_size)?;
    let mut spec = sizes.uniform(keys, attention, experts, rope);
    let norms = Norms { feed_forward: Some("post_attention_norm"), ..Norms::INPUTS };
    spec.layers.iter_mut().for_each(|layer| layer.norms = norms);
    spec.put_dense_before_experts(keys)?;
    Ok(spec.with_mtp())
}
