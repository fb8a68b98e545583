//! Opens a file by a name from outside, and identifies files.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::error::{FileKind, MapError};

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
    let open_error = |source| MapError::Open { path: path.into(), source };
    let regular = |kind: FileType| {
        if kind.is_file() {
            return Ok(());
        }
        Err(MapError::NotAFile { path: path.into(), kind: file_kind(kind) })
    };
    // Check the file before opening it, because opening some devices has effects, and again after,
    // because it may have been replaced. Without O_NONBLOCK, opening a pipe would block.
    regular(std::fs::metadata(path).map_err(open_error)?.file_type())?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC)
        .open(path)
        .map_err(open_error)?;
    let metadata = file.metadata().map_err(open_error)?;
    regular(metadata.file_type())?;
    Ok((file, metadata))
}

pub(crate) fn file_kind(kind: FileType) -> FileKind {
    if kind.is_dir() {
        FileKind::Directory
    } else if kind.is_fifo() {
        FileKind::Pipe
    } else if kind.is_char_device() {
        FileKind::CharacterDevice
    } else if kind.is_block_device() {
        FileKind::BlockDevice
    } else if kind.is_socket() {
        FileKind::Socket
    } else {
        FileKind::Other
    }
}
