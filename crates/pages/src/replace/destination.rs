//! A name in an open folder, for a file to be created.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{Input, ReplaceError};
use crate::open::kind_of;
use crate::{Folder, Identity};

/// A name in an open folder. A file with this name is created in exactly this folder, and no link is
/// followed on the way, whatever other processes do to the path that led to it.
#[derive(Clone, Debug)]
pub struct Destination {
    pub(super) folder: Folder,
    pub(super) name: OsString,
    /// The caller's path, for messages.
    path: PathBuf,
}

impl Destination {
    /// The name of the file at `path`, which need not exist. If `path` is a link to a file, the name of that
    /// file.
    ///
    /// # Errors
    /// There is no such folder, or this user may not enter it.
    pub fn of(path: &Path) -> Result<Destination, ReplaceError> {
        let create = |source| ReplaceError::Create { path: path.into(), source };
        if !fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink()) {
            return Destination::unfollowed(path);
        }
        let target = match fs::canonicalize(path) {
            Ok(target) => target,
            // The link dangles: use the link itself.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Destination::unfollowed(path);
            }
            Err(error) => return Err(create(error)),
        };
        let dest = Destination::unfollowed(&target)?;
        Ok(Destination { path: path.into(), ..dest })
    }

    /// The name `path` itself, even if it is a link.
    ///
    /// # Errors
    /// The errors of [`of`](Destination::of).
    pub fn unfollowed(path: &Path) -> Result<Destination, ReplaceError> {
        let problem = |problem| Err(ReplaceError::Name { path: path.into(), problem });
        let Some(name) = path.file_name().filter(|_| !ends_in_dots(path)) else {
            return problem(match path.is_dir() {
                true => "is a folder; give the name of the new file",
                false => "is not the name of a file",
            });
        };
        if path.as_os_str().as_bytes().ends_with(b"/") {
            return problem(match path.is_dir() {
                true => "is a folder; give the name of the new file",
                false => "is not a folder; make it first, or leave out the '/'",
            });
        }
        let folder = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        match Folder::open(folder) {
            Ok(folder) => Ok(Destination { folder, name: name.into(), path: path.into() }),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound => {
                    problem("cannot be made: its folder does not exist; make it first")
                }
                io::ErrorKind::NotADirectory => {
                    problem("cannot be made: what should be its folder is a file")
                }
                _ => Err(ReplaceError::Create { path: path.into(), source: error }),
            },
        }
    }

    /// The name `name` in `folder`; messages show `path`.
    pub fn in_folder(folder: &Folder, name: &OsStr, path: &Path) -> Destination {
        Destination { folder: folder.clone(), name: name.into(), path: path.into() }
    }

    /// The path shown in messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// The name in the folder.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns the metadata of the file with this name, if it exists; for a link, of the link itself.
    ///
    /// # Errors
    /// The metadata cannot be read.
    pub fn look(&self) -> Result<Option<Stat>, ReplaceError> {
        let create = |source| ReplaceError::Create { path: self.path.clone(), source };
        self.folder.look(&self.name).map_err(create)
    }

    /// Checks that a file made of `inputs` may get this name. Returns the metadata of the file that has
    /// the name now, if any. Without `replace`, the name must be free.
    ///
    /// # Errors
    /// The name belongs to something that is not a file, to one of the inputs, or to a file that may not
    /// be replaced.
    pub fn check(&self, replace: bool, inputs: &[Input]) -> Result<Option<Stat>, ReplaceError> {
        let Some(found) = self.look()? else { return Ok(None) };
        let path = self.path.clone();
        match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile if is_one_of(inputs, &found) => Err(ReplaceError::Input { path }),
            FileType::RegularFile | FileType::Symlink if replace => Ok(Some(found)),
            FileType::RegularFile => Err(ReplaceError::Exists { path }),
            FileType::Symlink => Err(ReplaceError::DanglingLink { path }),
            other => Err(ReplaceError::NotAFile { path, kind: kind_of(other) }),
        }
    }

    /// Creates the file with `make`, which gets a folder and a name, atomically and only if the name is
    /// free. With `replace`, an existing file is replaced, unless it is one of the `inputs` or not a
    /// file.
    ///
    /// # Errors
    /// `make` fails; or the existing file may not be replaced.
    pub fn put(
        &self,
        replace: bool,
        inputs: &[Input],
        make: impl Fn(BorrowedFd<'_>, &OsStr) -> io::Result<()>,
    ) -> Result<(), ReplaceError> {
        let commit = |source| ReplaceError::Commit { path: self.path.clone(), source };
        match make(self.folder.as_fd(), &self.name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => return result.map_err(commit),
        }
        if !replace {
            return Err(ReplaceError::Appeared { path: self.path.clone() });
        }
        self.check(true, inputs)?;
        let hidden = loop {
            let name = hidden_name(&self.name);
            match make(self.folder.as_fd(), &name) {
                Ok(()) => break Hidden { folder: self.folder.clone(), name },
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(commit(error)),
            }
        };
        // Renaming one name of a file onto another of the same file does nothing: then the hidden name
        // still exists, and is removed when `hidden` is dropped.
        rustix::fs::renameat(&self.folder, &hidden.name, &self.folder, &self.name)
            .map_err(|error| commit(error.into()))
    }

    /// Gives the file with the hidden name the name of the destination.
    pub(super) fn rename(
        &self,
        hidden: &Hidden,
        replace: bool,
        inputs: &[Input],
        renames: &[Rename],
    ) -> Result<(), ReplaceError> {
        let commit =
            |error: Errno| ReplaceError::Commit { path: self.path.clone(), source: error.into() };
        if replace && self.check(true, inputs)?.is_some() {
            return rustix::fs::renameat(&self.folder, &hidden.name, &self.folder, &self.name)
                .map_err(commit);
        }
        let mut refused = Errno::OPNOTSUPP;
        for rename in renames {
            match rename(self.folder.as_fd(), &hidden.name, &self.name) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) if replace => return self.rename(hidden, true, inputs, renames),
                Err(Errno::EXIST) => {
                    return Err(ReplaceError::Appeared { path: self.path.clone() });
                }
                Err(
                    error @ (Errno::INVAL
                    | Errno::NOSYS
                    | Errno::OPNOTSUPP
                    | Errno::PERM
                    | Errno::MLINK
                    | Errno::ACCESS),
                ) => refused = error,
                Err(error) => return Err(commit(error)),
            }
        }
        Err(commit(refused))
    }

    /// Creates a new file with a hidden name in the folder.
    pub(super) fn hidden_file(&self, mode: u32) -> io::Result<(fs::File, Hidden)> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        loop {
            let name = hidden_name(&self.name);
            match rustix::fs::openat(&self.folder, &name, flags, Mode::from_raw_mode(mode as _)) {
                Ok(file) => return Ok((file.into(), Hidden { folder: self.folder.clone(), name })),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// True if the path ends in `.` or `..`, which [`Path::file_name`] may not show.
fn ends_in_dots(path: &Path) -> bool {
    let last = path.as_os_str().as_bytes().rsplit(|byte| *byte == b'/').find(|n| !n.is_empty());
    matches!(last, None | Some(b"." | b".."))
}

fn is_one_of(inputs: &[Input], found: &Stat) -> bool {
    inputs.iter().any(|input| input.identity == Identity::from(found))
}

/// A hidden name, removed on drop (unless it is already gone).
#[derive(Debug)]
pub(super) struct Hidden {
    folder: Folder,
    name: OsString,
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // It is already gone, or cannot be removed.
        let _ = rustix::fs::unlinkat(&self.folder, &self.name, AtFlags::empty());
    }
}

/// A method to rename a file within its folder if the new name is free.
pub(super) type Rename = fn(BorrowedFd<'_>, &OsStr, &OsStr) -> Result<(), Errno>;

/// The methods, tried in turn. The first two are atomic: a file that appears at any moment is never lost. On
/// filesystems that support neither (some network and user-space filesystems), the name is first taken by an
/// empty file that only this call can have created. A file that appears before that is left alone as well; but a
/// kill between the two steps leaves the empty file, and data that another process writes into it in between is
/// lost.
pub(super) const RENAMES: [Rename; 3] = [without_replacing, by_link, by_taking];

fn without_replacing(folder: BorrowedFd<'_>, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
    #[cfg(any(target_os = "linux", target_vendor = "apple"))]
    return rustix::fs::renameat_with(folder, from, folder, to, rustix::fs::RenameFlags::NOREPLACE);
    #[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
    {
        let _ = (folder, from, to);
        Err(Errno::NOSYS)
    }
}

fn by_link(folder: BorrowedFd<'_>, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
    rustix::fs::linkat(folder, from, folder, to, AtFlags::empty())
    // The hidden name is removed when it is dropped.
}

fn by_taking(folder: BorrowedFd<'_>, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let taken = rustix::fs::openat(folder, to, flags, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::renameat(folder, from, folder, to).inspect_err(|_| {
        // A file that another process has put there meanwhile stays.
        let ours = rustix::fs::fstat(&taken).map(|own| Identity::from(&own));
        let found = rustix::fs::statat(folder, to, AtFlags::SYMLINK_NOFOLLOW);
        if found.is_ok_and(|found| found.st_size == 0 && ours == Ok(Identity::from(&found))) {
            // If it cannot be removed either, it stays.
            let _ = rustix::fs::unlinkat(folder, to, AtFlags::empty());
        }
    })
}

