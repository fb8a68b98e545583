//! Common to all Unix systems: arguments, ends and accounts of children.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use super::{Ended, IoBytes, Status, signals};
use crate::Usage;

/// An argument, as passed to exec.
pub(super) type Word = CString;

/// `None` if it contains a zero byte.
pub(super) fn word(argument: OsString) -> Option<Word> {
    CString::new(argument.into_vec()).ok()
}

/// Returns readable text.
pub(super) fn text(word: &Word) -> String {
    word.to_string_lossy().into_owned()
}

/// As [`wait`](super::wait).
pub(super) fn wait_for(child: Child, began: Instant) -> io::Result<Ended> {
    let pid = child.id() as libc::pid_t;
    let io = IoBytes::open(pid);
    // Closes our ends of the pipes; the child may wait for that.
    drop(child);
    let ended = at_end(pid, 0, || began.elapsed(), io)?;
    Ok(Ended { floor: own_peak(), ..ended })
}

/// Waits for the end of a child, to which no signals are passed from then on, and returns its account.
/// `elapsed` returns its wall time and is called at its end, before anything else; `io` contains the
/// bytes through system calls, if they are requested.
pub(super) fn at_end(
    pid: libc::pid_t,
    floor: u64,
    elapsed: impl FnOnce() -> Duration,
    io: Option<File>,
) -> io::Result<Ended> {
    end_of(pid);
    let wall = elapsed();
    let io = io.and_then(IoBytes::read);
    // After this, the number may be reused.
    signals::pass_no_more(pid);
    let (status, usage) = reap(pid, wall)?;
    Ok(Ended { io, ..Ended::new(status, usage, floor) })
}

/// The peak size of this process, in bytes.
pub(super) fn own_peak() -> u64 {
    #[cfg(target_os = "linux")]
    return crate::account::own_peak();
    #[cfg(not(target_os = "linux"))]
    Usage::of_self().max_rss_bytes
}

/// Waits until a child has ended, without reaping it. If that fails, reaping it will report why.
fn end_of(pid: libc::pid_t) {
    loop {
        // SAFETY: all zeroes is a valid value of the structure, which the kernel fills.
        let ended = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, libc::WEXITED | libc::WNOWAIT)
        };
        if ended == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}

/// Waits for the end of a child of this process and takes its account.
pub(super) fn reap(pid: libc::pid_t, wall: Duration) -> io::Result<(Status, Usage)> {
    let mut status = 0;
    // SAFETY: all zeroes is a valid value of this structure of numbers.
    let mut raw: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers are to memory that the kernel fills.
        if unsafe { libc::wait4(pid, &mut status, 0, &mut raw) } == pid {
            let usage = Usage::from_raw(&raw, wall);
            return Ok((Status::of(ExitStatus::from_raw(status)), usage));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

impl Status {
    fn of(status: ExitStatus) -> Status {
        match (status.code(), status.signal()) {
            (Some(code), _) => Status::Exited(code),
            (None, signal) => {
                Status::Killed { signal: signal.unwrap_or(0), core_dumped: status.core_dumped() }
            }
        }
    }
}

impl IoBytes {
    /// Parses the text of `/proc/PID/io`.
    fn parse(text: &str) -> Option<IoBytes> {
        let of = |name: &str| -> Option<u64> {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?
                .trim()
                .parse()
                .ok()
        };
        Some(IoBytes {
            rchar: of("rchar")?,
            wchar: of("wchar")?,
            syscr: of("syscr")?,
            syscw: of("syscw")?,
            read_bytes: Some(of("read_bytes")?),
            write_bytes: Some(of("write_bytes")?),
            cancelled_write_bytes: Some(of("cancelled_write_bytes")?),
        })
    }

    /// Opens the counters of a running process on Linux. They are read at its end, but must be opened
    /// before: then only root may.
    pub(super) fn open(pid: libc::pid_t) -> Option<File> {
        File::open(format!("/proc/{pid}/io")).ok()
    }

    /// Reads the counters of a process that has not been waited for.
    fn read(mut file: File) -> Option<IoBytes> {
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        IoBytes::parse(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_of_io() {
        let text = "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 6\n\
                    cancelled_write_bytes: 7\n";
        let io = IoBytes::parse(text).unwrap();
        assert_eq!((io.rchar, io.syscw, io.read_bytes), (1, 4, Some(5)));
        assert_eq!((io.write_bytes, io.cancelled_write_bytes), (Some(6), Some(7)));
        assert_eq!(IoBytes::parse("rchar: 1\n"), None);
    }
}
