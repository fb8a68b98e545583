//! `dots1`: queries and keys are normed per head, NeoX rotary pairs; after leading dense layers a mixture of experts with shared ones, chosen by the function
//! that the file states, with a bias that affects only the choice (Rednote's dots.llm1).

use super::{Architecture, qwen3};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::experts::{ExpertsSpec, SharedExpert};
use crate::spec::ModelSpec;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "dots1", read };

pub(super) fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut experts = ExpertsSpec::read(keys, false)?;
    experts.shared = SharedExpert::as_wide_as(keys, experts.intermediate_size)?;
    let mut spec = qwen3::read_with(keys, experts)?;
    spec.put_dense_before_experts(keys)?;
    Ok(spec)
}
