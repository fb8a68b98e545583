//! A file, folder or link that is held open without being read: whatever takes its name meanwhile, this is what was there.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;

use rustix::fs::AtFlags;

/// A descriptor that leads to a file and allows nothing else. Linux has such descriptors; on other systems there are none.
#[derive(Debug)]
pub struct Held(File);

impl Held {
    /// With this flag, a call that takes a folder and an empty name means what the descriptor leads to.
    #[cfg(target_os = "linux")]
    pub const ITSELF: AtFlags = AtFlags::EMPTY_PATH;
    /// With this flag, a call that takes a folder and an empty name means what the descriptor leads to.
    #[cfg(not(target_os = "linux"))]
    pub const ITSELF: AtFlags = AtFlags::empty();

    /// Holds `name` in `folder`. Unless it is followed, a link is held itself. `None`: this system cannot do it.
    ///
    /// # Errors
    /// There is no such name, or this user may not go there.
    #[cfg(target_os = "linux")]
    pub fn open(folder: BorrowedFd<'_>, name: &OsStr, follow: bool) -> io::Result<Option<Held>> {
        use rustix::fs::{Mode, OFlags};
        let follow = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        let flags = OFlags::PATH | OFlags::CLOEXEC | follow;
        Ok(Some(Held(rustix::fs::openat(folder, name, flags, Mode::empty())?.into())))
    }

    /// Holds `name` in `folder`. Unless it is followed, a link is held itself. `None`: this system cannot do it.
    ///
    /// # Errors
    /// There is no such name, or this user may not go there.
    #[cfg(not(target_os = "linux"))]
    pub fn open(_: BorrowedFd<'_>, _: &OsStr, _: bool) -> io::Result<Option<Held>> {
        Ok(None)
    }

    /// What it is.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.0.metadata()
    }

    /// A path that leads to it as long as this lives, for calls that follow links.
    pub fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A path that leads to an open file for every process of this user, even if it has no name, for as long as it is open here.
/// `None`: this system has no such paths.
pub fn path_of(file: &File) -> Option<PathBuf> {
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    cfg!(target_os = "linux").then(|| path.into())
}
