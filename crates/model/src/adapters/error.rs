//! Why an adapter could not be opened for a model.

use std::path::PathBuf;

use alight_files::FilesError;
use alight_formats::adapter::AdapterError;
use alight_pages::MapError;
use thiserror::Error;

/// Why an adapter could not be opened for a model. Every message names the file.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages explain the fields
pub enum AdapterOpenError {
    #[error(transparent)]
    Map(#[from] MapError),

    #[error(transparent)]
    Files(Box<FilesError>),

    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: AdapterError },

    #[error("'{}' is one of several shards, expected an adapter in one file", path.display())]
    Shards { path: PathBuf },

    #[error(
        "{}: metadata \"general.architecture\" is {found:?}, expected {expected:?}, that of {model}: the adapter was made for another base",
        path.display()
    )]
    Architecture { path: PathBuf, found: String, expected: String, model: String },

    #[error("{}: changes tensor {name:?}, which {model} does not have: the adapter was made for another base", path.display())]
    Missing { path: PathBuf, name: String, model: String },

    #[error("{}: changes tensor {name:?}, to which this version applies no adapters{hint}", path.display())]
    NotApplied { path: PathBuf, name: String, hint: &'static str },

    #[error("{}: changes tensor {name:?} of {model} as if it had the shape {found:?}, but it has {expected:?}", path.display())]
    Shape { path: PathBuf, name: String, model: String, found: Vec<u64>, expected: Vec<u64> },

    #[error("{}: tensor {name:?} has the number {value} at index {index}, expected a finite number", path.display())]
    NotFinite { path: PathBuf, name: String, index: usize, value: f32 },

    #[error("'{}' is an activated adapter (metadata \"adapter.alora.invocation_tokens\"), which this version does not apply", path.display())]
    Activated { path: PathBuf },
}

impl From<FilesError> for AdapterOpenError {
    fn from(error: FilesError) -> AdapterOpenError {
        AdapterOpenError::Files(Box::new(error))
    }
}
