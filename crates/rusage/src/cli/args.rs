//! Arguments.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use lexopt::prelude::*;
use rusage::Command;

/// The text of `--help`.
const HELP: &str = "\
Runs a command and says what it cost, on stderr.

Usage: rusage [OPTIONS] [--] COMMAND [ARG...]

Options:
      --export FORMAT   Report as markdown (a table, a row for each command,
                        medians of its runs), csv (a row for each run, in
                        seconds and bytes) or json (one line, all there is)
      --export FORMAT=FILE
                        Also report in this form to FILE, beside the report;
                        may be repeated
      --json            The same as --export json
  -o, --output FILE     Report to FILE instead of stderr. What is in it stays
                        until there is a report
  -a, --append          Add to these files instead of replacing them; a csv
                        keeps its one line of names
  -n, --runs N          Run N times and report medians and spread [default: 1;
                        10 with --vs]
  -w, --warmup N        Run N times before, not counted [default: 1 if -n is
                        more than 1; 0 from cold]
      --vs 'COMMAND'    Compare with this command line, run in turns with the
                        first; may be repeated. It is split into words as a
                        shell would, but not run by one
      --prepare 'COMMAND'
                        Run this before each run, not counted; where it fails,
                        nothing more is run. It is split into words as --vs is
      --ignore-failure  Go on after a run that fails (otherwise it is the last
                        one)
      --cold FILE       Take FILE (or all files in this folder) out of the page
                        cache before each run, and prove it; may be repeated
      --drop-caches     Drop the page cache of the whole machine before each run
                        (needs root)
      --tree            Report the peak memory of all processes of the command
                        together, daemons among them, and how many it leaves
                        running
      --counters        Report the processor's own counters, where the kernel
                        offers them
  -h, --help            This text
  -V, --version         The version

Exit status: that of the command, or death by the signal that killed it; 127 if
it was not found, 126 if it could not be executed, 125 if rusage itself failed
before it was run. A report that cannot be written is reported on stderr and
changes no status. The command's standard streams are its own.

The kernel's share of processor time is sampled, and means little in short runs.
The size of a command is that of its largest single process; see --tree. I/O is
what had to be read from storage or will have to be written to it.
";

/// The format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Lines for people.
    Lines,
    /// A table for people.
    Markdown,
    /// A table for machines.
    Csv,
    /// A line for machines.
    Json,
}

/// The request.
#[derive(Debug)]
pub struct Args {
    /// The format of the report.
    pub format: Format,
    pub output: Option<PathBuf>,
    /// Additional reports, with their files.
    pub exports: Vec<(Format, PathBuf)>,
    pub append: bool,
    /// At least 1.
    pub runs: usize,
    pub warmup: usize,
    /// The command that is run before each run, and not counted.
    pub prepare: Option<Command>,
    pub ignore_failure: bool,
    pub cold: Vec<PathBuf>,
    pub drop_caches: bool,
    pub tree: bool,
    pub counters: bool,
    /// The measured command, and then those that it is compared with.
    pub commands: Vec<Command>,
}

/// The result of parsing the arguments.
pub enum Parsed {
    /// Text to print on stdout.
    Show(String),
    /// Commands to measure.
    Run(Box<Args>),
}

