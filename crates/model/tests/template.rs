//! A file's chat template is compiled when it is used, and not before: what is wrong with it is no
//! error for those who do without it.

mod common;

use alight_formats::gguf;
use alight_model::chat::{ChatError, Message};
use alight_model::prompt::{Encoder, PromptError, Style};
use alight_model::{TemplateError, Vocabulary};

/// A vocabulary with this chat template, and without a token before every text.
fn vocabulary(template: &str) -> Vocabulary {
    let mut header = common::Spec::llama().metadata("");
    header.bool("tokenizer.ggml.add_bos_token", false);
    header.str("tokenizer.chat_template", template);
    let bytes = header.header();
    Vocabulary::from_gguf(&gguf::parse(&bytes).unwrap()).unwrap()
}

fn chat(template: &str) -> Result<Vec<u32>, PromptError> {
    let vocabulary = vocabulary(template);
    Encoder::new(&vocabulary, Style::Chat, false).chat(&[Message::user("ab")], true)
}

#[test]
fn a_template_that_is_not_used_is_not_looked_at() {
    let chains = format!("{{{{ 1{} }}}}", " + 1".repeat(200_000));
    let nested = format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000));
    let long = "x".repeat(3 << 20);
    for template in [&chains, &nested, &long, "{% if", "{{ 1 + }}"] {
        // Opening it is enough to overflow the stack where it is compiled at once.
        let vocabulary = vocabulary(template);
        let raw = Encoder::new(&vocabulary, Style::Raw, false).raw("ab").unwrap();
        assert!(!raw.is_empty());
    }
}

#[test]
fn a_template_that_cannot_be_used_says_so_when_it_is() {
    let error = chat("a\n{% if").unwrap_err();
    let PromptError::Template(TemplateError::Template(ChatError::Syntax { line: 2, .. })) = &error
    else {
        panic!("{error:?}")
    };
    let text = error.to_string();
    assert_eq!(text.matches("template is not valid").count(), 1, "{text}");
    assert_eq!(
        chat(&"x".repeat(3 << 20)).unwrap_err().to_string(),
        "the chat template has 3145728 bytes, more than the 1048576 that are read"
    );
    let mut header = common::Spec::llama().metadata("");
    header.u32("tokenizer.chat_template", 5);
    let bytes = header.header();
    let vocabulary = Vocabulary::from_gguf(&gguf::parse(&bytes).unwrap()).unwrap();
    assert!(matches!(vocabulary.template(), Some(Err(TemplateError::Metadata(_)))));
}

#[test]
fn what_a_template_refuses_is_said_once() {
    let error = chat("{{ raise_exception('not this') }}").unwrap_err();
    assert_eq!(error.to_string(), "the chat template refuses this conversation: not this");
    assert!(std::error::Error::source(&error).is_none());
}

#[test]
fn a_template_that_renders_to_nothing_is_an_error_that_says_so() {
    for template in ["", "{# nothing #}", "{% if false %}x{% endif %}", "{{ '' }}"] {
        let error = chat(template).unwrap_err();
        assert_eq!(error, PromptError::NothingRendered);
        assert!(error.to_string().contains("chat template makes no text"), "{error}");
    }
    assert!(!chat("{{ messages[0].content }}").unwrap().is_empty());
}
