//! `alight tokenize`: its forms, its text, and that it reads no weights. Which tokens a text has is the tokenizer's, which is tested in
//! `alight-text` and beside other programs.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;

use alight_formats::GgmlType;
use alight_formats::gguf::write::Builder;
use serde_json::{Value, json};

use crate::support::pty::Pty;
use crate::support::{alight, command, done, wild, with_stdin, write};

/// A control token, texts that are not seen, and bytes that are parts of a character, after `<unk>`, `<s>` and `</s>`.
const TOKENS: [(&str, i32); 13] = [
    ("<go>", 3),
    ("a", 1),
    ("\u{2581}a", 1),
    ("\n", 1),
    ("\u{1b}[2J", 4),
    ("\u{202e}", 1),
    ("'", 1),
    ("\\", 1),
    ("é", 1),
    ("<0xE2>", 6),
    ("<0x82>", 6),
    ("<0xAC>", 6),
    ("\u{2581}", 1),
];
/// A text, what it is made of, and how that is shown.
const TEXT: &str = "a a\n\u{1b}[2J\u{202e}'\\é€<go>b";
const SHOWN: [(u32, &str); 14] = [
    (1, "<s>"),
    (4, "a"),
    (5, " a"),
    (6, "\\n"),
    (7, "\\u{1b}[2J"),
    (8, "\\u{202e}"),
    (9, "\\'"),
    (10, "\\\\"),
    (11, "é"),
    (12, "\\xe2"),
    (13, "\\x82"),
    (14, "\\xac"),
    (3, "<go>"),
    (0, "<unk>"),
];

/// A vocabulary, as a model of this architecture has it.
fn vocabulary(architecture: &str) -> Builder {
    let mut builder = Builder::new();
    builder.str("general.architecture", architecture);
    wild::put_tokens(&mut builder, &TOKENS);
    builder
}

/// A file that is a vocabulary and nothing else.
fn header(folder: &Path) -> String {
    write(folder, "header.gguf", vocabulary("llama").header())
}

/// The ids of a text.
#[track_caller]
fn ids(args: &[&str], input: &[u8]) -> Vec<u32> {
    let done = with_stdin(&[&["tokenize"], args, &["--ids"]].concat(), input).succeeds();
    assert_eq!((done.stderr.as_str(), done.stdout.lines().count()), ("", 1));
    serde_json::from_str(&done.stdout).unwrap()
}

#[test]
fn each_form_has_the_same_tokens_of_a_file_without_weights() {
    let folder = tempfile::tempdir().unwrap();
    let model = header(folder.path());
    let lines: String = SHOWN.iter().map(|(id, piece)| format!("{id:6} -> '{piece}'\n")).collect();
    let said = alight(&["tokenize", &model, TEXT]).succeeds();
    assert_eq!((said.stdout.as_str(), said.stderr.as_str()), (lines.as_str(), ""));

    let expected = SHOWN.map(|(id, _)| id);
    assert_eq!(ids(&[&model, TEXT], b""), expected);
    assert_eq!(alight(&["tokenize", &model, "a a", "--ids"]).succeeds().stdout, "[1, 4, 5]\n");
    for count in ["--count", "--show-count"] {
        assert_eq!(alight(&["tokenize", &model, TEXT, count]).succeeds().stdout, "14\n");
    }
    let said = alight(&["tokenize", &model, TEXT, "--json"]).succeeds().stdout;
    assert!(!said.contains(['\u{1b}', '\u{202e}']), "{said:?}");
    let line: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&line["model"], &line["count"]), (&json!(model), &json!(14)));
    let tokens = line["tokens"].as_array().unwrap();
    assert!(tokens.iter().map(|token| token["id"].as_u64().unwrap() as u32).eq(expected));
    for (at, piece) in [
        (3, json!("\n")),
        (4, json!("\u{1b}[2J")),
        (5, json!("\u{202e}")),
        (7, json!("\\")),
        (8, json!("é")),
        (9, json!([0xe2])),
        (12, json!("<go>")),
    ] {
        assert_eq!(tokens[at]["piece"], piece);
    }
}

#[test]
fn beginnings_and_special_tokens_are_left_out_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let model = header(folder.path());
    assert_eq!(ids(&[&model, "a<go>"], b""), [1, 4, 3]);
    assert_eq!(ids(&[&model, "a<go>", "--no-bos"], b""), [4, 3]);
    let plain = ids(&[&model, "a<go>", "--no-bos", "--no-special"], b"");
    assert!(plain.len() > 2 && !plain.contains(&3), "{plain:?}");
    assert_eq!(ids(&[&model, "a<go>", "--no-bos", "--no-parse-special"], b""), plain);
    // An empty text is one.
    assert_eq!(ids(&[&model, ""], b""), [1]);
    assert!(ids(&[&model, "", "--no-bos"], b"").is_empty());
}

