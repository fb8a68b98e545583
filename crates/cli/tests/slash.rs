//! The commands of a chat, and how it looks: on a real model through a pseudo-terminal.
//! Without the model file the tests say so and pass.

use std::fs;

use crate::support::pty::Pty;
use crate::support::{self, command, smollm2};

/// A chat whose answers are short and always the same, without colours, and where it begins.
fn chat(model: &str, more: &[&str]) -> Pty {
    let args = ["run", model, "--temp", "0", "-n", "6", "--no-history"];
    let mut command = command(&[&args[..], more].concat());
    command.env("NO_COLOR", "1");
    let mut chat = Pty::start(command, None);
    chat.expect("/help tells more");
    ready(&mut chat);
    chat
}

fn ready(chat: &mut Pty) {
    chat.expect("\u{1b}[K> ");
    chat.wait_for_editing();
}

/// What is shown between a line that is typed and the next prompt.
fn said(chat: &mut Pty, line: &str) -> String {
    chat.send(line.as_bytes());
    chat.send(b"\r");
    chat.expect("\u{1b}[?2004l");
    let before = chat.seen();
    ready(chat);
    let shown = String::from_utf8_lossy(&chat.shown[before..chat.seen()]).replace("\r\n", "\n");
    let end = shown.rfind("\u{1b}[?2004h").unwrap_or(shown.len());
    // On a slow machine there is a line about the prompt before an answer.
    let parts = shown[..end].split("\r\u{1b}[K").filter(|part| !part.starts_with("reading "));
    parts.collect::<Vec<_>>().concat().trim().to_owned()
}

#[test]
fn a_conversation_is_saved_loaded_cleared_and_asked_again() {
    let Some(model) = smollm2() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("talk.json");
    let file = file.to_str().unwrap();
    let mut talk = chat(&model, &["--system", "You know animals."]);
    let first = said(&mut talk, "Name an animal.");
    let second = said(&mut talk, "And another?");
    assert!(first.len() > 3 && second.len() > 3, "{first:?} {second:?}");
    assert!(said(&mut talk, "/info").contains("by 2 exchanges"));
    assert!(said(&mut talk, &format!("/save {file}")).contains("5 messages"));
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "a conversation is private");
    let saved: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(saved["messages"][0]["role"], "system");
    assert_eq!(saved["messages"][3]["content"], "And another?");
    // The same question at the same place has the same answer, and nothing else became of the conversation.
    assert_eq!(said(&mut talk, "/regen"), second);
    assert!(said(&mut talk, "/info").contains("by 2 exchanges"));
    // Its own file is written again.
    assert!(said(&mut talk, &format!("/save {file}")).contains("5 messages"));
    assert!(said(&mut talk, "/clear").contains("a new conversation"));
    assert_eq!(said(&mut talk, "Name an animal."), first);
    assert!(said(&mut talk, &format!("/save {file}")).contains("error"), "it is another's now");
    let quoted = format!("/save \"{}/a b.json\"", folder.path().display());
    assert!(said(&mut talk, &quoted).contains("a b.json'"));
    assert!(folder.path().join("a b.json").is_file());
    talk.send(b"/bye\r");
    assert_eq!(talk.end().code(), Some(0));

    let mut again = chat(&model, &[]);
    // No shell is there to know what ~ is.
    assert!(
        said(&mut again, "/load ~/nowhere")
            .contains(&format!("'{}/nowhere'", std::env::var("HOME").unwrap()))
    );
    assert!(said(&mut again, "/regen").contains("nothing has been asked yet"));
    assert!(said(&mut again, &format!("/load {file}")).contains("5 messages"));
    assert_eq!(said(&mut again, "/regen"), second);
    assert!(said(&mut again, "/load /nowhere").contains("/nowhere"));
    again.send(b"/exit\r");
    assert_eq!(again.end().code(), Some(0));
}

#[test]
fn an_answer_that_was_given_up_is_no_repetition() {
    let Some(model) = smollm2() else { return };
    let options =
        ["--repeat-penalty", "1.5", "--repeat-last-n", "-1", "--dry-multiplier", "2", "-n", "12"];
    let mut talk = chat(&model, &options);
    let first = said(&mut talk, "Count to ten.");
    assert_eq!(said(&mut talk, "/regen"), first);
    said(&mut talk, "/clear");
    assert_eq!(said(&mut talk, "Count to ten."), first);
}

