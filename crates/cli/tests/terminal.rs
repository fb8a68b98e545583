//! What reaches a terminal, and how it is left: nothing that a model or a file made up drives it, and no
//! end of the program leaves it as the line editor had it. Pipes get every byte.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;

use crate::support::pty::Pty;
use crate::support::wild::{self, WILD};
use crate::support::{alight, command, kill, write};

/// An answer of a few hundred tokens, of which each is there.
const WILDLY: [&str; 10] =
    ["--raw", "-p", "aaa", "--ignore-eos", "-n", "300", "--temp", "9", "--seed", "1"];

/// Asserts that nothing in `text` does more than appear.
#[track_caller]
fn is_harmless(text: &str) {
    let bad = |c: char| {
        c.is_control() && c != '\n' && c != '\t'
            || ('\u{2028}'..='\u{202e}').contains(&c)
            || ('\u{2066}'..='\u{206f}').contains(&c)
    };
    assert!(!text.contains(bad), "{text:?}");
}

/// Removes what moves the beginning of a word to the next line.
fn without_wrapping(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let mut out = parts.next().unwrap().to_owned();
    for part in parts {
        let (back, after) = part.split_once('D').unwrap_or(("", part));
        match back.parse::<usize>() {
            Ok(_) => out.push_str(after),
            // That clears the rest of the line.
            Err(_) => out.push_str(part.strip_prefix('K').unwrap_or(part)),
        }
    }
    out
}

#[test]
fn an_answer_drives_no_terminal_and_a_pipe_gets_every_byte() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let args = [&["run", &model][..], &WILDLY].concat();
    let piped = alight(&args).succeeds().stdout;
    for wild in WILD {
        assert!(piped.contains(wild), "{wild:?} is not in the answer: {piped:?}");
    }

    let mut shown = Pty::start(command(&args), None);
    assert!(shown.end().success());
    let text = without_wrapping(&shown.text());
    is_harmless(&text);
    for escape in ["\\u{1b}[2J", "\\u{9b}31m", "\\u{7f}", "\\u{202e}", "\\u{2066}", "\\u{8}", "\\r"]
    {
        assert!(text.contains(escape), "{escape} is not in {text:?}");
    }

    // JSON means the same text, and is harmless wherever it is shown.
    let json = alight(&[&args[..], &["--json"]].concat()).succeeds().stdout;
    is_harmless(&json);
    let line: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(format!("{}\n", line["text"].as_str().unwrap()), piped);
}

#[test]
fn a_chat_shows_answers_that_drive_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let args = ["run", &model, "--ignore-eos", "-n", "300", "--temp", "9", "--seed", "1"];
    let mut program = command(&args);
    program.env("NO_COLOR", "1");
    let mut chat = Pty::start(program, None);
    chat.expect("> ");
    chat.wait_for_editing();
    chat.send(b"aaa\r");
    chat.expect("aaa");
    chat.expect("\n");
    // The answer may have come in one piece with what is before it.
    let before = chat.seen();
    chat.expect("> ");
    let answer = String::from_utf8_lossy(&chat.shown[before..]).into_owned();
    assert!(answer.contains("\\u{1b}[2J") && answer.contains("\\u{202e}"), "{answer:?}");
    for wild in WILD.iter().filter(|wild| **wild != "\r") {
        assert!(!answer.contains(wild), "{wild:?} is in {answer:?}");
    }
    chat.send(b"\x04");
    assert!(chat.end().success());
}

#[test]
fn names_and_arguments_drive_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let name = "a\u{1b}]0;b\u{7}\u{9b}c\u{7f}\u{202e}d\u{2067}.gguf";
    let path = write(folder.path(), name, b"Dear diary");
    let missing = format!("{path}x");
    let model = wild::model(folder.path());
    for args in [
        &["run", &path, "x"][..],
        &["inspect", &path],
        &["tokenize", &path, "x"],
        &["tokenize", &missing, "x"],
        &["run", &missing, "x", "--grammar-file", &missing],
        &["run", &model, "x", "--grammar", "root = \u{202e}\u{9b}2J"],
        &["inspect", &missing, "--json"],
        &["bench", "decode", &missing],
        &["cp", &missing, "/nowhere/x"],
        &["convert", &path, "-o", "/nowhere/x"],
        &["frobnicate\u{1b}[2J\u{202e}"],
        &["run", "m", "x", "--temp", "\u{202e}\u{9b}2J"],
        &["run", "m", "x", "--\u{202e}\u{9b}2J"],
        &["run", "m", "x", "--load", "\u{202e}\u{9b}2J"],
        &["run", "m", "x", "--isa", "\u{202e}\u{9b}2J"],
    ] {
        let done = alight(args);
        assert!(matches!(done.status, Some(1 | 2)), "{args:?}: {}", done.stderr);
        is_harmless(&done.stderr);
        assert!(done.stderr.contains("\\u{202e}"), "{args:?}: {:?}", done.stderr);
        // On a terminal the program's own colours are all that is sent.
        let mut shown = Pty::start(command(args), None);
        shown.end();
        let text = shown.text();
        let own = without_colours(&text);
        is_harmless(&own);
        assert!(own.contains("\\u{202e}"), "{args:?}: {text:?}");
    }
}

