//! An open folder. Work through it stays in this folder, whatever happens to the path that led to it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, Stat};

use crate::Identity;

/// An open folder. Clones share the descriptor.
#[derive(Clone, Debug)]
pub struct Folder {
    fd: Arc<OwnedFd>,
}

impl Folder {
    /// Opens the folder at `path`; links are followed.
    ///
    /// # Errors
    /// There is no folder at `path`, or this user may not enter it.
    pub fn open(path: &Path) -> io::Result<Folder> {
        Folder::at(CWD, path.as_os_str(), OFlags::empty())
    }

    /// Opens the folder `name` inside this one. Links are not followed.
    ///
    /// # Errors
    /// The errors of [`open`](Folder::open); a link is an error too.
    pub fn open_in(&self, name: &OsStr) -> io::Result<Folder> {
        Folder::at(self.as_fd(), name, OFlags::NOFOLLOW)
    }

    fn at(above: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> io::Result<Folder> {
        let flags = flags | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |flags| rustix::fs::openat(above, name, flags, Mode::empty());
        let fd = match open(flags | OFlags::RDONLY | OFlags::NONBLOCK) {
            // A user may be allowed to create files in a folder but not to list it.
            #[cfg(target_os = "linux")]
            Err(rustix::io::Errno::ACCESS) => open(flags | OFlags::PATH),
            result => result,
        }?;
        Ok(Folder { fd: Arc::new(fd) })
    }

    /// The metadata of `name` in this folder, if it exists. For a link, that of the link itself, not of
    /// its target.
    ///
    /// # Errors
    /// The metadata cannot be read.
    pub fn look(&self, name: &OsStr) -> io::Result<Option<Stat>> {
        match rustix::fs::statat(self.as_fd(), name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(found)),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The metadata of the folder itself.
    ///
    /// # Errors
    /// The metadata cannot be read.
    pub fn stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(self.as_fd())?)
    }

    /// The identity of the folder.
    ///
    /// # Errors
    /// The metadata cannot be read.
    pub fn identity(&self) -> io::Result<Identity> {
        Ok(Identity::from(&self.stat()?))
    }

    /// Bytes that this user may still write to the folder's filesystem, if it reports them.
    pub fn free_bytes(&self) -> Option<u64> {
        crate::sys::free_bytes(self.as_fd())
    }

    /// Syncs the folder's entries to the disk, as far as possible.
    ///
    /// # Errors
    /// The disk fails.
    pub fn sync(&self) -> io::Result<()> {
        use rustix::io::Errno;
        match rustix::fs::fsync(self.as_fd()) {
            // The folder cannot be listed or synced: nothing more can be done.
            Err(Errno::ACCESS | Errno::INVAL | Errno::OPNOTSUPP | Errno::BADF) => Ok(()),
            result => Ok(result?),
        }
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
