//! Opening a file for direct reads, if that is possible and makes sense.

use std::fs::File;

use super::Fallback;
use super::blocks::Align;

/// A file that is open for reads around the page cache.
pub(crate) struct Direct {
    pub file: File,
    pub align: Align,
    /// Whether a program answers for the file.
    #[cfg(target_os = "linux")]
    pub fuse: bool,
    /// Whether memory must have been touched before it is read into: btrfs goes through the page
    /// cache for memory that has not (Linux 6.18), since it must not wait for a page fault.
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
            // their contents stay as they are. That it fails is no error.
            unsafe { libc::madvise(first as *mut libc::c_void, len, MADV_POPULATE_WRITE) };
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (start, len, self.touch);
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn open(_file: &File, _path: &std::path::Path) -> Result<Direct, Fallback> {
    Err(Fallback::NoDirect)
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

    use super::{Align, Direct, Fallback};

    /// Reads start and end at multiples of this even where less would do: pages of the caches below.
    const AT_LEAST: usize = 4096;

    /// The magic number of btrfs.
    const BTRFS: i64 = 0x9123_683e;

    /// Opens the same file again with O_DIRECT.
    ///
    /// Where the filesystem does not say what it can (before Linux 6.1, or not taught yet), direct
    /// reads are tried, aligned to pages: the first read tells.
    pub(crate) fn open(file: &File, path: &Path) -> Result<Direct, Fallback> {
        if lives_in_memory(file) {
            return Err(Fallback::InMemory);
        }
        let align = match dio_align(file) {
            Some((0, _) | (_, 0)) => return Err(Fallback::DirectUnsupported),
            Some((memory, offset)) => {
                let power = |n: u32| (n as usize).next_power_of_two();
                Align { offset: power(offset).max(AT_LEAST), memory: power(memory) }
            }
            None => Align { offset: AT_LEAST, memory: AT_LEAST },
        };
        if compressed(file) {
            return Err(Fallback::Compressed);
        }
        match reopen(file, path) {
            Ok(file) => {
                const FUSE: i64 = 0x6573_5546;
                let touch = filesystem(&file) == Some(BTRFS);
                // A program that does not know statfs gives an error; nothing else does.
                let fuse = matches!(filesystem(&file), Some(FUSE) | None);
                Ok(Direct { file, align, fuse, touch })
            }
            Err(error) => {
                Err(Fallback::DirectNotOpened { errno: error.raw_os_error().unwrap_or(libc::EIO) })
            }
        }
    }

    /// The same inode, opened anew: flags of the original (O_NONBLOCK would make io_uring give up
    /// instead of waiting) do not carry over. Through /proc, or by name if that is still the file.
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

    /// Alignment of addresses and of offsets that direct reads need, zero if there are none; `None`
    /// if the system does not say.
    fn dio_align(file: &File) -> Option<(u32, u32)> {
        // SAFETY: an all-zero statx is a valid value of this plain C struct.
        let mut found: libc::statx = unsafe { MaybeUninit::zeroed().assume_init() };
        let (flags, mask) = (libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN);
        // SAFETY: an open file, an empty path, and a struct of ours to fill.
        let status =
            unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, mask, &mut found) };
        (status == 0 && found.stx_mask & libc::STATX_DIOALIGN != 0)
            .then_some((found.stx_dio_mem_align, found.stx_dio_offset_align))
    }

    fn lives_in_memory(file: &File) -> bool {
        const TMPFS: i64 = 0x0102_1994;
        const RAMFS: i64 = 0x8584_58f6;
        const HUGETLBFS: i64 = 0x9584_58f6;
        matches!(filesystem(file), Some(TMPFS | RAMFS | HUGETLBFS))
    }

    /// The magic number of the filesystem.
    fn filesystem(file: &File) -> Option<i64> {
        // SAFETY: an all-zero statfs is a valid value of this plain C struct.
        let mut found: libc::statfs = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: an open file and a struct of ours to fill.
        let status = unsafe { libc::fstatfs(file.as_raw_fd(), &mut found) };
        // The type's width and sign differ between systems; the number has 32 bits.
        #[allow(clippy::unnecessary_cast)]
        (status == 0).then_some(found.f_type as u32 as i64)
    }

    /// Whether a btrfs file has compressed extents, which the filesystem reads through the page
    /// cache whatever it is asked.
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
        if filesystem(file) != Some(BTRFS) {
            return false;
        }
        // SAFETY: all-zero is a valid value of this plain C struct.
        let mut map: Fiemap = unsafe { MaybeUninit::zeroed().assume_init() };
        map.length = u64::MAX;
        map.count = EXTENTS as u32;
        // SAFETY: the request fills at most `count` extents behind the header, for which there is
        // room. The request's number is an int or an unsigned long, depending on the C library.
        let status = unsafe { libc::ioctl(file.as_raw_fd(), FIEMAP as _, &mut map) };
        // Extents of one file are written alike: the first ones tell.
        let extents = map.extents.iter().take(map.mapped as usize);
        status == 0 && extents.into_iter().any(|extent| extent.flags & ENCODED != 0)
    }
}
