//! Writes a file so that it appears as a whole or not at all, and replaces only what it may replace.

mod access;
mod destination;
mod error;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

pub use access::{Input, remove_acls};
pub use destination::Destination;
pub use error::ReplaceError;
pub(crate) use error::no_space;

use destination::{Hidden, RENAMES};

/// A new file that takes its name, and replaces any old file there, when it is complete.
///
/// Until [`commit`](Replacement::commit) it has no name, if the filesystem supports that (on Linux: ext4,
/// xfs, btrfs, tmpfs and others): whatever happens, even `kill -9`, nothing is left over. Elsewhere it
/// has a hidden name in the same folder, `.NAME.PID-N.tmp`, which is removed on drop but not when the
/// process is killed. Either way the old file stays as it is, and processes that have it open or mapped
/// keep it.
///
/// Without [`New::replace`] nothing is replaced, not even a file that appears at the last moment: the
/// name is given by a call that fails if it exists (linkat, or renameat2 with RENAME_NOREPLACE;
/// `destination.rs` documents filesystems that support neither). With it a regular file or a link is
/// replaced, but never a device, a pipe or one of [`New::inputs`], by whatever name.
#[derive(Debug)]
pub struct Replacement {
    file: File,
    dest: Destination,
    /// The hidden name, if it has one.
    temporary: Option<Hidden>,
    expected: u64,
    replace: bool,
    inputs: Vec<Input>,
}

/// The file to create.
#[derive(Clone, Copy, Debug, Default)]
pub struct New<'a> {
    /// Its length in bytes, as far as known; space for it is reserved at once.
    pub len: u64,
    /// True if a file of that name may be replaced.
    pub replace: bool,
    /// The files it is made of. None of these is replaced. Only users who may read all of them, and the
    /// file that it replaces, may read the new file. If every user may, it has the permissions of any new
    /// file.
    pub inputs: &'a [Input],
}

/// Permissions before the umask: of any new file, and of a file that only its owner may open yet.
const ANYBODY: u32 = 0o666;
const OWNER: u32 = 0o600;

/// Creates a file without a name in a folder, if that is possible.
type Unnamed = fn(&Destination, u32) -> Option<File>;

impl Replacement {
    /// Begins a file that will be at `dest`. If `dest` is a link to a file, the link stays and that file
    /// is replaced.
    ///
    /// # Errors
    /// The existing file may not be replaced, the folder cannot be written to, or there is not enough
    /// space.
    pub fn create(dest: &Path, new: New<'_>) -> Result<Replacement, ReplaceError> {
        Replacement::create_with(Destination::of(dest)?, new, unnamed)
    }

    /// Checks that [`create`](Replacement::create) would begin, without checking for space.
    ///
    /// # Errors
    /// The errors of [`create`](Replacement::create).
    pub fn check(dest: &Path, new: New<'_>) -> Result<(), ReplaceError> {
        Destination::of(dest)?.check(new.replace, new.inputs).map(drop)
    }

    /// Begins a file that will be at `dest`, for a copy of `input`. Only its owner may open it, whatever
    /// new files inherit from its folder, until the caller sets its permissions. No space is reserved.
    ///
    /// # Errors
    /// The errors of [`create`](Replacement::create).
    pub fn create_private(
        dest: Destination,
        replace: bool,
        input: Input,
    ) -> Result<Replacement, ReplaceError> {
        Replacement::begin_private(dest, (replace, &[input]))
    }

    /// Begins a file of `len` bytes that will be at `dest`, which it replaces. Only its owner may open it,
    /// whatever new files inherit from its folder.
    ///
    /// # Errors
    /// The errors of [`create`](Replacement::create).
    pub(crate) fn create_for_owner(
        dest: Destination,
        len: u64,
    ) -> Result<Replacement, ReplaceError> {
        let mut new = Replacement::begin_private(dest, (true, &[]))?;
        new.expected = len;
        new.reserve_space()?;
        Ok(new)
    }

    fn begin_private(
        dest: Destination,
        (replace, inputs): (bool, &[Input]),
    ) -> Result<Replacement, ReplaceError> {
        dest.check(replace, inputs)?;
        let new = Replacement::begin(dest, OWNER, (replace, inputs), unnamed)?;
        remove_acls(&new.file, false).map_err(|source| new.cannot_create(source))?;
        Ok(new)
    }