/// Parses the arguments.
///
/// # Errors
/// A message, if the arguments are invalid.
pub fn parse(words: Vec<OsString>) -> Result<Parsed, String> {
    let mut args = Args {
        format: Format::Lines,
        output: None,
        exports: Vec::new(),
        append: false,
        runs: 1,
        warmup: 0,
        prepare: None,
        ignore_failure: false,
        cold: Vec::new(),
        drop_caches: false,
        tree: false,
        counters: false,
        commands: Vec::new(),
    };
    let (mut runs, mut warmup) = (None, None);
    let mut others = Vec::new();
    let mut parser = lexopt::Parser::from_args(words);
    let mut command = None;
    while let Some(word) = parser.next().map_err(|e| e.to_string())? {
        match word {
            Short('h') | Long("help") => return Ok(Parsed::Show(HELP.to_owned())),
            Short('V') | Long("version") => {
                return Ok(Parsed::Show(format!("rusage {}\n", env!("CARGO_PKG_VERSION"))));
            }
            Long("json") => args.takes(Format::Json)?,
            Long("export") => args.exports(&value(&mut parser)?)?,
            Short('o') | Long("output") => args.output = Some(value(&mut parser)?.into()),
            Short('a') | Long("append") => args.append = true,
            Short('n') | Long("runs") => runs = Some(number(&mut parser, "-n", 1)?),
            Short('w') | Long("warmup") => warmup = Some(number(&mut parser, "-w", 0)?),
            Long("vs") => others.push(split("--vs", &value(&mut parser)?)?),
            Long("prepare") => args.prepare = Some(split("--prepare", &value(&mut parser)?)?),
            Long("ignore-failure") => args.ignore_failure = true,
            Long("cold") => args.cold.push(value(&mut parser)?.into()),
            Long("drop-caches") => args.drop_caches = true,
            Long("tree") => args.tree = true,
            Long("counters") => args.counters = true,
            Value(program) => {
                // All that follows belongs to the command.
                let rest = parser.raw_args().map_err(|e| e.to_string())?;
                command = Some(std::iter::once(program).chain(rest).collect::<Vec<_>>());
                break;
            }
            other => return Err(other.unexpected().to_string()),
        }
    }
    if args.append && args.output.is_none() && args.exports.is_empty() {
        return Err("--append needs --output FILE or --export FORMAT=FILE".to_owned());
    }
    let mut files: Vec<_> = args.exports.iter().map(|(_, file)| file).collect();
    files.extend(&args.output);
    files.sort();
    if let Some(same) = files.windows(2).find(|two| two[0] == two[1]) {
        return Err(two_reports(same[0]));
    }
    let command = command.ok_or("no command was given")?;
    lacking(&args)?;
    args.commands.push(Command::new(command).map_err(|e| e.to_string())?);
    args.commands.extend(others);
    args.runs = runs.unwrap_or(if args.commands.len() > 1 { 10 } else { 1 });
    let cold = args.drop_caches || !args.cold.is_empty();
    args.warmup = warmup.unwrap_or(usize::from(args.runs > 1 && !cold));
    Ok(Parsed::Run(Box::new(args)))
}

/// The message for a file that two reports would go to.
pub fn two_reports(file: &Path) -> String {
    format!("{}: two reports cannot go to one file", file.display())
}

impl Args {
    /// True if bytes that went through system calls are reported.
    pub fn tells_io(&self) -> bool {
        let mut formats = self.exports.iter().map(|(format, _)| *format).chain([self.format]);
        formats.any(|format| matches!(format, Format::Csv | Format::Json))
    }

    /// Sets the format of the report.
    fn takes(&mut self, format: Format) -> Result<(), String> {
        if self.format != Format::Lines && self.format != format {
            return Err(
                "a report has one form: give the other one a file, --export FORMAT=FILE".to_owned()
            );
        }
        self.format = format;
        Ok(())
    }

    /// Parses `FORMAT` or `FORMAT=FILE`.
    fn exports(&mut self, word: &OsStr) -> Result<(), String> {
        let (name, file) = halves(word);
        let format = match name.to_str() {
            Some("markdown" | "md") => Format::Markdown,
            Some("csv") => Format::Csv,
            Some("json") => Format::Json,
            _ => {
                return Err(format!(
                    "--export takes markdown, csv or json, alone or with =FILE, not {word:?}"
                ));
            }
        };
        match file {
            None => self.takes(format),
            Some(file) if file.is_empty() => {
                Err(format!("--export {}: after the '=' there is no file", word.display()))
            }
            Some(file) => {
                self.exports.push((format, file.into()));
                Ok(())
            }
        }
    }
}

/// Splits a word at its first `=`; a file's name need not be text.
fn halves(word: &OsStr) -> (&OsStr, Option<&OsStr>) {
    let bytes = word.as_encoded_bytes();
    let Some(at) = bytes.iter().position(|&b| b == b'=') else { return (word, None) };
    // SAFETY: cut before and after an ASCII character, which is allowed for such bytes.
    let part = |bytes| unsafe { OsStr::from_encoded_bytes_unchecked(bytes) };
    (part(&bytes[..at]), Some(part(&bytes[at + 1..])))
}

/// Rejects options that this system does not support: a run other than the requested one is
/// worthless.
fn lacking(args: &Args) -> Result<(), String> {
    let evicts = cfg!(any(target_os = "linux", target_os = "freebsd"));
    if !args.cold.is_empty() && !evicts {
        return Err("--cold: this system takes no single file out of the page cache on request; \
                    Linux and FreeBSD do"
            .to_owned());
    }
    let linux = cfg!(target_os = "linux");
    if args.drop_caches && !linux {
        return Err("--drop-caches: only Linux has this".to_owned());
    }
    if args.tree && !linux {
        return Err("--tree: only Linux tells the memory of several processes together".to_owned());
    }
    Ok(())
}

