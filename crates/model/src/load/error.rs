//! Why weights did not come. Every message names the file or the limit that it is about.

use alight_pages::MapError;
use thiserror::Error;

/// Why a load failed. It comes out of the first step that needs what is missing, and of every step
/// after that.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A mapped file has shrunk or cannot be read.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The model is being dropped. Nobody is left to see it.
    #[error("the load was stopped")]
    Stopped,
}
