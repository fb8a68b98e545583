//! Why a transfer did not read everything.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::error::MapError;
use crate::region::RegionError;

/// Why a transfer did not read everything.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The file ends before the piece does: it was cut short, or its header promises too much.
    #[error(
        "{}: ends at byte {found}, but bytes up to {wanted} are wanted; it was cut short: get it again",
        path.display()
    )]
    EndOfFile {
        /// The file.
        path: PathBuf,
        /// Offset after the last byte that is wanted.
        wanted: u64,
        /// Where the file ends.
        found: u64,
    },
    /// A part cannot be read: a disk or a network failed.
    #[error("{}: cannot read {len} bytes at byte {at}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Offset of what was to be read.
        at: u64,
        /// Bytes that were to be read.
        len: u64,
        /// What the system says.
        source: io::Error,
    },
    /// There is no memory for the slots.
    #[error("{}: no buffers to read into: {source}", path.display())]
    Memory {
        /// The file.
        path: PathBuf,
        /// Bytes that were to be reserved.
        source: RegionError,
    },
    /// What is used from the map of a file cannot be relied on.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The caller's `stop` was set.
    #[error("{}: reading was stopped", path.display())]
    Stopped {
        /// The file.
        path: PathBuf,
    },
}
