//! The ways in which a subcommand can end, and their exit statuses.

use std::io;
use std::process::ExitCode;

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

/// Returns an error and its causes in one line, leaving out a cause that the text before it repeats.
pub fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
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
