//! Memory shared by processes of one host: a POSIX shared memory object that only its owner may open.
//!
//! Its size is address space. Pages are reserved before they are used, so that a full file system causes an error there
//! and not a SIGBUS later.

#[cfg(not(target_os = "linux"))]
use std::io;

/// A map of a shared memory object.
#[derive(Debug)]
pub(crate) struct Segment {
    start: std::ptr::NonNull<u8>,
    size: usize,
    #[cfg(target_os = "linux")]
    file: std::os::fd::OwnedFd,
}

// SAFETY: the segment itself only owns the map; every access goes through a pointer in an unsafe block that states why the
// access is exclusive.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Returns the address `offset` bytes into the segment. Panics beyond its end.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.size, "an offset past the end of a segment");
        // SAFETY: inside the map.
        unsafe { self.start.as_ptr().add(offset) }
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::CString;
    use std::io;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::ptr::{NonNull, null_mut};

    use super::Segment;

    fn done(result: libc::c_int) -> io::Result<libc::c_int> {
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
    }

    fn object(name: &str, flags: libc::c_int) -> io::Result<OwnedFd> {
        let name = CString::new(name)?;
        // SAFETY: the name is a string that lives for the call.
        let file = done(unsafe { libc::shm_open(name.as_ptr(), flags | libc::O_CLOEXEC, 0o600) })?;
        // SAFETY: we own it and have just opened it.
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }

    impl Segment {
        /// Creates the object, which must not exist yet.
        pub(crate) fn create(name: &str, size: usize) -> io::Result<Segment> {
            let file = object(name, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR)?;
            // SAFETY: the file is ours.
            done(unsafe { libc::ftruncate(file.as_raw_fd(), size as libc::off_t) })?;
            Segment::map(file, size)
        }

        /// Opens an object that another process has made. It must belong to this user, be closed to all others, and have
        /// this size.
        pub(crate) fn open(name: &str, size: usize) -> io::Result<Segment> {
            let file = object(name, libc::O_RDWR)?;
            // SAFETY: all-zero numbers are a valid value.
            let mut stat: libc::stat = unsafe { std::mem::zeroed() };
            // SAFETY: the file is ours, and there is space for the answer.
            done(unsafe { libc::fstat(file.as_raw_fd(), &mut stat) })?;
            // SAFETY: it only returns a number.
            let user = unsafe { libc::geteuid() };
            if stat.st_uid != user || stat.st_mode & 0o777 != 0o600 || stat.st_size != size as i64 {
                let (owner, mode, found) = (stat.st_uid, stat.st_mode & 0o777, stat.st_size);
                return Err(io::Error::other(format!(
                    "of user {owner}, mode {mode:o}, {found} bytes; expected user {user}, mode 600, {size} bytes"
                )));
            }
            Segment::map(file, size)
        }

        /// Removes the object's name; maps of it stay. It is no error if there is none.
        pub(crate) fn unlink(name: &str) -> io::Result<()> {
            let name = CString::new(name)?;
            // SAFETY: the name is a string that lives for the call.
            match done(unsafe { libc::shm_unlink(name.as_ptr()) }) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        }

        fn map(file: OwnedFd, size: usize) -> io::Result<Segment> {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
            // SAFETY: a new map of a file of this length.
            let start = unsafe { libc::mmap(null_mut(), size, access, flags, file.as_raw_fd(), 0) };
            if start == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("no address"))?;
            Ok(Segment { start, size, file })
        }

        /// Ensures that a part has memory, which is zero if it was not used before.
        pub(crate) fn reserve(&self, offset: usize, bytes: usize) -> io::Result<()> {
            let (offset, bytes) = (offset as libc::off_t, bytes as libc::off_t);
            // SAFETY: the file is ours.
            done(unsafe { libc::fallocate(self.file.as_raw_fd(), 0, offset, bytes) }).map(drop)
        }

        /// Gives the memory of a part back, where the system can.
        pub(crate) fn release(&self, offset: usize, bytes: usize) {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            let (offset, bytes) = (offset as libc::off_t, bytes as libc::off_t);
            // SAFETY: the file is ours; the part is no longer used (the caller ensures that), and anyone still using it
            // would read zeros.
            unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, bytes) };
        }
    }

    impl Drop for Segment {
        fn drop(&mut self) {
            // SAFETY: our map, to which there are no pointers left.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.size) };
        }
    }
}

/// Not available on other systems: none has been tried.
#[cfg(not(target_os = "linux"))]
impl Segment {
    pub(crate) fn create(_name: &str, _size: usize) -> io::Result<Segment> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn open(_name: &str, _size: usize) -> io::Result<Segment> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn unlink(_name: &str) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn reserve(&self, _offset: usize, _bytes: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn release(&self, _offset: usize, _bytes: usize) {}
}
