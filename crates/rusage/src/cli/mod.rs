//! The command line, the runs, the report.

mod args;
mod cold;
mod csv;
mod json;
mod markdown;
mod output;
mod report;
mod runs;

use std::ffi::OsString;

use args::{Args, Format, Parsed};
use output::Output;
use rusage::{RunError, Status, signals};

/// Exit statuses, as in env(1), nohup(1) and timeout(1).
const OWN_FAILURE: i32 = 125;
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// Why a run of `rusage` failed, by its own fault or by that of its input.
#[derive(Debug)]
pub enum Failure {
    /// It prints the reason, and ends with status 125.
    Own(String),
    /// A program could not be started.
    Run(RunError),
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Failure {
        Failure::Run(error)
    }
}

/// Runs everything. `words` are the arguments without the program's own name. Returns the exit status.
pub fn main(words: Vec<OsString>) -> i32 {
    match args::parse(words) {
        Ok(Parsed::Show(text)) => match output::to_stdout(&text) {
            Ok(()) => 0,
            Err(_) => OWN_FAILURE,
        },
        Ok(Parsed::Run(args)) => {
            // Before signals are handled: opening a pipe may block until it has a reader.
            let reports = Report::all(&args);
            // Over all runs and to the end, so that the report is not lost to a signal between two runs
            // or while it is written.
            let passed = signals::Passed::on();
            let status = match reports {
                Ok(reports) => measure(&args, reports, &passed),
                Err(why) => {
                    output::complain(&why);
                    OWN_FAILURE
                }
            };
            // This process ends now: the previous state is not needed again.
            std::mem::forget(passed);
            status
        }
        Err(why) => {
            let _passed = signals::Passed::on();
            output::complain(&why);
            output::complain("try 'rusage --help'");
            OWN_FAILURE
        }
    }
}

/// A report to be written.
struct Report {
    format: Format,
    output: Output,
}

impl Report {
    /// Returns the requested reports, with their files open. The one that may be on a terminal is the
    /// last, so that errors of the others are not printed after it.
    fn all(args: &Args) -> Result<Vec<Report>, String> {
        let exports = args.exports.iter().map(|(format, path)| (*format, Some(&**path)));
        let reports = exports.chain([(args.format, args.output.as_deref())]);
        let mut opened: Vec<Report> = Vec::new();
        for (format, path) in reports {
            let output = Output::open(path, args.append)?;
            if let (Format::Csv, Some(path)) = (format, output.continues()) {
                csv::fits(path)?;
            }
            if let Some(path) = path
                && opened.iter().any(|other| other.output.is_same(&output))
            {
                return Err(args::two_reports(path));
            }
            opened.push(Report { format, output });
        }
        Ok(opened)
    }

    fn write(&mut self, args: &Args, measured: &runs::Measured) -> Result<(), String> {
        let continues = self.output.continues().is_some();
        self.output.write(&match self.format {
            Format::Lines => report::text(args, measured, self.output.bold()),
            Format::Markdown => markdown::table(args, measured, continues),
            Format::Csv => csv::rows(args, measured, continues),
            Format::Json => json::line(args, measured),
        })
    }
}

fn measure(args: &Args, mut reports: Vec<Report>, passed: &signals::Passed) -> i32 {
    if args.counters && !cfg!(target_os = "linux") {
        output::complain("--counters: only on Linux; left out");
    }
    let measured = runs::all(args, passed);
    if measured.has_runs() {
        for report in &mut reports {
            if let Err(why) = report.write(args, &measured) {
                output::complain(&why);
            }
        }
    }
    match &measured.failure {
        Some(Failure::Own(why)) => output::complain(why),
        Some(Failure::Run(error)) => {
            output::complain(&error.to_string());
            if let RunError::NotFound { program } = error
                && program.contains(['|', '&', ';', '<', '>', '$', '*', ' '])
            {
                let line = report::command_line(&["sh".into(), "-c".into(), program.clone()]);
                output::complain(&format!("for a line of a shell: rusage {line}"));
            }
        }
        None => {}
    }
    match (&measured.failure, measured.interrupted, measured.last_status) {
        (Some(Failure::Run(RunError::NotFound { .. } | RunError::NoInterpreter { .. })), ..) => {
            NOT_FOUND
        }
        (Some(Failure::Run(RunError::NotExecutable { .. })), ..) => NOT_EXECUTABLE,
        (Some(_), ..) | (None, None, None) => OWN_FAILURE,
        (None, None, Some(Status::Exited(code))) => code,
        (None, Some(signal), _) | (None, None, Some(Status::Killed { signal, .. })) => {
            signals::die_by(signal);
            // The signal was one that does not end this process.
            128 + signal
        }
    }
}
