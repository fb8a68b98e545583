//! This process becomes Python's, for what is done in alight's Python package: streams, terminal and exit
//! status are then Python's.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::{env, io};

use anyhow::anyhow;

use crate::outcome::{Outcome, Stop};

/// Imports a module and calls its `main`; says what to do where that fails. Takes what asks for it, the module,
/// and the name of the program, before the arguments.
const BOOT: &str = r#"
import importlib, sys
if sys.path[:1] == [""]:
    del sys.path[0]
who, module, prog, advice = sys.argv[1:5]
def fail(problem):
    sys.stderr.write(f"alight: error: {who}: {problem}\n{advice}\n")
    sys.exit(1)
if sys.version_info < (3, 11):
    fail(f"'{sys.executable}' is Python {sys.version.split()[0]}, and 3.11 is the oldest that will do")
try:
    main = importlib.import_module(module).main
except ImportError as error:
    fail(f"'{sys.executable}' cannot import {module}: {error}")
main(sys.argv[5:], prog=prog)
"#;

/// What to do where it cannot be found. The package is not published: a package index has another one, if any.
const ADVICE: &str = "It is in alight's Python package, which `make python` builds: pip install \
     target/wheels/alight-*.whl jax, or name the Python that has it in ALIGHT_PYTHON";

/// Becomes the `main` of `module`, which calls itself `program`; `who` asks for it. Returns only what
/// prevented that.
pub fn exec(module: &str, program: &str, who: &str, arguments: &[OsString]) -> Outcome {
    let (python, whence) = python();
    let mut command = std::process::Command::new(&python);
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
