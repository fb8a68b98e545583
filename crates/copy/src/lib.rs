//! Copies files and folders so that each file appears complete or not at all, and the page cache is
//! left as it was: bytes, holes, permissions, times, owner, attributes. The bytes themselves are
//! copied by [`alight_pages::copy`].
//!
//! It must never print, leave half a file, open a pipe or a device, follow a link inside a folder,
//! or copy a file or folder onto or into itself. An observer is notified of events, and can stop
//! the work.
//!
//! **Invariant:** a file appears under its name when its bytes and its metadata are on the disk. An
//! existing file stays until then. A failure, Ctrl-C or a full disk leaves nothing of the new one.
//!
//! **Invariant:** both sides of a tree are walked by open folders (`walk.rs`), never by path: no
//! link below the destination that the caller named is followed, whichever process made it, and a
//! folder that is swapped for a link while it is copied does not redirect the copy. A link at the
//! path of a new file is an error there; a link that is itself the named destination is followed,
//! and its file replaced.
//!
//! **Invariant:** a run replaces nothing that it has created itself, and does not descend into it.
//!
//! **Invariant:** a copy has the permissions and ACLs of its source and at no moment more. At first
//! only its owner can read it, and the ACL that its folder passes on (a default ACL) is removed
//! before the first byte. Where an ACL cannot be kept, the group gets no rights. A program whose
//! owner changes loses its setuid and setgid bits.
//!
//! **Invariant:** metadata that cannot be kept is reported ([`NotKept`]). Failures are reported and do not stop the rest of a
//! folder. A source that was written to while it was copied is an error.
//!
//! **Invariant:** at most the first and the last four levels of a tree are open; one further up is opened again as the folder
//! above and must be the same folder. Memory holds the names of one folder for each level on the way down.
//!
//! # Example
//!
//! ```
//! use std::ops::ControlFlow;
//!
//! let folder = tempfile::tempdir()?;
//! let (from, to) = (folder.path().join("from"), folder.path().join("to"));
//! std::fs::write(&from, "text")?;
//! let mut copied = 0;
//! let options = alight_copy::Options { verify: true, ..Default::default() };
//! let summary = alight_copy::copy(&[from], &to, &options, &mut |event| {
//!     copied += usize::from(matches!(event, alight_copy::Event::Copied(_)));
//!     ControlFlow::Continue(())
//! })?;
//! assert_eq!((summary.files, copied), (1, 1));
//! assert_eq!(std::fs::read(&to)?, b"text");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod dest;
mod error;
mod file;
mod keep;
mod links;
mod tree;
mod walk;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use alight_pages::copy::{Fallback, Method, Reflink, Report};
pub use error::CopyError;
pub use keep::NotKept;

/// Options of a copy.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Folders too, with all their contents; symbolic links are then copied as links.
    pub recursive: bool,
    /// Leave existing files alone.
    pub no_clobber: bool,
    /// Read every file again, from the disk, and compare it before it appears.
    pub verify: bool,
    /// When bytes may be shared.
    pub reflink: Reflink,
    /// The first method to try after sharing; `None` chooses the best.
    pub method: Option<Method>,
    /// The destination is never a folder to copy into.
    pub no_target_directory: bool,
    /// Count the bytes of everything first, for [`Event::Progress`].
    pub count: bool,
}

/// An event that an observer is notified of.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The progress, several times per second.
    Progress(Progress),
    /// A file is in place.
    Copied(&'a Copied),
    /// A file was left alone because it already existed.
    Skipped(&'a Path),
    /// One file or folder could not be copied; the others still are.
    Failed(&'a CopyError),
}

/// The progress of the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are on the disk.
    pub durable: u64,
    /// Total bytes, as far as known (see [`Options::count`]).
    pub total: u64,
    /// Bytes compared so far, during a comparison.
    pub verified: Option<u64>,
}

/// A file that was copied.
#[derive(Debug)]
pub struct Copied {
    /// The source.
    pub from: PathBuf,
    /// The new file.
    pub to: PathBuf,
    /// How its bytes were copied; `None` for a link.
    pub report: Option<Report>,
    /// How it was compared, if at all.
    pub verified: Option<Verified>,
    /// The metadata that could not be kept.
    pub not_kept: Vec<NotKept>,
    /// From opening the source until the new file is durable on the disk.
    pub took: Duration,
}

pub use alight_pages::copy::Verified;

/// The totals of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Files and links that are in place.
    pub files: u64,
    /// Folders that are in place.
    pub folders: u64,
    /// Bytes of these files that were copied or shared, without holes.
    pub bytes: u64,
    /// Files that were left alone.
    pub skipped: u64,
    /// Files and folders that could not be copied.
    pub failed: u64,
}

/// Notified of every event; `Break` stops the work, which then ends with [`CopyError::Stopped`] and
/// leaves nothing of the current file.
pub type OnEvent<'f> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'f;

/// Copies each of `sources` to `dest`: into it if it is a folder, otherwise under this name.
/// Failures are reported to the observer and counted, and the next source is copied.
///
/// # Errors
/// There is no folder `dest` to copy into, or the observer stopped the work.
pub fn copy(
    sources: &[PathBuf],
    dest: &Path,
    options: &Options,
    on_event: &mut OnEvent<'_>,
) -> Result<Summary, CopyError> {
    tree::copy(sources, dest, options, on_event)
}
