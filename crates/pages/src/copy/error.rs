//! Errors of copying. Every message begins with a file's path.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::replace::no_space;

/// Possible causes of a difference.
fn blame(times_tell: bool) -> &'static str {
    match times_tell {
        true => "the disk or the memory of this machine is not to be trusted",
        false => {
            "either another program writes to the source through a map, of which the times of files \
             tell nothing there, or the disk or the memory of this machine is not to be trusted"
        }
    }
}

/// Why bytes were not copied. The contents of the destination are invalid then.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The source cannot be read.
    #[error("{}: cannot read at byte {at}: {source}", path.display())]
    Read {
        /// The source.
        path: PathBuf,
        /// Offset in the file.
        at: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The destination cannot be written.
    #[error("{}: cannot write at byte {at}: {source}", path.display())]
    Write {
        /// The destination.
        path: PathBuf,
        /// Offset in the file.
        at: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel copied by itself and does not report which side failed.
    #[error("{}: cannot copy to {} at byte {at}: {source}", path.display(), dest.display())]
    Copy {
        /// The source.
        path: PathBuf,
        /// The destination.
        dest: PathBuf,
        /// Offset in the file.
        at: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The source is shorter than when the copy began.
    #[error(
        "{}: ends at byte {at} but had {expected} bytes when the copy began: something cut it short; \
         copy it again when that is done",
        path.display()
    )]
    CutShort {
        /// The source.
        path: PathBuf,
        /// Offset of its end.
        at: u64,
        /// Bytes it had.
        expected: u64,
    },
    /// The caller required sharing the bytes, which is not possible.
    #[error(
        "{}: cannot share its bytes with {}: {source}; --reflink=auto copies them",
        path.display(), dest.display()
    )]
    NotShared {
        /// The source.
        path: PathBuf,
        /// The destination.
        dest: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The disk does not have enough space.
    #[error("{}: {}", path.display(), no_space(*.needed, *.free))]
    NoSpace {
        /// The destination.
        path: PathBuf,
        /// Bytes of the copy, without holes.
        needed: u64,
        /// Bytes that this user could write there before anything was reserved, if the system reports it.
        free: Option<u64>,
    },
    /// The copy, read again from the disk, differs from the source.
    #[error(
        "{}: differs from {} at byte {at}, read again from the disk: {}",
        path.display(), from.display(), blame(*.times_tell)
    )]
    Differs {
        /// The destination.
        path: PathBuf,
        /// The source.
        from: PathBuf,
        /// Offset of the first difference.
        at: u64,
        /// True if the source's timestamps would reveal every change.
        times_tell: bool,
    },
    /// The callback requested it.
    #[error("stopped")]
    Stopped,
}
