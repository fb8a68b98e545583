//! What can go wrong. Every message names the file.

use std::io;
use std::path::PathBuf;

use alight_formats::GgmlType;
use alight_formats::gguf::GgufError;
use alight_formats::split::SplitError;
use alight_pages::{MapError, ReplaceError};
use thiserror::Error;

/// Why a file was not made. Nothing is left of it, and what was there before is as it was.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// The source cannot be mapped, or was cut short while it was read.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The source is not a GGUF file that is in order.
    #[error("{}: {source}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        source: GgufError,
    },
    /// The shards of the source do not belong together.
    #[error("{}: {source}", path.display())]
    Split {
        /// The file that was asked for.
        path: PathBuf,
        /// What does not fit.
        source: SplitError,
    },
    /// A small file beside the weights is wrong: configuration, tokenizer, settings.
    #[error("{}: {problem}", path.display())]
    Side {
        /// The file.
        path: PathBuf,
        /// What is wrong, what was expected, what to do.
        problem: String,
    },
    /// The source of `pack` is packed.
    #[error("{}: is packed already; `alight unpack` makes the original of it", path.display())]
    AlreadyPacked {
        /// The file.
        path: PathBuf,
    },
    /// The source of `unpack` is not packed.
    #[error("{}: is not packed, there is nothing to unpack", path.display())]
    NotPacked {
        /// The file.
        path: PathBuf,
    },
    /// The source has bytes that belong to nothing, and more of them than a packed file keeps.
    #[error(
        "{}: {found} bytes between or behind its tensors belong to nothing, and the packed file \
         keeps at most {limit} of them; cut them off first",
        path.display()
    )]
    Junk {
        /// The file.
        path: PathBuf,
        /// Bytes.
        found: u64,
        /// Bytes that are kept.
        limit: u64,
    },
    /// The header of the new file would be longer than a header may be.
    #[error("{}: its header has no room for what packing adds ({found} bytes, at most {limit})", path.display())]
    HeaderTooLong {
        /// The source.
        path: PathBuf,
        /// Bytes it would have.
        found: u64,
        /// Bytes it may have.
        limit: u64,
    },
    /// A tensor is of a type that cannot be turned into floats here.
    #[error(
        "{}: tensor \"{tensor}\" is {ty}, which cannot be converted: take a file of another type of \
         this model (F16, BF16 or F32 is best)",
        path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        ty: GgmlType,
    },
    /// A weight is infinite or not a number.
    #[error(
        "{}: tensor \"{tensor}\" has a weight that is infinite or not a number: the file is damaged",
        path.display()
    )]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// What a packed file says about its source makes no sense.
    #[error(
        "{}: metadata \"{key}\" {problem}: the file is damaged, or no alight has packed it",
        path.display()
    )]
    Restore {
        /// The packed file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// What is wrong with its value.
        problem: String,
    },
    /// The unpacked file is not what had been packed.
    #[error(
        "{}: its weights have changed since it was packed: unpacked they have the SHA-256 {found}, \
         expected {expected}; get the original again",
        path.display()
    )]
    Checksum {
        /// The packed file.
        path: PathBuf,
        /// What was computed.
        found: String,
        /// What the file says.
        expected: String,
    },
    /// There is a file of that name, and it was not said that it may be replaced.
    #[error("{}: exists already; --force replaces it", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Source and destination are one file.
    #[error("{}: is the source itself; give another name for the new file", path.display())]
    SameFile {
        /// The file.
        path: PathBuf,
    },
    /// No file can be made there.
    #[error("{}: {problem}", path.display())]
    Destination {
        /// The path.
        path: PathBuf,
        /// What is in the way.
        problem: &'static str,
    },
    /// The source cannot be read.
    #[error("{}: cannot read at byte {at}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Where.
        at: u64,
        /// What the system says.
        source: io::Error,
    },
    /// The new file cannot be written.
    #[error("{}: cannot write: {source}; nothing was left behind", path.display())]
    Write {
        /// The file that was to be.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The new file cannot be created or put into its place.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    /// The callback asked for it.
    #[error("stopped; nothing was written")]
    Stopped,
}
