//! Opens a file by a name from outside, and identifies files.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::error::{FileKind, MapError};

/// Opening never waits for another process, and makes no terminal that of this process.
const FLAGS: libc::c_int = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;

/// The identity of a file, the same for every name or link that leads to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    dev: u64,
    ino: u64,
}

impl From<&Metadata> for Identity {
    fn from(metadata: &Metadata) -> Identity {
        Identity { dev: metadata.dev(), ino: metadata.ino() }
    }
}

impl From<&rustix::fs::Stat> for Identity {
    #[allow(clippy::unnecessary_cast)] // the widths differ between systems
    fn from(stat: &rustix::fs::Stat) -> Identity {
        Identity { dev: stat.st_dev as u64, ino: stat.st_ino as u64 }
    }
}

/// Opens the regular file at `path` for reading; links are followed. Never blocks, not even on a pipe
/// without a writer.
///
/// # Errors
/// The file cannot be opened, or is not a regular file.
pub fn open_file(path: &Path) -> Result<(File, Metadata), MapError> {
    let found = std::fs::metadata(path);
    open_found(path, found, OpenOptions::new().read(true).custom_flags(FLAGS))
}

/// Opens the regular file at `path` with these options, which may create it. A link in its place is not
/// followed. Never blocks.
///
/// # Errors
/// The file cannot be opened or created, or is not a regular file; a link is an error too.
pub fn open_unfollowed(path: &Path, options: &OpenOptions) -> Result<(File, Metadata), MapError> {
    let found = std::fs::symlink_metadata(path);
    open_found(path, found, options.clone().custom_flags(FLAGS | libc::O_NOFOLLOW))
}

/// Opens the file at `path`, where `found` was.
fn open_found(
    path: &Path,
    found: io::Result<Metadata>,
    options: &OpenOptions,
) -> Result<(File, Metadata), MapError> {
    let open_error = |source| MapError::Open { path: path.into(), source };
    let regular = |found: &Metadata| match found.is_file() {
        true => Ok(()),
        false => Err(MapError::NotAFile { path: path.into(), kind: file_kind(found) }),
    };
    // Check the file before opening it, because opening some devices has effects, and again after,
    // because it may have been replaced. Without O_NONBLOCK, opening a pipe would block.
    match found {
        Ok(found) => regular(&found)?,
        // It is created, or opening it reports the same.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(open_error(error)),
    }
    let file = options.open(path).map_err(open_error)?;
    let metadata = file.metadata().map_err(open_error)?;
    regular(&metadata)?;
    Ok((file, metadata))
}

/// The kind of a file that is not a regular one.
pub fn file_kind(found: &Metadata) -> FileKind {
    kind_of(rustix::fs::FileType::from_raw_mode(found.mode() as rustix::fs::RawMode))
}

/// The kind of a file that is not a regular one, by its type.
pub(crate) fn kind_of(found: rustix::fs::FileType) -> FileKind {
    use rustix::fs::FileType;
    match found {
        FileType::Directory => FileKind::Directory,
        FileType::Fifo => FileKind::Pipe,
        FileType::CharacterDevice => FileKind::CharacterDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Socket => FileKind::Socket,
        FileType::Symlink => FileKind::SymbolicLink,
        _ => FileKind::Other,
    }
}
