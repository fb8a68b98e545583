//! System calls on ranges of files, as thin wrappers; a signal never ends one early. The lowest layer of this crate.
//!
//! On systems other than Linux, calls that do not exist return `Unsupported`, as on an old kernel.

#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::*;
#[cfg(target_os = "linux")]
pub(crate) use linux::*;

/// Bytes that this user may still write to the filesystem of an open file or folder, if it reports them.
pub(crate) fn free_bytes(file: impl std::os::fd::AsFd) -> Option<u64> {
    let found = rustix::fs::fstatvfs(file).ok()?;
    // A filesystem without a size (ramfs) reports 0 blocks, which does not mean that it is full.
    if found.f_blocks == 0 {
        return None;
    }
    // Some blocks are reserved for root.
    let is_root = rustix::process::geteuid().is_root();
    let blocks = if is_root { found.f_bfree } else { found.f_bavail };
    Some(blocks.saturating_mul(found.f_frsize))
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::io::{self, IoSlice, IoSliceMut};
    use std::num::NonZeroU64;
    use std::ops::Range;
    use std::os::fd::AsRawFd;

    use rustix::fs::{Advice, FallocateFlags, SeekFrom};
    use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

    /// Since Linux 6.14: the call itself drops the pages that it loads into the page cache.
    const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

    /// Makes `dest` share all bytes of `source`.
    pub fn clone(source: &File, dest: &File) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::ioctl_ficlone(dest, source))?)
    }

    /// Copies within the kernel, to the same offset; the kernel decides how much.
    pub fn copy_range(source: &File, dest: &File, at: u64, len: usize) -> io::Result<usize> {
        Ok(retry_on_intr(|| {
            let (mut from, mut to) = (at, at);
            rustix::fs::copy_file_range(source, Some(&mut from), dest, Some(&mut to), len)
        })?)
    }

    pub fn read(file: &File, into: &mut [u8], at: u64, dontcache: bool) -> io::Result<usize> {
        Ok(retry_on_intr(|| match dontcache {
            true => rustix::io::preadv2(file, &mut [IoSliceMut::new(into)], at, DONTCACHE),
            // The old call, which no seccomp filter forbids.
            false => rustix::io::pread(file, &mut *into, at),
        })?)
    }

    pub fn write(file: &File, from: &[u8], at: u64, dontcache: bool) -> io::Result<usize> {
        Ok(retry_on_intr(|| match dontcache {
            true => rustix::io::pwritev2(file, &[IoSlice::new(from)], at, DONTCACHE),
            false => rustix::io::pwrite(file, from, at),
        })?)
    }

    fn sync_range(file: &File, range: &Range<u64>, flags: libc::c_uint) -> io::Result<()> {
        let number = |n| libc::off64_t::try_from(n).map_err(|_| io::ErrorKind::InvalidInput);
        let (start, len) = (number(range.start)?, number(range.end - range.start)?);
        loop {
            // SAFETY: takes numbers only.
            match unsafe { libc::sync_file_range(file.as_raw_fd(), start, len, flags) } {
                0 => return Ok(()),
                _ => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
    }

    /// Starts writing everything that is not on the disk yet, and waits for it.
    pub fn sync_all_pages(file: &File) -> io::Result<()> {
        wait_written(file, &(0..0))
    }

    /// Starts writing the bytes, without waiting for it.
    pub fn start_writing(file: &File, range: &Range<u64>) -> io::Result<()> {
        sync_range(file, range, libc::SYNC_FILE_RANGE_WRITE)
    }

    /// Waits until the bytes are written; an empty range at 0 is the whole file. (Only fsync guarantees them.)
    pub fn wait_written(file: &File, range: &Range<u64>) -> io::Result<()> {
        let (before, write, after) = (
            libc::SYNC_FILE_RANGE_WAIT_BEFORE,
            libc::SYNC_FILE_RANGE_WRITE,
            libc::SYNC_FILE_RANGE_WAIT_AFTER,
        );
        sync_range(file, range, before | write | after)
    }

    /// Gives up pages of the page cache that are written and not mapped.
    pub fn give_up(file: &File, range: &Range<u64>) -> io::Result<()> {
        let Some(len) = NonZeroU64::new(range.end.saturating_sub(range.start)) else {
            return Ok(());
        };
        Ok(rustix::fs::fadvise(file, range.start, Some(len), Advice::DontNeed)?)
    }

    /// Requests that a range be read into the page cache, without waiting for it.
    pub fn ask_for(file: &File, range: &Range<u64>) -> io::Result<()> {
        let Some(len) = NonZeroU64::new(range.end.saturating_sub(range.start)) else {
            return Ok(());
        };
        Ok(rustix::fs::fadvise(file, range.start, Some(len), Advice::WillNeed)?)
    }

    /// The offset of the next bytes at or after `at` that are not in a hole.
    pub fn next_data(file: &File, at: u64) -> io::Result<Option<u64>> {
        match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(at) => Ok(Some(at)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The offset of the next hole at or after `at`; the file's end, if there is none.
    pub fn next_hole(file: &File, at: u64) -> io::Result<u64> {
        Ok(rustix::fs::seek(file, SeekFrom::Hole(at))?)
    }

    /// Reserves space on the disk without changing the file's length.
    pub fn reserve(file: &File, range: &Range<u64>) -> io::Result<()> {
        let len = range.end - range.start;
        Ok(retry_on_intr(|| {
            rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, range.start, len)
        })?)
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use std::fs::File;
    use std::io;
    use std::ops::Range;
    use std::os::unix::fs::FileExt;

    fn missing<T>() -> io::Result<T> {
        Err(io::Error::from_raw_os_error(libc::ENOSYS))
    }

    pub fn clone(_: &File, _: &File) -> io::Result<()> {
        missing()
    }

    pub fn copy_range(_: &File, _: &File, _: u64, _: usize) -> io::Result<usize> {
        missing()
    }

    pub fn read(file: &File, into: &mut [u8], at: u64, dontcache: bool) -> io::Result<usize> {
        if dontcache {
            return missing();
        }
        loop {
            match file.read_at(into, at) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    pub fn write(file: &File, from: &[u8], at: u64, dontcache: bool) -> io::Result<usize> {
        if dontcache {
            return missing();
        }
        loop {
            match file.write_at(from, at) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    pub fn sync_all_pages(_: &File) -> io::Result<()> {
        missing()
    }

    pub fn start_writing(_: &File, _: &Range<u64>) -> io::Result<()> {
        missing()
    }

    pub fn wait_written(_: &File, _: &Range<u64>) -> io::Result<()> {
        missing()
    }

    pub fn give_up(_: &File, _: &Range<u64>) -> io::Result<()> {
        missing()
    }

    pub fn ask_for(_: &File, _: &Range<u64>) -> io::Result<()> {
        missing()
    }

    pub fn next_data(_: &File, _: u64) -> io::Result<Option<u64>> {
        missing()
    }

    pub fn next_hole(_: &File, _: u64) -> io::Result<u64> {
        missing()
    }

    pub fn reserve(_: &File, _: &Range<u64>) -> io::Result<()> {
        missing()
    }
}
