//! Errors of creating a new file.

use std::io;
use std::path::{Path, PathBuf};

use alight_types::units;
use thiserror::Error;

use crate::error::FileKind;

/// Says why a file cannot be created, and what to do where the reason is a common one.
fn cannot_create(path: &Path, source: &io::Error) -> String {
    let named = path.display();
    match source.kind() {
        io::ErrorKind::NotFound => {
            format!("'{named}' cannot be written: its folder does not exist")
        }
        io::ErrorKind::PermissionDenied => {
            format!(
                "'{named}' cannot be written: permission denied: give a folder that you may write to"
            )
        }
        _ => format!("{named}: cannot write: {source}"),
    }
}

/// Why a file was not created. In all cases except the last, the old file is unchanged.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplaceError {
    /// The file cannot be created in its folder.
    #[error("{}", cannot_create(path, source))]
    Create {
        /// The file to be written.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// No file can have that name.
    #[error("{}: {problem}", path.display())]
    Name {
        /// The path, as given.
        path: PathBuf,
        /// The reason.
        problem: &'static str,
    },
    /// The name exists and is not a regular file.
    #[error(
        "'{}' is a {kind}, expected a regular file or none: give another name for the new file",
        path.display()
    )]
    NotAFile {
        /// The path, as given.
        path: PathBuf,
        /// Its kind.
        kind: FileKind,
    },
    /// A file with that name exists, and the caller did not allow replacing it.
    #[error("'{}' exists already; --force replaces it", path.display())]
    Exists {
        /// The path, as given.
        path: PathBuf,
    },
    /// A link with that name exists, and the caller did not allow replacing it.
    #[error("'{}' is a link that leads nowhere; --force replaces it by a file", path.display())]
    DanglingLink {
        /// The path, as given.
        path: PathBuf,
    },
    /// A file with that name appeared after the work began, and the caller did not allow replacing it.
    #[error(
        "'{}' appeared while the new file was being made, and is left as it is; --force replaces it",
        path.display()
    )]
    Appeared {
        /// The path, as given.
        path: PathBuf,
    },
    /// The new file would replace one of its own inputs.
    #[error(
        "'{}' is the source itself, or belongs to it; give another name for the new file",
        path.display()
    )]
    Input {
        /// The path, as given.
        path: PathBuf,
    },
    /// The disk does not have enough space.
    #[error("{}: {}", path.display(), no_space(*.needed, *.free))]
    NoSpace {
        /// The file to be written.
        path: PathBuf,
        /// Bytes of the new file.
        needed: u64,
        /// Bytes that this user could write there before anything was reserved, if the system reports it.
        free: Option<u64>,
    },
    /// The new file cannot be synced to the disk or given its name.
    #[error("{}: cannot put the new file in place: {source}", path.display())]
    Commit {
        /// The file to be written.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The new file is in place, but its folder could not be synced to the disk: if the machine loses
    /// power now, the old file may come back.
    #[error("'{}' is in place, but a loss of power may undo it: {source}", path.display())]
    FolderNotSynced {
        /// The file that was written.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The message for a full disk, with the current numbers.
pub(crate) fn no_space(needed: u64, free: Option<u64>) -> String {
    let [need, had] = units::compared(needed, free.unwrap_or_default());
    match free {
        Some(free) if free < needed => format!(
            "needs {need} but only {had} are free there: make room, or write to another disk"
        ),
        Some(_) => format!(
            "needs {need}, which the system refuses although {had} were free there: look for a quota, or write to another disk"
        ),
        None => {
            format!("needs {need}, for which there is no room: make room, or write to another disk")
        }
    }
}
