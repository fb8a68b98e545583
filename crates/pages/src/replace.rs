//! Writing a file so that it is there as a whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use thiserror::Error;

use crate::error::FileKind;

/// A new file that takes the place of another, or of none, when it is complete.
///
/// Until [`commit`](Replacement::commit) it has no name, where the filesystem can do that (on Linux:
/// ext4, xfs, btrfs, tmpfs and others): whatever happens, even `kill -9`, nothing is left behind.
/// Elsewhere it has a hidden name in the same folder, `.NAME.PID-N.tmp`, which is removed on drop but
/// not when the process is killed. Either way the old file stays as it is, and whoever has it open
/// or mapped keeps it.
#[derive(Debug)]
pub struct Replacement {
    file: File,
    /// What is to be replaced; not a symbolic link.
    dest: PathBuf,
    folder: PathBuf,
    /// The hidden name, if it has one.
    temporary: Option<Hidden>,
    expected: u64,
}

/// Permissions before the umask: of any new file, and of one that is nobody else's business yet.
const ANYBODY: u32 = 0o666;
const OWNER: u32 = 0o600;

/// Why a file cannot be replaced. In all cases but the last the old file is as it was.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplaceError {
    /// The file cannot be made in its folder.
    #[error("{}: cannot write: {source}", path.display())]
    Create {
        /// The file that was to be written.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Something is there that is not a regular file.
    #[error("{}: is a {kind}, expected a regular file or none", path.display())]
    NotAFile {
        /// The path, as given.
        path: PathBuf,
        /// What is there.
        kind: FileKind,
    },
    /// The disk has not as much room.
    #[error(
        "{}: needs {needed} bytes but only {free} are free there: make room, or write to another disk",
        path.display()
    )]
    NoSpace {
        /// The file that was to be written.
        path: PathBuf,
        /// Bytes of the new file.
        needed: u64,
        /// Bytes that this user may still write there. A quota may be lower.
        free: u64,
    },
    /// What was written cannot be brought to the disk, or be given its name.
    #[error("{}: cannot put the new file in place: {source}", path.display())]
    Commit {
        /// The file that was to be written.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The new file is in place, but its folder could not be brought to the disk: should the machine
    /// lose power now, the old file may come back.
    #[error("{}: is in place, but a loss of power may undo it: {source}", path.display())]
    FolderNotSynced {
        /// The file that was written.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// A name that is removed unless it is given up.
#[derive(Debug)]
struct Hidden(PathBuf);

impl Drop for Hidden {
    fn drop(&mut self) {
        // Gone already, or beyond our means.
        let _ = fs::remove_file(&self.0);
    }
}

impl Replacement {
    /// Begins a file that will be at `dest`, of `len` bytes (as far as known), for which room is set
    /// aside at once. A symbolic link at `dest` stays; what it leads to is replaced. The file gets the
    /// permissions of any new one.
    ///
    /// # Errors
    /// There is something else than a regular file at `dest`, the folder cannot be written to, or
    /// there is no room for `len` bytes.
    pub fn create(dest: &Path, len: u64) -> Result<Replacement, ReplaceError> {
        Replacement::create_with(dest, len, ANYBODY, unnamed)
    }

    /// The same, but nobody else may open the file until the caller sets its permissions, and no room
    /// is set aside: for a copy of something private.
    ///
    /// # Errors
    /// As of [`create`](Replacement::create).
    pub fn create_private(dest: &Path) -> Result<Replacement, ReplaceError> {
        Replacement::create_with(dest, 0, OWNER, unnamed)
    }

    fn create_with(
        dest: &Path,
        len: u64,
        mode: u32,
        unnamed: fn(&Path, u32) -> Option<File>,
    ) -> Result<Replacement, ReplaceError> {
        let create = |source| ReplaceError::Create { path: dest.into(), source };
        let resolved = match fs::metadata(dest) {
            Ok(metadata) if metadata.is_file() => fs::canonicalize(dest).map_err(create)?,
            Ok(metadata) => {
                let kind = crate::map::file_kind(metadata.file_type());
                return Err(ReplaceError::NotAFile { path: dest.into(), kind });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => dest.into(),
            Err(error) => return Err(create(error)),
        };
        if resolved.file_name().is_none() {
            return Err(create(io::ErrorKind::InvalidInput.into()));
        }
        let folder = match resolved.parent() {
            Some(parent) if parent != Path::new("") => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        let (file, temporary) = match unnamed(&folder, mode) {
            Some(file) => (file, None),
            None => {
                let (file, hidden) = hidden(&resolved, &folder, mode).map_err(create)?;
                (file, Some(hidden))
            }
        };
        let replacement = Replacement { file, dest: resolved, folder, temporary, expected: len };
        replacement.set_room_aside(dest)?;
        Ok(replacement)
    }

    /// The new file, empty at first, open for reading and writing. `&File` implements `Write`.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether nothing is left behind even if the process is killed.
    pub fn is_unnamed(&self) -> bool {
        self.temporary.is_none()
    }

    /// Brings the file to the disk and puts it in place of the old one, at once and as a whole.
    ///
    /// # Errors
    /// The disk fails or is full, or the folder does not allow it.
    pub fn commit(self) -> Result<(), ReplaceError> {
        let (folder, dest) = (self.folder.clone(), self.dest.clone());
        self.put_in_place()?;
        sync_folder(&folder).map_err(|source| ReplaceError::FolderNotSynced { path: dest, source })
    }

    /// The same, but to [bring the folder to the disk](sync_folder) is left to the caller, who has more
    /// files for it: until then, a loss of power may bring the old file back, as a whole.
    ///
    /// # Errors
    /// As of [`commit`](Replacement::commit).
    pub fn put_in_place(mut self) -> Result<(), ReplaceError> {
        let commit = |source| ReplaceError::Commit { path: self.dest.clone(), source };
        let len = self.file.metadata().map_err(commit)?.len();
        if len < self.expected {
            // Lets go of room that was set aside and not used.
            self.file.set_len(len).map_err(commit)?;
        }
        self.file.sync_all().map_err(commit)?;
        let temporary = match self.temporary.take() {
            Some(temporary) => Some(temporary),
            None => name(&self.file, &self.dest, &self.folder).map_err(commit)?,
        };
        if let Some(temporary) = temporary {
            fs::rename(&temporary.0, &self.dest).map_err(commit)?;
            // The name does not exist any more.
            std::mem::forget(temporary);
        }
        Ok(())
    }

    /// Sets room aside for the expected length, or at least makes sure that there is enough now.
    fn set_room_aside(&self, path: &Path) -> Result<(), ReplaceError> {
        let needed = self.expected;
        if needed == 0 {
            return Ok(());
        }
        let free = || free_bytes(&self.file);
        let no_space = |free| ReplaceError::NoSpace { path: path.into(), needed, free };
        match allocate(&self.file, needed) {
            Ok(()) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOSPC | libc::EDQUOT) => Err(no_space(free().unwrap_or(0))),
                Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) => match free() {
                    Some(free) if free < needed => Err(no_space(free)),
                    _ => Ok(()),
                },
                _ => Err(ReplaceError::Create { path: path.into(), source: error }),
            },
        }
    }
}

/// Brings the names in a folder to the disk, as far as that is possible.
///
/// # Errors
/// The disk fails.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // Folders that cannot be opened or synced: there is no more that one can do.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EACCES | libc::EINVAL | libc::EOPNOTSUPP | libc::EBADF)
            ) =>
        {
            Ok(())
        }
        result => result,
    }
}

