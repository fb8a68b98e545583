//! Any text as a chat template: compiled, and rendered for two conversations.
#![no_main]

use std::sync::LazyLock;

use alight_text::{ChatError, ChatTemplate, Message};
use libfuzzer_sys::fuzz_target;

type Context = serde_json::Map<String, serde_json::Value>;

static CONTEXT: LazyLock<Context> = LazyLock::new(|| {
    let context = serde_json::json!({
        "messages": [
            {"role": "system", "content": "Be\nkind. "},
            {"role": "user", "content": [{"type": "text", "text": "Hi é🚀"}, {"type": "image"}]},
            {"role": "assistant", "content": null, "tool_calls": [
                {"function": {"name": "f", "arguments": {"x": 1, "y": [2.5, true]}}}]},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "add_generation_prompt": true,
        "n": -7, "x": 2.5, "s": "Hello, World", "l": [3, 1, 2], "d": {"b": 1, "a": [1, {"c": null}]},
    });
    context.as_object().unwrap().clone()
});

fn check(rendered: Result<String, ChatError>) {
    match rendered {
        Ok(text) => assert!(text.len() <= 128 << 20),
        Err(error) => {
            // Messages are bounded and printable, whatever the template says.
            let text = error.to_string();
            assert!(text.len() < 20_000 && !text.chars().any(char::is_control), "{text:?}");
            assert!(!matches!(error, ChatError::Syntax { .. } | ChatError::TooLong { .. }));
        }
    }
}

fuzz_target!(|source: &str| {
    match ChatTemplate::new(source, "<s>", "</s>") {
        Ok(template) => {
            let messages = [Message::user("Hello"), Message::assistant("{{ x }}")];
            check(template.render(&messages, true));
            let first = template.render_context(&CONTEXT);
            if !source.contains("strftime_now") {
                assert_eq!(first, template.render_context(&CONTEXT));
            }
            check(first);
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.len() < 2000 && !text.chars().any(char::is_control), "{text:?}");
        }
    }
});
