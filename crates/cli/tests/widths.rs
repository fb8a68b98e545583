//! Terminals of 40, 80 and 120 columns, as people have them: nothing is wider than the terminal, and a line that shows progress stays one.

use std::path::Path;

use alight_formats::GgmlType;

use crate::support::pty::Pty;
use crate::support::wild::{self, Spec};
use crate::support::{command, everything, write};

const WIDTHS: [u16; 3] = [40, 80, 120];

/// Runs the command on a terminal with this number of columns, and returns the output.
fn shown(columns: u16, args: &[&str]) -> String {
    let (status, text) = outcome(columns, args);
    assert_eq!(status, Some(0), "{args:?} at {columns}: {text}");
    text
}

/// The same of a command that may fail, with its exit status.
fn outcome(columns: u16, args: &[&str]) -> (Option<i32>, String) {
    // Nothing moves before the terminal has its size.
    let mut program = command::<&str>(&[]);
    program = {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "read go; exec \"$@\"", "sh"]).arg(program.get_program()).args(args);
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell
    };
    let mut terminal = Pty::start(program, None);
    terminal.resize(columns);
    terminal.send(b"go\r");
    let status = terminal.end();
    let text = terminal.text();
    let (_typed, text) = text.split_once('\n').expect("the line that was typed");
    (status.code(), text.to_owned())
}

/// Returns the pieces of a text that a terminal shows from the first column on, without styles.
fn lines(text: &str) -> Vec<String> {
    let plain = without_sequences(text);
    plain.split(['\r', '\n']).map(str::to_owned).collect()
}

/// Removes the sequences that move the cursor or change a style. (A word that moves to the next line is first shown in the one before.)
fn without_sequences(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, sequence)) = rest.split_once("\x1b[") {
        out.push_str(before);
        let end = sequence.find(|c: char| c.is_ascii_alphabetic()).unwrap();
        let (sequence, after) = sequence.split_at(end + 1);
        if let Some(back) = sequence.strip_suffix('D') {
            let kept = out.chars().count() - back.parse::<usize>().unwrap();
            out = out.chars().take(kept).collect();
        }
        rest = after;
    }
    out + rest
}

#[track_caller]
fn fits(columns: u16, args: &[&str], text: &str) {
    for line in lines(text) {
        let one_word = !line.trim().contains(' ');
        let width = line.chars().count();
        assert!(one_word || width <= usize::from(columns), "{args:?} at {columns}: {line:?}");
    }
}

/// A model of some MB, which takes a moment.
fn model(folder: &Path) -> String {
    let spec =
        Spec { embd: 256, ff: 1024, layers: 4, ty: GgmlType::F32, context: 4096, ..Spec::llama() };
    wild::model_of(folder, spec)
}

#[test]
fn nothing_is_wider_than_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let at = |name: &str| folder.path().join(name).display().to_string();
    let lines: String = (0..40).map(|i| format!("\"aaaa {i}\"\n")).collect();
    let input = write(folder.path(), "in.jsonl", lines.as_bytes());
    let large = write(folder.path(), "large", vec![7; 48 << 20]);
    // The narrow one is where a line is too long, if it is anywhere.
    for columns in WIDTHS.into_iter().take(if everything() { 3 } else { 1 }) {
        let (out, copy, small) = (
            at(&format!("{columns}.jsonl")),
            at(&format!("{columns}.copy")),
            at(&format!("{columns}.gguf")),
        );
        let packed = at(&format!("{columns}.packed.gguf"));
        for args in [
            &["run", &model, "aaa", "--raw", "-n", "40", "--ignore-eos", "--temp", "0", "--stats"]
                [..],
            &["bench", &model, "-p", "8", "-n", "4", "-r", "1"],
            &["bench", "decode", &model, "-n", "4", "-r", "1"],
            &["batch", &model, &input, "-o", &out, "-n", "20", "--ignore-eos", "--raw"],
            &["cp", &large, &copy],
            &["quantize", &model, "--type", "q8_0", "-o", &small],
            &["pack", &small, "-o", &packed],
            &["inspect", &model],
            &["tokenize", &model, "aaaa"],
        ] {
            let text = shown(columns, args);
            fits(columns, args, &text);
        }
    }
}