/// Allocates `len` bytes on the disk without changing the file's length.
#[cfg(target_os = "linux")]
fn allocate(file: &File, len: u64) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let Ok(len) = libc::off_t::try_from(len) else {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    };
    loop {
        // SAFETY: an open file; no memory involved.
        let status =
            unsafe { libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, 0, len) };
        match status {
            0 => return Ok(()),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn allocate(_file: &File, _len: u64) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
}

/// Bytes that this user may still write to the file's filesystem, if it says so.
pub(crate) fn free_bytes(file: &File) -> Option<u64> {
    use std::os::fd::AsRawFd;
    // SAFETY: an all-zero statvfs is a valid value of this plain C struct.
    let mut found: libc::statvfs = unsafe { std::mem::MaybeUninit::zeroed().assume_init() };
    // SAFETY: an open file and a struct of ours to fill.
    let status = unsafe { libc::fstatvfs(file.as_raw_fd(), &mut found) };
    // A filesystem without a size (ramfs) does not say that it is full by that.
    if status != 0 || found.f_blocks == 0 {
        return None;
    }
    // Some blocks are kept for root.
    // SAFETY: always succeeds, takes nothing.
    let blocks = if unsafe { libc::geteuid() } == 0 { found.f_bfree } else { found.f_bavail };
    #[allow(clippy::unnecessary_cast)] // the widths differ between systems
    Some((blocks as u64).saturating_mul(found.f_frsize as u64))
}

