//! Opening a file for direct reads, if that is possible and makes sense.

use std::fs::File;

use super::TransferFallback;
use super::blocks::Align;

/// A file that is open for reads around the page cache.
pub(crate) struct Direct {
    pub file: File,
    pub align: Align,
    /// True if a program serves the file (FUSE).
    #[cfg(target_os = "linux")]
    pub fuse: bool,
    /// True if memory must have been touched before it is read into: for untouched memory, btrfs
    /// goes through the page cache (Linux 6.18), since it must not wait for a page fault.
    pub touch: bool,
}

impl Direct {
    /// Prepares memory for reading into it, where that is needed.
    pub fn prepare(&self, start: *mut u8, len: usize) {
        #[cfg(target_os = "linux")]
        if self.touch {
            /// Since Linux 5.14. Before that, the page cache may be used.
            const MADV_POPULATE_WRITE: libc::c_int = 23;
            let page = crate::fault::page_size();
            let first = start as usize / page * page;
            let len = (start as usize + len).next_multiple_of(page) - first;
            // SAFETY: pages of memory that the caller may write to, or neighbours on the same page;
            // their contents stay as they are. A failure is no error.
            unsafe { libc::madvise(first as *mut libc::c_void, len, MADV_POPULATE_WRITE) };
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (start, len, self.touch);
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn open(_file: &File, _path: &std::path::Path) -> Result<Direct, TransferFallback> {
    Err(TransferFallback::NoDirect)
}

#[cfg(target_os = "linux")]
pub(crate) use linux::open;

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::{File, OpenOptions};
    use std::io;
    use std::mem::MaybeUninit;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    use std::path::Path;

    use super::{Align, Direct, TransferFallback};
    use crate::facts::{self, DirectAlign};
    use crate::filesystem::{self, BTRFS, FUSE, Kind};

    /// Reads start and end at multiples of this even where less would do: the page size of the
    /// caches below.
    const AT_LEAST: usize = 4096;

    /// Opens the same file again with O_DIRECT.
    ///
    /// If the filesystem does not report what it supports (before Linux 6.1, or not implemented),
    /// direct reads are tried, aligned to pages: the first read shows if they work.
    pub(crate) fn open(file: &File, path: &Path) -> Result<Direct, TransferFallback> {
        if filesystem::of(file).kind == Kind::Memory {
            return Err(TransferFallback::InMemory);
        }
        let align = match facts::direct(file) {
            (_, true) => return Err(TransferFallback::DirectUnsupported),
            (Some(DirectAlign { memory, offset }), _) => {
                Align { offset: (offset as usize).max(AT_LEAST), memory: memory as usize }
            }
            (None, _) => Align { offset: AT_LEAST, memory: AT_LEAST },
        };
        if compressed(file) {
            return Err(TransferFallback::Compressed);
        }
        match reopen(file, path) {
            Ok(file) => {
                let magic = filesystem::magic(&file);
                let touch = magic == Some(BTRFS);
                // Only a program that does not implement statfs returns an error.
                let fuse = matches!(magic, Some(FUSE) | None);
                Ok(Direct { file, align, fuse, touch })
            }
            Err(error) => Err(TransferFallback::DirectNotOpened {
                errno: error.raw_os_error().unwrap_or(libc::EIO),
            }),
        }
    }

    /// The same inode, opened again, so that flags of the original (O_NONBLOCK would make io_uring
    /// give up instead of waiting) do not carry over. Through /proc, or by name if that is still the
    /// file.
    fn reopen(file: &File, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_DIRECT | libc::O_CLOEXEC | libc::O_NOCTTY);
        match options.open(format!("/proc/self/fd/{}", file.as_raw_fd())) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EACCES)) => {
                let again = options.open(path).map_err(|_| error)?;
                let (one, two) = (file.metadata()?, again.metadata()?);
                if (one.dev(), one.ino()) == (two.dev(), two.ino()) {
                    return Ok(again);
                }
                Err(io::Error::from_raw_os_error(libc::ESTALE))
            }
            result => result,
        }
    }

    /// True if a btrfs file has compressed extents, which the filesystem always reads through the
    /// page cache.
    fn compressed(file: &File) -> bool {
        /// FS_IOC_FIEMAP: _IOWR('f', 11, struct fiemap)
        const FIEMAP: u32 = 0xc020_660b;
        const ENCODED: u32 = 0x8;
        const EXTENTS: usize = 64;
        #[repr(C)]
        struct Extent {
            logical: u64,
            physical: u64,
            length: u64,
            reserved: [u64; 2],
            flags: u32,
            more: [u32; 3],
        }
        #[repr(C)]
        struct Fiemap {
            start: u64,
            length: u64,
            flags: u32,
            mapped: u32,
            count: u32,
            reserved: u32,
            extents: [Extent; EXTENTS],
        }
        if filesystem::magic(file) != Some(BTRFS) {
            return false;
        }
        // SAFETY: all-zero is a valid value of this plain C struct.
        let mut map: Fiemap = unsafe { MaybeUninit::zeroed().assume_init() };
        map.length = u64::MAX;
        map.count = EXTENTS as u32;
        // SAFETY: the request fills at most `count` extents after the header, and the buffer has
        // that many. The request's number is an int or an unsigned long, depending on the C library.
        let status = unsafe { libc::ioctl(file.as_raw_fd(), FIEMAP as _, &mut map) };
        // Extents of one file are written alike: the first ones are enough.
        let extents = map.extents.iter().take(map.mapped as usize);
        status == 0 && extents.into_iter().any(|extent| extent.flags & ENCODED != 0)
    }
}
