//! Windows: the standard library makes the child; its account is taken by its handle when it has ended.
//!
//! The account is of the one process: what its own children used is not in it. There are no signals,
//! and no context switches are told. The peak size is that of the working set. Page faults are counted
//! with those that found their page in memory, without telling them apart. A child's size does not
//! begin at ours, so there is no floor.

use std::ffi::OsString;
use std::io;
use std::os::windows::ffi::OsStrExt;
use std::os::windows::io::AsRawHandle;
use std::process::Child;
use std::time::{Duration, Instant};

use windows_sys::Win32::Foundation::{FILETIME, HANDLE};
use windows_sys::Win32::System::ProcessStatus::{GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS};
use windows_sys::Win32::System::Threading::{GetProcessIoCounters, GetProcessTimes, IO_COUNTERS};

use super::{Command, Ended, IoBytes, Options, RunError, Status};
use crate::Usage;

/// An argument.
pub(super) type Word = OsString;

/// `None` if there is a zero in it.
pub(super) fn word(argument: OsString) -> Option<Word> {
    argument.encode_wide().all(|unit| unit != 0).then_some(argument)
}

/// For a person.
pub(super) fn text(word: &Word) -> String {
    word.to_string_lossy().into_owned()
}

pub(super) fn run(command: &Command, _: &Options) -> Result<Ended, RunError> {
    let (program, arguments) = command.arguments.split_first().ok_or(RunError::Empty)?;
    let mut starting = std::process::Command::new(program);
    starting.args(arguments);
    let began = Instant::now();
    let child = starting.spawn().map_err(|source| command.failed(source))?;
    wait_for(child, began)
        .map_err(|source| RunError::System { what: "wait for the program", source })
}

/// As [`wait`](super::wait).
pub(super) fn wait_for(mut child: Child, began: Instant) -> io::Result<Ended> {
    let status = child.wait()?;
    let wall = began.elapsed();
    // The process is gone, but as long as its handle is open, the account is there.
    let handle = child.as_raw_handle();
    let ended = Status::Exited(status.code().unwrap_or(-1));
    Ok(Ended { io: transferred(handle), ..Ended::new(ended, account(handle, wall), 0) })
}

/// What a process has used. What the system does not tell is zero.
pub(crate) fn account(process: HANDLE, wall: Duration) -> Usage {
    let none = FILETIME { dwLowDateTime: 0, dwHighDateTime: 0 };
    let (mut created, mut exited, mut system, mut user) = (none, none, none, none);
    // SAFETY: a handle that is open as long as the caller has it, and four valid places to write to.
    let timed =
        unsafe { GetProcessTimes(process, &mut created, &mut exited, &mut system, &mut user) };
    if timed == 0 {
        (system, user) = (none, none);
    }
    let mut memory = PROCESS_MEMORY_COUNTERS::default();
    let size = size_of::<PROCESS_MEMORY_COUNTERS>() as u32;
    // SAFETY: as above; the structure has the size that is said.
    if unsafe { GetProcessMemoryInfo(process, &mut memory, size) } == 0 {
        memory = PROCESS_MEMORY_COUNTERS::default();
    }
    Usage {
        wall,
        user: duration(user),
        system: duration(system),
        max_rss_bytes: memory.PeakWorkingSetSize as u64,
        major_faults: u64::from(memory.PageFaultCount),
        ..Usage::default()
    }
}

fn transferred(process: HANDLE) -> Option<IoBytes> {
    let mut told = IO_COUNTERS::default();
    // SAFETY: a handle that is open as long as the caller has it, and a valid place to write to.
    (unsafe { GetProcessIoCounters(process, &mut told) } != 0).then_some(IoBytes {
        rchar: told.ReadTransferCount,
        wchar: told.WriteTransferCount,
        syscr: told.ReadOperationCount,
        syscw: told.WriteOperationCount,
        read_bytes: None,
        write_bytes: None,
        cancelled_write_bytes: None,
    })
}

/// From units of 100 ns.
fn duration(time: FILETIME) -> Duration {
    let units = u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime);
    Duration::from_micros(units / 10) + Duration::from_nanos(units % 10 * 100)
}
