//! Running a program to its end, and what it cost.

#[cfg(target_os = "linux")]
mod floor;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;
pub mod signals;

#[cfg(target_os = "linux")]
use {floor::peak as own_peak, linux as system};
#[cfg(not(target_os = "linux"))]
use {other as system, other::own_peak};

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use serde::Serialize;
use thiserror::Error;

use crate::Usage;

/// A program and its arguments. It gets this process's standard streams, environment and folder.
#[derive(Clone, Debug)]
pub struct Command {
    /// The program first; never empty.
    arguments: Vec<CString>,
}

/// What is wanted beyond the plain account; each costs something.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The bytes that went through system calls ([`Ended::io`]).
    pub io: bool,
    /// The peak memory of all processes that it makes ([`Ended::tree_peak`]).
    pub tree: bool,
    /// Hardware counters ([`Ended::counters`]).
    pub counters: bool,
    /// Makes this process small before, so that the sizes of small programs can be told
    /// ([`Ended::floor`]): its own code's pages are given back, which it then needs again, and its
    /// peak size is forgotten. Linux; elsewhere without effect.
    pub small: bool,
}

/// A program that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// How.
    pub status: Status,
    /// What it used. Its wall time is from just before it was made until its end was known.
    pub usage: Usage,
    /// At a peak size of this many bytes and below, what is told is this process's own size (see the
    /// [crate]), and the program's is at most that; 0 if unknown.
    pub floor: u64,
    /// Bytes through system calls; `None` if not asked for or not told (Linux tells).
    pub io: Option<IoBytes>,
    /// The peak of its whole tree.
    #[cfg(target_os = "linux")]
    pub tree_peak: Option<crate::tree::TreePeak>,
    /// What the processor counted, by name; empty if not asked for or not offered.
    #[cfg(target_os = "linux")]
    pub counters: Vec<crate::counters::Counter>,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// By itself, with this status.
    Exited(i32),
    /// By a signal.
    Killed {
        /// Its number.
        signal: i32,
        /// Whether an image of its memory was written.
        core_dumped: bool,
    },
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

    /// It exited with status 0.
    pub fn is_success(self) -> bool {
        self == Status::Exited(0)
    }
}

/// What `/proc/PID/io` has: of a process and of those of its children that it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IoBytes {
    /// Bytes returned by reads, from wherever.
    pub rchar: u64,
    /// Bytes given to writes.
    pub wchar: u64,
    /// Calls that read.
    pub syscr: u64,
    /// Calls that write.
    pub syscw: u64,
    /// Bytes read from storage.
    pub read_bytes: u64,
    /// Bytes that storage will have to take.
    pub write_bytes: u64,
    /// Of these, bytes that it then did not, because the file was cut or removed.
    pub cancelled_write_bytes: u64,
}

impl IoBytes {
    /// From the text of the file.
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
            read_bytes: of("read_bytes")?,
            write_bytes: of("write_bytes")?,
            cancelled_write_bytes: of("cancelled_write_bytes")?,
        })
    }

    /// Of a process by its number, as long as it has not been waited for.
    fn of(pid: libc::pid_t) -> Option<IoBytes> {
        IoBytes::parse(&std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?)
    }
}

/// Why a program was not run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// There is no program of this name.
    #[error("{program}: not found")]
    NotFound {
        /// As given.
        program: String,
    },
    /// It is there, but cannot be executed.
    #[error("{program}: cannot be executed: {source}")]
    NotExecutable {
        /// As given.
        program: String,
        /// What the system says.
        source: io::Error,
    },
    /// No process could be made, or not be waited for.
    #[error("cannot {what}: {source}")]
    System {
        /// What failed.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// A command line without a program.
    #[error("no program given")]
    Empty,
    /// An argument has a zero byte in it, which no program can be given.
    #[error("an argument has a zero byte in it")]
    ZeroByte,
}

