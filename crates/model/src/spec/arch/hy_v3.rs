//! `hy_v3`: queries and keys are normed per head before they are rotated, in NeoX pairs; dense layers and layers of experts with a shared one, by what the
//! file has, chosen by their sigmoids with a bias that affects only the choice (Tencent's Hy3).

use super::{Architecture, qwen3};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::experts::{ExpertsSpec, SHARED_WIDTH, SharedExpert};
use crate::spec::ModelSpec;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "hy_v3", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut experts = ExpertsSpec::read(keys, false)?;
    experts.routing = experts.routing.sigmoid_unless_said(keys)?;
    let width = keys.width_or_none(SHARED_WIDTH)?.unwrap_or(experts.intermediate_size);
    experts.shared = Some(SharedExpert::new(width));
    let mut spec = qwen3::read_with(keys, experts)?;
    spec.put_dense_without_router(keys)?;
    Ok(spec)
}
