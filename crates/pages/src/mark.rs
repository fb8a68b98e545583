//! A mark on an open file, visible to other processes that set it too: a shared advisory lock of one byte
//! that no file has.
//!
//! The mark belongs to the open file and not to the process (open file description locks of Linux), so
//! nothing needs to be cleaned up after a process that was killed. It blocks nothing: other programs lock
//! bytes that files have, or whole files (`flock`, which is another kind). It requires only read access.

use std::fs::File;
use std::io;

/// The locked byte: far past the end of any file, and not used by any other program that we know of.
const BYTE: i64 = 0x4000_0000_416c_6967;

/// Sets the mark on an open file. It is removed when the file is closed.
///
/// # Errors
/// The system or the file system does not support such locks.
pub fn mark(file: &File) -> io::Result<()> {
    sys::lock(file)
}

/// True if another process or open file has marked the same file. `false` where this cannot be
/// determined.
pub fn is_marked_by_others(file: &File) -> bool {
    sys::others(file)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod sys {
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd;

    use super::BYTE;

    fn ask(file: &File, command: libc::c_int, ty: libc::c_int) -> io::Result<libc::c_int> {
        // SAFETY: a struct of numbers, where zero is right for every field that is not set below.
        let mut lock: libc::flock64 = unsafe { std::mem::zeroed() };
        lock.l_type = ty as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        (lock.l_start, lock.l_len) = (BYTE, 1);
        // SAFETY: the kernel reads and writes only our struct.
        match unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) } {
            0 => Ok(lock.l_type.into()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(super) fn lock(file: &File) -> io::Result<()> {
        ask(file, libc::F_OFD_SETLK, libc::F_RDLCK).map(drop)
    }

    pub(super) fn others(file: &File) -> bool {
        // Tests for a lock that would block an exclusive one here: any shared lock of another open file.
        ask(file, libc::F_OFD_GETLK, libc::F_WRLCK).is_ok_and(|ty| ty != libc::F_UNLCK)
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod sys {
    use std::fs::File;
    use std::io;

    pub(super) fn lock(_: &File) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn others(_: &File) -> bool {
        false
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn others_see_the_mark_until_the_file_is_closed() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let open = || File::open(&path).unwrap();
        let (one, two) = (open(), open());
        assert!(!is_marked_by_others(&one));
        mark(&one).unwrap();
        assert!(!is_marked_by_others(&one), "one's own mark is nobody else's");
        assert!(is_marked_by_others(&two));
        mark(&two).unwrap();
        assert!(is_marked_by_others(&one) && is_marked_by_others(&two));
        let again = two.try_clone().unwrap();
        drop(two);
        assert!(is_marked_by_others(&one), "it is still open");
        drop(again);
        assert!(!is_marked_by_others(&one));
    }
}
