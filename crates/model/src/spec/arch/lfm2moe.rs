//! `lfm2moe`: like `lfm2`, with a mixture of experts after leading dense layers, chosen by their sigmoids with a bias that
//! affects only the choice (LFM2-8B-A1B).

use super::{Architecture, lfm2};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::experts::ExpertsSpec;
use crate::spec::ModelSpec;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "lfm2moe", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut experts = ExpertsSpec::read(keys, true)?;
    experts.routing = experts.routing.sigmoid_unless_said(keys)?;
    let mut spec = lfm2::read_with(keys, experts)?;
    spec.put_dense_before_experts(keys)?;
    Ok(spec)
}
