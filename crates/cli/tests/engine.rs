//! `alight run --engine jax` and `alight bench collective`: which Python they become, with which arguments, and
//! what they say where that cannot be. What is done there is tested from Python (`bindings/python/tests`).

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use support::{Done, alight, command, done};

/// One test at a time: a program that a child of another test still holds open for writing cannot be run.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A program in place of Python.
fn script(path: &Path, text: &str) -> PathBuf {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_owned()
}

fn run(python: &Path, args: &[&str]) -> Done {
    let mut command = command(&["run", "--engine", "jax"]);
    done(command.args(args).env("ALIGHT_PYTHON", python).output().unwrap())
}

/// Shows what comes after `-c PROGRAM`, who asks for what, its name, and the advice.
const SHOW: &str = r#"test "$1" = -c && shift 6 && printf '%s\n' "$@""#;

#[test]
fn options_are_passed_on_under_their_names() {
    let _alone = alone();
    let folder = folder();
    let python = script(&folder.path().join("python"), SHOW);
    let given = [
        "m.gguf",
        "--tp",
        "4",
        "-p",
        "--what",
        "-n",
        "-1",
        "--temperature",
        "0",
        "-s",
        "7",
        "--json",
        "-c",
        "512",
        "--weights=bf16",
        "--top-k",
        "1",
        "--raw",
        "--ignore-eos",
        "--stats",
    ];
    let shown = run(&python, &given).succeeds();
    let mut lines: Vec<&str> = shown.stdout.lines().collect();
    let positional = lines.split_off(lines.iter().position(|line| *line == "--").unwrap());
    assert_eq!(positional, ["--", "m.gguf"]);
    lines.sort_unstable();
    let mut expected = [
        "--tp=4",
        "--prompt=--what",
        "--predict=-1",
        "--temp=0",
        "--seed=7",
        "--json",
        "--ctx-size=512",
        "--weights=bf16",
        "--top-k=1",
        "--raw",
        "--ignore-eos",
        "--stats",
    ];
    expected.sort_unstable();
    assert_eq!(lines, expected);
    // What was not given is Python's to decide.
    assert_eq!(run(&python, &["m.gguf", "two words"]).succeeds().stdout, "--\nm.gguf\ntwo words\n");
}

#[test]
fn streams_and_status_are_those_of_the_engine() {
    let _alone = alone();
    let folder = folder();
    let python = script(&folder.path().join("python"), "cat; echo said >&2; exit 42");
    let mut child = command(&["run", "--engine=jax", "m.gguf", "-"])
        .env("ALIGHT_PYTHON", &python)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"asked").unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!((&*out.stdout, &*out.stderr), (&b"asked"[..], &b"said\n"[..]));
    assert_eq!(out.status.code(), Some(42));
}

#[test]
fn what_the_engine_does_not_have_is_refused_by_name() {
    let _alone = alone();
    let python = Path::new("/nothing");
    for (args, name) in [
        (&["--threads", "2"][..], "--threads"),
        (&["--repeat-penalty", "1.1"], "--repeat-penalty"),
        (&["--load=read"], "--load"),
        (&["--lock"], "--lock"),
        (&["--isa", "scalar"], "--isa"),
    ] {
        let refused = run(python, &[&["m.gguf", "Hi"], args].concat());
        refused.fails(2, &[&format!("{name} is not an option of the JAX engine\n")]);
    }
    for option in ["--tp=2", "--weights=f32", "--no-cache"] {
        let name = option.split('=').next().unwrap();
        let refused = alight(&["run", "m.gguf", "Hi", option]);
        refused.fails(2, &[&format!("{name} needs --engine jax\n")]);
    }
    run(python, &["m.gguf", "--tp", "0"]).fails_as_usage("from 1 to 64");
}

#[test]
fn without_the_package_it_says_what_to_do() {
    let _alone = alone();
    let advice = ["pip install target/wheels/alight-*.whl jax", "ALIGHT_PYTHON"];
    let nothing = run(Path::new("/nowhere/python"), &["m.gguf", "Hi"]);
    nothing.fails(1, &[&advice[..], &["'/nowhere/python'", "no such program"]].concat());
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: there is no python3");
        return;
    }
    let folder = folder();
    // A Python in which nothing is installed.
    let bare = script(&folder.path().join("python"), r#"exec python3 -I -S "$@""#);
    run(&bare, &["m.gguf", "Hi"]).fails(1, &[&advice[..], &["--engine jax: "]].concat());
}

