//! A folder for files that this program writes, reads and removes by itself, even if other users can write to
//! the folder.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use thiserror::Error;

use crate::error::FileKind;
use crate::folder::Folder;
use crate::open::kind_of;
use crate::replace::{Destination, ReplaceError, Replacement};

/// Why a folder, or a file in it, is left alone.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GuardedError {
    /// The folder or the file cannot be opened, read or removed.
    #[error("{}: {source}", path.display())]
    System {
        /// The folder or the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The folder belongs to another user, who could exchange its files.
    #[error(
        "{}: the folder belongs to another user, who can change what is read from it: give a folder that \
         belongs to you or to root",
        path.display()
    )]
    FolderOfOthers {
        /// The folder.
        path: PathBuf,
    },
    /// The file is not one that this program has written.
    #[error("{}: {why}", path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// The difference.
        why: NotOurs,
    },
    /// The file cannot be written. Names it.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
}

/// The difference between a file and those that this program writes to a guarded folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NotOurs {
    /// It is a link, a folder, a pipe, a device or a socket.
    #[error("is a {0}, expected a regular file")]
    Kind(FileKind),
    /// It belongs to a user who is neither this process's user nor root.
    #[error("belongs to another user")]
    OfOthers,
    /// It begins with other bytes.
    #[error("is a file of another kind")]
    Magic,
}

impl GuardedError {
    /// True if there is no such folder or file, or, in a folder of the network, not any more: another host has removed it since its name was seen.
    pub fn is_missing(&self) -> bool {
        let GuardedError::System { source, .. } = self else { return false };
        let is_stale = source.raw_os_error() == Some(Errno::STALE.raw_os_error());
        source.kind() == io::ErrorKind::NotFound || is_stale
    }
}

/// A file in a guarded folder.
#[derive(Clone, Debug)]
pub struct GuardedFile {
    /// Its name in the folder.
    pub name: OsString,
    /// Its length in bytes.
    pub bytes: u64,
    /// When it was last written.
    pub modified: SystemTime,
}

/// An open folder of files that begin with the same bytes, their magic number. The path to the folder may
/// have links; it is followed once.
///
/// Invariants, whatever other users do to the folder: no link in it is followed, and nothing in it is opened
/// except regular files, so opening never blocks. A file is read only if it belongs to this user or to root.
/// A file is replaced or removed only if, in addition, it begins with the magic number or is empty, which is checked
/// just before. A folder of another user is refused, because its owner can change everything in it; in a folder of
/// this user or of root to which others can write, they can put files of theirs, which are left alone.
#[derive(Clone, Debug)]
pub struct GuardedFolder {
    folder: Folder,
    /// The caller's path, for messages.
    path: PathBuf,
    magic: &'static [u8],
}

impl GuardedFolder {
    /// Opens the folder at `path`, for files that begin with `magic`.
    ///
    /// # Errors
    /// There is no folder, this user may not enter it, or it belongs to another user.
    pub fn open(path: &Path, magic: &'static [u8]) -> Result<GuardedFolder, GuardedError> {
        let error = |source| GuardedError::System { path: path.into(), source };
        let from_here = if path == Path::new("") { Path::new(".") } else { path };
        let folder = Folder::open(from_here).map_err(error)?;
        if is_of_others(&folder.stat().map_err(error)?) {
            return Err(GuardedError::FolderOfOthers { path: path.into() });
        }
        Ok(GuardedFolder { folder, path: path.into(), magic })
    }

    /// The path of the file `name`, for messages.
    pub fn path_of(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }

