//! Conversations that are loaded into a chat, and are much longer than its context: the oldest exchanges are dropped, in bounded
//! memory and in a short time, and Ctrl-C ends what takes long at once.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::pty::Pty;
use crate::support::said::{self, TEXT};
use crate::support::{command, kill, text, write};

/// A chat with a model whose template writes all messages, without marks, and that answers "Yes".
fn chat(folder: &Path) -> Pty {
    chat_by("{% for m in messages %}{{ m.content }}{% endfor %}<go>", folder)
}

/// A chat with such a model and this template.
fn chat_by(template: &str, folder: &Path) -> Pty {
    let model = said::model(folder, &[("Yes", TEXT)], 0);
    let template = write(folder, "template", template);
    let args = ["run", &model, "--chat-template-file", &template, "--temp", "0", "--no-history"];
    let mut command = command(&args);
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

/// Types a line.
fn send(chat: &mut Pty, line: &str) {
    chat.send(line.as_bytes());
    chat.send(b"\r");
    chat.expect("\u{1b}[?2004l");
}

/// A file as `/save` writes it, of this number of exchanges whose two messages have this content.
fn saved(folder: &Path, exchanges: usize, content: &str) -> String {
    let mut text = String::from("{\"model\": \"x\", \"messages\": [");
    for i in 0..exchanges {
        let comma = if i > 0 { "," } else { "" };
        for (comma, role) in [(comma, "user"), (",", "assistant")] {
            let _ = write!(text, "{comma}{{\"role\": \"{role}\", \"content\": \"{content}\"}}");
        }
    }
    write(folder, "talk.json", text + "]}")
}

/// The most memory that a process has had, in KiB, where the system tells.
fn peak(chat: &Pty) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", chat.child.id())).ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    peak.trim().trim_end_matches(" kB").parse().ok()
}

#[test]
fn as_few_exchanges_as_possible_are_dropped_of_a_conversation_of_any_length() {
    let folder = tempfile::tempdir().unwrap();
    let mut chat = chat(folder.path());
    // The context has 512 positions, of which 128 are left for the answer; the beginning, the question and the mark before the
    // answer take three. Messages without text have no tokens in this template, and at most 512 of them are looked at.
    for (exchanges, content, kept) in [
        (200_000, "aaaa", (512 - 128 - 3) / 8),
        (200_000, "", 512),
        (300, "a", (512 - 128 - 3) / 2),
        (190, "a", 190),
    ] {
        let file = saved(folder.path(), exchanges, content);
        send(&mut chat, &format!("/load {file}"));
        chat.expect(&format!("({} messages of", 2 * exchanges));
        ready(&mut chat);
        send(&mut chat, "a");
        if kept < exchanges {
            chat.expect(&format!("has forgotten its oldest {} exchanges", exchanges - kept));
        }
        chat.expect("Yes");
        ready(&mut chat);
        send(&mut chat, "/info");
        chat.expect(&format!(" by {} exchanges", kept + 1));
        ready(&mut chat);
    }
    assert!(peak(&chat).is_none_or(|kib| kib < 600 << 10), "{:?} KiB", peak(&chat));
    chat.send(b"\x04");
    assert_eq!(chat.end().code(), Some(0));
}

/// Thinking that a template writes is no content of a message. It is not made tokens if no context holds it.
#[test]
fn long_thinking_is_dropped_with_its_exchange_before_it_is_made_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let template =
        "{% for m in messages %}{{ m.content }}{{ m.reasoning_content }}{% endfor %}<go>";
    let mut chat = chat_by(template, folder.path());
    let long = "a".repeat(1 << 20);
    let exchange = |thinking: &str| {
        format!(
            r#"{{"role": "user", "content": "a"}}, {{"role": "assistant", "content": "a", "reasoning_content": "{thinking}"}}"#
        )
    };
    let exchanges = [vec![exchange(&long); 50], vec![exchange("aa"); 3]].concat().join(", ");
    let file = write(folder.path(), "talk.json", format!("{{\"messages\": [{exchanges}]}}"));
    send(&mut chat, &format!("/load {file}"));
    chat.expect("(106 messages of");
    ready(&mut chat);
    send(&mut chat, "a");
    chat.expect("has forgotten its oldest 50 exchanges");
    chat.expect("Yes");
    ready(&mut chat);
    assert!(peak(&chat).is_none_or(|kib| kib < 600 << 10), "{:?} KiB", peak(&chat));
    chat.send(b"\x04");
    assert_eq!(chat.end().code(), Some(0));
}

