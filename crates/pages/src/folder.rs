//! An open folder. What is done in it is done there, whatever becomes of the names that led to it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, Stat};

use crate::Identity;

/// A folder that is open; clones are the same descriptor.
#[derive(Clone, Debug)]
pub struct Folder {
    fd: Arc<OwnedFd>,
}

impl Folder {
    /// Opens the folder at `path`; links are followed.
    ///
    /// # Errors
    /// There is none, or this user may not go into it.
    pub fn open(path: &Path) -> io::Result<Folder> {
        Folder::at(CWD, path.as_os_str(), OFlags::empty())
    }

    /// Opens the folder `name` in this one. A link is not followed.
    ///
    /// # Errors
    /// As of [`open`](Folder::open); a link is one too.
    pub fn open_in(&self, name: &OsStr) -> io::Result<Folder> {
        Folder::at(self.as_fd(), name, OFlags::NOFOLLOW)
    }

    fn at(above: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> io::Result<Folder> {
        let flags = flags | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |flags| rustix::fs::openat(above, name, flags, Mode::empty());
        let fd = match open(flags | OFlags::RDONLY | OFlags::NONBLOCK) {
            // One may be allowed to make files in a folder, and not to list it.
            #[cfg(target_os = "linux")]
            Err(rustix::io::Errno::ACCESS) => open(flags | OFlags::PATH),
            result => result,
        }?;
        Ok(Folder { fd: Arc::new(fd) })
    }

    /// What is called `name` in it, if anything; a link itself and not what it leads to.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn look(&self, name: &OsStr) -> io::Result<Option<Stat>> {
        match rustix::fs::statat(self.as_fd(), name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(found)),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// What the folder itself is.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(self.as_fd())?)
    }

    /// Which folder it is.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn identity(&self) -> io::Result<Identity> {
        Ok(Identity::from(&self.stat()?))
    }

    /// Brings the names in it to the disk, as far as that is possible.
    ///
    /// # Errors
    /// The disk fails.
    pub fn sync(&self) -> io::Result<()> {
        use rustix::io::Errno;
        match rustix::fs::fsync(self.as_fd()) {
            // Folders that cannot be listed or synced: there is no more that one can do.
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
