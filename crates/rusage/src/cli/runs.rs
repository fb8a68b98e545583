//! The runs, in turns.

use std::io::{IsTerminal, Write, stderr, stdout};

use rusage::{Command, Ended, Options, Status, signals};

use super::Failure;
use super::args::Args;
use super::cold::{self, Evicted};

/// One run of a command.
#[derive(Debug)]
pub struct Run {
    /// Its account.
    pub ended: Ended,
    /// Files that were evicted from the page cache before the run.
    pub evicted: Vec<Evicted>,
}

/// The results of all runs.
#[derive(Debug, Default)]
pub struct Measured {
    /// The runs of each command, in order. The first commands may have one more than the last ones.
    pub runs: Vec<Vec<Run>>,
    /// How the last run ended.
    pub last_status: Option<Status>,
    /// The round after which the series ended early because a run failed, and the rounds that were requested, warm-ups among them.
    pub stopped_after: Option<(usize, usize)>,
    /// The signal that ended the series early, though the run during which it arrived succeeded.
    pub interrupted: Option<i32>,
    /// Why the series ended early.
    pub failure: Option<Failure>,
}

impl Measured {
    /// True if there is anything to report.
    pub fn has_runs(&self) -> bool {
        self.runs.iter().any(|runs| !runs.is_empty())
    }
}

/// Runs all commands the requested number of times. A signal to this process ends the series after
/// the run during which it arrived.
pub fn all(args: &Args, passed: &signals::Passed) -> Measured {
    let mut measured = Measured::default();
    measured.runs.resize_with(args.commands.len(), Vec::new);
    let options =
        Options { io: args.tells_io(), tree: args.tree, counters: args.counters, small: true };
    let files = match cold::files(&args.cold) {
        Ok(files) => files,
        Err(why) => {
            measured.failure = Some(Failure::Own(why));
            return measured;
        }
    };
    let mut progress = Progress::new(args);
    for round in 0..args.warmup + args.runs {
        for turn in 0..args.commands.len() {
            // Forward and backward, so that drift affects all commands alike.
            let which = if round % 2 == 0 { turn } else { args.commands.len() - 1 - turn };
            let prepared = if args.drop_caches { cold::drop_caches() } else { Ok(()) };
            let evicted = match prepared.and_then(|()| cold::evict(&files)) {
                Ok(evicted) => evicted,
                Err(why) => {
                    measured.failure = Some(Failure::Own(why));
                    return measured;
                }
            };
            // A signal that arrived while files were evicted, or between two runs.
            if let Some(signal) = passed.came() {
                measured.interrupted = Some(signal);
                return measured;
            }
            if let Some(why) = args.prepare.as_ref().and_then(|command| prepare(command).err()) {
                measured.failure = Some(why);
                return measured;
            }
            progress.show(round * args.commands.len() + turn);
            let ended = match args.commands[which].run(&options) {
                Ok(ended) => ended,
                Err(error) => {
                    measured.failure = Some(error.into());
                    return measured;
                }
            };
            progress.clear();
            let status = ended.status;
            let failed = !status.is_success();
            if round >= args.warmup || (failed && !args.ignore_failure) {
                measured.runs[which].push(Run { ended, evicted });
            }
            measured.last_status = Some(status);
            if failed && !args.ignore_failure {
                let all = args.warmup + args.runs;
                measured.stopped_after = (round + 1 < all).then_some((round + 1, all));
                return measured;
            }
        }
    }
    measured
}

/// Runs what prepares a run.
fn prepare(command: &Command) -> Result<(), Failure> {
    let status = command.run(&Options::default())?.status;
    if status.is_success() {
        return Ok(());
    }
    Err(Failure::Own(format!("--prepare '{}': {status}", command.words().join(" "))))
}

/// Which run it is, on a terminal that the measured command does not write to, of a series that takes a while.
struct Progress {
    runs: Option<usize>,
    shown: bool,
}

impl Progress {
    /// Nothing is shown of a single run, nor where the command's own output is the terminal's.
    fn new(args: &Args) -> Progress {
        let runs = (args.warmup + args.runs) * args.commands.len();
        let free = stderr().is_terminal() && !stdout().is_terminal();
        Progress { runs: (runs > 1 && free).then_some(runs), shown: false }
    }

    fn show(&mut self, run: usize) {
        if let Some(runs) = self.runs {
            // A terminal that is gone is no reason to stop.
            let _ = write!(stderr(), "\r\x1b[Krun {} of {runs}", run + 1);
            self.shown = true;
        }
    }

    fn clear(&mut self) {
        if self.shown {
            let _ = write!(stderr(), "\r\x1b[K");
            self.shown = false;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
