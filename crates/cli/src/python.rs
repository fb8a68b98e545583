//! This process becomes Python's, for what is done in alight's Python package: streams, terminal and exit
//! status are then Python's.
//!
//! The current folder may be anybody's: a folder with a model in it that was fetched from somewhere. So nothing
//! is imported from it, and no program is looked for in it. Virtual environments, the user's own
//! site-packages and absolute entries of `PYTHONPATH` work as they always do.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::{env, io};

use anyhow::anyhow;

use crate::outcome::{Outcome, Stop};

/// Imports a module and calls its `main`; says what to do where that fails. Takes what asks for it, the module,
/// and the name of the program, before the arguments.
///
/// `sys` is part of the interpreter. All other imports come after the current folder, which is the first entry
/// of the path where [`SAFE_PATH`] is unknown or the environment is ignored, has been removed. An older Python
/// has to be able to read this text as well, up to Python 2: no f-strings. Names of files are shown in one line,
/// as [`terminal_text`](crate::terminal_text) does.
const BOOT: &str = r#"
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
who, module, prog, advice = sys.argv[1:5]
def fail(problem):
    sys.stderr.write("alight: error: %s: %r %s\n%s\n" % (who, sys.executable, problem, advice))
    sys.exit(1)
if sys.version_info < (3, 11):
    fail("is Python %s, and 3.11 is the oldest that will do" % sys.version.split()[0])
import importlib
try:
    main = importlib.import_module(module).main
except ImportError as error:
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(error))
    fail("cannot import %s: %s" % (module, shown))
main(sys.argv[5:], prog=prog)
"#;

/// Set for Python and all that it starts: without it, `-c` and `-m` import from the current folder first. As a
/// variable and not as the option `-P`, since a Python before 3.11 does not know either, and would complain of
/// the option before [`BOOT`] can say what is wrong.
const SAFE_PATH: &str = "PYTHONSAFEPATH";

/// Where Python, and what starts it, look for programs and code. An entry that is empty or relative means the
/// current folder, or something in it.
const SEARCHED: [&str; 5] =
    ["PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX"];

/// What to do where it cannot be found. The package is not published: a package index has another one, if any.
const ADVICE: &str = "It is in alight's Python package, which `make python` builds: pip install \
     target/wheels/alight-*.whl jax, or name the Python that has it in ALIGHT_PYTHON";

/// Becomes the `main` of `module`, which calls itself `program`; `who` asks for it. Returns only what
/// prevented that.
pub fn exec(module: &str, program: &str, who: &str, arguments: &[OsString]) -> Outcome {
    let (python, whence) = python();
    let mut command = std::process::Command::new(&python);
    command.env(SAFE_PATH, "1");
    for name in SEARCHED {
        let Some(given) = env::var_os(name) else { continue };
        match absolute(&given) {
            Some(kept) => command.env(name, kept),
            None => command.env_remove(name),
        };
    }
    let error = command.args(["-c", BOOT, who, module, program, ADVICE]).args(arguments).exec();
    let what = match error.kind() {
        io::ErrorKind::NotFound => "there is no such program".to_owned(),
        _ => error.to_string(),
    };
    Err(Stop::Failed(anyhow!(
        "{who}: cannot run '{}' ({whence}): {what}. {ADVICE}",
        python.display()
    )))
}

/// The interpreter, and why this one.
fn python() -> (PathBuf, &'static str) {
    if let Some(named) = env::var_os("ALIGHT_PYTHON").filter(|value| !value.is_empty()) {
        return (named.into(), "named in ALIGHT_PYTHON");
    }
    let beside = env::current_exe().ok().and_then(|exe| in_environment(exe.parent()?));
    match beside {
        Some(python) => (python, "of the virtual environment that this command is in"),
        None => ("python3".into(), "on the PATH"),
    }
}

/// The interpreter in the folder of programs of a virtual environment.
fn in_environment(programs: &Path) -> Option<PathBuf> {
    programs.parent().filter(|folder| folder.join("pyvenv.cfg").is_file())?;
    ["python3", "python"].iter().map(|name| programs.join(name)).find(|path| path.exists())
}

/// The absolute entries of a list of folders; `None` if there are none.
fn absolute(folders: &OsStr) -> Option<OsString> {
    let kept = env::split_paths(folders).filter(|folder| folder.is_absolute());
    env::join_paths(kept).ok().filter(|kept| !kept.is_empty())
}