/// A file without a name in `folder`, if the filesystem has such and it can be given one later.
#[cfg(target_os = "linux")]
fn unnamed(folder: &Path, mode: u32) -> Option<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(mode).custom_flags(libc::O_TMPFILE | libc::O_CLOEXEC);
    let file = options.open(folder).ok()?;
    // Its name will be given through /proc, which may not be there.
    fs::metadata(own_link(&file)).is_ok().then_some(file)
}

#[cfg(not(target_os = "linux"))]
fn unnamed(_folder: &Path, _mode: u32) -> Option<File> {
    None
}

/// What leads to an open file.
#[cfg(target_os = "linux")]
fn own_link(file: &File) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Gives a file without a name the name `dest`, or a hidden one if `dest` is taken.
#[cfg(target_os = "linux")]
fn name(file: &File, dest: &Path, folder: &Path) -> io::Result<Option<Hidden>> {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    let link = CString::new(own_link(file))?;
    let link_to = |path: &Path| -> io::Result<()> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        let (here, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
        // SAFETY: two strings that end in zero.
        match unsafe { libc::linkat(here, link.as_ptr(), here, path.as_ptr(), follow) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let taken = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
    match link_to(dest) {
        Ok(()) => return Ok(None),
        Err(error) if taken(&error) => {}
        Err(error) => return Err(error),
    }
    loop {
        let path = folder.join(hidden_name(dest));
        match link_to(&path) {
            Ok(()) => return Ok(Some(Hidden(path))),
            Err(error) if taken(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn name(_file: &File, _dest: &Path, _folder: &Path) -> io::Result<Option<Hidden>> {
    Ok(None)
}

/// A new file with a hidden name in `folder`.
fn hidden(dest: &Path, folder: &Path, mode: u32) -> io::Result<(File, Hidden)> {
    loop {
        let path = folder.join(hidden_name(dest));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(mode).custom_flags(libc::O_CLOEXEC);
        match options.open(&path) {
            Ok(file) => return Ok((file, Hidden(path))),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// Another name at every call, in this process and among those that run.
fn hidden_name(dest: &Path) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = dest.file_name().unwrap_or_default().as_bytes();
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
    use std::io::Write;

    fn names(folder: &Path) -> Vec<OsString> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn where_files_need_names_a_hidden_one_is_used_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let dest = folder.path().join("packed");
        fs::write(&dest, b"old").unwrap();
        // Two at a time, of which one is given up.
        let one = Replacement::create_with(&dest, 3, ANYBODY, |_, _| None).unwrap();
        let two = Replacement::create_with(&dest, 3, ANYBODY, |_, _| None).unwrap();
        assert!(!one.is_unnamed());
        let all = names(folder.path());
        assert_eq!(all.len(), 3);
        assert!(all[..2].iter().all(|name| name.as_encoded_bytes().starts_with(b".packed.")));
        one.file().write_all(b"one").unwrap();
        two.file().write_all(b"two").unwrap();
        drop(one);
        assert_eq!(fs::read(&dest).unwrap(), b"old");
        two.commit().unwrap();
        assert_eq!(fs::read(&dest).unwrap(), b"two");
        assert_eq!(names(folder.path()), ["packed"]);
    }

    #[test]
    fn a_commit_that_fails_leaves_nothing() {
        for unnamed in [unnamed, (|_, _| None) as fn(&Path, u32) -> Option<File>] {
            let folder = tempfile::tempdir().unwrap();
            let dest = folder.path().join("packed");
            let new = Replacement::create_with(&dest, 3, ANYBODY, unnamed).unwrap();
            new.file().write_all(b"new").unwrap();
            // A folder cannot be replaced by a file.
            fs::create_dir(&dest).unwrap();
            let error = new.commit().unwrap_err();
            assert!(matches!(error, ReplaceError::Commit { .. }), "{error}");
            assert!(error.to_string().starts_with(dest.to_str().unwrap()), "{error}");
            assert_eq!(names(folder.path()), ["packed"]);
        }
    }

    #[test]
    fn a_name_of_any_length_has_a_hidden_one() {
        let folder = tempfile::tempdir().unwrap();
        let dest = folder.path().join("x".repeat(255));
        let new = Replacement::create_with(&dest, 3, ANYBODY, |_, _| None).unwrap();
        new.file().write_all(b"new").unwrap();
        new.commit().unwrap();
        assert_eq!(fs::read(&dest).unwrap(), b"new");
    }
}
