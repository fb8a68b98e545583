//! `alight run --cache` and `alight cache`: the answer is the same, from a file or not, and a file that is of no use is said and ignored.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::pty;
use crate::support::*;

/// A prompt of some hundred tokens.
fn prompt() -> String {
    (0..40).map(|i| format!("Line {i} of a text about trees and rivers. ")).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|e| e == "prompt")).collect()
}

#[test]
fn a_kept_prompt_gives_the_same_answer_and_is_listed() {
    let Some(model) = smollm2() else { return };
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("kept");
    let cache = format!("--cache={}", folder.display());
    let prompt = prompt();
    let args = ["run", &model, &prompt, "--temp", "0.7", "--seed", "5", "-n", "12"];
    let cold = alight(&args).succeeds();
    let with = [&args[..], &[&cache]].concat();
    let first = alight(&with).succeeds();
    assert_eq!((&first.stdout, &first.stderr[..]), (&cold.stdout, ""));
    let second = alight(&[&with[..], &["--json"]].concat()).succeeds();
    let line: Value = serde_json::from_str(&second.stdout).unwrap();
    assert_eq!(format!("{}\n", line["text"].as_str().unwrap()), cold.stdout);
    let [all, reused] = ["prompt_tokens", "reused_tokens"].map(|name| line[name].as_u64().unwrap());
    assert!(all > 300 && reused == all - 1, "{line}");

    let path = folder.to_str().unwrap();
    let listed = alight(&["cache", "list", path]).succeeds().stdout;
    assert!(listed.lines().count() == 1 && listed.contains(" tokens  "), "{listed}");
    let listed = alight(&["cache", "list", path, "--json"]).succeeds().stdout;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed[0]["tokens"], line["prompt_tokens"]);
    let info = alight(&["cache", "info", path]).succeeds().stdout;
    assert!(info.contains("prompts  1") && info.contains(path), "{info}");

    // A byte of a page, then of the header; then half of it.
    let file = files(&folder).remove(0);
    let good = fs::read(&file).unwrap();
    for at in [good.len() - 100, 60] {
        let mut bytes = good.clone();
        bytes[at] ^= 4;
        fs::write(&file, bytes).unwrap();
        // The file is written again afterwards.
        let done = alight(&with).succeeds();
        assert_eq!(done.stdout, cold.stdout);
        assert!(
            done.stderr.contains("is not used") && done.stderr.lines().count() == 1,
            "{}",
            done.stderr
        );
        let done = alight(&with).succeeds();
        assert_eq!((&done.stdout, &done.stderr[..]), (&cold.stdout, ""));
    }
    fs::write(&file, &good[..good.len() / 2]).unwrap();
    let listed = alight(&["cache", "list", path]).succeeds().stdout;
    assert!(listed.contains("of no use: it is damaged"), "{listed}");

    let done = alight(&["cache", "clear", path]).succeeds();
    assert!(done.stderr.contains("removed 1 prompt,") && done.stdout.is_empty());
    assert!(files(&folder).is_empty());
    assert_eq!(alight(&["cache", "list", path]).succeeds().stdout, "");
}

#[test]
fn a_folder_that_is_named_has_to_be_there() {
    for action in ["list", "info", "clear"] {
        alight(&["cache", action, "/nowhere"]).fails(1, &["there is no folder '/nowhere'"]);
    }
    // That of the user need not be.
    let home = tempfile::tempdir().unwrap();
    let mut list = command(&["cache", "list"]);
    list.env("XDG_CACHE_HOME", home.path());
    let output = list.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty() && output.stdout.is_empty());
    let mut list = command(&["cache", "list"]);
    list.env("XDG_CACHE_HOME", home.path());
    let mut terminal = pty::Pty::start(list, None);
    assert!(terminal.end().success());
    assert!(terminal.text().contains("there is no prompt in "), "{}", terminal.text());
}

#[test]
fn a_folder_that_cannot_be_is_a_note_and_the_answer_is_there() {
    let Some(model) = smollm2() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let cache = format!("--cache={}", file.join("below").display());
    let prompt = prompt();
    let done = alight(&["run", &model, &prompt, "-n", "2", &cache]).succeeds();
    assert!(done.stderr.contains("the prompt is not kept") && !done.stdout.is_empty());
    // Files have a limit of bytes: like a full disk.
    let cache = format!("--cache={}", dir.path().join("kept").display());
    let script = "ulimit -f 64; trap '' XFSZ; exec \"$0\" \"$@\"";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_alight"), "run", &model, &prompt, "-n", "2"]);
    let output = shell.arg(&cache).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("the prompt is not kept"), "{said}");
    assert!(files(&dir.path().join("kept")).is_empty());
    alight(&["run", &model, "x", "--engine", "jax", &cache]).fails_as_usage("--cache");
}

#[test]
fn without_a_home_a_folder_has_to_be_named() {
    let Some(model) = smollm2() else { return };
    let mut run = command(&["run", &model, "x", "-n", "1", "--cache"]);
    let output = run.env_remove("HOME").env_remove("XDG_CACHE_HOME").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("XDG_CACHE_HOME"));
    let home = tempfile::tempdir().unwrap();
    let mut run = command(&["run", &model, &prompt(), "-n", "1", "--cache"]);
    let output = run.env("HOME", home.path()).env_remove("XDG_CACHE_HOME").output().unwrap();
    assert!(output.status.success());
    assert_eq!(files(&home.path().join(".cache/alight/prompts")).len(), 1);
}
