//! One regular file.

use std::ffi::{CString, OsStr};
use std::fs::{File, Metadata};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Instant;

use alight_pages::{Destination, FileKind, Held, Input, Replacement, Stamp, copy};
use rustix::fs::{Mode, OFlags};

use crate::{Copied, CopyError, Event, OnEvent, Options, Progress, dest, keep};

/// The position of a file within the whole work.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Before {
    pub done: u64,
    pub total: u64,
    /// True if its destination folder still gets more entries, and is synced after them.
    pub in_folder: bool,
}

/// Returns the kind of a file that is not a regular file, a folder or a link.
pub(crate) fn special(metadata: &Metadata) -> Option<FileKind> {
    let ty = metadata.file_type();
    match ty {
        _ if ty.is_file() || ty.is_dir() || ty.is_symlink() => None,
        _ if ty.is_fifo() => Some(FileKind::Pipe),
        _ if ty.is_socket() => Some(FileKind::Socket),
        _ if ty.is_char_device() => Some(FileKind::CharacterDevice),
        _ if ty.is_block_device() => Some(FileKind::BlockDevice),
        _ => Some(FileKind::Other),
    }
}

/// An entry to copy: a name in an open folder.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub folder: BorrowedFd<'a>,
    pub name: &'a OsStr,
    /// Its name in messages.
    pub path: &'a Path,
    /// True if a link is followed: the entry was named by the user, without -r.
    pub follow: bool,
}

impl Entry<'_> {
    /// Returns its metadata.
    pub fn look(&self) -> Result<Metadata, CopyError> {
        let cannot = |source| CopyError::Open { path: self.path.into(), source };
        let by_path = || match self.follow {
            true => std::fs::metadata(self.path),
            false => std::fs::symlink_metadata(self.path),
        };
        Held::open(self.folder, self.name, self.follow)
            .and_then(|held| held.map_or_else(by_path, |held| held.metadata()))
            .map_err(cannot)
    }

    fn open(&self, flags: OFlags) -> io::Result<File> {
        let follow = if self.follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        let flags = flags | follow | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(self.folder, self.name, flags, Mode::empty())?.into())
    }

    /// Returns the target of a link.
    pub fn target(&self) -> Result<CString, CopyError> {
        rustix::fs::readlinkat(self.folder, self.name, Vec::new())
            .map_err(|error| CopyError::Open { path: self.path.into(), source: error.into() })
    }
}

/// Opens the file that was looked at. If it has been replaced since, that is an error, and opening does not block.
fn open(from: &Entry<'_>, looked_at: &Metadata) -> Result<(File, Metadata), CopyError> {
    let cannot = |source| CopyError::Open { path: from.path.into(), source };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = from.open(flags).map_err(cannot)?;
    // The kernel updates the times of files in /sys when their attributes are first read.
    keep::ask(&file);
    let metadata = file.metadata().map_err(cannot)?;
    if let Some(kind) = special(&metadata) {
        return Err(CopyError::Special { path: from.path.into(), kind });
    }
    match dest::same(looked_at, &metadata) {
        true => Ok((file, metadata)),
        false => Err(CopyError::Changed { path: from.path.into() }),
    }
}

/// Copies the file `entry`, which was looked at, to a checked destination.
pub(crate) fn copy(
    (entry, looked_at): (&Entry<'_>, &Metadata),
    dest: &Destination,
    options: &Options,
    before: Before,
    on_event: &mut OnEvent<'_>,
) -> Result<Copied, CopyError> {
    let began = Instant::now();
    let (source, was) = open(entry, looked_at)?;
    let (from, to) = (entry.path, dest.path());
    let cannot = |source| CopyError::Open { path: from.into(), source };
    let input = Input::of(&source).map_err(cannot)?;
    let stamp = Stamp::before_reading(&source).map_err(cannot)?;
    let new = Replacement::create_private(dest.clone(), !options.no_clobber, input)?;
    let mut how = copy::Options::default();
    (how.reflink, how.method) = (options.reflink, options.method);
    let report = copy::copy((&source, from), (new.file(), to), &how, &mut |progress| {
        on_event(Event::Progress(Progress {
            durable: before.done + progress.durable,
            total: before.total,
            verified: None,
        }))
    })?;
    let verified = match options.verify {
        false => None,
        true => {
            let done = before.done + report.bytes;
            let verified = copy::verify((&source, from), (new.file(), to), &how, &mut |compared| {
                on_event(Event::Progress(Progress {
                    durable: done,
                    total: before.total,
                    verified: Some(compared.durable),
                }))
            });
            // Bytes differ, of course, if the source has changed.
            if verified.is_err() {
                unchanged(&source, &stamp, from)?;
            }
            Some(verified?)
        }
    };
    let not_kept = keep::keep(&source, &was, new.file());
    let last = before.done + report.bytes;
    if on_event(Event::Progress(Progress { durable: last, total: before.total, verified: None }))
        == ControlFlow::Break(())
    {
        return Err(CopyError::Stopped);
    }
    unchanged(&source, &stamp, from)?;
    let file = new.file().try_clone();
    if before.in_folder {
        new.put_in_place()?
    } else {
        new.commit()?
    }
    // The rest of it in the page cache after the sync.
    if let Ok(file) = file {
        let _ = alight_pages::give_up(&file);
    }
    Ok(Copied {
        from: from.into(),
        to: to.into(),
        report: Some(report),
        verified,
        not_kept,
        took: began.elapsed(),
    })
}

/// Returns an error if the source has been changed since its stamp was taken.
fn unchanged(source: &File, stamp: &Stamp, from: &Path) -> Result<(), CopyError> {
    match stamp.still_holds(source) {
        Ok(true) => Ok(()),
        Ok(false) => Err(CopyError::Changed { path: from.into() }),
        Err(source) => Err(CopyError::Open { path: from.into(), source }),
    }
}
