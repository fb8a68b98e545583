//! Windows: the standard library makes the child; its account is read through its handle at its end.
//!
//! The account is of the one process, without the usage of its own children. There are no signals, and
//! context switches are not reported. The peak size is that of the working set. Page faults include
//! those that found their page in memory, without distinction. A child's size does not begin at ours,
//! so there is no floor.

use std::ffi::OsString;
use std::io;
use std::os::windows::ffi::OsStrExt;
use std::os::windows::io::AsRawHandle;
use std::process::Child;
use std::time::Instant;

use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::Threading::{GetProcessIoCounters, IO_COUNTERS};

use super::{Command, Ended, IoBytes, Options, RunError, Status};
use crate::Usage;

/// An argument.
pub(super) type Word = OsString;

/// `None` if it contains a zero.
pub(super) fn word(argument: OsString) -> Option<Word> {
    argument.encode_wide().all(|unit| unit != 0).then_some(argument)
}

/// Returns readable text.
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
    // The process is gone, but its account is available as long as its handle is open.
    let handle = child.as_raw_handle();
    let ended = Status::Exited(status.code().unwrap_or(-1));
    Ok(Ended { io: transferred(handle), ..Ended::new(ended, Usage::of_process(handle, wall), 0) })
}

fn transferred(process: HANDLE) -> Option<IoBytes> {
    let mut counters = IO_COUNTERS::default();
    // SAFETY: a handle that the caller keeps open, and a valid place to write to.
    (unsafe { GetProcessIoCounters(process, &mut counters) } != 0).then_some(IoBytes {
        rchar: counters.ReadTransferCount,
        wchar: counters.WriteTransferCount,
        syscr: counters.ReadOperationCount,
        syscw: counters.WriteOperationCount,
        read_bytes: None,
        write_bytes: None,
        cancelled_write_bytes: None,
    })
}
