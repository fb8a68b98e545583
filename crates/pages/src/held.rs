//! A file, folder or link that is held open without being read: it stays the same file even if another
//! takes its name.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;

use rustix::fs::AtFlags;

/// A descriptor that identifies a file and allows nothing else. Only Linux has such descriptors.
#[derive(Debug)]
pub struct Held(File);

impl Held {
    /// With this flag, a call that takes a folder and an empty name refers to the descriptor's own file.
    #[cfg(target_os = "linux")]
    pub const ITSELF: AtFlags = AtFlags::EMPTY_PATH;
    /// With this flag, a call that takes a folder and an empty name refers to the descriptor's own file.
    #[cfg(not(target_os = "linux"))]
    pub const ITSELF: AtFlags = AtFlags::empty();

    /// Holds `name` in `folder`. Without `follow`, a link itself is held. Returns `None` if this system
    /// does not support it.
    ///
    /// # Errors
    /// There is no such name, or this user may not access it.
    #[cfg(target_os = "linux")]
    pub fn open(folder: BorrowedFd<'_>, name: &OsStr, follow: bool) -> io::Result<Option<Held>> {
        use rustix::fs::{Mode, OFlags};
        let follow = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        let flags = OFlags::PATH | OFlags::CLOEXEC | follow;
        Ok(Some(Held(rustix::fs::openat(folder, name, flags, Mode::empty())?.into())))
    }

    /// Holds `name` in `folder`. Without `follow`, a link itself is held. Returns `None` if this system
    /// does not support it.
    ///
    /// # Errors
    /// There is no such name, or this user may not access it.
    #[cfg(not(target_os = "linux"))]
    pub fn open(_: BorrowedFd<'_>, _: &OsStr, _: bool) -> io::Result<Option<Held>> {
        Ok(None)
    }

    /// The metadata of the held file.
    ///
    /// # Errors
    /// The metadata cannot be read.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.0.metadata()
    }

    /// A path to the held file for calls that follow links, valid while `self` lives.
    pub fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A path through which every process of this user can reach an open file, even one without a name, while
/// it is open here. `None`: this system has no such paths.
pub fn path_of(file: &File) -> Option<PathBuf> {
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    cfg!(target_os = "linux").then(|| path.into())
}