/// Returns a different name on each call, in this process and among all running processes.
fn hidden_name(name: &OsStr) -> OsString {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = name.as_bytes();
    // Names have at most 255 bytes.
    let mut hidden = b".".to_vec();
    hidden.extend_from_slice(&name[..name.len().min(200)]);
    let number = COUNT.fetch_add(1, Relaxed);
    hidden.extend_from_slice(format!(".{}-{number}.tmp", std::process::id()).as_bytes());
    OsString::from_vec(hidden)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each method alone, and all of them in order when the first are refused.
    #[test]
    fn no_way_of_renaming_replaces_anything() {
        let refused: Rename = |_, _, _| Err(Errno::INVAL);
        let all: [&[Rename]; 5] = [
            &RENAMES,
            &[without_replacing],
            &[refused, by_link],
            &[refused, refused, by_taking],
            &[by_taking],
        ];
        for renames in all {
            let dir = tempfile::tempdir().unwrap();
            let dest = Destination::of(&dir.path().join("new")).unwrap();
            let make = |bytes: &[u8]| {
                let (file, hidden) = dest.hidden_file(0o600).unwrap();
                io::Write::write_all(&mut &file, bytes).unwrap();
                hidden
            };
            dest.rename(&make(b"one"), false, &[], renames).unwrap();
            let error = dest.rename(&make(b"two"), false, &[], renames).unwrap_err();
            assert!(matches!(error, ReplaceError::Appeared { .. }), "{error}");
            assert_eq!(fs::read(dir.path().join("new")).unwrap(), b"one");
            dest.rename(&make(b"three"), true, &[], renames).unwrap();
            assert_eq!(fs::read(dir.path().join("new")).unwrap(), b"three");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
        let dir = tempfile::tempdir().unwrap();
        let dest = Destination::of(&dir.path().join("new")).unwrap();
        let (_file, hidden) = dest.hidden_file(0o600).unwrap();
        let error = dest.rename(&hidden, false, &[], &[refused]).unwrap_err();
        assert!(matches!(error, ReplaceError::Commit { .. }), "{error}");
    }

    #[test]
    fn a_name_that_was_taken_for_nothing_is_free_again() {
        let dir = tempfile::tempdir().unwrap();
        let dest = Destination::of(&dir.path().join("new")).unwrap();
        let taken = by_taking(dest.folder.as_fd(), OsStr::new("is not there"), &dest.name);
        assert_eq!(taken, Err(Errno::NOENT));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        // A name that was not taken by this call is left alone.
        fs::write(dir.path().join("new"), b"").unwrap();
        let taken = by_taking(dest.folder.as_fd(), OsStr::new("is not there"), &dest.name);
        assert_eq!(taken, Err(Errno::EXIST));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    /// rename(2) does nothing if both names belong to the same file.
    #[test]
    fn a_name_that_is_there_already_leaves_no_hidden_one() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), b"file").unwrap();
        fs::write(at("other"), b"other").unwrap();
        let dest = Destination::of(&at("other")).unwrap();
        let link = |folder: BorrowedFd<'_>, name: &OsStr| {
            Ok(rustix::fs::linkat(folder, "file", folder, name, AtFlags::empty())?)
        };
        assert!(matches!(dest.put(false, &[], link), Err(ReplaceError::Appeared { .. })));
        for _ in 0..2 {
            dest.put(true, &[], link).unwrap();
            assert_eq!(fs::read(at("other")).unwrap(), b"file");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        }
    }
}
