//! The errors of loading weights. Every message names the file or the limit that it is about.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use alight_pages::slots::SlotsError;
use alight_pages::transfer::TransferError;
use alight_pages::{LimitSource, LockError, MapError, RegionError};
use alight_types::units;
use thiserror::Error;

/// The error of a failed load. Every step that needs a missing weight returns it. If a file could not be read, the next step has it read again.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A mapped file has shrunk or cannot be read.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A file cannot be read, or ends too early.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// Experts could not be read when they were chosen.
    #[error(transparent)]
    Slots(Arc<TransferError>),
    /// Memory cannot hold the weights that are needed at the same time.
    #[error(
        "{}: {what} {least} bytes and everything else takes {always}, and {budget} may be used \
         ({limit}): raise --memory, free some memory, or use a smaller model",
        path.display()
    )]
    TooFewSlots {
        /// The file.
        path: PathBuf,
        /// The weights that are needed at the same time.
        what: &'static str,
        /// Its bytes.
        least: u64,
        /// Bytes of everything else.
        always: u64,
        /// Bytes of memory that weights may use.
        budget: u64,
        /// The source of the limit.
        limit: String,
    },
    /// The slots for experts could not be created.
    #[error("{}: {source}", path.display())]
    NoSlots {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: SlotsError,
    },
    /// The system does not report the facts about a file.
    #[error("{}: cannot look at it: {source}", path.display())]
    Facts {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Memory for a copy of the weights could not be reserved.
    #[error("{}: {source}; --load mmap --repack off needs no copy", path.display())]
    Memory {
        /// The file.
        path: PathBuf,
        /// The number of bytes to reserve, and the system's error.
        source: RegionError,
    },
    /// Copies of the weights, or locked weights, do not fit into the available memory.
    #[error(
        "{}: {} of memory are needed for its weights, and {} can be had ({limit}): \
         --load mmap --repack off without --lock needs none of its own",
        path.display(), units::bytes(*.needed), units::bytes(*.available)
    )]
    NotEnoughMemory {
        /// The file.
        path: PathBuf,
        /// Bytes that copies and locked pages would use.
        needed: u64,
        /// Bytes that are available, including memory that could be swapped out.
        available: u64,
        /// The source of the limit.
        limit: LimitSource,
    },
    /// The weights cannot be kept in memory.
    #[error("{}: --lock: {source}", path.display())]
    Lock {
        /// The file.
        path: PathBuf,
        /// The number of bytes to lock, the limit, and the remedy.
        source: LockError,
    },
    /// The load has ended without loading everything: the model is being dropped, or there is a bug.
    #[error("the load was stopped")]
    Stopped,
}

impl LoadError {
    /// The file, if one could not be read.
    pub(crate) fn unread(&self) -> Option<&Path> {
        match self {
            LoadError::Map(error) => Some(error.path()),
            LoadError::Transfer(error) => error.unread(),
            LoadError::Slots(error) => error.unread(),
            _ => None,
        }
    }
}
