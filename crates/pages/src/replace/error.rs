//! Errors with a new file.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::error::FileKind;

/// Why a file was not made. In all cases but the last, the old file is as it was.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplaceError {
    /// The file cannot be made in its folder.
    #[error("{}: cannot write: {source}", path.display())]
    Create {
        /// The file that was to be written.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// No file can have that name.
    #[error("{}: {problem}", path.display())]
    Name {
        /// The path, as given.
        path: PathBuf,
        /// Why not.
        problem: &'static str,
    },
    /// Something is there that is not a regular file.
    #[error(
        "{}: is a {kind}, expected a regular file or none: give another name for the new file",
        path.display()
    )]
    NotAFile {
        /// The path, as given.
        path: PathBuf,
        /// What is there.
        kind: FileKind,
    },
    /// There is a file of that name, and the caller did not allow to replace it.
    #[error("{}: exists already; --force replaces it", path.display())]
    Exists {
        /// The path, as given.
        path: PathBuf,
    },
    /// There is a link of that name, and the caller did not allow to replace it.
    #[error("{}: is a link that leads nowhere; --force replaces it by a file", path.display())]
    DanglingLink {
        /// The path, as given.
        path: PathBuf,
    },
    /// A file has got that name since the work began, and the caller did not allow to replace it.
    #[error(
        "{}: appeared while the new file was being made, and is left as it is; --force replaces it",
        path.display()
    )]
    Appeared {
        /// The path, as given.
        path: PathBuf,
    },
    /// The new file would replace one that it is made of.
    #[error(
        "{}: is the source itself, or belongs to it; give another name for the new file",
        path.display()
    )]
    Input {
        /// The path, as given.
        path: PathBuf,
    },
    /// The disk has not as much space.
    #[error("{}: {}", path.display(), no_space(*.needed, *.free))]
    NoSpace {
        /// The file that was to be written.
        path: PathBuf,
        /// Bytes of the new file.
        needed: u64,
        /// Bytes that this user could write there before anything was reserved, if the system says.
        free: Option<u64>,
    },
    /// The new file cannot be synced to the disk, or be given its name.
    #[error("{}: cannot put the new file in place: {source}", path.display())]
    Commit {
        /// The file that was to be written.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The new file is in place, but its folder could not be synced to the disk: should the machine
    /// lose power now, the old file may come back.
    #[error("{}: is in place, but a loss of power may undo it: {source}", path.display())]
    FolderNotSynced {
        /// The file that was written.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// The error of a full disk, with the numbers of the moment.
pub(crate) fn no_space(needed: u64, free: Option<u64>) -> String {
    match free {
        Some(free) if free < needed => format!(
            "needs {needed} bytes but only {free} are free there: make room, or write to another disk"
        ),
        Some(free) => format!(
            "needs {needed} bytes, which the system refuses although {free} were free there: look for \
             a quota, or write to another disk"
        ),
        None => format!(
            "needs {needed} bytes, for which there is no room: make room, or write to another disk"
        ),
    }
}
