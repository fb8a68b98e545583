//! Files and folders copied so that each file is there as a whole or not at all, and the page cache is
//! as it was: bytes, holes, permissions, times, owner, attributes. The bytes themselves are copied by
//! [`alight_pages::copy`].
//!
//! It must never print, leave half a file, open a pipe or a device, follow a link inside a folder, or
//! copy a thing onto or into itself. An observer is told what happens, and can stop the work.
//!
//! **Invariant:** a file appears under its name when its bytes, and what belongs to it, are on the disk.
//! A file that was there before stays until then. A failure, Ctrl-C or a full disk leaves nothing of the
//! new one.
//!
//! **Invariant:** both sides of a tree are walked by open folders (`walk.rs`), never by path: no link
//! below the destination that the caller named is followed, whichever process made it, and a folder that
//! is swapped for a link while it is copied leads nowhere else. A link at the path of a new file is an
//! error there; a link that is itself the named destination is followed, and its file replaced.
//!
//! **Invariant:** a run replaces nothing that it has made itself, and does not descend into it.
//!
//! **Invariant:** a copy has the permissions and ACLs of its source and at no moment more. It begins
//! readable by its owner alone, and what its folder hands down (a default ACL) is taken away before the
//! first byte. Where an ACL cannot be kept, the group gets no rights. A program that changes its owner
//! loses the bits that run it as its owner (setuid, setgid).
//!
//! **Invariant:** what cannot be kept is reported ([`NotKept`]). What fails is reported and does not stop
//! the rest of a folder. A source that was written to while it was copied is an error.
//!
//! **Invariant:** at most the first and the last four levels of a tree are open; one further up is opened
//! again as the folder above and must be the same folder. Memory holds the names of one folder for each
//! level on the way down.
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

/// How to copy.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Folders too, with everything in them; symbolic links are then copied as links.
    pub recursive: bool,
    /// Leave files alone that are there already.
    pub no_clobber: bool,
    /// Read every file again, from the disk, and compare it before it appears.
    pub verify: bool,
    /// Whether bytes may be shared.
    pub reflink: Reflink,
    /// The first method to try after sharing; `None` chooses the best.
    pub method: Option<Method>,
    /// The destination is never a folder to copy into.
    pub no_target_directory: bool,
    /// Count the bytes of everything first, for [`Event::Progress`].
    pub count: bool,
}

/// What an observer is told.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The progress, several times per second.
    Progress(Progress),
    /// A file is in place.
    Copied(&'a Copied),
    /// A file was left alone because there was one already.
    Skipped(&'a Path),
    /// One file or folder could not be copied; the others are.
    Failed(&'a CopyError),
}

/// The progress of the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are on the disk.
    pub durable: u64,
    /// Bytes in all, as far as known (see [`Options::count`]).
    pub total: u64,
    /// Bytes that were compared, where they are compared now.
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
    /// How it was compared, if it was.
    pub verified: Option<Verified>,
    /// What of it could not be kept.
    pub not_kept: Vec<NotKept>,
    /// From opening the source to the new file's being safe on the disk.
    pub took: Duration,
}

pub use alight_pages::copy::Verified;

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Files and links that are in place.
    pub files: u64,
    /// Folders that are in place.
    pub folders: u64,
    /// Bytes of these files that were copied or shared, holes left out.
    pub bytes: u64,
    /// Files that were left alone.
    pub skipped: u64,
    /// Files and folders that could not be copied.
    pub failed: u64,
}

/// Told about everything; `Break` stops the work, which then ends with [`CopyError::Stopped`] and leaves
/// nothing of the file that it was at.
pub type OnEvent<'f> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'f;

/// Copies each of `sources` to `dest`: into it, if it is a folder, else under this name. What fails is
/// told to the observer and counted, and the next is copied.
///
/// # Errors
/// There is no such folder to copy into, or the observer stopped the work.
pub fn copy(
    sources: &[PathBuf],
    dest: &Path,
    options: &Options,
    on_event: &mut OnEvent<'_>,
) -> Result<Summary, CopyError> {
    tree::copy(sources, dest, options, on_event)
}