#[test]
fn a_bar_is_one_line_at_each_width() {
    let folder = tempfile::tempdir().unwrap();
    let large = write(folder.path(), "large", vec![7; 48 << 20]);
    for columns in WIDTHS {
        let copy = folder.path().join(columns.to_string()).display().to_string();
        let text = shown(columns, &["cp", &large, &copy]);
        // The last update is always shown.
        assert!(text.contains("copying ") && text.contains("50.3"), "{text:?}");
        let (before, _) = text.rsplit_once("\r\x1b[K").expect("it is removed in the end");
        assert!(!before.contains('\n'), "at {columns}: {before:?}");
    }
}

#[test]
fn words_of_an_answer_are_not_broken_and_a_pipe_gets_them_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let args = [
        "run",
        &model,
        "--raw",
        "-p",
        "aaa",
        "--ignore-eos",
        "-n",
        "200",
        "--temp",
        "9",
        "--seed",
        "1",
    ];
    let text = without_sequences(&shown(40, &args));
    assert!(text.lines().all(|line| line.chars().count() < 40), "{text:?}");
}

#[test]
fn words_of_messages_are_not_broken() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let latin = write(folder.path(), "latin.txt", b"a\xe9a");
    let missing = "some-name-of-a-model";
    let given_to_run = |more: &[&'static str]| [&["run"], more].concat();
    for columns in WIDTHS {
        for (args, status, message) in [
            (
                given_to_run(&[missing, "a"]),
                1,
                "error: 'some-name-of-a-model' does not exist, and is no part of the name",
            ),
            (
                given_to_run(&["m.gguf", "--tmp", "3"]),
                2,
                "tip: a similar argument exists: '--temp'",
            ),
            (given_to_run(&[]), 2, "fetches a small model (1.1 GB) and uses it"),
            (
                vec!["m.gguf"],
                2,
                "error: a command comes before the model, such as `alight run m.gguf`; `alight help` lists the others",
            ),
            (
                vec!["run", &model, "--raw", "-f", &latin, "-n", "1", "--ignore-eos"],
                0,
                "is not UTF-8: it is read as Windows-1252 (--strict-utf8 refuses it)",
            ),
        ] {
            let (found, text) = outcome(columns, &args);
            assert_eq!(found, Some(status), "{args:?} at {columns}: {text}");
            fits(columns, &args, &text);
            let words: Vec<String> =
                without_sequences(&text).split_whitespace().map(str::to_owned).collect();
            let words = words.join(" ");
            assert!(words.contains(message), "{args:?} at {columns}: {words}");
        }
    }
}

#[test]
fn values_of_the_metadata_are_shown_at_each_width() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    for columns in WIDTHS {
        let args = ["inspect", &model];
        let text = shown(columns, &args);
        fits(columns, &args, &text);
        let words: Vec<&str> = text.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "general.architecture").unwrap();
        assert_eq!(words[at + 1..at + 3], ["str", "\"llama\""], "{text}");
    }
}

#[test]
fn lists_of_a_chat_keep_to_the_width_and_descriptions_stand_below_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    for columns in WIDTHS {
        let mut chat = Pty::start(command(&["run", &model, "--no-history"]), None);
        chat.expect("/help");
        chat.wait_for_editing();
        chat.resize(columns);
        let greeting = chat.text().len();
        for line in ["/help", "/info", "/set", "/set foo"] {
            chat.send(format!("{line}\r").as_bytes());
            chat.expect(if line == "/set" { "JSON" } else { "\n" });
            chat.wait_for_editing();
        }
        chat.expect("no option 'foo'");
        chat.wait_for_editing();
        chat.send(b"\x04");
        assert!(chat.end().success());
        let text = chat.text().split_off(greeting);
        fits(columns, &["chat"], &text);
        let shown = lines(&text);
        let below = format!("{}all", " ".repeat(31));
        let expected = match columns {
            40 => ["  begin a new conversation", "  Keep the K most likely tokens; 0 or"],
            80 => ["/clear                 begin a new conversation", below.as_str()],
            _ => [
                "/clear                 begin a new conversation",
                "top-k                40        Keep the K most likely tokens; 0 or less keeps all",
            ],
        };
        for line in expected {
            assert!(shown.iter().any(|shown| shown == line), "{line:?} at {columns}: {text}");
        }
    }
}
