//! Why weights could not be loaded. Every message names the file or the limit that it is about.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use alight_pages::slots::SlotsError;
use alight_pages::transfer::TransferError;
use alight_pages::{LimitSource, LockError, MapError, RegionError};
use thiserror::Error;

/// Why a load failed. The first step that needs a missing weight returns it, and every step after that.
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
    /// There is no memory for the experts that one layer needs at the same time.
    #[error(
        "{}: the experts of one layer take {least} bytes and what every token reads takes {always}, and {budget} may be used \
         ({limit}): raise --memory, free some memory, or use a smaller model",
        path.display()
    )]
    TooFewSlots {
        /// The file.
        path: PathBuf,
        /// Bytes of the experts of the largest layer.
        least: u64,
        /// Bytes of everything else.
        always: u64,
        /// Bytes of memory that weights may take.
        budget: u64,
        /// What limits it.
        limit: String,
    },
    /// There are no slots for experts.
    #[error("{}: {source}", path.display())]
    NoSlots {
        /// The file.
        path: PathBuf,
        /// Why.
        source: SlotsError,
    },
    /// The system does not give the facts about a file.
    #[error("{}: cannot look at it: {source}", path.display())]
    Facts {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is no memory for a copy of the weights.
    #[error("{}: {source}; --load mmap --repack off needs no copy", path.display())]
    Memory {
        /// The file.
        path: PathBuf,
        /// Bytes that were to be reserved.
        source: RegionError,
    },
    /// Copies of the weights, or locked weights, do not fit into the available memory.
    #[error(
        "{}: {needed} bytes of memory are needed for its weights, and {available} can be had ({limit}): \
         --load mmap --repack off without --lock needs none of its own",
        path.display()
    )]
    NotEnoughMemory {
        /// The file.
        path: PathBuf,
        /// Bytes that copies and locked pages would take.
        needed: u64,
        /// Bytes that are available, with what could be swapped out.
        available: u64,
        /// What limits it.
        limit: LimitSource,
    },
    /// The weights cannot be kept in memory.
    #[error("{}: --lock: {source}", path.display())]
    Lock {
        /// The file.
        path: PathBuf,
        /// How much was to be locked, the limit, and what to do.
        source: LockError,
    },
    /// The load has ended without loading everything: the model is being dropped, or a bug of ours.
    #[error("the load was stopped")]
    Stopped,
}
