//! Why a transfer did not read everything.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::error::MapError;
use crate::region::RegionError;

/// Why a transfer did not read everything.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The file ends before the piece does: it was truncated, or its header promises too much.
    #[error(
        "{}: ends at byte {found}, but bytes up to {wanted} are wanted; it was cut short: get it again",
        path.display()
    )]
    EndOfFile {
        /// The file.
        path: PathBuf,
        /// Offset after the last requested byte.
        wanted: u64,
        /// Where the file ends.
        found: u64,
    },
    /// A part cannot be read: a disk or a network failed.
    #[error("{}: cannot read {len} bytes at byte {at}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Offset of the requested range.
        at: u64,
        /// Length of the requested range.
        len: u64,
        /// The system's error.
        source: io::Error,
    },
    /// No memory is available for the slots.
    #[error("{}: no buffers to read into: {source}", path.display())]
    Memory {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: RegionError,
    },
    /// Data used from the map of a file cannot be relied on.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The caller's `stop` was set.
    #[error("{}: reading was stopped", path.display())]
    Stopped {
        /// The file.
        path: PathBuf,
    },
}

impl TransferError {
    /// The file, if it could not be read.
    pub fn unread(&self) -> Option<&Path> {
        match self {
            TransferError::EndOfFile { path, .. } | TransferError::Read { path, .. } => Some(path),
            TransferError::Map(error) => Some(error.path()),
            TransferError::Memory { .. } | TransferError::Stopped { .. } => None,
        }
    }
}