/// What a program prints, if it can be run.
fn printed(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

#[test]
fn nothing_in_the_current_folder_is_executed() {
    let _alone = alone();
    const REAL: &str = "import sys; print(sys.executable if sys.version_info >= (3, 11) else '')";
    let Some(real) = printed("python3", &["-c", REAL]).filter(|path| !path.is_empty()) else {
        eprintln!("skipped: python3 is not there, or older than 3.11");
        return;
    };
    let folder = folder();
    let (hostile, marker) = (folder.path().join("hostile"), folder.path().join("executed"));
    fs::create_dir_all(hostile.join("sub")).unwrap();
    let trap = format!("open({:?}, 'a').write(__name__ + ' ')\n", marker.to_str().unwrap());
    let names = "import sys; print(*sys.stdlib_module_names)";
    let names = printed(&real, &["-c", names]).unwrap();
    for name in names.split(' ').chain(["alight", "jax", "sitecustomize", "usercustomize"]) {
        for place in [&hostile, &hostile.join("sub")] {
            fs::write(place.join(format!("{name}.py")), &trap).unwrap();
        }
    }
    script(&hostile.join("python3"), &format!("echo python3 >> {}", marker.display()));
    // In place of the package; itself a user of the standard library, and a parent of other Pythons.
    for (package, text) in [
        ("", ""),
        ("jax", ""),
        (
            "jax/_run",
            "def main(arguments, prog):\n    import importlib.util, json, subprocess, sys\n    \
             child = [sys.executable, '-c', 'import importlib, json']\n    \
             subprocess.run(child, check=True)\n    print('ours', arguments[-1])\n",
        ),
    ] {
        let place = folder.path().join("site/alight").join(package);
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("__init__.py"), text).unwrap();
    }
    let site = folder.path().join("site");
    let path = std::env::var("PATH").unwrap();
    for before in ["", ":", ".:", "sub::./sub:"] {
        let mut command = command(&["run", "m.gguf", "--engine", "jax"]);
        let searched = format!("{before}{}", site.display());
        command.current_dir(&hostile).env("PYTHONPATH", searched).env_remove("ALIGHT_PYTHON");
        command.env("PATH", format!("{before}{path}")).env("PYTHONPYCACHEPREFIX", ".");
        let told = done(command.output().unwrap());
        let executed = fs::read_to_string(&marker).unwrap_or_default();
        assert_eq!(executed, "", "PYTHONPATH beginning with '{before}'");
        assert_eq!(told.succeeds().stdout, "ours m.gguf\n");
    }
    // The trap would have worked.
    let _ = Command::new(&real).args(["-c", "import json"]).current_dir(&hostile).output();
    assert!(fs::read_to_string(&marker).unwrap().contains("json"));
}

#[test]
fn a_python_that_is_too_old_is_told_so() {
    let _alone = alone();
    let older = ["python3.10", "python3.9", "python3.8", "python3.7", "python3.6", "python2.7"];
    let found: Vec<String> = older
        .iter()
        .filter_map(|name| printed(name, &["-c", "import sys; print(sys.executable)"]))
        .collect();
    if found.is_empty() {
        eprintln!("skipped: there is no Python before 3.11 here");
    }
    for python in found {
        run(Path::new(&python), &["m.gguf"]).fails(1, &["--engine jax: ", "3.11 is the oldest"]);
    }
}

#[test]
fn the_virtual_environment_around_the_command_comes_before_the_path() {
    let _alone = alone();
    let folder = folder();
    let bin = folder.path().join("venv/bin");
    script(&bin.join("python3"), "echo beside");
    script(&folder.path().join("path/python3"), "echo path");
    let ours = bin.join("alight");
    fs::hard_link(env!("CARGO_BIN_EXE_alight"), &ours).unwrap();
    let ask = |named: &str| {
        let mut command = Command::new(&ours);
        command.args(["run", "m.gguf", "--engine", "jax"]);
        command.env("PATH", folder.path().join("path")).env("ALIGHT_PYTHON", named);
        done(command.output().unwrap()).succeeds().stdout
    };
    // Not yet a virtual environment.
    assert_eq!(ask(""), "path\n");
    fs::write(folder.path().join("venv/pyvenv.cfg"), "").unwrap();
    assert_eq!(ask(""), "beside\n");
    let named = script(&folder.path().join("named"), "echo named");
    assert_eq!(ask(named.to_str().unwrap()), "named\n");
}

#[test]
fn the_benchmark_of_the_collective_is_pythons() {
    let _alone = alone();
    let folder = folder();
    let python = script(&folder.path().join("python"), SHOW);
    let ask = |args: &[&str], python: &Path| {
        let mut command = command(&["bench", "collective"]);
        done(command.args(args).env("ALIGHT_PYTHON", python).output().unwrap())
    };
    assert_eq!(ask(&[], &python).succeeds().stdout, "collective\n");
    let given = ["--rows", "1", "8", "--devices", "2", "--json", "--svg=-p.svg", "--turns", "5"];
    let expected = "collective\n--devices\n2\n--rows\n1\n8\n--turns=5\n--json\n--svg=-p.svg\n";
    assert_eq!(ask(&given, &python).succeeds().stdout, expected);
    ask(&["--devices", "1"], &python).fails_as_usage("1 is not in 2..=64");
    ask(&[], Path::new("/nowhere/python"))
        .fails(1, &["bench collective", "pip install target/wheels/alight-*.whl jax"]);
}
