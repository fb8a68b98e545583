//! `alight run --engine jax` and `alight bench collective`: which Python is started, with what; what the command makes
//! of whatever the engine's process sends; and what it says where that cannot be. The engine itself is tested from
//! Python (`bindings/python/tests`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::pty::Pty;
use crate::support::{Done, PATIENCE, alight, command, done, ended, kill, script, text, wild};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn run(python: &Path, args: &[&str]) -> Done {
    let mut command = command(&["run", "--engine", "jax"]);
    done(command.args(args).env("ALIGHT_PYTHON", python).output().unwrap())
}

/// An engine in a shell: after `-c PROGRAM`, what asks for it, module, program, advice and the pipe for errors come
/// the two pipes and the model. Orders are its stdin, reports its stdout.
const ENGINE: &str = r#"exec </dev/fd/$8 >/dev/fd/$9
ready() { read -r open; echo '{"ready":{"jax":0.25,"model":0.125}}'; }
"#;

/// The model `wild`, whose token 3 is `a` and 4 a space, and an engine for it.
struct Fake {
    folder: tempfile::TempDir,
    model: String,
    python: PathBuf,
}

impl Fake {
    fn new(does: &str) -> Fake {
        let folder = folder();
        let model = wild::model(folder.path());
        let python = script(&folder.path().join("python"), &format!("{ENGINE}{does}"));
        Fake { folder, model, python }
    }

    /// The command with it.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(&["run", "--engine=jax", &self.model]);
        command.args(args).env("ALIGHT_PYTHON", &self.python).current_dir(self.folder.path());
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Done {
        done(self.command(args).output().unwrap())
    }

