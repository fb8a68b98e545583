//! Runs alight's Python package: this process becomes Python's, which then has its streams, its terminal and its exit status
//! ([`exec`]), or a Python process works for this one ([`start`]).
//!
//! The current folder may not be trustworthy: it may be a downloaded folder with a model in it. So nothing is imported from it,
//! and no program is searched for in it. Virtual environments, the user's own site-packages and absolute entries of `PYTHONPATH`
//! work as usual.

use std::ffi::{OsStr, OsString};
use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, io};

use anyhow::{Context, anyhow};
use rustix::io::{FdFlags, fcntl_setfd};
use signal_hook::consts::SIGINT;

use crate::outcome::{Outcome, Stop};

/// Imports a module and calls its `main`; prints advice if that fails. Its arguments are the command or option that needs the
/// package, the module, the name of the program, the advice, and the descriptor of a pipe for the error, as a line of JSON
/// (`{"error": …}`), or an empty string if errors go to standard error; then the arguments of `main`.
///
/// `sys` is part of the interpreter. All other imports follow the removal of the current folder, which is the first entry of the
/// path if [`SAFE_PATH`] is unknown or the environment is ignored. An older Python, down to Python 2, must be able to parse this
/// text as well: no f-strings. Names of files are shown in one line, as in [`terminal_text`](crate::terminal_text).
const BOOT: &str = r#"
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
who, module, prog, advice, pipe = sys.argv[1:6]
def fail(problem):
    text = "%s: %r %s" % (who, sys.executable, problem)
    if pipe:
        import json, os
        os.write(int(pipe), (json.dumps({"error": "%s. %s" % (text, advice)}) + "\n").encode())
    else:
        sys.stderr.write("alight: error: %s\n%s\n" % (text, advice))
    sys.exit(1)
if sys.version_info < (3, 11):
    fail("is Python %s, and 3.11 is the oldest that will do" % sys.version.split()[0])
import importlib
try:
    main = importlib.import_module(module).main
except ImportError as error:
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(error))
    fail("cannot import %s: %s" % (module, shown))
main(sys.argv[6:], prog=prog)
"#;

/// Set for Python and all processes that it starts: without it, `-c` and `-m` import from the current folder first. It is a
/// variable and not the option `-P`, since a Python before 3.11 knows neither, and would reject the option before [`BOOT`] can
/// report the version.
const SAFE_PATH: &str = "PYTHONSAFEPATH";

/// The variables with folders in which Python, and the search for it, look for programs and code. An empty or relative entry
/// means the current folder, or a folder in it.
const SEARCHED: [&str; 5] =
    ["PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX"];

/// Advice if the package cannot be found. The package is not published: a package of that name in an index is a different one.
const ADVICE: &str = "It is in alight's Python package, which `make python` builds: pip install \
     target/wheels/alight-*.whl jax, or name the Python that has it in ALIGHT_PYTHON";

/// Names the interpreter. It is not passed on: compiled programs are cached by the settings that they were compiled with, which
/// include variables of this prefix.
const NAMED: &str = "ALIGHT_PYTHON";

/// A call of `main` in `module`, which calls itself `program`, needed by the command or option `who`. `pipe` receives the error
/// if that cannot be called, instead of standard error.
struct Call<'c> {
    module: &'c str,
    program: &'c str,
    who: &'c str,
    pipe: Option<&'c PipeWriter>,
}

impl Call<'_> {
    /// Returns the command of the interpreter, without the arguments of `main`.
    fn command(&self, python: &Path) -> Command {
        let mut command = Command::new(python);
        command.env(SAFE_PATH, "1").env_remove(NAMED);
        for name in SEARCHED {
            let Some(given) = env::var_os(name) else { continue };
            match absolute(&given) {
                Some(kept) => command.env(name, kept),
                None => command.env_remove(name),
            };
        }
        let pipe = self.pipe.map_or(String::new(), |pipe| pipe.as_raw_fd().to_string());
        command.args(["-c", BOOT, self.who, self.module, self.program, ADVICE, &pipe]);
        command
    }

    /// Returns the error for an interpreter that cannot be run.
    fn cannot_run(&self, python: &Path, whence: &str, error: &io::Error) -> Stop {
        let what = match error.kind() {
            io::ErrorKind::NotFound => "there is no such program".to_owned(),
            _ => error.to_string(),
        };
        let (who, python) = (self.who, python.display());
        Stop::Failed(anyhow!("{who}: cannot run '{python}' ({whence}): {what}. {ADVICE}"))
    }
}

/// Becomes the `main` of `module`, which calls itself `program`, needed by the command or option `who`. Returns only if that
/// fails.
pub fn exec(module: &str, program: &str, who: &str, arguments: &[OsString]) -> Outcome {
    let (python, whence) = python();
    let call = Call { module, program, who, pipe: None };
    let error = call.command(&python).args(arguments).exec();
    Err(call.cannot_run(&python, whence, &error))
}

/// A Python process that works for this one.
pub struct Started {
    pub child: Child,
    /// The pipe that it reads.
    pub orders: PipeWriter,
    /// The pipe that it writes: lines of JSON, where `{"error": …}` gives the reason why it could not begin.
    pub reports: PipeReader,
}

/// Starts the `main` of `module`, needed by the command or option `who`, with the descriptors of two pipes, to read from and to
/// write to, and `argument`.
///
/// Standard error is shared with this process, standard input and output are not connected. Ctrl-C, which a terminal sends to
/// both, is for this process to handle.
pub fn start(module: &str, who: &str, argument: &OsStr) -> Outcome<Started> {
    let (python, whence) = python();
    let (for_orders, orders) = io::pipe().context("a pipe to Python")?;
    let (reports, for_reports) = io::pipe().context("a pipe from Python")?;
    // Python's ends stay open across the exec.
    for end in [for_orders.as_fd(), for_reports.as_fd()] {
        fcntl_setfd(end, FdFlags::empty()).map_err(io::Error::from).context("a pipe to Python")?;
    }
    let call = Call { module, program: who, who, pipe: Some(&for_reports) };
    let mut command = call.command(&python);
    for end in [for_orders.as_raw_fd(), for_reports.as_raw_fd()] {
        command.arg(end.to_string());
    }
    command.arg(argument).stdin(Stdio::null()).stdout(Stdio::null());
    rusage::signals::ignored_by(&mut command, SIGINT);
    let child = command.spawn().map_err(|error| call.cannot_run(&python, whence, &error))?;
    Ok(Started { child, orders, reports })
}

/// Returns the interpreter, and the reason for the choice.
fn python() -> (PathBuf, &'static str) {
    if let Some(named) = env::var_os(NAMED).filter(|value| !value.is_empty()) {
        return (named.into(), "named in ALIGHT_PYTHON");
    }
    let beside = env::current_exe().ok().and_then(|exe| in_environment(exe.parent()?));
    match beside {
        Some(python) => (python, "of the virtual environment that this command is in"),
        None => ("python3".into(), "on the PATH"),
    }
}

/// Returns the interpreter in the program folder of a virtual environment.
fn in_environment(programs: &Path) -> Option<PathBuf> {
    programs.parent().filter(|folder| folder.join("pyvenv.cfg").is_file())?;
    ["python3", "python"].iter().map(|name| programs.join(name)).find(|path| path.exists())
}

/// Returns the absolute entries of a list of folders; `None` if there are none.
fn absolute(folders: &OsStr) -> Option<OsString> {
    let kept = env::split_paths(folders).filter(|folder| folder.is_absolute());
    env::join_paths(kept).ok().filter(|kept| !kept.is_empty())
}
