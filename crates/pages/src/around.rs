//! Writing around the page cache.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use crate::filesystem;
use crate::sys;
use crate::transfer::direct::Direct;

/// The largest alignment of writes that is supported. Filesystems that require more get ordinary writes.
pub(crate) const BLOCK: u64 = 4096;

/// A file that is open for writes around the page cache.
pub(crate) struct Around {
    file: File,
}

/// True if writes around the page cache are best here. Copy-on-write and checksumming filesystems go
/// through it even then, some filesystems write zeros when a file grows, and network filesystems may copy
/// the bytes on the server.
pub(crate) fn is_plain_disk(file: &File) -> bool {
    matches!(filesystem::of(file).name.as_str(), "ext2/3/4" | "xfs")
}

/// True if the filesystem accepts blocks of [`BLOCK`] bytes.
pub(crate) fn blocks_fit(open: &Direct) -> bool {
    open.align.offset as u64 <= BLOCK && open.align.memory as u64 <= BLOCK
}

impl Around {
    /// Opens the same file again. The caller ensures that [blocks fit](blocks_fit).
    pub(crate) fn open(file: &File) -> io::Result<Around> {
        Ok(Around { file: reopen(file)? })
    }

    /// Writes whole blocks around the page cache, and the rest at the end of the file `through` it. `at`
    /// is a multiple of [`BLOCK`].
    pub(crate) fn write(&self, through: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        let aligned = (bytes.as_ptr() as u64).is_multiple_of(BLOCK);
        let whole = if aligned { bytes.len() / BLOCK as usize * BLOCK as usize } else { 0 };
        write_all(&self.file, at, &bytes[..whole])?;
        write_all(through, at + whole as u64, &bytes[whole..])
    }
}

#[cfg(target_os = "linux")]
fn reopen(file: &File) -> io::Result<File> {
    use std::os::fd::AsRawFd;
    OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_DIRECT | libc::O_CLOEXEC)
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

#[cfg(not(target_os = "linux"))]
fn reopen(_: &File) -> io::Result<File> {
    let _ = OpenOptions::new().custom_flags(0);
    Err(io::ErrorKind::Unsupported.into())
}

/// Writes all of `bytes` at byte `at`.
pub(crate) fn write_all(file: &File, mut at: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match sys::write(file, bytes, at, false)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => (at, bytes) = (at + n as u64, &bytes[n..]),
        }
    }
    Ok(())
}