/// A name that would begin a line of its own, and colour it.
const BROKEN: &str = "a\nb\u{1b}[31m\tc\r";
/// How it is shown.
const SHOWN: &str = "a\\nb\\u{1b}[31m\\tc\\r";

#[test]
fn a_name_with_a_newline_makes_no_second_line() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let missing = format!("{}/missing {BROKEN}", folder.path().display());
    let no_model = write(folder.path(), BROKEN, "Dear diary");
    let text = write(folder.path(), "text", "a".repeat(64));
    let out = format!("{}/out", folder.path().display());
    for path in [&missing, &no_model] {
        let mut errors = vec![
            vec!["run", path, "x"],
            vec!["inspect", path],
            vec!["convert", path, "-o", &out],
            vec!["pack", path, "-o", &out],
            vec!["unpack", path, "-o", &out],
            vec!["quantize", path, "-o", &out, "--type", "q8_0"],
            vec!["perplexity", path, &text],
            vec!["batch", path, &text],
            vec!["tokenize", path, "x"],
            vec!["bench", "decode", path],
            vec!["bench", "load", path],
        ];
        if path == &missing {
            errors.push(vec!["cp", path, &out]);
            errors.push(vec!["run", &model, "--raw", "-f", path]);
            errors.push(vec!["perplexity", &model, path]);
            errors.push(vec!["tokenize", &model, "-f", path]);
            errors.push(vec!["run", &model, "x", "--json-schema-file", path]);
            errors.push(vec!["batch", &model, path]);
        } else {
            // It is there already.
            errors.push(vec!["pack", &model, "-o", path]);
            errors.push(vec!["quantize", &model, "-o", path, "--type", "q8_0"]);
            errors.push(vec!["bench", "load", &model, "--svg", path]);
        }
        for args in errors {
            let done = alight(&args);
            assert_eq!(done.status, Some(1), "{args:?}: {}", done.stderr);
            assert!(done.stderr.contains(SHOWN), "{args:?}: {:?}", done.stderr);
            let line = done.stderr.strip_suffix('\n').unwrap();
            assert!(line.starts_with("alight: error: "), "{args:?}: {line:?}");
            assert!(!line.contains(char::is_control), "{args:?}: {line:?}");
            assert_eq!(done.stdout, "", "{args:?}");
        }
        // Whatever is wrong with the command line.
        let done = alight(&["run", &model, "x", "--load", path]);
        assert!(done.status == Some(2) && done.stderr.contains(SHOWN), "{}", done.stderr);
        is_harmless(&done.stderr);
    }
}

#[test]
fn what_is_said_of_a_file_whose_name_has_a_newline_keeps_to_its_lines() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let at = |name: &str| format!("{}/{name}{BROKEN}", folder.path().display());
    let (named, packed) = (at("1"), at("2"));
    for args in [
        &["cp", "-v", &model, &named][..],
        &["cp", "-nv", &model, &named],
        &["pack", &named, "-o", &packed],
        &["unpack", &packed, "-o", &at("3")],
        &["quantize", &named, "-o", &at("4"), "--type", "f16"],
        &["convert", &named, "-o", &at("5")],
        &["run", &named, "--raw", "a", "-n", "1", "--explain-load", "--stats"],
        &["inspect", &named],
    ] {
        let done = alight(args).succeeds();
        // (An answer gets to a pipe as it is.)
        let report = if args[0] == "run" { "" } else { &done.stdout };
        let said = format!("{}{report}", done.stderr);
        assert!(said.contains(SHOWN), "{args:?}: {said:?}");
        assert!(!said.lines().any(|line| line.starts_with("b\\u{1b}")), "{args:?}: {said:?}");
        is_harmless(&said);
    }
}

