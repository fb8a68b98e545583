//! `granitemoe`: like `granite`, with a mixture of experts in every layer and, in some models, a shared expert (IBM's Granite 3
//! 1B-A400M and 3B-A800M).

use super::{Architecture, granite};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::experts::{ExpertsSpec, SharedExpert};
use crate::spec::ModelSpec;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "granitemoe", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    granite::read_with(keys, experts(keys)?)
}

/// The mixture of a layer.
pub(super) fn experts(keys: &Keys<'_, '_>) -> Result<ExpertsSpec, SpecError> {
    Ok(ExpertsSpec { shared: SharedExpert::read(keys)?, ..ExpertsSpec::read(keys, true)? })
}