#[test]
fn options_and_the_system_message_are_changed_in_a_chat() {
    let Some(model) = smollm2() else { return };
    let mut talk = chat(&model, &[]);
    let brief = said(&mut talk, "/set predict 1");
    assert!(brief.contains("temp 0,") && brief.contains("predict 1"), "{brief}");
    let one = said(&mut talk, "Count to ten.");
    said(&mut talk, "/clear");
    said(&mut talk, "/set predict 12");
    let twelve = said(&mut talk, "Count to ten.");
    assert!(twelve.starts_with(&one) && twelve.len() > one.len(), "{one:?} {twelve:?}");
    assert!(said(&mut talk, "/set top-k 3").contains("top-k 3"));
    for (line, part) in [
        ("/set temp hot", "'hot' for temp"),
        ("/set heat 1", "no option 'heat'"),
        ("/set temperature 0", "temp 0,"),
        ("/set top_k 4", "top-k 4"),
        ("/set n-predict 7", "predict 7"),
        ("/show", "/info has the model"),
        ("/set temp", "a name and a value"),
        ("/set predict many", "no number of tokens"),
        ("/set top-k 3.5", "expected a whole number"),
        ("/set repeat-last-n -1", "repeat-last-n -1"),
        ("/set dry-multiplier 0.5", "dry-multiplier 0.5, dry-base 1.75"),
        ("/set dry-multiplier 0", "seed"),
        ("/set mirostat 2", "mirostat 2, mirostat-ent 5"),
        ("/set mirostat 3", "expected a whole number from 0 to 2"),
        ("/set mirostat 0", "seed"),
        ("/save /dev/null", "another name"),
        ("/?", "/regen"),
        ("/frobnicate", "there is no /frobnicate"),
        ("/clear all", "takes nothing"),
        ("/save", "name of a file"),
    ] {
        let said = said(&mut talk, line);
        assert!(said.contains(part), "{line}: {said}");
    }
    assert!(said(&mut talk, "/system").contains("no system prompt"));
    assert!(said(&mut talk, "/system Speak like a pirate.").contains("pirate"));
    said(&mut talk, "/clear");
    assert_ne!(said(&mut talk, "Count to ten."), twelve);
    let help = said(&mut talk, "/help");
    for name in ["/help", "/clear", "/system", "/set", "/regen", "/save", "/load", "/info", "/bye"]
    {
        assert!(help.contains(name), "{help}");
    }
    assert!(help.lines().all(|line| line.len() <= 80), "{help}");
    // With a space before it, it is a message.
    assert!(!said(&mut talk, " /help").contains("/regen"));
    talk.send(b"\x04");
    assert_eq!(talk.end().code(), Some(0));
}

#[test]
fn answers_are_held_to_a_schema_from_one_question_to_the_next() {
    let Some(model) = smollm2() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a b.json");
    fs::write(&file, "{\n  \"enum\": [\"ox\"]\n}\n").unwrap();
    let mut talk = chat(&model, &["--ignore-eos"]);
    assert!(said(&mut talk, "/info").contains("constraint none"));
    let free = said(&mut talk, "Name an animal.");
    said(&mut talk, "/clear");
    let set = said(&mut talk, "/set schema {\"type\": \"boolean\"}");
    assert!(set.contains("constraint schema {\"type\": \"boolean\"}"), "{set}");
    let held = said(&mut talk, "Name an animal.");
    assert!(held == "true" || held == "false", "{held}");
    said(&mut talk, "/clear");
    let set = said(&mut talk, &format!("/set schema \"{}\"", file.display()));
    assert!(set.contains("constraint schema '"), "{set}");
    assert_eq!(said(&mut talk, "Name an animal."), "\"ox\"");
    said(&mut talk, "/clear");
    // What is none changes nothing.
    for (line, part) in [
        ("/set schema /nowhere", "/nowhere"),
        ("/set schema {\"type\": 3}", "schema: "),
        ("/set schema {", "not JSON"),
        ("/set schema", "a name and a value"),
    ] {
        let said = said(&mut talk, line);
        assert!(said.contains("error") && said.contains(part), "{line}: {said}");
    }
    assert_eq!(said(&mut talk, "Name an animal."), "\"ox\"");
    said(&mut talk, "/clear");
    assert!(said(&mut talk, "/set schema off").contains("constraint none"));
    assert_eq!(said(&mut talk, "Name an animal."), free);
    talk.send(b"\x04");
    assert_eq!(talk.end().code(), Some(0));

    // An option of the command line is one that a chat begins with.
    let mut talk = chat(&model, &["--json-schema", "{\"enum\": [\"ox\"]}"]);
    assert!(said(&mut talk, "/info").contains("constraint --json-schema"));
    assert_eq!(said(&mut talk, "Name an animal."), "\"ox\"");
    said(&mut talk, "/set schema off");
    said(&mut talk, "/clear");
    assert_eq!(said(&mut talk, "Name an animal."), free);
    talk.send(b"\x04");
    assert_eq!(talk.end().code(), Some(0));
}

#[test]
fn no_more_of_a_context_is_used_than_there_is() {
    let Some(model) = smollm2() else { return };
    let mut talk = chat(&model, &["-c", "64", "--ignore-eos"]);
    said(&mut talk, "/set predict -1");
    said(&mut talk, "Count to a hundred.");
    let info = said(&mut talk, "/info");
    assert!(info.contains("64 of 64 tokens used"), "{info}");
    talk.send(b"\x04");
    assert_eq!(talk.end().code(), Some(0));
}

