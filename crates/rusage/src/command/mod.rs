//! Runs a program to its end, and returns its cost.

#[cfg(target_os = "linux")]
mod floor;
#[cfg(unix)]
mod interpreter;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(all(unix, not(target_os = "linux")))]
mod other;
#[cfg(unix)]
mod path;
#[cfg(unix)]
pub mod signals;
#[cfg(windows)]
#[path = "console.rs"]
pub mod signals;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(all(unix, not(target_os = "linux")))]
use other as system;
#[cfg(unix)]
use unix::{Word, text, wait_for, word};
#[cfg(windows)]
use windows as system;
#[cfg(windows)]
use windows::{Word, text, wait_for, word};

use std::ffi::OsString;
use std::process::Child;
use std::time::Instant;
use std::{fmt, io};

use serde::Serialize;
use thiserror::Error;

use crate::Usage;

/// A program and its arguments. It gets this process's standard streams, environment and folder.
#[derive(Clone, Debug)]
pub struct Command {
    /// The program first; never empty.
    arguments: Vec<Word>,
}

/// Measurements beyond the plain account; each costs something.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The bytes that went through system calls ([`Ended::io`]).
    pub io: bool,
    /// The peak memory of the program and all processes that it starts ([`Ended::tree_peak`]).
    pub tree: bool,
    /// Hardware counters ([`Ended::counters`]).
    pub counters: bool,
    /// Makes this process small before the run, so that the sizes of small programs can be measured
    /// ([`Ended::floor`]): the pages of its own code are given back, which it then needs again, and its
    /// peak size is forgotten. Linux; elsewhere without effect.
    pub small: bool,
}

/// A program that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// How it ended.
    pub status: Status,
    /// Its usage. The wall time is from just before it was made until its end was known.
    pub usage: Usage,
    /// A peak size of this many bytes or less is this process's own size (see the [crate]), and the
    /// program's is at most that; 0 if unknown.
    pub floor: u64,
    /// Bytes through system calls, on Linux and Windows; `None` if not requested or not available.
    pub io: Option<IoBytes>,
    /// The peak of its whole tree.
    pub tree_peak: Option<crate::tree::TreePeak>,
    /// The processor's counts, by name; empty if not requested or not available.
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
        /// True if a core file was written.
        core_dumped: bool,
    },
}

impl Status {
    /// Returns true if it exited with status 0.
    pub fn is_success(self) -> bool {
        self == Status::Exited(0)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Status::Exited(code) => write!(f, "exit status {code}"),
            Status::Killed { signal, core_dumped } => {
                match signal_name(signal) {
                    Some(name) => write!(f, "killed by {name}")?,
                    None => write!(f, "killed by signal {signal}")?,
                }
                f.write_str(if core_dumped { ", with a core file" } else { "" })
            }
        }
    }
}

/// The name of a signal that ends a process by itself.
fn signal_name(signal: i32) -> Option<&'static str> {
    #[cfg(unix)]
    let names = [
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGQUIT, "SIGQUIT"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGTRAP, "SIGTRAP"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGUSR1, "SIGUSR1"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGUSR2, "SIGUSR2"),
        (libc::SIGPIPE, "SIGPIPE"),
        (libc::SIGALRM, "SIGALRM"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGXCPU, "SIGXCPU"),
        (libc::SIGXFSZ, "SIGXFSZ"),
        (libc::SIGVTALRM, "SIGVTALRM"),
        (libc::SIGPROF, "SIGPROF"),
        (libc::SIGSYS, "SIGSYS"),
    ];
    #[cfg(not(unix))]
    let names: [(i32, &str); 0] = [];
    names.iter().find(|(number, _)| *number == signal).map(|(_, name)| *name)
}

/// Traffic through the system calls of a process and of those of its children that it waited for (Linux,
/// from `/proc/PID/io`), or of it alone (Windows, where devices and consoles count too).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IoBytes {
    /// Bytes returned by reads, from any source.
    pub rchar: u64,
    /// Bytes passed to writes.
    pub wchar: u64,
    /// Number of read calls.
    pub syscr: u64,
    /// Number of write calls.
    pub syscw: u64,
    /// Bytes read from storage; `None` on Windows, which does not distinguish them.
    pub read_bytes: Option<u64>,
    /// Bytes that will have to be written to storage.
    pub write_bytes: Option<u64>,
    /// Of these, bytes that were then not written, because the file was truncated or removed.
    pub cancelled_write_bytes: Option<u64>,
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
    /// It exists, but the interpreter that it names does not: that of a script in its first line, or the
    /// loader of a program that needs libraries. Shells report this with the status of a program that is
    /// not found.
    #[error("{program}: its interpreter '{interpreter}' is not found")]
    NoInterpreter {
        /// As given.
        program: String,
        /// The interpreter, as it is named.
        interpreter: String,
    },
    /// It exists, but cannot be executed.
    #[error("{program}: cannot be executed: {source}")]
    NotExecutable {
        /// As given.
        program: String,
        /// The system's error.
        source: io::Error,
    },
    /// A process could not be created or waited for.
    #[error("cannot {what}: {source}")]
    System {
        /// The action that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A command line without a program.
    #[error("no program given")]
    Empty,
    /// An argument contains a zero byte, which cannot be passed to any program.
    #[error("an argument has a zero byte in it")]
    ZeroByte,
}

impl Command {
    /// A program, searched for in `PATH` unless it contains a slash, and its arguments.
    ///
    /// # Errors
    /// There is no program, or an argument contains a zero byte.
    pub fn new(arguments: Vec<OsString>) -> Result<Command, RunError> {
        let arguments = arguments
            .into_iter()
            .map(|argument| word(argument).ok_or(RunError::ZeroByte))
            .collect::<Result<Vec<_>, _>>()?;
        if arguments.is_empty() { Err(RunError::Empty) } else { Ok(Command { arguments }) }
    }

    /// The program and its arguments as text, for a report.
    pub fn words(&self) -> Vec<String> {
        self.arguments.iter().map(text).collect()
    }

    /// Runs it to its end.
    ///
    /// Signals are not touched: a caller that is a wrapper keeps [`signals::Passed`] during the run.
    ///
    /// # Errors
    /// It could not be started.
    pub fn run(&self, options: &Options) -> Result<Ended, RunError> {
        system::run(self, options)
    }

    /// Returns the error of a failed exec.
    fn failed(&self, source: io::Error) -> RunError {
        let program = text(&self.arguments[0]);
        match source.kind() {
            #[cfg(unix)]
            io::ErrorKind::NotFound => match interpreter::missing(&self.arguments[0]) {
                Some(interpreter) => RunError::NoInterpreter { program, interpreter },
                None => RunError::NotFound { program },
            },
            #[cfg(not(unix))]
            io::ErrorKind::NotFound => RunError::NotFound { program },
            _ => RunError::NotExecutable { program, source },
        }
    }
}

/// Waits for a child that was started elsewhere, at `began`, and returns its account. Its output into
/// pipes must have been read before.
///
/// # Errors
/// It has been waited for already.
pub fn wait(child: Child, began: Instant) -> io::Result<Ended> {
    wait_for(child, began)
}

impl Ended {
    fn new(status: Status, usage: Usage, floor: u64) -> Ended {
        Ended { status, usage, floor, io: None, tree_peak: None, counters: Vec::new() }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

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