/// The text without the sequences that set colours, and without what clears a line of progress.
fn without_colours(text: &str) -> String {
    let mut out = String::new();
    let mut parts = text.split("\u{1b}[");
    out += parts.next().unwrap_or_default();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_digit() && c != ';');
        match end.map(|end| part.split_at(end)) {
            Some((_, rest)) if rest.starts_with(['m', 'K']) => out += &rest[1..],
            _ => out += &format!("\u{1b}[{part}"),
        }
    }
    out.replace("\r", "")
}

#[test]
fn json_of_a_file_drives_nothing_and_says_all() {
    let folder = tempfile::tempdir().unwrap();
    let mut builder = alight_formats::gguf::write::Builder::new();
    // A tensor's name holds no zero byte.
    let wild = WILD.concat().replace('\0', "");
    builder.str("general.architecture", &wild).str(&format!("k{}", &wild[..3]), &wild);
    builder.tensor(&format!("t{}", &wild[3..]), alight_formats::GgmlType::F32, &[4]).unwrap();
    let path = write(folder.path(), "w\u{9b}\u{202e}.gguf", builder.file(|_, _| ()));
    let json = alight(&["inspect", &path, "--json"]).succeeds().stdout;
    is_harmless(&json);
    let got: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(got["architecture"], wild);
    assert_eq!(got["files"][0]["path"], path);
    assert_eq!(got["tensors"][0]["name"], format!("t{}", &wild[3..]));
    is_harmless(&alight(&["inspect", &path, "--tensors"]).succeeds().stdout);
    // So does a copy's.
    let to = folder.path().join("to");
    let json = alight(&["cp", "--json", &path, to.to_str().unwrap()]).succeeds().stdout;
    is_harmless(&json);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["from"], path);
}

#[test]
fn a_file_whose_name_is_no_text_is_told_of_nevertheless() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let path = folder.path().join(OsStr::from_bytes(b"m\xff.gguf"));
    std::fs::rename(model, &path).unwrap();
    let text = write(folder.path(), "text", "a".repeat(64));
    let path = path.as_os_str();
    let o = OsStr::new;
    for args in [
        &[o("inspect"), path][..],
        &[o("run"), path, o("--raw"), o("a"), o("-n"), o("2")],
        &[o("perplexity"), path, o(&text), o("-c"), o("8")],
        &[o("bench"), o("decode"), path, o("-n"), o("2"), o("-r"), o("1")],
    ] {
        let json = alight(&[args, &[o("--json")]].concat()).succeeds().stdout;
        let line: serde_json::Value = serde_json::from_str(&json).unwrap();
        let named = line.get("model").unwrap_or(&line["files"][0]["path"]).as_str().unwrap();
        assert!(named.ends_with("/m\u{fffd}.gguf"), "{args:?}: {named}");
    }
}

#[test]
fn whatever_ends_a_chat_leaves_the_terminal_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    for (signal, code) in [
        (libc::SIGTERM, None),
        (libc::SIGHUP, None),
        (libc::SIGQUIT, None),
        (libc::SIGINT, Some(130)),
    ] {
        let mut chat = Pty::start(command(&["run", &model]), None);
        chat.expect("> ");
        chat.wait_for_editing();
        kill(&chat.child, signal);
        let status = chat.end();
        assert_eq!(status.code(), code, "{signal}: {}", chat.text());
        assert_eq!(status.signal(), if code.is_none() { Some(signal) } else { None });
        assert!(chat.is_ordinary(), "{signal}: {:?}", chat.text());
        // Pasted text is not marked any more.
        let said = chat.text();
        assert!(said.rfind("\u{1b}[?2004l") > said.rfind("\u{1b}[?2004h"), "{said:?}");
    }
}

#[test]
fn a_byte_that_is_not_utf8_does_not_end_a_chat() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let mut chat = Pty::start(command(&["run", &model, "-n", "3"]), None);
    chat.expect("> ");
    chat.wait_for_editing();
    chat.send(b"caf\xe9 au lait\r");
    chat.expect("not UTF-8");
    chat.expect("> ");
    chat.wait_for_editing();
    chat.send(b"aaa\r");
    chat.expect("aaa");
    chat.expect("> ");
    chat.wait_for_editing();
    chat.send(b"\x04");
    assert!(chat.end().success(), "{}", chat.text());
}
