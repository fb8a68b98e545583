//! `alight bench load` packs the model for itself, and leaves nothing of that, whatever ends it.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, alight, command, ended, kill, wild};

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Many repetitions of a small model: it takes far longer than a test waits for anything.
fn begun(folder: &Path) -> Child {
    let model = wild::model(folder);
    let args = ["bench", "load", &model, "-r", "100000", "-p", "a", "-t", "1", "--load", "mmap"];
    let mut command = command(&args);
    // Where a second folder would be made.
    command.env("TMPDIR", folder).args(["--state", "warm"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// True if it has started a child that opens the packed file.
fn measures(parent: &Child) -> bool {
    let packed = |process: fs::DirEntry| {
        let arguments = fs::read_to_string(process.path().join("cmdline")).ok()?;
        let stat = fs::read_to_string(process.path().join("stat")).ok()?;
        // "pid (name) state parent …"
        let above: u32 = stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()?;
        let opens = arguments.contains("\0run\0") || arguments.contains("resident");
        (above == parent.id() && opens).then_some(())
    };
    fs::read_dir("/proc").unwrap().flatten().any(|process| packed(process).is_some())
}

#[test]
fn nothing_of_the_packed_file_is_left_whatever_ends_it() {
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGKILL, libc::SIGINT] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut child = begun(folder.path());
        let patience = Instant::now();
        while !measures(&child) {
            assert!(patience.elapsed() < PATIENCE, "it does not begin to measure");
            assert!(child.try_wait().unwrap().is_none(), "it does not go on");
            std::thread::sleep(Duration::from_millis(1));
        }
        kill(&child, signal);
        ended(&mut child);
        assert_eq!(names(folder.path()), ["wild.gguf"], "signal {signal}");
    }
}

/// At any moment, whichever it hits.
#[test]
fn a_kill_at_any_moment_leaves_nothing() {
    for milliseconds in [0, 1, 2, 4, 8, 16, 32, 64, 128, 256] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut child = begun(folder.path());
        std::thread::sleep(Duration::from_millis(milliseconds));
        kill(&child, libc::SIGKILL);
        ended(&mut child);
        assert_eq!(names(folder.path()), ["wild.gguf"], "after {milliseconds} ms");
    }
}

#[test]
fn what_it_packs_is_measured() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let model = wild::model(folder.path());
    let args = ["bench", "load", &model, "-r", "1", "-p", "a", "-t", "1", "--load", "mmap,direct"];
    let out =
        alight(&[&args[..], &["--state", "cold,warm,resident", "--json"]].concat()).succeeds();
    assert!(!out.stderr.contains("without a packed file"), "{}", out.stderr);
    let got: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    assert!(got["packed_bytes"].as_u64().unwrap() > 0);
    let cells = got["cells"].as_array().unwrap();
    let packed = |cell: &&serde_json::Value| cell["variant"] == "packed";
    assert_eq!(cells.iter().filter(packed).count(), 3 * 2, "{got}");
    assert_eq!(got["same_token"], true, "{got}");
    assert_eq!(names(folder.path()), ["wild.gguf"]);
}