#[test]
fn a_text_ends_an_answer_and_is_not_in_it() {
    let Some(model) = smollm2() else { return };
    let answer = |more: &[&str]| {
        let args = ["run", &model, "--raw", "1, 2, 3, 4,", "--temp", "0", "-n", "12", "--json"];
        let line = support::alight(&[&args[..], more].concat()).succeeds().stdout;
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        (line["text"].as_str().unwrap().to_owned(), line["finish"].as_str().unwrap().to_owned())
    };
    let (whole, finish) = answer(&[]);
    assert_eq!(finish, "length");
    let (before, _) = whole.split_once("7").unwrap();
    assert_eq!(answer(&["--stop", "7"]), (before.to_owned(), "stop".to_owned()));
    // Each of several counts, the one that comes first, and a text may be cut anywhere.
    assert_eq!(answer(&["--stop", "9", "-r", "7", "--stop", "nowhere"]).0, before);
    assert_eq!(answer(&["--stop", &whole[before.len()..before.len() + 3]]).0, before);
    assert_eq!(answer(&["--stop", "nowhere"]), (whole, "length".to_owned()));
}

#[test]
fn the_person_is_told_from_the_model_by_colour() {
    let Some(model) = smollm2() else { return };
    let args = ["run", &model, "--temp", "0", "-n", "2", "--no-history"];
    let mut talk = Pty::start(command(&args), None);
    talk.expect("\u{1b}[1;32m> \u{1b}[0m");
    talk.wait_for_editing();
    talk.send(b"Hi.\r");
    talk.expect("\u{1b}[1;32mHi.\u{1b}[0m");
    talk.expect("\u{1b}[1;32m> \u{1b}[0m");
    talk.wait_for_editing();
    talk.send(b"\x04");
    assert_eq!(talk.end().code(), Some(0));
}

#[test]
fn words_are_wrapped_at_the_width_of_the_terminal_and_a_long_prompt_tells_how_far_it_is() {
    let Some(model) = smollm2() else { return };
    let folder = tempfile::tempdir().unwrap();
    let long = "A long text of many words. ".repeat(250);
    let file = support::write(folder.path(), "long", &long);
    // By one thread, which takes more than the moment after which the line is shown.
    let args = ["run", &model, "-f", &file, "-c", "8192", "-n", "1", "--temp", "0", "-t", "1"];
    let mut reads = Pty::start(command(&args), None);
    reads.expect(" tokens, ");
    reads.expect(" left");
    assert!(reads.end().success());
    let nothing = support::alight(&args).succeeds().stderr;
    assert_eq!(nothing, "", "where there is no terminal");

    let mut talk = chat(&model, &[]);
    talk.resize(30);
    said(&mut talk, "/set predict 60");
    said_in(&mut talk, "Tell me a story about a very old tree.", 29);
    talk.send(b"\x04");
    assert_eq!(talk.end().code(), Some(0));
}

/// Asserts that no line which is shown is wider than this, once what was taken back is gone.
#[track_caller]
fn said_in(chat: &mut Pty, line: &str, width: usize) {
    let shown = said(chat, line);
    for line in shown.lines() {
        let mut kept = String::new();
        let mut parts = line.split("\u{1b}[");
        kept += parts.next().unwrap();
        for part in parts {
            let (back, rest) = part.split_at(part.find(|c: char| c.is_alphabetic()).unwrap());
            if let Some(rest) = rest.strip_prefix('D') {
                let kept_columns = kept.chars().count() - back.parse::<usize>().unwrap();
                kept = kept.chars().take(kept_columns).collect();
                assert!(kept.is_empty() || kept.ends_with(' '), "a word is broken: {shown:?}");
                kept += rest;
            } else {
                kept += &rest[1..];
            }
        }
        assert!(kept.chars().count() <= width, "{kept:?} of {shown:?}");
    }
}

#[test]
fn tab_completes_commands_options_and_files() {
    let Some(model) = smollm2() else { return };
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("texts")).unwrap();
    fs::write(folder.path().join("texts/it's one.txt"), "One text.").unwrap();
    fs::write(folder.path().join("texts/\u{1b}[2J"), "").unwrap();
    let begun = folder.path().join("te").display().to_string();
    let mut talk = chat(&model, &[]);
    assert!(said(&mut talk, "/verb\t").contains("(a line about each answer follows it)"));
    let read = said(&mut talk, &format!("/rea\t {begun}\tit\t"));
    assert!(
        read.contains("(9 B of '") && read.contains("it's one.txt' before the next message)"),
        "{read}"
    );
    assert!(said(&mut talk, "/set top-n\t 2").contains("top-nsigma 2"));
    // Several: they are listed, and what they share is typed.
    said(&mut talk, "/set mirostat\t\t 0");
    let listed = String::from_utf8_lossy(&talk.shown).into_owned();
    assert!(listed.contains("mirostat-lr") && listed.contains("mirostat-ent"), "{listed}");
    // In a message, it completes nothing.
    assert!(!said(&mut talk, "te\t").is_empty());
}
