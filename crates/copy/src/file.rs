//! One regular file.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use alight_pages::{FileKind, Input, Place, Replacement, Stamp, copy};
use rustix::fs::OFlags;

use crate::{Copied, CopyError, Event, OnEvent, Options, Progress, dest, keep};

/// Where in the whole a file is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Before {
    pub done: u64,
    pub total: u64,
    /// Whether the folder it goes to has more to come, and is synced then.
    pub in_folder: bool,
}

/// What a path leads to, if it is not a file, a folder or a link.
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

/// Opens what was looked at; if there is something else by now, that is an error, and not waited for.
fn open(from: &Path, looked_at: &Metadata) -> Result<(File, Metadata), CopyError> {
    let cannot = |source| CopyError::Open { path: from.into(), source };
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC).bits();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.cast_signed())
        .open(from)
        .map_err(cannot)?;
    // The kernel gives files of /sys new times when their attributes are asked for at first.
    keep::ask(&file);
    let metadata = file.metadata().map_err(cannot)?;
    if let Some(kind) = special(&metadata) {
        return Err(CopyError::Special { path: from.into(), kind });
    }
    match dest::same(looked_at, &metadata) {
        true => Ok((file, metadata)),
        false => Err(CopyError::Changed { path: from.into() }),
    }
}

/// Copies the file `from`, which was looked at, to `to`.
pub(crate) fn copy(
    (from, looked_at): (&Path, &Metadata),
    to: &Path,
    options: &Options,
    before: Before,
    on_event: &mut OnEvent<'_>,
) -> Result<Copied, CopyError> {
    let began = Instant::now();
    let (source, was) = open(from, looked_at)?;
    dest::look(from, &was, to)?;
    let cannot = |source| CopyError::Open { path: from.into(), source };
    let input = Input::of(&source).map_err(cannot)?;
    let stamp = Stamp::before_reading(&source).map_err(cannot)?;
    let new = Replacement::create_private(Place::of(to)?, !options.no_clobber, input)?;
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
            // Bytes differ, of course, where the source has changed.
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
    // What syncing the file has left of it in the page cache.
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

/// An error, if the source has been changed since its stamp was taken.
fn unchanged(source: &File, stamp: &Stamp, from: &Path) -> Result<(), CopyError> {
    match stamp.still_holds(source) {
        Ok(true) => Ok(()),
        Ok(false) => Err(CopyError::Changed { path: from.into() }),
        Err(source) => Err(CopyError::Open { path: from.into(), source }),
    }
}

/// A symbolic link or another name for a file, at `to`, as a whole or not at all: under a hidden name
/// first, if there is something to be replaced.
pub(crate) fn place(to: &Path, make: impl Fn(&Path) -> io::Result<()>) -> Result<(), CopyError> {
    let cannot = |source| CopyError::Write { path: to.into(), source };
    match make(to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        result => return result.map_err(cannot),
    }
    if fs::symlink_metadata(to).is_ok_and(|found| found.is_dir()) {
        let problem = "is a folder, and cannot be replaced by a file";
        return Err(CopyError::Destination { path: to.into(), problem });
    }
    for number in 0.. {
        let name = format!(".alight-cp.{}-{number}.tmp", std::process::id());
        let hidden = dest::parent(to).join(name);
        match make(&hidden) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(cannot(error)),
            Ok(()) => {}
        }
        let renamed = fs::rename(&hidden, to);
        // Two names of one file are not renamed onto each other; then the hidden one is still there.
        let _ = fs::remove_file(&hidden);
        return renamed.map_err(cannot);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// rename(2) does nothing where both names are of one file.
    #[test]
    fn a_name_that_is_there_already_leaves_no_hidden_one() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), b"file").unwrap();
        fs::write(at("other"), b"other").unwrap();
        for _ in 0..2 {
            place(&at("other"), |path| fs::hard_link(at("file"), path)).unwrap();
            assert_eq!(fs::read(at("other")).unwrap(), b"file");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        }
    }
}
