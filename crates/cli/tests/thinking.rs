//! How thinking is shown: dimmed on a terminal, between tags elsewhere, left out with `--no-thinking`; and that nothing of
//! it is lost otherwise.

use crate::support::pty::Pty;
use crate::support::said::{self, CONTROL, OWN, TEXT};
use crate::support::{alight, command};

/// The marks are words of the vocabulary, as Qwen has them.
const TAGS: [(&str, i32); 6] = [
    ("<think>", OWN),
    ("\nSo ", TEXT),
    ("it is.\n", TEXT),
    ("</think>", OWN),
    ("\n\nYes", TEXT),
    (".", TEXT),
];

/// The marks are control tokens, as gpt-oss has them. (A model that says each token once has no second header.)
const CHANNELS: [(&str, i32); 8] = [
    ("<|channel|>", CONTROL),
    ("analysis", TEXT),
    ("<|message|>", CONTROL),
    ("So it is.", TEXT),
    ("<|end|>", CONTROL),
    ("Yes.", TEXT),
    ("<|return|>", CONTROL),
    ("<|call|>", CONTROL),
];

const TAGGED: &str = "<think>\nSo it is.\n</think>\n\nYes.\n";

/// What a terminal shows of an answer.
fn shown(args: &[&str], env: &[(&str, &str)]) -> String {
    let mut command = command(args);
    command.env_remove("NO_COLOR").env("TERM", "xterm-256color").envs(env.iter().copied());
    let mut shown = Pty::start(command, None);
    assert!(shown.end().success(), "{}", shown.text());
    shown.text()
}

#[test]
fn a_pipe_gets_thinking_between_tags_whichever_marks_the_model_has() {
    let folder = tempfile::tempdir().unwrap();
    for (tokens, short) in [(&TAGS[..], 4), (&CHANNELS, 5)] {
        let model = said::model(folder.path(), tokens, short);
        let args = ["run", &model, "a", "--temp", "0"];
        assert_eq!(alight(&args).succeeds().stdout, TAGGED);
        let hidden = alight(&[&args[..], &["--no-thinking"]].concat()).succeeds().stdout;
        assert_eq!(hidden.trim_start(), "Yes.\n");
        // Without a template nothing is taken apart.
        let args = ["run", &model, "<go>", "--temp", "0", "--raw", "--parse-special"];
        let said = alight(&args).succeeds().stdout;
        let all: String = tokens[..6].iter().map(|(text, _)| *text).collect();
        assert_eq!(said, all + "\n");
    }
}

#[test]
fn json_has_the_text_the_answer_and_the_thinking() {
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), &TAGS, 4);
    let json = |more: &[&str]| {
        let args = [&["run", &model, "a", "--temp", "0", "--json"][..], more].concat();
        let line: serde_json::Value =
            serde_json::from_str(&alight(&args).succeeds().stdout).unwrap();
        ["text", "answer", "thinking"].map(|field| line[field].clone())
    };
    assert_eq!(json(&[]), [TAGGED.trim_end(), "Yes.", "So it is."].map(serde_json::Value::from));
    let [text, answer, thinking] = json(&["--no-thinking"]);
    assert!(thinking.is_null() && text == answer, "{text} {answer} {thinking}");
}

#[test]
fn a_terminal_shows_thinking_dimmed_unless_it_may_not_be_styled() {
    let folder = tempfile::tempdir().unwrap();
    for (tokens, short) in [(&TAGS[..], 4), (&CHANNELS, 5)] {
        let model = said::model(folder.path(), tokens, short);
        let args = ["run", &model, "a", "--temp", "0"];
        let text = shown(&args, &[]);
        assert!(text.starts_with("\u{1b}[2m") && text.ends_with("\u{1b}[0m\n\nYes.\n"), "{text:?}");
        let plain = text.replace("\u{1b}[2m", "").replace("\u{1b}[0m", "");
        assert_eq!(plain, "So it is.\n\nYes.\n");
        for env in [("NO_COLOR", "1"), ("TERM", "dumb")] {
            assert_eq!(shown(&args, &[env]), TAGGED, "{env:?}");
        }
        let hidden = shown(&[&args[..], &["--no-thinking"]].concat(), &[]);
        assert_eq!(hidden.trim_start(), "Yes.\n");
    }
}

/// A model that thinks although its template has been told not to: the option hides it nevertheless.
#[test]
fn what_a_model_thinks_against_the_option_is_hidden() {
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), &TAGS, 0);
    let args = ["run", &model, "a", "--temp", "0", "--no-thinking"];
    assert_eq!(alight(&args).succeeds().stdout, "Yes.\n");
}

#[test]
fn a_chat_dims_thinking_too_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), &TAGS, 4);
    let mut command = command(&["run", &model, "--temp", "0"]);
    command.env_remove("NO_COLOR").env("TERM", "xterm-256color");
    let mut chat = Pty::start(command, None);
    for _ in 0..2 {
        chat.expect("> ");
        chat.wait_for_editing();
        chat.send(b"a\r");
        chat.expect("\u{1b}[2mSo \u{1b}[0m");
        chat.expect("Yes.");
    }
    chat.expect("> ");
    chat.wait_for_editing();
    chat.send(b"\x04");
    assert!(chat.end().success(), "{}", chat.text());
}
