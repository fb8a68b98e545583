//! Arguments.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use lexopt::prelude::*;
use rusage::Command;

/// What `--help` says.
const HELP: &str = "\
Runs a command and says what it cost, on stderr.

Usage: rusage [OPTIONS] [--] COMMAND [ARG...]

Options:
      --json            Report one line of JSON
  -o, --output FILE     Report to FILE instead of stderr. What is in it stays until there is a report
  -a, --append          Add to FILE instead of replacing it
  -n, --runs N          Run N times and report medians and spread [default: 1; 10 with --vs]
  -w, --warmup N        Run N times before, not counted [default: 1 if -n is more than 1; 0 from cold]
      --vs 'COMMAND'    Compare with this command line, run in turns with the first; may be repeated.
                        It is split into words as a shell would, but not run by one
      --ignore-failure  Go on after a run that fails (otherwise it is the last one)
      --cold FILE       Take FILE (or all files in this folder) out of the page cache before each run,
                        and prove it; may be repeated
      --drop-caches     Drop the page cache of the whole machine before each run (needs root)
      --tree            Report the peak memory of all processes of the command together, daemons among
                        them, and how many it leaves running
      --counters        Report the processor's own counters, where the kernel offers them
  -h, --help            This text
  -V, --version         The version

Exit status: that of the command, or death by the signal that killed it; 127 if it was not found, 126 if
it could not be executed, 125 if rusage itself failed before it was run. A report that cannot be written
is told on stderr and changes no status. The command's standard streams are its own.

The kernel's share of processor time is sampled, and means little in short runs. The size of a command
is that of its largest single process; see --tree. I/O is what had to be read from storage or will have
to be written to it.
";

/// What was asked for.
#[derive(Debug)]
pub struct Args {
    pub json: bool,
    pub output: Option<PathBuf>,
    pub append: bool,
    /// At least 1.
    pub runs: usize,
    pub warmup: usize,
    pub ignore_failure: bool,
    pub cold: Vec<PathBuf>,
    pub drop_caches: bool,
    pub tree: bool,
    pub counters: bool,
    /// What is measured, and then what it is compared with.
    pub commands: Vec<Command>,
}

/// What the arguments ask for.
pub enum Parsed {
    /// Text on stdout.
    Show(String),
    /// Something to measure.
    Run(Box<Args>),
}

/// Parses the arguments.
///
/// # Errors
/// They make no sense; in words.
pub fn parse(words: Vec<OsString>) -> Result<Parsed, String> {
    let mut args = Args {
        json: false,
        output: None,
        append: false,
        runs: 1,
        warmup: 0,
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
            Long("json") => args.json = true,
            Short('o') | Long("output") => args.output = Some(value(&mut parser)?.into()),
            Short('a') | Long("append") => args.append = true,
            Short('n') | Long("runs") => runs = Some(number(&mut parser, "-n", 1)?),
            Short('w') | Long("warmup") => warmup = Some(number(&mut parser, "-w", 0)?),
            Long("vs") => others.push(split(&value(&mut parser)?)?),
            Long("ignore-failure") => args.ignore_failure = true,
            Long("cold") => args.cold.push(value(&mut parser)?.into()),
            Long("drop-caches") => args.drop_caches = true,
            Long("tree") => args.tree = true,
            Long("counters") => args.counters = true,
            Value(program) => {
                // All that follows is the command's.
                let rest = parser.raw_args().map_err(|e| e.to_string())?;
                command = Some(std::iter::once(program).chain(rest).collect::<Vec<_>>());
                break;
            }
            other => return Err(other.unexpected().to_string()),
        }
    }
    if args.append && args.output.is_none() {
        return Err("--append needs --output FILE".to_owned());
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

/// What this system cannot do is refused: a run that is not what was asked for is worth nothing.
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
    let number = text.to_str().and_then(|t| t.parse().ok()).filter(|n| (least..=MOST).contains(n));
    number.ok_or_else(|| format!("{name} takes a number from {least} to {MOST}, not {text:?}"))
}

/// Runs at most: each takes a few hundred bytes of memory.
const MOST: usize = 1_000_000;

/// A command line in one word, split as a shell splits it.
fn split(line: &OsStr) -> Result<Command, String> {
    let words = line.to_str().and_then(shlex::split).ok_or_else(|| {
        format!("--vs {line:?}: cannot be split into words: a quote is open, or it is not UTF-8")
    })?;
    Command::new(words.into_iter().map(OsString::from).collect())
        .map_err(|error| format!("--vs {line:?}: {error}"))
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
        assert_eq!((a.json, a.runs, a.warmup), (true, 3, 1));
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
    fn nonsense_is_refused_in_words() {
        for (words, part) in [
            (&[][..], "no command"),
            (&["-n", "0", "true"], "from 1 to"),
            (&["-n", "1.5", "true"], "1.5"),
            (&["--vs", "'a", "true"], "quote"),
            (&["--vs", "", "true"], "no program"),
            (&["-a", "true"], "--output"),
            (&["--frob", "true"], "--frob"),
            (&["-o"], "-o"),
        ] {
            let why = args(words).unwrap_err();
            assert!(why.contains(part), "{words:?}: {why}");
        }
    }
}
