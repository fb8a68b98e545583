//! How a copy was made, and why in that way.

use std::fmt;
use std::time::Duration;

use crate::Threads;

/// A method to copy bytes, the cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// Both files share the bytes on the disk until one of them is changed (FICLONE): nothing is copied.
    Reflink,
    /// Large blocks around the page cache (O_DIRECT), except for cached parts of the source: nothing is
    /// cached by it at any moment.
    Direct,
    /// The kernel copies (copy_file_range), on some network filesystems without a byte on the net.
    CopyFileRange,
    /// read(2) and write(2).
    ReadWrite,
}

impl Method {
    /// Its name in messages and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Method::Reflink => "reflink",
            Method::Direct => "direct",
            Method::CopyFileRange => "copy_file_range",
            Method::ReadWrite => "read/write",
        }
    }
}

/// Why a better method was not used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fallback {
    /// The system refuses a method before it copied anything.
    Refused {
        /// The method.
        method: Method,
        /// The system's error.
        errno: i32,
    },
    /// These files cannot be copied around the page cache.
    NotDirect {
        /// Why.
        why: &'static str,
    },
    /// copy_file_range says that there is nothing, which files of /proc make it say.
    NothingCopied,
    /// The kernel does not tell this user which pages of the source are cached (it belongs to another user),
    /// so that only a method may be used that leaves no traces by itself.
    CacheUnknown,
    /// Reads cannot be asked to leave nothing in the page cache (RWF_DONTCACHE).
    ReadsAreCached {
        /// The system's error.
        errno: i32,
    },
    /// Writes cannot be asked that either.
    WritesAreCached {
        /// The system's error.
        errno: i32,
    },
    /// A part of a file cannot be brought to the disk by itself (sync_file_range): the whole is.
    WholeSyncs {
        /// The system's error.
        errno: i32,
    },
    /// The filesystem does not tell holes: they are copied as zeros.
    HolesUnknown {
        /// The system's error.
        errno: i32,
    },
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let refused = |errno: i32| std::io::Error::from_raw_os_error(errno);
        match self {
            Fallback::Refused { method, errno } => {
                write!(f, "{} is refused: {}", method.name(), refused(*errno))
            }
            Fallback::NotDirect { why } => write!(f, "not direct: {why}"),
            Fallback::NothingCopied => f.write_str("copy_file_range copies nothing of this file"),
            Fallback::CacheUnknown => f.write_str(
                "the kernel does not tell what of this file is cached, which only its owner may know",
            ),
            Fallback::ReadsAreCached { errno } => {
                write!(f, "reads that leave nothing cached are refused: {}", refused(*errno))
            }
            Fallback::WritesAreCached { errno } => {
                write!(f, "writes that leave nothing cached are refused: {}", refused(*errno))
            }
            Fallback::WholeSyncs { errno } => {
                write!(f, "parts of a file cannot be synced by themselves: {}", refused(*errno))
            }
            Fallback::HolesUnknown { errno } => {
                write!(f, "the filesystem does not tell holes: {}", refused(*errno))
            }
        }
    }
}

/// How a copy was made.
#[derive(Clone, Debug)]
pub struct Report {
    /// How the bytes were copied.
    pub method: Method,
    /// Methods that were not available, and why.
    pub fallbacks: Vec<Fallback>,
    /// Bytes that were copied (or, by a reflink, are shared); holes are not among them.
    pub bytes: u64,
    /// Bytes of holes.
    pub holes: u64,
    /// Bytes of the source that this copy loaded into the page cache and dropped again.
    pub source_dropped: u64,
    /// Bytes of the source that were cached before, and stay.
    pub source_was_cached: u64,
    /// The threads that copied.
    pub threads: Threads,
    /// From the beginning to the last byte on the disk (the file itself is not synced yet).
    pub took: Duration,
}