    /// The regular files of this user and of root in the folder whose names are `chosen`, in no order, whatever they begin with. Only these are looked
    /// at: in a folder of many files, that is nearly all of the work.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn files(&self, chosen: impl Fn(&OsStr) -> bool) -> Result<Vec<GuardedFile>, GuardedError> {
        let error =
            |source: Errno| GuardedError::System { path: self.path.clone(), source: source.into() };
        let mut files = Vec::new();
        for entry in Dir::read_from(&self.folder).map_err(error)? {
            let entry = entry.map_err(error)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if !chosen(name) {
                continue;
            }
            // A file that has been removed meanwhile is left out.
            let Ok(Some(found)) = self.folder.look(name) else { continue };
            if self.check(name, &found).is_ok() {
                let (bytes, modified) = (found.st_size as u64, modified(&found));
                files.push(GuardedFile { name: name.to_owned(), bytes, modified });
            }
        }
        Ok(files)
    }

    /// Opens the file `name` for reading. Its first bytes are not checked. Never blocks.
    ///
    /// # Errors
    /// There is no such file, or it is not a regular file of this user or of root.
    pub fn read(&self, name: &OsStr) -> Result<File, GuardedError> {
        let error = |source| self.system(name, source);
        if name.is_empty() || name.as_bytes().contains(&b'/') {
            return Err(error(io::ErrorKind::InvalidInput.into()));
        }
        let found = self.folder.look(name).map_err(error)?;
        // Before it is opened, because opening some devices has effects, and again after.
        self.check(name, &found.ok_or_else(|| error(io::ErrorKind::NotFound.into()))?)?;
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.folder, name, flags, Mode::empty()) {
            Err(Errno::LOOP | Errno::MLINK) => {
                return Err(self.not_ours(name, NotOurs::Kind(FileKind::SymbolicLink)));
            }
            opened => File::from(opened.map_err(|source| error(source.into()))?),
        };
        let found = rustix::fs::fstat(&file).map_err(|source| error(source.into()))?;
        self.check(name, &found)?;
        Ok(file)
    }

    /// Writes the file `name` with `fill`, and replaces a file of ours that has this name. It appears as a
    /// whole or not at all, and only its owner may open it. Space for `len` bytes is reserved at first.
    ///
    /// # Errors
    /// [`GuardedError::NotOurs`]: a file that is not ours has this name, and stays. Or there is not enough
    /// space, or the disk fails.
    pub fn write(
        &self,
        name: &OsStr,
        len: u64,
        fill: impl FnOnce(&File) -> io::Result<()>,
    ) -> Result<(), GuardedError> {
        // Before it is written, which may take long, and again after.
        self.check_replaced(name)?;
        let path = self.path_of(name);
        let dest = Destination::in_folder(&self.folder, name, &path);
        let new = Replacement::create_for_owner(dest, len)?;
        fill(new.file()).map_err(|source| ReplaceError::Create { path, source })?;
        self.check_replaced(name)?;
        Ok(new.commit()?)
    }

    /// Removes the file `name`, if it is ours.
    ///
    /// # Errors
    /// There is no such file, it is not ours, or the system refuses.
    pub fn remove(&self, name: &OsStr) -> Result<(), GuardedError> {
        self.check_ours(name)?;
        rustix::fs::unlinkat(&self.folder, name, AtFlags::empty())
            .map_err(|source| self.system(name, source.into()))
    }

    /// Checks that nothing has this name, or a file of ours.
    fn check_replaced(&self, name: &OsStr) -> Result<(), GuardedError> {
        match self.check_ours(name) {
            Err(error) if error.is_missing() => Ok(()),
            checked => checked,
        }
    }

    /// Checks that `name` is a file of ours: one that may be read, and begins with the magic number, or is empty. On filesystems that cannot give a
    /// new file its name at once, a process that is killed meanwhile leaves an empty one.
    fn check_ours(&self, name: &OsStr) -> Result<(), GuardedError> {
        let (file, mut found) = (self.read(name)?, Vec::new());
        let read = file.take(self.magic.len() as u64).read_to_end(&mut found);
        read.map_err(|source| self.system(name, source))?;
        if found == self.magic || found.is_empty() {
            Ok(())
        } else {
            Err(self.not_ours(name, NotOurs::Magic))
        }
    }

    /// Checks that `found` is a regular file of this user or of root.
    fn check(&self, name: &OsStr, found: &Stat) -> Result<(), GuardedError> {
        match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile if is_of_others(found) => {
                Err(self.not_ours(name, NotOurs::OfOthers))
            }
            FileType::RegularFile => Ok(()),
            other => Err(self.not_ours(name, NotOurs::Kind(kind_of(other)))),
        }
    }

    fn system(&self, name: &OsStr, source: io::Error) -> GuardedError {
        GuardedError::System { path: self.path_of(name), source }
    }

    fn not_ours(&self, name: &OsStr, why: NotOurs) -> GuardedError {
        GuardedError::NotOurs { path: self.path_of(name), why }
    }
}

/// True if the owner is neither this process's user nor root.
fn is_of_others(found: &Stat) -> bool {
    found.st_uid != 0 && found.st_uid != rustix::process::geteuid().as_raw()
}

#[allow(clippy::unnecessary_cast)] // the widths differ between systems
fn modified(found: &Stat) -> SystemTime {
    let since = u64::try_from(found.st_mtime as i64).unwrap_or(0);
    let nanoseconds = u32::try_from(found.st_mtime_nsec as i64).unwrap_or(0);
    let time =
        SystemTime::UNIX_EPOCH.checked_add(Duration::new(since, nanoseconds % 1_000_000_000));
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}
