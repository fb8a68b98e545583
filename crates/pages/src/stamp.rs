//! Detects whether a file was changed while it was read.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use crate::Identity;

/// The state of a file after its last change: its length, and the times at which its bytes (mtime) or
/// anything about it (ctime) last changed. Any owner may set mtime back; only the system sets ctime.
///
/// A change through a map (`mmap`) sets the times only if it is the first to a page since that page was
/// written to the disk. So a stamp that is [taken for reading](Stamp::before_reading) has everything written
/// first, and every later change is detected, however it is made, on disk filesystems (ext4, xfs, btrfs). It
/// is not detected where the kernel sets no times for maps: tmpfs and other memory, and programs (FUSE) and
/// servers that keep times of their own. See [`times_tell`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    identity: Identity,
    len: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl From<&Metadata> for Stamp {
    fn from(m: &Metadata) -> Stamp {
        let (mtime, ctime) = ((m.mtime(), m.mtime_nsec()), (m.ctime(), m.ctime_nsec()));
        Stamp { identity: m.into(), len: m.len(), mtime, ctime }
    }
}

impl Stamp {
    /// Returns the stamp of a file of which nothing has been read yet.
    ///
    /// # Errors
    /// The system does not report the file's state.
    pub fn before_reading(file: &File) -> io::Result<Stamp> {
        let stamp = Stamp::from(&file.metadata()?);
        settle(file, &stamp);
        Ok(stamp)
    }

    /// Must be called before the first byte is read, if the stamp was taken earlier.
    pub fn settle(&self, file: &File) {
        settle(file, self);
    }

    /// Returns true if the file is unchanged since.
    ///
    /// # Errors
    /// The system does not report the file's state.
    pub fn still_holds(&self, file: &File) -> io::Result<bool> {
        Ok(Stamp::from(&file.metadata()?) == *self)
    }
}

/// True if the times of this file reveal a change through a map.
pub fn times_tell(file: &File) -> bool {
    use crate::filesystem::{Kind, of};
    matches!(of(file).kind, Kind::Local | Kind::CopyOnWrite)
}

/// Ensures that any later change gets a time different from the stamp.
fn settle(file: &File, stamp: &Stamp) {
    // The order matters: bytes written through a map before this are among the bytes that are read, or get a
    // later time. (A file on a read-only medium has nothing to write.)
    if crate::sys::sync_all_pages(file).is_err() {
        let _ = file.sync_data();
    }
    // Times come from a clock that ticks some hundred times per second. A write within the tick of the last
    // change gets the same time.
    for _ in 0..20 {
        match coarse_now() {
            Some(now) if now <= stamp.ctime && stamp.ctime.0 - now.0 <= 1 => {
                std::thread::sleep(Duration::from_millis(1));
            }
            _ => return,
        }
    }
}

/// The clock that file times come from.
fn coarse_now() -> Option<(i64, i64)> {
    #[cfg(target_os = "linux")]
    const CLOCK: libc::clockid_t = libc::CLOCK_REALTIME_COARSE;
    #[cfg(not(target_os = "linux"))]
    const CLOCK: libc::clockid_t = libc::CLOCK_REALTIME;
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills a struct of ours.
    let status = unsafe { libc::clock_gettime(CLOCK, &mut now) };
    #[allow(clippy::unnecessary_cast)] // the widths differ between systems
    (status == 0).then_some((now.tv_sec as i64, now.tv_nsec as i64))
}
