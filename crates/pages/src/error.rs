//! Errors of mapped files. Every message names the file first.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Says why a file cannot be opened, and what to do where the reason is a common one.
fn cannot_open(path: &Path, source: &io::Error) -> String {
    let named = path.display();
    match source.kind() {
        io::ErrorKind::NotFound => format!("'{named}' does not exist"),
        io::ErrorKind::PermissionDenied => {
            format!("'{named}': permission denied: check that you may read it")
        }
        _ => format!("{named}: cannot open: {source}"),
    }
}

/// Why a file cannot be mapped or is no longer reliable.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MapError {
    /// The file cannot be opened or inspected.
    #[error("{}", cannot_open(path, source))]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A directory, pipe, device or socket.
    #[error("'{}' is a {kind}, expected a regular file", path.display())]
    NotAFile {
        /// The path, as given.
        path: PathBuf,
        /// The kind of file found.
        kind: FileKind,
    },
    /// The file has no bytes.
    #[error("'{}' is empty", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// More bytes than this machine can address.
    #[error("{}: has {len} bytes, more than this machine can map", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        len: u64,
    },
    /// The system refuses to map it.
    #[error("{}: cannot map {len} bytes: {source}", path.display())]
    Map {
        /// The file.
        path: PathBuf,
        /// Its length.
        len: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The file has become shorter since it was mapped: results computed from it are invalid.
    #[error(
        "'{}' was cut short while in use: it had {expected} bytes and now has {found}",
        path.display()
    )]
    FileShrank {
        /// The file.
        path: PathBuf,
        /// Bytes when it was mapped.
        expected: u64,
        /// Bytes now.
        found: u64,
    },
    /// The file has changed since it was opened.
    #[error(
        "'{}' was changed by another program while it was read; try again when that is done",
        path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The file was being received, and will not be complete, or was not what it should be: results computed from it are invalid.
    #[error("{}: byte {at} of {len} was not received: {reason}", path.display())]
    NotReceived {
        /// The file.
        path: PathBuf,
        /// Offset of the first byte that is missing where it was needed.
        at: u64,
        /// Bytes of the file.
        len: u64,
        /// The reason.
        reason: String,
    },
    /// A page of the file could not be read although the file still has its length: the disk or the
    /// network failed (or the file was short for a moment).
    #[error("{}: reading failed while in use, at byte {at} of {len}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Offset of the first failure.
        at: u64,
        /// Bytes of the file.
        len: u64,
    },
}

impl MapError {
    /// The file.
    pub fn path(&self) -> &Path {
        match self {
            MapError::Open { path, .. }
            | MapError::NotAFile { path, .. }
            | MapError::Empty { path }
            | MapError::TooLarge { path, .. }
            | MapError::Map { path, .. }
            | MapError::FileShrank { path, .. }
            | MapError::Changed { path }
            | MapError::NotReceived { path, .. }
            | MapError::Unreadable { path, .. } => path,
        }
    }
}

/// The kind of file at a path that is not a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // the variants are self-explanatory
pub enum FileKind {
    Directory,
    Pipe,
    CharacterDevice,
    BlockDevice,
    Socket,
    SymbolicLink,
    Other,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileKind::Directory => "directory",
            FileKind::Pipe => "pipe",
            FileKind::CharacterDevice => "character device",
            FileKind::BlockDevice => "block device",
            FileKind::Socket => "socket",
            FileKind::SymbolicLink => "symbolic link",
            FileKind::Other => "special file",
        })
    }
}
