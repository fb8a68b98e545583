//! Why metadata describes no network that can be run.

use alight_formats::gguf::GgufError;
use thiserror::Error;

/// Which key is the reason, what it says, and what it may say.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SpecError {
    /// A key is missing or of the wrong type.
    #[error(transparent)]
    Header(#[from] GgufError),
    /// An architecture that there is no code for.
    #[error("architecture \"{}\" is not supported; supported are {supported}", found.escape_debug())]
    Architecture {
        /// The file's name for it.
        found: String,
        /// The names that are.
        supported: String,
    },
    /// A value that no model can have.
    #[error("metadata \"{key}\" is {found}, expected {expected}")]
    Value {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// A feature that is known and not built yet.
    #[error("metadata \"{key}\" is {found}: {what} is not supported yet")]
    Unsupported {
        /// The key that asks for it.
        key: String,
        /// Its value.
        found: String,
        /// What it would be.
        what: &'static str,
    },
}