#[test]
fn a_message_that_no_context_holds_is_refused_by_its_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let mut chat = chat(folder.path());
    let system = "a".repeat(20 << 20);
    let long = format!("{{\"messages\": [{{\"role\": \"system\", \"content\": \"{system}\"}}]}}");
    let file = write(folder.path(), "talk.json", long);
    send(&mut chat, &format!("/load {file}"));
    chat.expect("(1 messages of");
    ready(&mut chat);
    send(&mut chat, "a");
    chat.expect("the prompt has 20971521 bytes");
    ready(&mut chat);
    // The message that was not asked is no part of the conversation.
    send(&mut chat, "/regen");
    chat.expect("nothing has been asked yet");
    chat.send(b"\x04");
    assert_eq!(chat.end().code(), Some(0));
}

/// Also if Ctrl-C stops it: until the prompt is there, nothing is changed.
#[test]
fn an_answer_that_cannot_be_replaced_stays() {
    let folder = tempfile::tempdir().unwrap();
    let mut chat = chat(folder.path());
    let message =
        |role: &str, text: &str| format!("{{\"role\": \"{role}\", \"content\": \"{text}\"}}");
    let long = message("system", &"a".repeat(600));
    let messages = [long, message("user", "a"), message("assistant", "b")].join(", ");
    let file = write(folder.path(), "talk.json", format!("{{\"messages\": [{messages}]}}"));
    send(&mut chat, &format!("/load {file}"));
    chat.expect("(3 messages of");
    ready(&mut chat);
    for _again in 0..2 {
        send(&mut chat, "/regen");
        chat.expect("the context holds 512");
        ready(&mut chat);
    }
    send(&mut chat, "/info");
    chat.expect(" by 1 exchange");
    ready(&mut chat);
    // With a shorter system message it is replaced, and is not there twice.
    send(&mut chat, "/system a");
    chat.expect("(system: a)");
    ready(&mut chat);
    send(&mut chat, "/regen");
    chat.expect("Yes");
    ready(&mut chat);
    send(&mut chat, "/info");
    chat.expect(" by 1 exchange");
    chat.send(b"\x04");
    assert_eq!(chat.end().code(), Some(0));
}

#[test]
fn a_file_that_is_too_long_or_never_ends_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut chat = chat(folder.path());
    let sparse = folder.path().join("sparse");
    fs::File::create(&sparse).unwrap().set_len(1 << 40).unwrap();
    for file in [text(&sparse), "/dev/zero"] {
        send(&mut chat, &format!("/load {file}"));
        chat.expect("is longer than 64 MiB, the most that alight reads");
        ready(&mut chat);
    }
    for (file, why) in [
        ("{}", "missing field `messages`"),
        ("{\"messages\": [{\"role\": \"user\"}]}", "missing field `content`"),
        ("[", "is no conversation that /save wrote"),
    ] {
        let file = write(folder.path(), "talk.json", file);
        send(&mut chat, &format!("/load {file}"));
        chat.expect(why);
        ready(&mut chat);
    }
    chat.send(b"\x04");
    assert_eq!(chat.end().code(), Some(0));
}

#[test]
fn the_first_ctrl_c_ends_a_wait_for_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut chat = chat(folder.path());
    // Nothing ever opens it for writing, so it takes for ever to open.
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for round in 0..2 {
        send(&mut chat, &format!("/load {}", text(&pipe)));
        // Before that, Ctrl-C is a key of the line.
        chat.wait_for_signals();
        if round == 0 {
            chat.send(b"\x03");
        } else {
            kill(&chat.child, libc::SIGINT);
        }
        chat.expect("(stopped: the conversation is as it was)");
        ready(&mut chat);
    }
    send(&mut chat, "a");
    chat.expect("Yes");
    ready(&mut chat);
    chat.send(b"\x04");
    assert_eq!(chat.end().code(), Some(0));
}
