//! What a person types in a chat: nothing of it is lost, and it is not mixed into answers.

use crate::support::pty::Pty;
use crate::support::{command, text, wild};

/// A chat with a model of a few words, told how long its prompts and answers are.
fn chat(model: &str, more: &[&str]) -> Pty {
    let args = ["run", model, "--ignore-eos", "--temp", "0", "--stats"];
    let mut chat = Pty::start(command(&[&args[..], more].concat()), None);
    chat.expect("> ");
    chat.wait_for_editing();
    chat
}

/// The tokens of the next prompt that is answered, except for the one that begins it.
fn prompt(chat: &mut Pty) -> usize {
    // (Another line that begins so is about what was used.)
    chat.expect("open  ");
    chat.expect("prompt       ");
    let before = chat.seen();
    chat.expect("first token");
    let line = String::from_utf8_lossy(&chat.shown[before..chat.seen()]).into_owned();
    let count = |from: &str| from.split(' ').next().unwrap().parse::<usize>().unwrap();
    let there = line.split_once("after ").map_or(0, |(_, rest)| count(rest));
    count(&line) + there - 1
}

/// Waits for the end of an answer to a prompt of so many tokens, and for the next line.
#[track_caller]
fn answered(chat: &mut Pty, tokens: usize) {
    assert_eq!(prompt(chat), tokens, "{}", chat.text());
    chat.expect("> ");
    chat.wait_for_editing();
}

#[test]
fn ctrl_c_clears_a_line_and_leaves_when_it_is_pressed_twice_on_an_empty_one() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let mut chat = chat(&model, &["-n", "1"]);
    chat.send(b"aaaa\x03");
    chat.expect("\n");
    chat.expect("> ");
    chat.wait_for_editing();
    // What was on the line is not part of the next one.
    chat.send(b"aa\r");
    answered(&mut chat, 2);
    chat.send(b"\x03");
    chat.expect("press Ctrl-C again");
    chat.expect("> ");
    // An answer in between, and it has to be pressed twice again; so with a line that was cleared.
    chat.send(b"aaa\r");
    answered(&mut chat, 3);
    chat.send(b"\x03");
    chat.expect("press Ctrl-C again");
    chat.expect("> ");
    chat.wait_for_editing();
    chat.send(b"a\x03\x03");
    chat.expect("press Ctrl-C again");
    chat.expect("> ");
    chat.wait_for_editing();
    chat.send(b"\x03");
    assert_eq!(chat.end().code(), Some(0), "{}", chat.text());
}

/// Emacs has such a terminal, for one.
#[test]
fn a_terminal_that_can_do_nothing_reads_whole_lines() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let args = ["run", &model, "--ignore-eos", "--temp", "0", "--stats", "-n", "1", "--no-history"];
    let begin = || {
        let mut program = command(&args);
        program.env("TERM", "dumb");
        let mut chat = Pty::start(program, None);
        chat.expect("> ");
        assert!(chat.is_ordinary());
        chat
    };
    let mut chat = begin();
    // What is typed is shown, and Ctrl-C throws it away.
    chat.send(b"aaaa");
    chat.expect("aaaa");
    chat.send(b"\x03");
    chat.expect("press Ctrl-C again");
    chat.expect("> ");
    chat.send(b"aa\n");
    assert_eq!(prompt(&mut chat), 2, "{}", chat.text());
    chat.expect("> ");
    chat.send(b"\x04");
    assert_eq!(chat.end().code(), Some(0), "{}", chat.text());
    assert!(!chat.text().contains('\u{1b}'), "{:?}", chat.text());

    let mut chat = begin();
    chat.send(b"\x03");
    chat.expect("press Ctrl-C again");
    chat.send(b"\x03");
    assert_eq!(chat.end().code(), Some(130), "{}", chat.text());
    assert!(!chat.text().contains('\u{1b}'), "{:?}", chat.text());
}

#[test]
fn ctrl_c_pressed_twice_ends_the_answer_and_not_the_chat() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let mut chat = chat(&model, &["-c", "100000"]);
    chat.send(b"a\r");
    chat.expect("\\u{1b}[2J");
    chat.send(b"\x03\x03\x03");
    chat.expect("ended by Ctrl-C");
    chat.expect("> ");
    chat.wait_for_editing();
    chat.send(b"aa\r");
    chat.expect("\\u{1b}[2J");
    chat.send(b"\x03");
    answered(&mut chat, 2);
    chat.send(b"\x04");
    assert_eq!(chat.end().code(), Some(0), "{}", chat.text());
}

