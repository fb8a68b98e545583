//! Unix systems other than Linux: the standard library makes the child.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use super::unix::{at_end, own_peak};
use super::{Command, Ended, Options, RunError, signals};

pub(super) fn run(command: &Command, _: &Options) -> Result<Ended, RunError> {
    let mut words = command.arguments.iter().map(|word| OsStr::from_bytes(word.as_bytes()));
    let program = words.next().ok_or(RunError::Empty)?;
    let mut starting = std::process::Command::new(program);
    starting.args(words);
    let floor = own_peak();
    let began = Instant::now();
    let child = starting.spawn().map_err(|source| command.failed(source))?;
    let pid = child.id() as libc::pid_t;
    signals::pass_to(pid);
    at_end(pid, floor, || began.elapsed(), None)
        .map_err(|source| RunError::System { what: "wait for the program", source })
}
