//! `qwen2moe`: like `qwen2`, with a mixture of experts in every layer, whose weights are not normalised, and a shared expert
//! gated by a sigmoid (Qwen1.5-MoE, Qwen2-57B-A14B). Early files leave the widths out.

use super::{Architecture, qwen2};
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_WIDTH};
use crate::parts::experts::{EXPERT_WIDTH, ExpertsSpec, SHARED_WIDTH, SharedExpert};
use crate::spec::ModelSpec;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "qwen2moe", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut experts = ExpertsSpec::read(keys, false)?;
    if keys.optional_dimension(EXPERT_WIDTH, MAX_WIDTH)?.is_none() {
        // The value read is the total width of the experts that a token goes through.
        experts.intermediate_size = (experts.intermediate_size / experts.routing.used).max(1);
    }
    let width = match keys.optional_dimension(SHARED_WIDTH, MAX_WIDTH)? {
        Some(width) => width,
        None => keys.dimension("feed_forward_length", MAX_WIDTH)?,
    };
    experts.shared = Some(SharedExpert { gated: true, ..SharedExpert::new(width) });
    qwen2::read_with(keys, experts)
}
