//! Errors. Every message names the file and, if there is one, the next step.

use std::io;
use std::path::PathBuf;

use alight_pages::{FileKind, ReplaceError, copy};
use thiserror::Error;

/// Why something was not copied. Nothing is left of the copy, and the destination is as it was
/// before.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The source cannot be found or opened.
    #[error("{}: cannot read: {source}", path.display())]
    Open {
        /// The source.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A folder, without the option to copy folders.
    #[error("'{}' is a folder; -r copies it with everything in it", path.display())]
    Folder {
        /// The source.
        path: PathBuf,
    },
    /// A pipe, socket or device.
    #[error("'{}' is a {kind}; only files, folders and links are copied", path.display())]
    Special {
        /// The source.
        path: PathBuf,
        /// Its kind.
        kind: FileKind,
    },
    /// Source and destination are one file.
    #[error("'{}' is {} itself: there is nothing to copy", to.display(), from.display())]
    SameFile {
        /// The source.
        from: PathBuf,
        /// The destination.
        to: PathBuf,
    },
    /// The destination is in the folder to copy.
    #[error(
        "'{}' is in {}, which cannot be copied into itself; give a folder outside of it",
        to.display(), from.display()
    )]
    IntoItself {
        /// The source.
        from: PathBuf,
        /// The destination.
        to: PathBuf,
    },
    /// This run has copied another source to the same name.
    #[error(
        "{}: not copied, as {} was made of another source just now; copy it under another name",
        from.display(), to.display()
    )]
    Twice {
        /// The source.
        from: PathBuf,
        /// The destination.
        to: PathBuf,
    },
    /// No file can be created there.
    #[error("{}: {problem}", path.display())]
    Destination {
        /// The path.
        path: PathBuf,
        /// The obstacle.
        problem: &'static str,
    },
    /// The system does not allow creating something there.
    #[error("{}: cannot write: {source}", path.display())]
    Write {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The bytes cannot be copied.
    #[error(transparent)]
    Bytes(copy::CopyError),
    /// The new file cannot be created or given its name.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    /// The source has changed since the copy began.
    #[error(
        "'{}' was changed by another program while it was copied; copy it again when that is done",
        path.display()
    )]
    Changed {
        /// The source.
        path: PathBuf,
    },
    /// A folder is no longer where it was.
    #[error(
        "'{}' was moved by another program while it was copied, and the rest of it is left out; copy it \
         again when that is done",
        path.display()
    )]
    Moved {
        /// The folder, under its former name.
        path: PathBuf,
    },
    /// Requested by the observer.
    #[error("stopped")]
    Stopped,
}

impl From<copy::CopyError> for CopyError {
    fn from(error: copy::CopyError) -> CopyError {
        match error {
            copy::CopyError::Stopped => CopyError::Stopped,
            error => CopyError::Bytes(error),
        }
    }
}
