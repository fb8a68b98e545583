//! Systems of the Unix kind that are not Linux: the standard library makes the child.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use super::unix::{end_of, own_peak, reap};
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
    let ended = end_of(pid).then(|| began.elapsed());
    // From here on the number may become another's.
    signals::pass_to(0);
    let (status, usage) = reap(pid, ended.unwrap_or_else(|| began.elapsed()))
        .map_err(|source| RunError::System { what: "wait for the program", source })?;
    Ok(Ended::new(status, usage, floor))
}
