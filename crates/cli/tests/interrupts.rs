//! Ctrl-C at many moments of a command: it ends, with the status of an interrupted one, and says nothing but what it has done.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::wild::{self, Spec};
use crate::support::{alight, command, ended, everything, kill, pty::Pty, smollm2, write};

/// How many of them are tried: all by `make test-all`.
fn moments() -> u32 {
    if everything() { 50 } else { 6 }
}

/// Starts the command once for each moment, and sends SIGINT a little later each time, over `whole`.
fn interrupted(args: &[&str], whole: Duration) {
    let mut waits = Vec::new();
    let moments = moments();
    for moment in 0..moments {
        let mut program = command(args);
        program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = program.spawn().unwrap();
        std::thread::sleep(whole * moment / moments);
        kill(&child, libc::SIGINT);
        let sent = Instant::now();
        let status = ended(&mut child);
        waits.push(sent.elapsed());
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        let is_expected =
            matches!(status.code(), Some(0 | 130)) || status.signal() == Some(libc::SIGINT);
        assert!(is_expected, "{args:?} at {moment}: {status:?} {stderr}");
        assert!(!stderr.contains("error") && !stderr.contains("panicked"), "{args:?}: {stderr}");
    }
    waits.sort();
    eprintln!("{args:?}: median {:?}, most {:?}", waits[waits.len() / 2], waits[waits.len() - 1]);
}

#[test]
fn a_command_ends_at_each_moment() {
    let folder = tempfile::tempdir().unwrap();
    let spec = Spec { embd: 512, ff: 2048, layers: 6, context: 8192, ..Spec::llama() };
    let model = wild::model_of(folder.path(), spec);
    let long = write(folder.path(), "long.txt", "a".repeat(6000).as_bytes());
    let line = format!("\"{}\"\n", "a".repeat(3000));
    let input = write(folder.path(), "in.jsonl", line.repeat(6).as_bytes());
    let out = folder.path().join("out.jsonl").display().to_string();
    let copy = folder.path().join("out.gguf").display().to_string();
    let whole = Duration::from_millis(600);
    interrupted(&["run", &model, "--raw", "-f", &long, "-n", "4000", "--ignore-eos"], whole);
    interrupted(
        &["batch", &model, &input, "-o", &out, "--raw", "-n", "500", "--ignore-eos"],
        whole,
    );
    interrupted(&["quantize", &model, "--type", "q8_0", "-o", &copy, "--force"], whole);
}

#[test]
fn every_command_ends_at_each_moment_and_leaves_no_part_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let spec = Spec { embd: 512, ff: 2048, layers: 6, context: 8192, ..Spec::llama() };
    let model = wild::model_of(folder.path(), spec);
    let at = |name: &str| folder.path().join(name).display().to_string();
    let long = write(folder.path(), "long.txt", "a".repeat(6000).as_bytes());
    let texts = write(folder.path(), "texts.txt", "aaaa\n".repeat(2000).as_bytes());
    let (packed, record, made) = (at("packed.gguf"), at("record.json"), at("made"));
    alight(&["pack", &model, "-o", &packed]).succeeds();
    let answered = alight(&["run", &model, "--raw", "-f", &long, "-n", "8", "--json"]).succeeds();
    std::fs::write(&record, answered.stdout).unwrap();
    let names = || {
        let mut names: Vec<_> =
            folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    for args in [
        &["pack", &model, "-o", &made, "--force"][..],
        &["unpack", &packed, "-o", &made, "--force"],
        &["convert", &model, "-o", &made, "--force"],
        &["quantize", &model, "--type", "q4_k_m", "-o", &made, "--force"],
        &["imatrix", &model, &long, "-o", &made, "--force"],
        &["cp", &model, &made],
        &["embed", &model, &texts, "-o", &made, "--force"],
        &["perplexity", &model, &long],
        &["replay", &record, &model],
        &["tokenize", &model, "-f", &long],
        &["inspect", &model, "--tensors"],
        &["bench", &model, "-p", "512", "-n", "32", "-r", "3"],
        &["bench", "decode", &model],
        &["bench", "load", &model, "-r", "1"],
        &["serve", &model, "--port", "0", "--no-cache"],
    ] {
        interrupted(args, Duration::from_millis(300));
        // What `embed` has written so far is continued by the same command.
        let _ = std::fs::remove_file(&made);
        assert_eq!(names(), before, "{args:?}");
    }
}

/// Puts a file before the next message of a chat.
fn read_file(chat: &mut Pty, path: &str) {
    chat.expect("> ");
    chat.wait_for_editing();
    chat.send(format!("/read {path}\r").as_bytes());
    chat.expect("before the next message)");
    chat.wait_for_editing();
}

#[test]
fn a_prompt_longer_than_the_usual_context_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model_of(folder.path(), Spec { context: 16384, ..Spec::llama() });
    let long = write(folder.path(), "long.txt", "a".repeat(6000).as_bytes());
    let args = ["run", &model, "--raw", "-f", &long, "-n", "4", "--ignore-eos", "--json"];
    let done = alight(&args).succeeds();
    let line: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert!(
        line["prompt_tokens"].as_u64().unwrap() > 6000 && line["generated_tokens"] == 4,
        "{line}"
    );
    // A size that was asked for stays.
    alight(&[&args[..], &["-c", "4096"]].concat()).fails(1, &["4096", "-c"]);

    let mut chat = Pty::start(command(&["run", &model, "--raw", "-n", "4", "--no-history"]), None);
    read_file(&mut chat, &long);
    chat.send(b"aaa\r");
    chat.expect("the context has 10,");
    chat.expect("> ");
    chat.wait_for_editing();
    chat.send(b"\x04");
    assert!(chat.end().success());
}

#[test]
fn the_screen_tells_how_far_a_prompt_is_and_a_chat_goes_on_after_ctrl_c() {
    let Some(model) = smollm2() else { return };
    let folder = tempfile::tempdir().unwrap();
    let long = write(
        folder.path(),
        "long.txt",
        "The harbour is dredged every spring. ".repeat(150).as_bytes(),
    );
    let mut chat =
        Pty::start(command(&["run", &model, "--temp", "0", "-n", "8", "--no-history"]), None);
    chat.resize(80);
    read_file(&mut chat, &long);
    chat.send(b"What is it about?\r");
    chat.expect("reading ");
    chat.expect(" tokens");
    chat.send(b"\x03");
    chat.expect("> ");
    chat.wait_for_editing();
    chat.send(b"/verbose\r");
    chat.wait_for_editing();
    chat.send(b"/regen\r");
    chat.expect("positions are used)");
    chat.wait_for_editing();
    chat.send(b"/set\r");
    chat.expect("repeat-last-n");
    chat.wait_for_editing();
    chat.send(b"\x04");
    assert!(chat.end().success());
}
