//! A file's chat template is compiled when it is used, and not before: an invalid template is no
//! error for callers that do without it.

use alight_formats::gguf::{self, write::Builder};
use alight_text::{ChatError, Encoder, Message, PromptError, Style, TemplateError, Vocabulary};

/// The metadata of a vocabulary of bytes, without a token before every text.
fn metadata() -> Builder {
    let mut tokens = vec!["<unk>".to_owned(), "<s>".into(), "</s>".into()];
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    let types: Vec<i32> = (0..tokens.len()).map(|id| [2, 3, 3, 6][id.min(3)]).collect();
    let mut header = Builder::new();
    header.str("tokenizer.ggml.model", "llama");
    header.f32s("tokenizer.ggml.scores", &vec![0.0; tokens.len()]);
    header.i32s("tokenizer.ggml.token_type", &types);
    header.strs("tokenizer.ggml.tokens", &tokens);
    header.bool("tokenizer.ggml.add_bos_token", false);
    header
}

fn read(header: &Builder) -> Vocabulary {
    let bytes = header.header();
    Vocabulary::from_gguf(&gguf::parse(&bytes).unwrap()).unwrap()
}

/// A vocabulary with this chat template.
fn vocabulary(template: &str) -> Vocabulary {
    let mut header = metadata();
    header.str("tokenizer.chat_template", template);
    read(&header)
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
    let mut header = metadata();
    header.u32("tokenizer.chat_template", 5);
    let vocabulary = read(&header);
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
