//! Messages of Anthropic's requests, block by block, as those of templates.

use alight_chat::body::fields::kind;
use alight_chat::body::messages::{FILE, sentence};
use alight_chat::body::refusal::Refusal;
use serde_json::{Value, json};

use super::texts;
use crate::apart::note;
use crate::asking::tool_call;

/// The beginning of the result of a tool that has failed.
const FAILED: &str = "Error: ";

/// The part of a message that is not yet among the messages.
#[derive(Default)]
struct Draft {
    text: Vec<String>,
    thinking: Vec<String>,
    calls: Vec<Value>,
}

impl Draft {
    fn flush(&mut self, role: &str, all: &mut Vec<Value>) {
        let Draft { text, thinking, calls } = std::mem::take(self);
        if text.is_empty() && thinking.is_empty() && calls.is_empty() {
            return;
        }
        let mut message = json!({"role": role, "content": text.join("\n\n")});
        if !thinking.is_empty() {
            message["reasoning_content"] = thinking.join("\n\n").into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        all.push(message);
    }
}

/// Converts a message of Anthropic's into one or more of OpenAI's.
pub(super) fn message_into(message: &Value, at: &str, all: &mut Vec<Value>) -> Result<(), Refusal> {
    let role = match message["role"].as_str() {
        Some(role @ ("user" | "assistant" | "system")) => role,
        _ => {
            let found = kind(&message["role"]);
            let message = format!("it is {found}, expected \"user\" or \"assistant\"");
            return Err(Refusal::invalid(format!("{at}.role"), message));
        }
    };
    let content = &message["content"];
    let at = format!("{at}.content");
    let Some(blocks) = content.as_array() else {
        all.push(json!({"role": role, "content": texts(content, &at)?}));
        return Ok(());
    };
    let mut draft = Draft::default();
    for (i, block) in blocks.iter().enumerate() {
        let at = format!("{at}[{i}]");
        match block["type"].as_str().unwrap_or_default() {
            "thinking" => {
                draft.thinking.push(block["thinking"].as_str().unwrap_or_default().to_owned());
            }
            "redacted_thinking" => note("redacted thinking is left out"),
            "container_upload" => note("a block of the type container_upload is left out"),
            "tool_use" | "server_tool_use" | "mcp_tool_use" => {
                let call = tool_call(&block["id"], &block["name"], block["input"].clone());
                draft.calls.push(call);
            }
            result if result.ends_with("tool_result") => {
                // The text before it stays before it.
                draft.flush(role, all);
                let id = &block["tool_use_id"];
                let content = result_text(block, &at)?;
                all.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
            }
            _ => draft.text.extend(block_text(block, &at)?),
        }
    }
    draft.flush(role, all);
    Ok(())
}

/// The refusal of a block that is no text.
pub(super) fn no_text(block: &Value, at: &str) -> Refusal {
    let found = format!("it is {}, and only text is taken", kind(&block["type"]));
    Refusal::unsupported(format!("{at}.type"), found)
}

/// Returns the text of a block that a user may send, or that a result may have, if there is any.
fn block_text(block: &Value, at: &str) -> Result<Option<String>, Refusal> {
    let text = |name: &str| block[name].as_str().unwrap_or_default();
    Ok(match text("type") {
        "text" => Some(text("text").to_owned()),
        "search_result" => {
            let content = texts(&block["content"], &format!("{at}.content"))?;
            Some(lines(&[text("title"), text("source"), &content]))
        }
        "document" => {
            let source = &block["source"];
            let at = format!("{at}.source");
            let content = match source["type"].as_str() {
                Some("text") => source["data"].as_str().unwrap_or_default().to_owned(),
                Some("content") => texts(&source["content"], &format!("{at}.content"))?,
                _ => return Err(no_text(source, &at)),
            };
            Some(lines(&[text("title"), text("context"), &content]))
        }
        "tool_reference" => Some(format!("The tool {} is available.", text("tool_name"))),
        // The summary of what came before.
        "compaction" if block["content"].is_string() => Some(text("content").to_owned()),
        "compaction" => {
            note("a block of the type compaction is left out");
            None
        }
        _ => return Err(no_text(block, at)),
    })
}

/// Returns the text of a tool's result, which says if the tool has failed.
fn result_text(block: &Value, at: &str) -> Result<String, Refusal> {
    let at = format!("{at}.content");
    let content = &block["content"];
    let text = match (block["type"].as_str(), content) {
        (Some("tool_result" | "mcp_tool_result"), Value::Array(blocks)) => {
            let mut all = Vec::new();
            for (i, block) in blocks.iter().enumerate() {
                all.extend(part_text(block, &format!("{at}[{i}]"))?);
            }
            all.join("\n\n")
        }
        (Some("tool_result" | "mcp_tool_result"), _) => texts(content, &at)?,
        _ => foreign_text(content),
    };
    let says_so = text.get(..5).is_some_and(|begin| begin.eq_ignore_ascii_case("error"))
        || text.starts_with("<tool_use_error>");
    Ok(if block["is_error"] == true && !says_so { format!("{FAILED}{text}") } else { text })
}

/// Returns the text of a part of a tool's result. A picture or a file becomes a sentence.
fn part_text(block: &Value, at: &str) -> Result<Option<String>, Refusal> {
    if let Some(sentence) = sentence(block) {
        return Ok(Some(sentence.to_owned()));
    }
    let unread = block["type"] == "document"
        && !matches!(block["source"]["type"].as_str(), Some("text" | "content"));
    match unread {
        true => Ok(Some(FILE.to_owned())),
        false => block_text(block, at),
    }
}

/// Returns the text of the result of a tool that Anthropic's server has run: its texts, and else its fields.
fn foreign_text(content: &Value) -> String {
    match content {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(all) => all
            .iter()
            .map(foreign_text)
            .filter(|text| !text.is_empty())
            .collect::<Vec<_>>()
            .join("\n\n"),
        Value::Object(fields) => {
            let mut fields = fields.clone();
            fields.retain(|name, value| {
                let hidden =
                    name.starts_with("encrypted") || name == "type" || name == "cache_control";
                !hidden && !value.is_null()
            });
            match fields.get("text").and_then(Value::as_str) {
                Some(text) => text.to_owned(),
                None if fields.is_empty() => String::new(),
                None => Value::from(fields).to_string(),
            }
        }
        other => other.to_string(),
    }
}

/// The texts that are not empty, a line each.
fn lines(texts: &[&str]) -> String {
    let texts = texts.iter().filter(|text| !text.is_empty());
    texts.copied().collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use alight_chat::body::messages::PICTURE;

    use super::*;

    fn messages(role: &str, content: &Value) -> Result<Value, Refusal> {
        let mut all = Vec::new();
        message_into(&json!({"role": role, "content": content}), "messages[0]", &mut all)?;
        Ok(all.into())
    }

    #[test]
    fn blocks_that_a_user_sends_are_text_or_refused() {
        let document = json!({"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}});
        let found = json!({"type": "search_result", "title": "S", "source": "s", "content": [{"type": "text", "text": "F"}]});
        let content = json!([document, found, {"type": "text", "text": "And?"}]);
        let wanted = json!([{"role": "user", "content": "T\nD\n\nS\ns\nF\n\nAnd?"}]);
        assert_eq!(messages("user", &content), Ok(wanted));
        for (block, param) in [
            (json!({"type": "image", "source": {}}), "messages[0].content[0].type"),
            (
                json!({"type": "document", "source": {"type": "base64"}}),
                "messages[0].content[0].source.type",
            ),
            (json!({"type": "strange"}), "messages[0].content[0].type"),
        ] {
            let refusal = messages("user", &json!([block])).unwrap_err();
            assert_eq!(refusal.param.as_deref(), Some(param));
        }
    }

    #[test]
    fn results_say_what_cannot_be_seen_and_what_has_failed() {
        let result = |content: Value, is_error: bool| {
            let block = json!({"type": "tool_result", "tool_use_id": "t", "content": content, "is_error": is_error});
            messages("user", &json!([block])).unwrap()[0]["content"].as_str().unwrap().to_owned()
        };
        let picture = json!([{"type": "text", "text": "a"}, {"type": "image", "source": {}}]);
        assert_eq!(result(picture, false), format!("a\n\n{PICTURE}"));
        let file = json!([{"type": "document", "source": {"type": "base64"}}]);
        assert_eq!(result(file, false), FILE);
        assert_eq!(
            result(json!([{"type": "tool_reference", "tool_name": "f"}]), false),
            "The tool f is available."
        );
        assert_eq!(result(json!("no file"), true), "Error: no file");
        assert_eq!(result(json!("error: no file"), true), "error: no file");
        assert_eq!(result(json!("no file"), false), "no file");
    }

    #[test]
    fn calls_of_a_server_become_calls_and_results() {
        let content = json!([
            {"type": "text", "text": "I look."},
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": [
                {"type": "web_search_result", "title": "T", "url": "u", "encrypted_content": "x", "page_age": null}]},
            {"type": "mcp_tool_use", "id": "m", "name": "f", "server_name": "n", "input": {}},
            {"type": "mcp_tool_result", "tool_use_id": "m", "is_error": false, "content": [{"type": "text", "text": "7"}]},
            {"type": "compaction", "content": "So far."},
        ]);
        let call = |id: &str, name: &str, input: Value| tool_call(&json!(id), &json!(name), input);
        assert_eq!(
            messages("assistant", &content).unwrap(),
            json!([
                {"role": "assistant", "content": "I look.", "tool_calls": [call("s", "web_search", json!({"query": "q"}))]},
                {"role": "tool", "tool_call_id": "s", "content": "{\"title\":\"T\",\"url\":\"u\"}"},
                {"role": "assistant", "content": "", "tool_calls": [call("m", "f", json!({}))]},
                {"role": "tool", "tool_call_id": "m", "content": "7"},
                {"role": "assistant", "content": "So far."},
            ])
        );
    }
}
