//! What a copy is asked for, and what it tells while it runs.

use std::ops::ControlFlow;

use super::report::Method;

/// Bytes of a window. With one of the source (and what the kernel reads ahead of it: twice 8 MiB where
/// that is set generously), one of the destination that is filled and one on its way to the disk it
/// stays below 64 MiB.
const WINDOW: u64 = 8 << 20;

/// Whether the bytes may be shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reflink {
    /// Shares them if the filesystem can.
    #[default]
    Auto,
    /// Shares them, or fails.
    Always,
    /// The copy has its own bytes (copy_file_range may share them too, and is not used).
    Never,
}

/// How to copy.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Whether the bytes may be shared.
    pub reflink: Reflink,
    /// The first method to try after sharing; `None` chooses the best.
    pub method: Option<Method>,
    /// Bytes of a window, a multiple of 2 MiB (so that the large pages of the page cache are within one).
    pub window: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { reflink: Reflink::Auto, method: None, window: WINDOW }
    }
}

/// The progress of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are on the disk.
    pub durable: u64,
    /// Bytes to be copied, holes left out.
    pub total: u64,
}

/// Called with the progress after every window; `Break` ends the copy with [`CopyError::Stopped`](super::CopyError::Stopped).
pub type OnProgress<'f> = dyn FnMut(Progress) -> ControlFlow<()> + 'f;
