//! `exaone-moe`: queries and keys are normed per head; three out of four layers have a sliding window, and only those are rotated; after leading dense layers
//! a mixture of experts with a shared one, chosen by the function that the file states, with a bias that affects only the choice (LG's K-EXAONE).

use super::{Architecture, qwen3};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::experts::{ExpertsSpec, SHARED_WIDTH, SharedExpert};
use crate::spec::ModelSpec;
use crate::spec::window::rotate_only_windows;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "exaone-moe", read };

/// Positions of the window, if the file does not state it.
const WINDOW: usize = 128;

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut experts = ExpertsSpec::read(keys, false)?;
    let width = keys.width_or_none(SHARED_WIDTH)?.unwrap_or(experts.intermediate_size);
    experts.shared = Some(SharedExpert::new(width));
    let mut spec = qwen3::read_with(keys, experts)?;
    spec.put_dense_before_experts(keys)?;
    rotate_only_windows(&mut spec, keys, WINDOW, 4)?;
    Ok(spec)
}