#[test]
fn a_text_comes_from_wherever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let model = header(folder.path());
    let text = write(folder.path(), "text", "a a\n");
    let at = folder.path().to_str().unwrap();
    // Every byte of it counts.
    for args in [&[&*model][..], &[&model, "-"], &[&model, "-f", "-"], &["-m", &model], &[at]] {
        assert_eq!(ids(args, b"a a\n"), [1, 4, 5, 6], "{args:?}");
    }
    for args in [&[&*model, "-f", &text][..], &[&model, "--file", &text], &["-f", &text, &model]] {
        assert_eq!(ids(args, b"ignored"), [1, 4, 5, 6], "{args:?}");
    }
    for args in [&[&*model, "-p", "a a"][..], &["-m", &model, "--prompt", "a a"]] {
        assert_eq!(ids(args, b"ignored"), [1, 4, 5], "{args:?}");
    }
    assert_eq!(ids(&[&model, "-p", "-a", "--no-bos"], b"").last(), Some(&4));
    // As llama-tokenize has it.
    let noted = with_stdin(&["tokenize", "-m", &model, "--stdin", "--count"], b"a a\n").succeeds();
    assert_eq!(noted.stdout, "4\n");
    assert!(noted.stderr.contains("--stdin is not needed"), "{}", noted.stderr);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = header(folder.path());
    for args in [
        &["--ids", "--count"][..],
        &["--ids", "--json"],
        &["--count", "--json"],
        &["-f", "x"],
        &["-p", "x"],
    ] {
        alight(&[&["tokenize", &model, "a"], args].concat()).fails_as_usage(args[0]);
    }
    with_stdin(&["tokenize", &model], b"a\xff").fails(1, &["the text", "byte 1"]);
    alight(&["tokenize", &model, "-f", "/nowhere/x"]).fails(1, &["'/nowhere/x'"]);
    alight(&["tokenize", &model, "-f", "/dev/zero"]).fails(1, &["longer than 64 MiB"]);
    let no_model = write(folder.path(), "notes.gguf", "Dear diary, today");
    alight(&["tokenize", &no_model, "a"]).fails(1, &["notes.gguf", "not a GGUF file"]);
    let mut bare = Builder::new();
    bare.str("general.architecture", "llama");
    let bare = write(folder.path(), "bare.gguf", bare.header());
    alight(&["tokenize", &bare, "a"]).fails(1, &["bare.gguf", "tokenizer"]);
}

/// Of a tebibyte of weights nothing is read, and what they are weights of does not matter.
#[test]
fn the_header_is_all_that_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut large = vocabulary("unheard-of");
    large.tensor("weights", GgmlType::F32, &[1 << 10, 1 << 28]).unwrap();
    let path = write(folder.path(), "large.gguf", large.header());
    let file = File::options().write(true).open(&path).unwrap();
    let len = file.metadata().unwrap().len();
    if let Err(error) = file.set_len(len + (1 << 40)) {
        eprintln!("skipped: files are not as long here: {error}");
        return;
    }
    assert_eq!(ids(&[&path, "a"], b""), [1, 4]);
}

#[test]
fn no_token_drives_a_terminal_and_nobody_is_waited_for_at_one() {
    let folder = tempfile::tempdir().unwrap();
    let model = header(folder.path());
    for form in [&[][..], &["--json"], &["--ids"]] {
        let args = [&["tokenize", &model, TEXT], form].concat();
        let mut shown = Pty::start(command(&args), None);
        assert!(shown.end().success());
        let text = shown.text();
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text:?}");
        // The terminal's own line ends are all that differs from what a pipe gets.
        assert_eq!(text.replace("\r\n", "\n"), alight(&args).succeeds().stdout);
    }
    let mut alone = Pty::start(command(&["tokenize", &model]), None);
    assert_eq!(alone.end().code(), Some(2));
    assert!(alone.text().contains("there is no text"), "{}", alone.text());
}

#[test]
fn a_full_disk_is_an_error_and_a_closed_pipe_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let model = header(folder.path());
    let text = write(folder.path(), "long", "a a\n".repeat(100_000));
    for form in [&[][..], &["--ids"], &["--json"]] {
        let args = [&["tokenize", &model, "-f", &text], form].concat();
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = command(&args).stdout(full).stderr(Stdio::piped()).output().unwrap();
        done(output).fails(1, &["cannot write to standard output", "No space left"]);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(&args).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        let done = done(output);
        assert_eq!((done.status, done.stderr.as_str()), (Some(0), ""));
    }
}
