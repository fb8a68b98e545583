//! Reports how a copy was made and why.

use std::fmt;
use std::time::Duration;

use crate::Threads;

/// A method of copying bytes, cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// Both files share the bytes on the disk until one of them is changed (FICLONE): nothing is copied.
    Reflink,
    /// Large blocks around the page cache (O_DIRECT), except for cached parts of the source: it never
    /// caches anything.
    Direct,
    /// The kernel copies (copy_file_range), on some network filesystems without sending a byte over the
    /// network.
    CopyFileRange,
    /// read(2) and write(2).
    ReadWrite,
}

impl Method {
    /// The method's name in messages and in JSON.
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
    /// The system refused a method before it copied anything.
    Refused {
        /// The method.
        method: Method,
        /// The system's error.
        errno: i32,
    },
    /// These files cannot be copied around the page cache.
    NotDirect {
        /// The reason.
        why: &'static str,
    },
    /// copy_file_range reported end of file at once, as it does for files of /proc.
    NothingCopied,
    /// The kernel does not report to this user which pages of the source are cached (it belongs to
    /// another user), so only a method that leaves no traces by itself may be used.
    CacheUnknown,
    /// Reads cannot be made to leave nothing in the page cache (RWF_DONTCACHE).
    ReadsAreCached {
        /// The system's error.
        errno: i32,
    },
    /// The same for writes.
    WritesAreCached {
        /// The system's error.
        errno: i32,
    },
    /// A part of a file cannot be synced on its own (sync_file_range): the whole file is synced.
    WholeSyncs {
        /// The system's error.
        errno: i32,
    },
    /// The filesystem does not report holes: they are copied as zeros.
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
    /// Methods that were not available, with the reason.
    pub fallbacks: Vec<Fallback>,
    /// Bytes copied (or shared by a reflink), without holes.
    pub bytes: u64,
    /// Bytes of holes.
    pub holes: u64,
    /// Bytes of the source that this copy loaded into the page cache and dropped again.
    pub source_dropped: u64,
    /// Bytes of the source that were cached before and stay cached.
    pub source_was_cached: u64,
    /// The threads that copied.
    pub threads: Threads,
    /// Time from the start to the last byte on the disk (the file itself is not synced yet).
    pub took: Duration,
}
