//! `alight inspect --watch`: what it tells, that it brings nothing into memory, and that the terminal is left as it was.

#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use alight_formats::GgmlType;
use alight_formats::gguf::write::Builder;
use serde_json::Value;

use crate::support::pty::Pty;
use crate::support::{PATIENCE, alight, command, ended, kill};

/// A model of three layers on a disk. The page cache of a filesystem in memory cannot be emptied.
fn model(folder: &Path) -> String {
    let mut b = Builder::new();
    b.str("general.architecture", "llama");
    b.tensor("token_embd.weight", GgmlType::F32, &[1 << 18]).unwrap();
    for layer in 0..3 {
        b.tensor(&format!("blk.{layer}.ffn_up.weight"), GgmlType::F32, &[1 << 18]).unwrap();
        b.tensor(&format!("blk.{layer}.attn_norm.weight"), GgmlType::F32, &[8]).unwrap();
    }
    b.tensor("output.weight", GgmlType::F32, &[1 << 18]).unwrap();
    let path = folder.join("watched.gguf");
    fs::write(&path, b.file(|_, _| ())).unwrap();
    path.to_str().unwrap().to_owned()
}

fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// The program, and what it writes.
fn watching(args: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let mut child = command(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    (child, lines)
}

fn line(lines: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    assert!(lines.read_line(&mut line).unwrap() > 0, "it has ended");
    line
}

#[test]
fn watching_brings_nothing_into_memory_and_tells_what_others_bring() {
    let folder = on_disk();
    let path = model(folder.path());
    let file = File::open(&path).unwrap();
    let len = file.metadata().unwrap().len();
    if !alight_pages::evict(&file).is_ok_and(|left| left.is_proven_cold()) {
        eprintln!("skipped: {path} stays in the page cache, or nobody says so");
        return;
    }
    let (mut child, mut lines) = watching(&["inspect", &path, "--watch=0.05", "--json"]);
    for _ in 0..5 {
        let look: Value = serde_json::from_str(&line(&mut lines)).unwrap();
        assert_eq!((&look["bytes"], &look["cached_bytes"]), (&Value::from(len), &Value::from(0)));
        let parts = look["parts"].as_array().unwrap();
        let names: Vec<_> = parts.iter().map(|part| part["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["header", "embedding", "layer 0", "layer 1", "layer 2", "output"]);
        assert_eq!(
            (&parts[3]["part"], &parts[3]["layer"]),
            (&Value::from("layer"), &Value::from(1))
        );
        let bytes: u64 = parts.iter().map(|part| part["bytes"].as_u64().unwrap()).sum();
        assert!(bytes <= len && bytes + 4096 > len, "all but padding: {look}");
        assert!(parts.iter().all(|part| part["cached_bytes"] == 0), "{look}");
    }
    assert!(alight_pages::residency(&file, 0..len).unwrap().is_proven_cold(), "it is cached now");
    // Somebody reads it; the system may take some of it away again, so until it is seen.
    let until = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < until, "what is read is not seen");
        fs::read(&path).unwrap();
        let look: Value = serde_json::from_str(&line(&mut lines)).unwrap();
        if look["parts"][3]["cached_bytes"].as_u64().unwrap() > 0 {
            break;
        }
    }
    // A reader that leaves ends it.
    drop(lines);
    assert!(ended(&mut child).success());
}

#[test]
fn without_a_terminal_there_is_a_line_for_each_look() {
    let folder = on_disk();
    let path = model(folder.path());
    let (mut child, mut lines) = watching(&["inspect", &path, "--watch=0.05"]);
    for _ in 0..3 {
        let line = line(&mut lines);
        let (time, rest) = line.trim_start().split_once(" s  [").unwrap();
        let (picture, told) = rest.split_once("]  ").unwrap();
        assert!(time.parse::<f64>().unwrap() >= 0.0, "{line}");
        assert!(picture.chars().count() == 6 && told.contains(" of 5.24 MB cached ("), "{line}");
        assert!(!line.contains('\x1b'), "{line:?}");
    }
    drop(lines);
    assert!(ended(&mut child).success());
}

#[test]
fn what_cannot_be_watched_is_refused() {
    let folder = on_disk();
    let path = model(folder.path());
    alight(&["inspect", "/nowhere.gguf", "--watch"]).fails(1, &["/nowhere.gguf"]);
    alight(&["inspect", &path, &path, "--watch"]).fails(2, &["--watch takes one model"]);
    alight(&["inspect", &path, "--watch=0"]).fails_as_usage("from 0.05");
    alight(&["inspect", &path, "--watch", "--tensors"]).fails_as_usage("--tensors");
}

fn on_terminal(path: &str) -> Pty {
    let mut terminal = Pty::start(command(&["inspect", path, "--watch=0.05"]), None);
    terminal.expect("\x1b[?1049h\x1b[?25l");
    terminal.expect("MB cached (");
    terminal.expect("layer 1");
    terminal.expect("q or Ctrl-C leaves");
    terminal
}

/// The screen as it was, with a cursor; lines read as a shell has it.
fn assert_left(terminal: &Pty, how: &str) {
    let said = terminal.text();
    assert!(said.rfind("\x1b[?1049l") > said.rfind("\x1b[?1049h"), "{how}: {said:?}");
    assert!(said.rfind("\x1b[?25h") > said.rfind("\x1b[?25l"), "{how}: {said:?}");
    assert!(terminal.is_ordinary(), "{how}: {said:?}");
}

#[test]
fn whatever_ends_it_leaves_the_terminal_as_it_was() {
    let folder = on_disk();
    let path = model(folder.path());
    for (key, status) in [(b"q", 0), (b"\x03", 130)] {
        let mut terminal = on_terminal(&path);
        terminal.send(key);
        assert_eq!(terminal.end().code(), Some(status), "{}", terminal.text());
        assert_left(&terminal, "key");
        let said = terminal.text();
        let last = said.rsplit("\x1b[?1049l").next().unwrap();
        assert!(last.contains(" of 5.24 MB cached (") && last.contains(") after "), "{last:?}");
        assert_eq!(last.lines().count(), 1, "{last:?}");
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        let mut terminal = on_terminal(&path);
        kill(&terminal.child, signal);
        let status = terminal.end();
        match signal {
            libc::SIGINT => assert_eq!(status.code(), Some(130)),
            _ => assert_eq!(status.signal(), Some(signal)),
        }
        assert_left(&terminal, "signal");
    }
    // A file that is cut meanwhile is told after the picture.
    let mut terminal = on_terminal(&path);
    File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
    assert_eq!(terminal.end().code(), Some(1), "{}", terminal.text());
    assert_left(&terminal, "cut");
    assert!(terminal.text().rsplit("\x1b[?1049l").next().unwrap().contains("watched.gguf"));
}

#[test]
fn it_follows_the_terminals_size_and_stops_and_goes_on() {
    let folder = on_disk();
    let path = model(folder.path());
    let mut terminal = on_terminal(&path);
    terminal.resize(20);
    // The path is cut, and parts have no bars any more.
    terminal.expect("\x1b[H…");
    terminal.expect("watched.gguf");
    terminal.send(b"\x1a");
    terminal.expect("\x1b[?1049l");
    let stat = || fs::read_to_string(format!("/proc/{}/stat", terminal.child.id())).unwrap();
    let until = Instant::now() + PATIENCE;
    while !stat().rsplit(')').next().unwrap().trim().starts_with('T') {
        assert!(Instant::now() < until, "it does not stop");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_left(&terminal, "stopped");
    kill(&terminal.child, libc::SIGCONT);
    terminal.expect("\x1b[?1049h");
    terminal.expect("watched.gguf");
    terminal.send(b"q");
    assert!(terminal.end().success(), "{}", terminal.text());
    assert_left(&terminal, "continued");
}
