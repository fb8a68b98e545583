//! `maple`: like `qwen3moe`; a list says which layers have a sliding window, and only those are rotated; the gates of experts are limited before their
//! activation.

use super::{Architecture, qwen3, step35};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::dense::Activation;
use crate::parts::experts::ExpertsSpec;
use crate::spec::ModelSpec;
use crate::spec::window::rotate_only_windows;

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "maple", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let mut spec = qwen3::read_with(keys, ExpertsSpec::read(keys, true)?)?;
    rotate_only_windows(&mut spec, keys, 0, 0)?;
    step35::limit(&mut spec, keys, Activation::SiluOfLimited)?;
    Ok(spec)
}