    fn create_with(
        dest: Destination,
        new: New<'_>,
        unnamed: Unnamed,
    ) -> Result<Replacement, ReplaceError> {
        let there = dest.check(new.replace, new.inputs)?;
        let mut inputs = new.inputs.to_vec();
        let replaced = there.as_ref().map(Input::replaced);
        inputs.extend(replaced);
        let private = access::is_private(&inputs);
        let mode = if private { OWNER } else { ANYBODY };
        let mut made = Replacement::begin(dest, mode, (new.replace, new.inputs), unnamed)?;
        if private {
            access::grant(&made.file, &inputs).map_err(|source| made.cannot_create(source))?;
        }
        made.expected = new.len;
        made.reserve_space()?;
        Ok(made)
    }

    fn begin(
        dest: Destination,
        mode: u32,
        (replace, inputs): (bool, &[Input]),
        unnamed: Unnamed,
    ) -> Result<Replacement, ReplaceError> {
        let create = |source| ReplaceError::Create { path: dest.path().into(), source };
        let (file, temporary) = match unnamed(&dest, mode) {
            Some(file) => (file, None),
            None => {
                let (file, hidden) = dest.hidden_file(mode).map_err(create)?;
                (file, Some(hidden))
            }
        };
        let inputs = inputs.to_vec();
        Ok(Replacement { file, dest, temporary, expected: 0, replace, inputs })
    }

    fn cannot_create(&self, source: io::Error) -> ReplaceError {
        ReplaceError::Create { path: self.dest.path().into(), source }
    }

    /// The new file, empty at first, open for reading and writing. `&File` implements `Write`.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The name that the file will have.
    pub fn destination(&self) -> &Destination {
        &self.dest
    }

    /// True if nothing is left over even if the process is killed.
    pub fn is_unnamed(&self) -> bool {
        self.temporary.is_none()
    }

    /// Syncs the file to the disk and puts it in place of the old one, atomically.
    ///
    /// # Errors
    /// The disk fails or is full, the folder does not allow it, or the name now belongs to a file that
    /// may not be replaced.
    pub fn commit(self) -> Result<(), ReplaceError> {
        let dest = self.dest.clone();
        self.put_in_place()?;
        let path = dest.path().into();
        dest.folder().sync().map_err(|source| ReplaceError::FolderNotSynced { path, source })
    }

    /// The same, but [syncing the folder](crate::Folder::sync) is left to the caller, which has more
    /// files for it. Until then, a loss of power may bring the old file back, as a whole.
    ///
    /// # Errors
    /// The errors of [`commit`](Replacement::commit).
    pub fn put_in_place(mut self) -> Result<(), ReplaceError> {
        let commit = |source| ReplaceError::Commit { path: self.dest.path().into(), source };
        let len = self.file.metadata().map_err(commit)?.len();
        if len < self.expected {
            // Release reserved space that was not used.
            self.file.set_len(len).map_err(commit)?;
        }
        self.file.sync_all().map_err(commit)?;
        match self.temporary.take() {
            Some(hidden) => self.dest.rename(&hidden, self.replace, &self.inputs, &RENAMES),
            None => {
                let link = own_link(&self.file);
                self.dest.put(self.replace, &self.inputs, |folder, name| {
                    let follow = rustix::fs::AtFlags::SYMLINK_FOLLOW;
                    Ok(rustix::fs::linkat(rustix::fs::CWD, link.as_str(), folder, name, follow)?)
                })
            }
        }
    }

    /// Returns the file, on the disk, without ever giving it its name: it is deleted when no process has
    /// it open.
    ///
    /// # Errors
    /// The disk fails or is full.
    pub fn into_unnamed(self) -> io::Result<File> {
        // Its hidden name, if it has one, is removed with the rest of `self`.
        self.file.sync_all()?;
        Ok(self.file)
    }