fn value(parser: &mut lexopt::Parser) -> Result<OsString, String> {
    parser.value().map_err(|e| e.to_string())
}

fn number(parser: &mut lexopt::Parser, name: &str, least: usize) -> Result<usize, String> {
    let text = value(parser)?;
    let number =
        text.to_str().and_then(|t| t.parse().ok()).filter(|n| (least..=MAX_RUNS).contains(n));
    number.ok_or_else(|| format!("{name} takes a number from {least} to {MAX_RUNS}, not {text:?}"))
}

/// Maximum number of runs: each uses a few hundred bytes of memory.
const MAX_RUNS: usize = 1_000_000;

/// Parses the command line that an option has in one word, split as a shell splits it.
fn split(option: &str, line: &OsStr) -> Result<Command, String> {
    let words = line.to_str().and_then(shlex::split).ok_or_else(|| {
        format!(
            "{option} {line:?}: cannot be split into words: a quote is open, or it is not UTF-8"
        )
    })?;
    Command::new(words.into_iter().map(OsString::from).collect())
        .map_err(|error| format!("{option} {line:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(words: &[&str]) -> Result<Args, String> {
        match parse(words.iter().map(OsString::from).collect())? {
            Parsed::Run(args) => Ok(*args),
            Parsed::Show(text) => Err(text),
        }
    }

    #[test]
    fn what_follows_the_command_is_the_commands() {
        let a = args(&["--json", "-n3", "ls", "-l", "--json", "--", "x"]).unwrap();
        assert_eq!((a.format, a.runs, a.warmup), (Format::Json, 3, 1));
        assert_eq!(a.commands[0].words(), ["ls", "-l", "--json", "--", "x"]);
        let a = args(&["--", "-odd", "-n"]).unwrap();
        assert_eq!((a.commands[0].words(), a.runs), (vec!["-odd".into(), "-n".into()], 1));
    }

    #[test]
    fn defaults_follow_from_what_is_asked() {
        let a = args(&["--vs", "sh -c 'a  b'", "true"]).unwrap();
        assert_eq!((a.runs, a.warmup), (10, 1));
        assert_eq!(a.commands[1].words(), ["sh", "-c", "a  b"]);
        let a = args(&["-n", "5", "--cold", "f", "--cold=g", "true"]).unwrap();
        assert_eq!((a.runs, a.warmup, a.cold.len()), (5, 0, 2));
        assert_eq!(args(&["-w2", "--drop-caches", "true"]).unwrap().warmup, 2);
    }

    #[test]
    fn a_report_has_one_form_and_others_have_files() {
        let a =
            args(&["--export", "md", "--export=csv=a=b", "--export", "json=j", "true"]).unwrap();
        assert_eq!(a.format, Format::Markdown);
        assert_eq!(a.exports, [(Format::Csv, "a=b".into()), (Format::Json, "j".into())]);
        assert!(a.tells_io() && !args(&["true"]).unwrap().tells_io());
        assert_eq!(args(&["--json", "--export", "json", "true"]).unwrap().format, Format::Json);
        assert!(args(&["-a", "--export", "csv=f", "true"]).unwrap().append);
    }

    #[test]
    fn nonsense_is_refused_in_words() {
        for (words, part) in [
            (&[][..], "no command"),
            (&["-n", "0", "true"], "from 1 to"),
            (&["-n", "1.5", "true"], "1.5"),
            (&["--vs", "'a", "true"], "quote"),
            (&["--vs", "", "true"], "no program"),
            (&["--prepare", "'a", "true"], "--prepare"),
            (&["-a", "true"], "--output"),
            (&["--frob", "true"], "--frob"),
            (&["-o"], "-o"),
            (&["--export", "html", "true"], "markdown, csv or json"),
            (&["--export", "csv=", "true"], "no file"),
            (&["--export", "csv", "--json", "true"], "one form"),
            (&["--export", "csv=x", "-o", "x", "true"], "one file"),
            (&["-a", "--export", "csv", "true"], "FORMAT=FILE"),
        ] {
            let why = args(words).unwrap_err();
            assert!(why.contains(part), "{words:?}: {why}");
        }
    }
}
