//! `qwen35moe`: like `qwen35`, with a mixture of experts in every layer and a shared expert gated by a sigmoid.

use super::{Architecture, qwen35};
use crate::keys::SpecError;
use crate::keys::{Keys, MAX_WIDTH};
use crate::parts::experts::{ExpertsSpec, SHARED_WIDTH, SharedExpert};
use crate::spec::ModelSpec;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "qwen35moe", read };

pub(super) fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut experts = ExpertsSpec::read(keys, true)?;
    let intermediate_size = keys.dimension(SHARED_WIDTH, MAX_WIDTH)?;
    experts.shared = Some(SharedExpert { gated: true, ..SharedExpert::new(intermediate_size) });
    qwen35::read_with(keys, experts)
}
