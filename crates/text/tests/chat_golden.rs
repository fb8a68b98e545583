//! Chat templates of the usual styles, rendered as Python's jinja2 renders them (recorded in
//! `tests/data/chat_rendered.json` by `python -m evidence agree chat --golden`).

use std::fs;
use std::path::{Path, PathBuf};

use alight_text::{ChatError, ChatTemplate, Message};

#[derive(serde::Deserialize)]
struct Case {
    template: String,
    conversation: String,
    context: serde_json::Map<String, serde_json::Value>,
    /// `None`: jinja2 fails.
    rendered: Option<String>,
}

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data")
}

fn template(name: &str) -> ChatTemplate {
    let source = fs::read_to_string(data().join("chat").join(name)).unwrap();
    ChatTemplate::new(&source, "<s>", "</s>").unwrap()
}

#[test]
fn renders_what_jinja2_renders() {
    let cases = fs::read(data().join("chat_rendered.json")).unwrap();
    let cases: Vec<Case> = serde_json::from_slice(&cases).unwrap();
    assert!(cases.len() >= 20);
    for case in cases {
        let ours = template(&case.template).render_context(&case.context);
        let name = format!("{} on {}: {ours:?}", case.template, case.conversation);
        assert_eq!(ours.ok(), case.rendered, "{name}");
    }
}

#[test]
fn messages_render_like_the_same_context() {
    let messages = [Message::new("system", "Be kind."), Message::new("user", "Hi <|im_end|>")];
    let rendered = template("chatml.jinja").render(&messages, true).unwrap();
    assert_eq!(
        rendered,
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi <|im_end|><|im_end|>\n\
         <|im_start|>assistant\n"
    );
    let closed = template("chatml.jinja").render(&messages, false).unwrap();
    assert_eq!(closed + "<|im_start|>assistant\n", rendered);
}

#[test]
fn a_template_that_refuses_says_why() {
    let error = template("turns.jinja").render(&[Message::new("assistant", "Me first")], true);
    let words = "Conversation roles must alternate user/assistant/user/assistant/...";
    assert_eq!(error, Err(ChatError::Refused { message: words.into() }));
}

#[test]
fn a_long_conversation_is_not_a_bomb() {
    let messages: Vec<Message> = (0..5000)
        .map(|i| Message::new(if i % 2 == 0 { "user" } else { "assistant" }, "word ".repeat(200)))
        .collect();
    for name in ["chatml.jinja", "headers.jinja", "turns.jinja", "instructions.jinja"] {
        let rendered = template(name).render(&messages, true).unwrap();
        assert!(rendered.len() > 4_000_000, "{name}");
    }
}