impl Command {
    /// A program, looked for in `PATH` unless it has a slash in it, and its arguments.
    ///
    /// # Errors
    /// There is none, or a zero byte in one.
    pub fn new(arguments: Vec<OsString>) -> Result<Command, RunError> {
        let arguments = arguments
            .into_iter()
            .map(|argument| CString::new(argument.into_vec()).map_err(|_| RunError::ZeroByte))
            .collect::<Result<Vec<_>, _>>()?;
        if arguments.is_empty() { Err(RunError::Empty) } else { Ok(Command { arguments }) }
    }

    /// The program and its arguments as text, for a report.
    pub fn words(&self) -> Vec<String> {
        self.arguments.iter().map(|a| a.to_string_lossy().into_owned()).collect()
    }

    /// Runs it to its end.
    ///
    /// Signals are not touched: a caller that is a wrapper keeps [`signals::Passed`] over the run.
    ///
    /// # Errors
    /// It could not be started.
    pub fn run(&self, options: &Options) -> Result<Ended, RunError> {
        system::run(self, options)
    }

    /// The error of an exec that failed so.
    fn failed(&self, source: io::Error) -> RunError {
        let program = String::from_utf8_lossy(self.arguments[0].as_bytes()).into_owned();
        match source.kind() {
            io::ErrorKind::NotFound => RunError::NotFound { program },
            _ => RunError::NotExecutable { program, source },
        }
    }
}

/// Waits for a child that was started elsewhere, and takes its account. `began` is when that was.
/// What it writes into pipes must have been read before.
///
/// # Errors
/// It has been waited for already.
pub fn wait(child: Child, began: Instant) -> io::Result<Ended> {
    let pid = child.id() as libc::pid_t;
    // Its end of the pipes; it may wait for them to be closed.
    drop(child);
    end_of(pid);
    let wall = began.elapsed();
    let io = IoBytes::of(pid);
    let (status, usage) = reap(pid, wall)?;
    Ok(Ended { io, ..Ended::new(status, usage, own_peak()) })
}

impl Ended {
    fn new(status: Status, usage: Usage, floor: u64) -> Ended {
        Ended {
            status,
            usage,
            floor,
            io: None,
            #[cfg(target_os = "linux")]
            tree_peak: None,
            #[cfg(target_os = "linux")]
            counters: Vec::new(),
        }
    }
}

/// Waits until a child has ended, and leaves it to be waited for. Returns whether that is so.
fn end_of(pid: libc::pid_t) -> bool {
    let Ok(id) = libc::id_t::try_from(pid) else { return false };
    loop {
        // SAFETY: all zeroes is a value of the structure, which the kernel fills.
        let ended = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, id, &mut info, libc::WEXITED | libc::WNOWAIT)
        };
        if ended == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return ended == 0;
        }
    }
}

/// Waits for the end of a child of this process and takes its account.
fn reap(pid: libc::pid_t, wall: Duration) -> io::Result<(Status, Usage)> {
    let mut status = 0;
    // SAFETY: all zeroes is a value of this structure of numbers.
    let mut raw: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both point to what the kernel fills.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_of_io() {
        let text = "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 6\n\
                    cancelled_write_bytes: 7\n";
        let io = IoBytes::parse(text).unwrap();
        assert_eq!((io.rchar, io.syscw, io.read_bytes), (1, 4, 5));
        assert_eq!((io.write_bytes, io.cancelled_write_bytes), (6, 7));
        assert_eq!(IoBytes::parse("rchar: 1\n"), None);
    }

    #[test]
    fn a_child_that_was_started_elsewhere_has_an_account() {
        let began = Instant::now();
        let child = std::process::Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
        let ended = wait(child, began).unwrap();
        assert_eq!(ended.status, Status::Exited(3));
        assert!(ended.usage.minor_faults > 10 && ended.usage.wall.as_micros() > 0, "{ended:?}");
        assert_eq!(ended.io.is_some(), cfg!(target_os = "linux"));
    }
}
