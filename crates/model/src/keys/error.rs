//! The reasons for which metadata describes no network that can be run.

use alight_formats::gguf::GgufError;
use thiserror::Error;

/// The key that is the reason, its value, and the values it may have.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SpecError {
    /// A key is missing or of the wrong type.
    #[error(transparent)]
    Header(#[from] GgufError),
    /// An architecture that is not implemented.
    #[error("architecture \"{}\" is not supported; supported are {supported}", found.escape_debug())]
    Architecture {
        /// The file's name for it.
        found: String,
        /// The names that are supported.
        supported: String,
    },
    /// A value that no model can have.
    #[error("metadata \"{key}\" is {found}, expected {expected}")]
    Value {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// The values it may have.
        expected: String,
    },
    /// A known feature that is not implemented yet.
    #[error("metadata \"{key}\" is {found}: {what} is not supported yet")]
    Unsupported {
        /// The key that requests it.
        key: String,
        /// Its value.
        found: String,
        /// The feature.
        what: &'static str,
    },
}
