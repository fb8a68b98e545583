//! Options and progress of a copy.

use std::ops::ControlFlow;

use super::report::Method;

/// Bytes of a window. One window of the source (and the kernel's readahead: twice 8 MiB where that is set
/// generously), one of the destination being filled and one on its way to the disk stay below 64 MiB
/// together.
const WINDOW: u64 = 8 << 20;

/// Controls whether the bytes may be shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reflink {
    /// Shares them if the filesystem can.
    #[default]
    Auto,
    /// Shares them, or fails.
    Always,
    /// Gives the copy its own bytes (copy_file_range may share them too, so it is not used).
    Never,
}

/// How to copy.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Controls whether the bytes may be shared.
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
    /// Bytes to copy, without holes.
    pub total: u64,
}

/// Called with the progress after every window; `Break` ends the copy with [`CopyError::Stopped`](super::CopyError::Stopped).
pub type OnProgress<'f> = dyn FnMut(Progress) -> ControlFlow<()> + 'f;