#[test]
fn lines_that_arrive_together_are_all_answered() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let mut chat = chat(&model, &["-n", "1"]);
    chat.send(b"a\raa\rgiven up\x03aaa\r");
    for tokens in [1, 2, 3] {
        assert_eq!(prompt(&mut chat), tokens, "{}", chat.text());
    }
    chat.expect("> ");
    chat.send(b"\x04");
    assert_eq!(chat.end().code(), Some(0), "{}", chat.text());
}

#[test]
fn what_is_typed_during_an_answer_waits_for_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let mut chat = chat(&model, &["-c", "100000"]);
    chat.send(b"aa\r");
    chat.expect("\\u{1b}[2J");
    let before = chat.shown.len();
    chat.send(b"aaa xyz");
    // It continues for a while, and nothing of that is in it.
    for _ in 0..200 {
        chat.expect("\\u{1b}[2J");
    }
    chat.send(b"\x03");
    chat.expect("ended by Ctrl-C");
    // What is shown after the end may have come with it.
    let shown = String::from_utf8_lossy(&chat.shown[before..]).into_owned();
    let (answer, _) = shown.split_once("ended by Ctrl-C").expect("it was shown");
    assert!(!answer.contains("xyz") && !answer.contains("^C"), "{answer:?}");
    chat.expect("aaa xyz");
    chat.send(b"\x03\x03\x03");
    assert_eq!(chat.end().code(), Some(0), "{}", chat.text());
    assert!(chat.is_ordinary());
}

#[test]
fn messages_of_several_lines() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let mut chat = chat(&model, &["-n", "1"]);
    // Each character is a token, and so is a line break.
    for (typed, tokens) in [
        (&b"\"\"\"a\ra\ra\"\"\"\r"[..], 5),
        (b"\"\"\"\raa\ra\r\"\"\"\r", 4),
        (b"\"\"\"a\ra\r\x04", 3),
        (b"a\x1b\raa\r", 4),
        // Given up.
        (b"\"\"\"aaaaaaaaa\r\x03aa\r", 2),
    ] {
        chat.send(typed);
        answered(&mut chat, tokens);
    }
    chat.send(b"\x04");
    assert_eq!(chat.end().code(), Some(0), "{}", chat.text());
}

#[test]
fn the_history_goes_from_chat_to_chat_unless_it_is_not_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let state = folder.path().join("state");
    let chat = |more: &[&str], messages: &[(&[u8], usize)]| {
        let mut command = command(&[&["run", &model, "-n", "1", "--stats"][..], more].concat());
        command.env("XDG_STATE_HOME", &state);
        let mut chat = Pty::start(command, None);
        chat.expect("> ");
        chat.wait_for_editing();
        for (keys, tokens) in messages {
            chat.send(keys);
            answered(&mut chat, *tokens);
        }
        chat.send(b"\x04");
        assert_eq!(chat.end().code(), Some(0), "{}", chat.text());
        chat.text()
    };
    chat(&["--no-history"], &[(b"aaaaaaa\r", 7)]);
    assert!(!state.exists());
    chat(&[], &[(b"aaaa\r", 4), (b" aa\r", 3), (b"a\x1b\ra\r", 3)]);
    let kept = state.join("alight/history");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(kept.metadata().unwrap().permissions().mode() & 0o077, 0, "it is nobody else's");
    assert!(!std::fs::read_to_string(&kept).unwrap().contains(" aa"));
    // Arrow up: the last one has two lines.
    chat(&[], &[(b"\x1b[A\r", 3), (b"\x1b[A\x1b[A\x1b[A\r", 4)]);
    // A folder that cannot be made is a note.
    std::fs::remove_dir_all(&state).unwrap();
    std::fs::write(&state, "").unwrap();
    let shown = chat(&[], &[(b"aaaa\r", 4)]).replace("\r\n", " ").replace('\n', " ");
    assert!(shown.contains(&format!("not kept in '{}", text(&kept))), "{shown}");
}