    /// What it has left in this file, once that is there.
    fn left(&self, name: &str) -> String {
        let began = Instant::now();
        loop {
            let text = fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
            if text.ends_with('\n') {
                return text;
            }
            assert!(began.elapsed() < PATIENCE, "{name} does not come");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

const AAA: &str = r#"ready
read -r answer
echo "$open" > open; echo "$answer" > answer
echo '{"kept":0}'; echo '{"token":3}'; echo '{"token":4}'; echo '{"token":3}'; echo '"done"'
read -r end"#;

#[test]
fn the_engine_is_told_all_that_it_needs_and_its_tokens_are_the_answer() {
    let fake = Fake::new(AAA);
    let args = ["--tp", "4", "-p", "aa", "-n", "7", "--temperature", "0", "-s", "7", "-c", "33"];
    let more = ["--weights=bf16", "--top-k", "1", "--raw", "--no-compile-cache"];
    let told = fake.run(&[&args[..], &more].concat()).succeeds();
    assert_eq!((&*told.stdout, &*told.stderr), ("a a\n", ""));
    let json = |name: &str| -> Value { serde_json::from_str(&fake.left(name)).unwrap() };
    let options = serde_json::json!({
        "tp": 4, "weights": "bf16", "coordinator": null, "processes": 1, "process": null, "no_cache": true
    });
    assert_eq!(
        json("open"),
        serde_json::json!({"open": {"context": 33, "memory": null, "options": options}})
    );
    let answer = &json("answer")["answer"];
    assert_eq!((&answer["ids"], &answer["stop"]), (&[1, 3, 3].into(), &[2].into()));
    let sampling = &answer["sampling"];
    assert_eq!((&answer["max_tokens"], &sampling["seed"]), (&7.into(), &7.into()));
    assert_eq!((&sampling["temperature"], &sampling["top_k"]), (&0.0.into(), &1.into()));
    // The numbers of the command line, not their neighbours.
    fake.run(&["--raw", "a", "--temp", "0.7", "--min-p", "0.1", "--ignore-eos"]).succeeds();
    let answer = &json("answer")["answer"];
    assert_eq!(answer["stop"], Value::Array(Vec::new()));
    assert_eq!(
        (&answer["sampling"]["temperature"], &answer["sampling"]["min_p"]),
        (&0.7.into(), &0.1.into())
    );
}

#[test]
fn reports_tell_of_the_engine() {
    let fake = Fake::new(AAA);
    let told = fake.run(&["aa", "--raw", "--json", "--seed", "5", "--stats"]).succeeds();
    let line: Value = serde_json::from_str(&told.stdout).unwrap();
    for (key, value) in [
        ("engine", "jax".into()),
        ("tp", 1.into()),
        ("weights", "native".into()),
        ("text", "a a".into()),
        ("tokens", vec![3, 4, 3].into()),
        ("finish", "stop".into()),
        ("prompt_tokens", 3.into()),
        ("generated_tokens", 3.into()),
        ("seed", 5.into()),
        ("phases", Value::Null),
    ] {
        assert_eq!(line[key], value, "{key}");
    }
    let times = &line["timings"];
    assert_eq!((&times["jax_ms"], &times["model_ms"]), (&250.0.into(), &125.0.into()));
    for key in ["open_ms", "prompt_ms", "first_token_ms", "total_ms"] {
        assert!(times[key].as_f64().unwrap() >= 0.0, "{key}");
    }
    for part in ["start ", "jax 250", "prompt  ", "ended by the model; JAX, tp 1, native weights"] {
        assert!(told.stderr.contains(part), "{part}: {}", told.stderr);
    }
    // As many as were asked for; and a full context.
    let finish = |more: &[&str]| {
        let args = [&["aa", "--raw", "--json"], more].concat();
        let line: Value = serde_json::from_str(&fake.run(&args).succeeds().stdout).unwrap();
        line["finish"].as_str().unwrap().to_owned()
    };
    assert_eq!(finish(&["-n", "3"]), "length");
    assert_eq!(finish(&["-c", "5"]), "context");
    fake.run(&["aa", "--raw", "-c", "2"]).fails(1, &["the context has 2 positions", "-c"]);
}

#[test]
fn whatever_the_engine_sends_is_an_answer_or_an_error() {
    let long = "head -c 3000000 /dev/zero | tr '\\0' x";
    let ready = "ready; read -r answer; ";
    for (does, said) in [
        ("read -r open; exit 3", "has ended (exit status: 3)"),
        ("ready; read -r answer; kill -KILL $$", "has ended (signal: 9"),
        (&format!("{ready}printf '{{\"ke'"), "has ended (exit status: 0)"),
        ("echo '{\"error\":\"no GPU\\u001b[2J\"}'; exit 1", "alight: error: no GPU\\u{1b}[2J\n"),
        ("echo Traceback", "sent 'Traceback', which is no message"),
        ("printf '\\377\\n'", "which is no message"),
        ("echo '\"done\"'; cat", "before it was ready"),
        ("echo '{\"ready\":{\"jax\":-1,\"model\":0}}'; cat", "JAX engine: jax: "),
        ("echo '{\"ready\":{}}'; cat", "missing field"),
        (&format!("{ready}echo '{{\"kept\":3}}'; cat"), "Kept(3), which has no meaning here"),
        (&format!("{ready}echo '{{\"token\":3}}'; cat"), "Token(3), which has no meaning here"),
        (&format!("{ready}echo '{{\"kept\":0}}'; echo '{{\"token\":14}}'; cat"), "Token(14)"),
        (&format!("{ready}echo '{{\"kept\":0}}'; echo '{{\"token\":-1}}'; cat"), "no message"),
        (&format!("{ready}echo '{{\"kept\":0}}'; {long}; cat"), "more than 64 KiB in a line"),
        (&format!("{ready}echo '{{\"kept\":0}}'; echo '{{\"kept\":0}}'; cat"), "Kept(0)"),
    ] {
        let fake = Fake::new(does);
        let told = fake.run(&["aa", "--raw", "-n", "4"]);
        told.fails(1, &[said]);
        assert!(told.stderr.len() < 400, "{does}: {}", told.stderr);
    }
    // More tokens than were asked for, after some that were not wrong.
    let fake = Fake::new(&format!(
        "{ready}echo '{{\"kept\":0}}'; while :; do echo '{{\"token\":3}}'; done"
    ));
    for most in [&["-n", "4"][..], &["-c", "6"]] {
        let told = fake.run(&[&["aa", "--raw"][..], most].concat());
        assert_eq!((told.status, &*told.stdout), (Some(1), "aaaa"), "{}", told.stderr);
        assert!(told.stderr.contains("Token(3), which has no meaning here"), "{}", told.stderr);
    }
}

#[test]
fn what_is_wrong_with_the_file_or_the_prompt_is_told_without_the_engine() {
    let fake = Fake::new("cat");
    run(&fake.python, &["/nowhere/m.gguf", "Hi"]).fails(1, &["'/nowhere/m.gguf' does not exist"]);
    fs::write(fake.folder.path().join("text"), "Once upon a time").unwrap();
    run(&fake.python, &[text(&fake.folder.path().join("text")), "Hi"]).fails(1, &["text"]);
    fake.run(&["--raw", "-f", "/nowhere/p.txt"]).fails(1, &["'/nowhere/p.txt' does not exist"]);
    fake.run(&["--raw"]).fails(2, &["there is no prompt"]);
    fake.run(&["--raw", &"a".repeat(100_000)]).fails(1, &["shorten it"]);
}

/// Whatever ends the command: the end of its pipe is all that tells the engine.
#[test]
fn the_engine_ends_with_the_command() {
    let fake = Fake::new("ready; echo begun > begun; cat > orders; echo alone > alone");
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        for name in ["begun", "alone"] {
            let _ = fs::remove_file(fake.folder.path().join(name));
        }
        let mut child = fake.command(&["a", "--raw"]).stderr(Stdio::piped()).spawn().unwrap();
        fake.left("begun");
        kill(&child, signal);
        ended(&mut child);
        fake.left("alone");
    }
}

#[test]
fn ctrl_c_is_the_commands_alone() {
    // The engine would be ended by the signal, if it were not ignored there.
    let endless = "kill -INT $$; ready; read -r answer; echo '{\"kept\":0}'
        while :; do echo '{\"token\":3}'; done";
    let fake = Fake::new(endless);
    let args = ["a", "--raw", "-c", "1000000000", "--stats"];
    let (mut out, writer) = std::io::pipe().unwrap();
    let mut command = fake.command(&args);
    let mut child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    std::io::Read::read_exact(&mut out, &mut [0; 1]).unwrap();
    kill(&child, libc::SIGINT);
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut out, &mut rest).unwrap();
    let status = ended(&mut child);
    let said = done(child.wait_with_output().unwrap()).stderr;
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(rest.ends_with('\n') && said.contains("ended by Ctrl-C"), "{said}");
}

#[test]
fn a_chat_goes_on_after_an_answer_that_was_stopped() {
    let does = r#"ready; read -r answer; echo '{"kept":0}'
        ( while :; do echo '{"token":3}'; done ) & endless=$!
        read -r stop; kill $endless; wait $endless; echo '"done"'
        read -r answer; echo "$stop $answer" > again
        echo '{"kept":2}'; echo '{"token":5}'; echo '{"token":3}'; echo '"done"'; cat"#;
    let fake = Fake::new(does);
    let mut chat = Pty::start(fake.command(&["-c", "1000000000", "--stats"]), None);
    chat.expect(
        "wild\r\nCtrl-C stops an answer, Ctrl-D leaves, /help tells more. Each line is continued",
    );
    chat.expect("on its own.");
    chat.expect("> ");
    chat.send(b"aa\r");
    chat.expect("aaaaaa");
    chat.send(b"\x03");
    chat.expect("ended by Ctrl-C");
    chat.expect("> ");
    chat.send(b"aa a\r");
    // Control characters are shown, and what is in the cache is not computed again.
    chat.expect("\\u{1b}[2Ja");
    chat.expect("prompt       3 tokens");
    chat.expect("> ");
    assert!(fake.left("again").starts_with("\"stop\" {\"answer\":{\"ids\":[1,3,3,4,3]"));
    chat.send(b"\x04");
    assert!(chat.end().success());
}

#[test]
fn what_the_engine_does_not_have_is_refused_by_name() {
    let python = Path::new("/nothing");
    for (args, name) in [
        (&["--threads", "2"][..], "--threads"),
        (&["--repeat-penalty", "1.1"], "--repeat-penalty"),
        (&["--repeat-last-n", "1"], "--repeat-last-n"),
        (&["--load=read"], "--load"),
        (&["--repack=on"], "--repack"),
        (&["--reclaim=off"], "--reclaim"),
        (&["--lock"], "--lock"),
        (&["--explain-load"], "--explain-load"),
        (&["--isa", "scalar"], "--isa"),
    ] {
        let refused = run(python, &[&["m.gguf", "Hi"], args].concat());
        refused.fails(2, &[&format!("{name} is not an option of the JAX engine\n")]);
    }
    for option in ["--tp=2", "--weights=f32", "--no-compile-cache", "--process=0", "--processes=2"]
    {
        let name = option.split('=').next().unwrap();
        let refused = alight(&["run", "m.gguf", "Hi", option]);
        refused.fails(2, &[&format!("{name} needs --engine jax\n")]);
    }
    run(python, &["m.gguf", "--tp", "0"]).fails_as_usage("from 1 to 64");
    let together = ["--coordinator", "localhost:1", "--processes", "2", "--process"];
    for (more, said) in [
        (&["--processes", "2"][..], "needs --coordinator, --processes and --process"),
        (&[&together[..], &["2"]].concat(), "--process is 2, expected 0 to 1: there are 2"),
        (&[&together[..], &["0", "--tp=3"]].concat(), "a multiple of the 2 processes"),
        (&[&together[..], &["0", "--tp=2"]].concat(), "needs a --seed"),
        (&["--coordinator=:1", "--processes=2", "--process=0", "--tp=2"], "a host and a port"),
    ] {
        run(python, &[&["m.gguf", "Hi"], more].concat()).fails(2, &[said]);
    }
}

#[test]
fn without_the_package_it_says_what_to_do() {
    let advice = ["pip install target/wheels/alight-*.whl jax", "ALIGHT_PYTHON"];
    let nothing = run(Path::new("/nowhere/python"), &["m.gguf", "Hi"]);
    nothing.fails(1, &[&advice[..], &["'/nowhere/python'", "no such program"]].concat());
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: there is no python3");
        return;
    }
    let folder = folder();
    let model = wild::model(folder.path());
    // A Python in which nothing is installed.
    let bare = script(&folder.path().join("python"), r#"exec python3 -I -S "$@""#);
    run(&bare, &[&model, "Hi", "--raw"]).fails(1, &[&advice[..], &["--engine jax: "]].concat());
}

/// What a program prints, if it can be run.
fn printed(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

#[test]
fn nothing_in_the_current_folder_is_executed() {
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
    let model = wild::model(folder.path());
    // In place of the package; itself a user of the standard library, and a parent of other Pythons.
    for (package, text) in [
        ("", ""),
        ("jax", ""),
        (
            "jax/_engine",
            "def main(arguments, prog):\n    import importlib.util, json, os, subprocess, sys\n    \
             child = [sys.executable, '-c', 'import importlib, json']\n    \
             subprocess.run(child, check=True)\n    \
             error = {'error': 'ours ' + arguments[-1]}\n    \
             os.write(int(arguments[1]), json.dumps(error).encode() + b'\\n')\n",
        ),
    ] {
        let place = folder.path().join("site/alight").join(package);
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("__init__.py"), text).unwrap();
    }
    let site = folder.path().join("site");
    let path = std::env::var("PATH").unwrap();
    for before in ["", ":", ".:", "sub::./sub:"] {
        let mut command = command(&["run", &model, "Hi", "--raw", "--engine", "jax"]);
        let searched = format!("{before}{}", site.display());
        command.current_dir(&hostile).env("PYTHONPATH", searched).env_remove("ALIGHT_PYTHON");
        command.env("PATH", format!("{before}{path}")).env("PYTHONPYCACHEPREFIX", ".");
        let told = done(command.output().unwrap());
        let executed = fs::read_to_string(&marker).unwrap_or_default();
        assert_eq!(executed, "", "PYTHONPATH beginning with '{before}'");
        told.fails(1, &[&format!("alight: error: ours {model}\n")]);
    }
    // The trap would have worked.
    let _ = Command::new(&real).args(["-c", "import json"]).current_dir(&hostile).output();
    assert!(fs::read_to_string(&marker).unwrap().contains("json"));
}

#[test]
fn a_python_that_is_too_old_is_told_so() {
    let older = ["python3.10", "python3.9", "python3.8", "python3.7", "python3.6", "python2.7"];
    let found: Vec<String> = older
        .iter()
        .filter_map(|name| printed(name, &["-c", "import sys; print(sys.executable)"]))
        .collect();
    if found.is_empty() {
        eprintln!("skipped: there is no Python before 3.11 here");
    }
    let folder = folder();
    let model = wild::model(folder.path());
    for python in found {
        let told = run(Path::new(&python), &[&model, "Hi", "--raw"]);
        told.fails(1, &["--engine jax: ", "3.11 is the oldest"]);
    }
}

#[test]
fn the_virtual_environment_around_the_command_comes_before_the_path() {
    let folder = folder();
    let bin = folder.path().join("venv/bin");
    let model = wild::model(folder.path());
    let says = |which: &str| format!("{ENGINE}echo '{{\"error\":\"{which}\"}}'");
    script(&bin.join("python3"), &says("beside"));
    script(&folder.path().join("path/python3"), &says("path"));
    let ours = bin.join("alight");
    fs::hard_link(env!("CARGO_BIN_EXE_alight"), &ours).unwrap();
    let ask = |named: &str| {
        let mut command = Command::new(&ours);
        command.args(["run", &model, "Hi", "--raw", "--engine", "jax"]);
        command.env("PATH", folder.path().join("path")).env("ALIGHT_PYTHON", named);
        done(command.output().unwrap()).stderr
    };
    // Not yet a virtual environment.
    assert_eq!(ask(""), "alight: error: path\n");
    fs::write(folder.path().join("venv/pyvenv.cfg"), "").unwrap();
    assert_eq!(ask(""), "alight: error: beside\n");
    let named = script(&folder.path().join("named"), &says("named"));
    assert_eq!(ask(named.to_str().unwrap()), "alight: error: named\n");
}

/// Shows what comes after `-c PROGRAM`, who asks for what, its name, the advice, and the pipe for errors.
const SHOW: &str = r#"test "$1" = -c && shift 7 && printf '%s\n' "$@""#;

#[test]
fn the_benchmark_of_the_collective_is_pythons() {
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
    ask(&["--devices", "1"], &python).fails_as_usage("1 is not in 2 to 64");
    ask(&[], Path::new("/nowhere/python"))
        .fails(1, &["bench collective", "pip install target/wheels/alight-*.whl jax"]);
}
