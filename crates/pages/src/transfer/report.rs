//! The outcome of a transfer.

use std::fmt;
use std::io;
use std::time::Duration;

use alight_types::units;

use crate::Threads;

/// The outcome of a transfer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TransferReport {
    /// The mechanism that issued the reads (the last one, if it changed during the transfer).
    pub engine: Engine,
    /// True if the page cache was bypassed for all of it.
    pub direct: bool,
    /// True if the slots were registered with the kernel.
    pub registered: bool,
    /// Number of bytes requested.
    pub bytes: u64,
    /// Bytes of memory for slots.
    pub buffers: u64,
    /// The threads that read.
    pub threads: Threads,
    /// Features that were not available, in the order in which that was noticed.
    pub fallbacks: Vec<TransferFallback>,
    /// The duration, including the consumers' work.
    pub took: Duration,
}

impl TransferReport {
    pub(crate) fn new(bytes: u64) -> TransferReport {
        TransferReport {
            engine: Engine::Threads,
            direct: false,
            registered: false,
            bytes,
            buffers: 0,
            threads: Threads::ONE,
            fallbacks: Vec::new(),
            took: Duration::ZERO,
        }
    }
}

/// The mechanism that issues the reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// A ring for each thread, with many reads in flight.
    IoUring,
    /// Threads that read and wait.
    Threads,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Engine::IoUring => "io_uring",
            Engine::Threads => "threads",
        })
    }
}

/// A feature that was not available, and was replaced by the next best.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransferFallback {
    /// The system refuses io_uring: threads read instead.
    NoRing {
        /// The system's error number.
        errno: i32,
    },
    /// io_uring is not used for files on FUSE: threads read instead. If a program that serves such a
    /// file returns a short read, io_uring continues at the wrong offset (observed on Linux 6.18 with
    /// O_DIRECT and FOPEN_DIRECT_IO), and it would not be faster: it would have threads wait too.
    NoRingOnFuse,
    /// Slots cannot be registered: they are used unregistered.
    NotRegistered {
        /// The system's error number.
        errno: i32,
    },
    /// The file cannot be opened for direct reads: it is read through the page cache.
    DirectNotOpened {
        /// The system's error number.
        errno: i32,
    },
    /// A direct read was refused: the rest was read through the page cache.
    DirectNotRead {
        /// The system's error number.
        errno: i32,
    },
    /// The filesystem reports that this file does not support direct reads.
    DirectUnsupported,
    /// The file is in memory: a direct read would be a copy like any other.
    InMemory,
    /// The file is compressed: it can only be read through the page cache.
    Compressed,
    /// This system has no O_DIRECT.
    NoDirect,
    /// Direct reads succeeded, and much of the file is in the page cache afterwards nevertheless: another process read it, or the filesystem does so
    /// itself, as btrfs does for compressed files, also below an overlay that does not report it.
    StayedCached {
        /// Bytes of the range that are in the page cache and were not before.
        bytes: u64,
    },
}

impl fmt::Display for TransferFallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = |errno: &i32| io::Error::from_raw_os_error(*errno);
        match self {
            TransferFallback::NoRing { errno } => {
                write!(f, "io_uring is refused ({}): threads read instead", error(errno))
            }
            TransferFallback::NoRingOnFuse => {
                f.write_str("io_uring is not safe for files on FUSE: threads read instead")
            }
            TransferFallback::NotRegistered { errno } => write!(
                f,
                "buffers cannot be registered ({}; RLIMIT_MEMLOCK may be too low): used without",
                error(errno)
            ),
            TransferFallback::DirectNotOpened { errno } => write!(
                f,
                "the file cannot be opened for direct reads ({}): read through the page cache",
                error(errno)
            ),
            TransferFallback::DirectNotRead { errno } => write!(
                f,
                "a direct read was refused ({}): read through the page cache",
                error(errno)
            ),
            TransferFallback::DirectUnsupported => {
                f.write_str("the filesystem has no direct reads: read through the page cache")
            }
            TransferFallback::InMemory => {
                f.write_str("the file lives in memory: read through the page cache")
            }
            TransferFallback::Compressed => {
                f.write_str("the file is compressed: read through the page cache")
            }
            TransferFallback::NoDirect => {
                f.write_str("this system has no direct reads: read through the page cache")
            }
            TransferFallback::StayedCached { bytes } => write!(
                f,
                "{} that were read around the page cache are there nevertheless: the filesystem reads through it, or another process has read them",
                units::bytes(*bytes)
            ),
        }
    }
}
