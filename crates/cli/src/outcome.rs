//! The ways in which a subcommand can end, and their exit statuses.

use std::error::Error;
use std::fmt::Write;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Chain;
use rusage::inherited::is_ignored;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use signal_hook::consts::SIGXFSZ;

use crate::say;

/// The reason why a subcommand ended early.
#[derive(Debug)]
pub enum Stop {
    /// It failed; the chain of causes is shown.
    Failed(anyhow::Error),
    /// The arguments parsed, but do not make sense together.
    Usage(String),
    /// The reader of stdout is gone. No error is printed.
    BrokenPipe,
    /// Ctrl-C.
    Interrupted,
    /// Parts of it failed, which has been reported.
    AlreadyReported,
    /// The arguments did not parse, which has been reported.
    Refused,
}

/// The result of a subcommand.
pub type Outcome<T = ()> = Result<T, Stop>;

impl From<anyhow::Error> for Stop {
    fn from(error: anyhow::Error) -> Stop {
        Stop::Failed(error)
    }
}

/// Errors of writing to stdout. Errors of reading files carry the file's name and are converted
/// from [`anyhow::Error`].
impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Stop::BrokenPipe,
            _ => Stop::Failed(anyhow::Error::new(error).context("cannot write to standard output")),
        }
    }
}

/// Prints the error, if there is one, and returns the exit status for it.
pub fn report(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) | Err(Stop::BrokenPipe) => ExitCode::SUCCESS,
        Err(Stop::Failed(error)) => {
            say::error(&chain(&error));
            ExitCode::from(1)
        }
        Err(Stop::Usage(text)) => {
            say::error(&text);
            ExitCode::from(2)
        }
        Err(Stop::AlreadyReported) => ExitCode::from(1),
        Err(Stop::Refused) => ExitCode::from(2),
        Err(Stop::Interrupted) => ExitCode::from(130),
    }
}

/// Returns an error and its causes in one line, leaving out a cause that the text before it repeats. Where a limit of the process
/// is the cause, the line names it.
pub fn chain(error: &anyhow::Error) -> String {
    joined(error.chain())
}

/// The same, for an error of a library.
pub fn chain_of(error: &(dyn Error + 'static)) -> String {
    joined(Chain::new(error))
}

fn joined(causes: Chain<'_>) -> String {
    let mut text = String::new();
    for cause in causes.clone() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    if causes.map(<dyn Error>::downcast_ref).any(is_too_large)
        && let Some(bytes) = getrlimit(Resource::Fsize).current
    {
        let _ = write!(
            text,
            ": this process may write files of at most {bytes} bytes (see `ulimit -f`): raise that limit"
        );
    }
    text
}

/// Returns true if the system refused a file for its size.
fn is_too_large(error: Option<&io::Error>) -> bool {
    error.and_then(io::Error::raw_os_error) == Some(Errno::FBIG.raw_os_error())
}

/// Lets a write beyond the limit on the size of files fail, by which the file is named in an error, instead of ending the process
/// without a message. Processes that are started later have the default again.
pub fn survive_size_limit() {
    if !is_ignored(SIGXFSZ) {
        // If the system allows no handler, the signal has its usual effect.
        let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let error =
            anyhow::anyhow!("disk on fire").context("cannot read: disk on fire").context("'x'");
        assert_eq!(chain(&error), "'x': cannot read: disk on fire");
    }
}