    /// Reserves space for the expected length, or at least checks that there is enough now.
    fn reserve_space(&self) -> Result<(), ReplaceError> {
        let needed = self.expected;
        if needed == 0 {
            return Ok(());
        }
        // Before anything is allocated: an allocation that fails half way may keep what it has allocated.
        let free = crate::sys::free_bytes(&self.file);
        let no_space = || {
            let path = self.dest.path().into();
            Err(ReplaceError::NoSpace { path, needed, free })
        };
        if free.is_some_and(|free| free < needed) {
            return no_space();
        }
        match allocate(&self.file, needed) {
            Ok(()) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOSPC | libc::EDQUOT) => no_space(),
                Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) => Ok(()),
                _ => Err(self.cannot_create(error)),
            },
        }
    }
}

/// Allocates `len` bytes on the disk without changing the file's length.
#[cfg(target_os = "linux")]
fn allocate(file: &File, len: u64) -> io::Result<()> {
    match libc::off_t::try_from(len) {
        Ok(_) => crate::sys::reserve(file, &(0..len)),
        Err(_) => Err(io::Error::from_raw_os_error(libc::EFBIG)),
    }
}

#[cfg(not(target_os = "linux"))]
fn allocate(_file: &File, _len: u64) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
}

/// Creates a file without a name in the destination's folder, if the filesystem supports that and the
/// file can be given a name later.
#[cfg(target_os = "linux")]
fn unnamed(dest: &Destination, mode: u32) -> Option<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dest.folder(), ".", flags, Mode::from_raw_mode(mode)).ok()?;
    let file = File::from(file);
    // It gets its name through /proc, which may not be mounted.
    std::fs::metadata(own_link(&file)).is_ok().then_some(file)
}

#[cfg(not(target_os = "linux"))]
fn unnamed(_place: &Destination, _mode: u32) -> Option<File> {
    None
}

/// The path of an open file.
fn own_link(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use std::fs;
    use std::io::Write;

    const NAMED: Unnamed = |_, _| None;

    fn names(folder: &Path) -> Vec<OsString> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    fn create(dest: &Path, replace: bool, unnamed: Unnamed) -> Replacement {
        let new = New { len: 3, replace, inputs: &[] };
        Replacement::create_with(Destination::of(dest).unwrap(), new, unnamed).unwrap()
    }

    #[test]
    fn where_files_need_names_a_hidden_one_is_used_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let dest = folder.path().join("packed");
        fs::write(&dest, b"old").unwrap();
        // Two at a time, one of which is dropped.
        let [one, two] = [(); 2].map(|()| create(&dest, true, NAMED));
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

    /// A file that appears while the new one is made is replaced only if allowed; a folder never is.
    #[test]
    fn a_commit_that_fails_leaves_nothing() {
        for unnamed in [unnamed, NAMED] {
            for replace in [false, true] {
                let folder = tempfile::tempdir().unwrap();
                let dest = folder.path().join("packed");
                let new = create(&dest, replace, unnamed);
                new.file().write_all(b"new").unwrap();
                // A folder cannot be replaced by a file.
                fs::create_dir(&dest).unwrap();
                let error = new.commit().unwrap_err();
                match replace {
                    true => assert!(matches!(error, ReplaceError::NotAFile { .. }), "{error}"),
                    false => assert!(matches!(error, ReplaceError::Appeared { .. }), "{error}"),
                }
                assert!(error.to_string().starts_with(&format!("'{}'", dest.display())), "{error}");
                assert_eq!(names(folder.path()), ["packed"]);

                let dest = folder.path().join("file");
                let new = create(&dest, replace, unnamed);
                new.file().write_all(b"new").unwrap();
                fs::write(&dest, b"appeared").unwrap();
                let done = new.commit();
                assert_eq!(done.is_ok(), replace, "{done:?}");
                let expected: &[u8] = if replace { b"new" } else { b"appeared" };
                assert_eq!(fs::read(&dest).unwrap(), expected);
                assert_eq!(names(folder.path()), ["file", "packed"]);
            }
        }
    }

    #[test]
    fn a_name_of_any_length_has_a_hidden_one() {
        let folder = tempfile::tempdir().unwrap();
        let dest = folder.path().join("x".repeat(255));
        let new = create(&dest, false, NAMED);
        new.file().write_all(b"new").unwrap();
        new.commit().unwrap();
        assert_eq!(fs::read(&dest).unwrap(), b"new");
    }
}
