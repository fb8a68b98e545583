//! The architectures: one file each, and one line here that registers it.

mod gemma;
mod gemma2;
mod gemma3;
mod granite;
mod llama;
mod qwen2;
mod qwen3;
mod seed_oss;

use super::keys::Keys;
use super::{ModelSpec, SpecError};

/// Every architecture that can be run.
const ALL: [&Architecture; 7] = [
    &llama::ARCHITECTURE,
    &qwen2::ARCHITECTURE,
    &qwen3::ARCHITECTURE,
    &gemma2::ARCHITECTURE,
    &gemma3::ARCHITECTURE,
    &granite::ARCHITECTURE,
    &seed_oss::ARCHITECTURE,
];

/// A family of networks.
#[derive(Debug)]
pub struct Architecture {
    /// What `general.architecture` calls it, which is also the prefix of its keys.
    pub name: &'static str,
    /// Makes the network of the metadata.
    pub(super) read: fn(&Keys<'_, '_>) -> Result<ModelSpec, SpecError>,
}

/// Every architecture that can be run.
pub fn architectures() -> impl Iterator<Item = &'static Architecture> {
    ALL.into_iter()
}

/// The architecture of that name.
///
/// # Errors
/// [`SpecError::Architecture`], which names those that are supported.
pub(super) fn named(name: &str) -> Result<&'static Architecture, SpecError> {
    architectures().find(|a| a.name == name).ok_or_else(|| SpecError::Architecture {
        found: name.into(),
        supported: ALL.map(|a| a.name).join(", "),
    })
}
