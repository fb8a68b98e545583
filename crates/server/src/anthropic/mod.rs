//! Anthropic's endpoints, one file each, and the code they share: their bodies as chat templates expect them.

pub(crate) mod count_tokens;
pub(crate) mod messages;
pub(crate) mod models;

use alight_chat::body::conversation::{self, ToolChoice};
use alight_chat::body::fields::{Fields, kind};
use alight_chat::body::refusal::Refusal;
use serde_json::{Map, Value, json};

use crate::apart::{left_out_tools, note};
use crate::asking::tool_call;
use crate::failure::Failure;

/// Claude Code begins its system prompt with a stamp that differs from request to request: with it, no two prompts would share a
/// prefix.
const STAMP: &str = "x-anthropic-billing-header:";

/// Takes the conversation of a body, as a template expects it, and the tools one of which must be called.
fn take(fields: &mut Fields) -> Result<(Map<String, Value>, ToolChoice), Failure> {
    let mut messages = Vec::new();
    let system = fields.any("system").map(|system| texts(&system, "system")).transpose()?;
    if let Some(system) = system.filter(|text| !text.is_empty()) {
        messages.push(json!({"role": "system", "content": system}));
    }
    let missing = || Refusal::invalid("messages", "they are missing");
    for (i, message) in fields.list("messages")?.ok_or_else(missing)?.iter().enumerate() {
        message_into(message, &format!("messages[{i}]"), &mut messages)?;
    }
    let mut body = Map::new();
    body.insert("messages".to_owned(), messages.into());
    if let Some(tools) = fields.list("tools")? {
        let own: Vec<Value> = tools.iter().filter(|tool| is_own(tool)).map(tool).collect();
        left_out_tools(tools.len() - own.len());
        body.insert("tools".to_owned(), own.into());
    }
    if let Some(choice) = fields.object("tool_choice")? {
        if choice.get("disable_parallel_tool_use") == Some(&json!(true)) {
            body.insert("parallel_tool_calls".to_owned(), json!(false));
        }
        let kind_of = choice.get("type").unwrap_or(&Value::Null);
        let choice = match kind_of.as_str() {
            Some("any") => json!("required"),
            Some("tool") => json!({"type": "function", "function": {"name": choice.get("name")}}),
            Some("auto" | "none") => kind_of.clone(),
            _ => {
                let found = kind(kind_of);
                let why =
                    format!("it is {found}, expected \"auto\", \"any\", \"tool\" or \"none\"");
                return Err(Refusal::invalid("tool_choice.type", why).into());
            }
        };
        body.insert("tool_choice".to_owned(), choice);
    }
    if let Some(thinking) = fields.object("thinking")? {
        let wanted = thinking.get("type").is_none_or(|kind| kind != "disabled");
        body.insert("chat_template_kwargs".to_owned(), json!({"enable_thinking": wanted}));
    }
    Ok(conversation::take_with_choice(&mut Fields::new(body))?)
}

/// Takes the schema of an answer, by its newer or its older name, and passes it on under OpenAI's name. Returns the name that it had.
fn take_format(fields: &mut Fields) -> Result<&'static str, Refusal> {
    let newer =
        fields.object("output_config")?.and_then(|mut config| config.shift_remove("format"));
    let newer = newer.filter(|format| !format.is_null());
    let older = fields.any("output_format");
    let name = match (&newer, &older) {
        (None, Some(_)) => "output_format",
        (Some(_), _) => "output_config.format",
        // Some clients send OpenAI's.
        (None, None) => "response_format",
    };
    if let Some(format) = newer.or(older) {
        fields.insert("response_format", format);
    }
    Ok(name)
}

/// True if the client runs the tool. Other tools run only at Anthropic, and have a type with a date.
fn is_own(tool: &Value) -> bool {
    tool["type"].as_str().is_none_or(|kind| kind == "custom")
}

/// Returns a tool in OpenAI's format.
fn tool(tool: &Value) -> Value {
    json!({"type": "function", "function": {
        "name": tool["name"],
        "description": tool["description"],
        "parameters": tool["input_schema"],
        "strict": tool["strict"] == true,
    }})
}

/// Returns the text of a string, or of blocks that are texts.
fn texts(content: &Value, at: &str) -> Result<String, Refusal> {
    match content {
        Value::String(text) => Ok(without_stamp(text).to_owned()),
        Value::Array(blocks) => {
            let mut all: Vec<&str> = Vec::new();
            for (i, block) in blocks.iter().enumerate() {
                match (block["type"].as_str(), block["text"].as_str()) {
                    (Some("text"), Some(text)) => all.push(without_stamp(text)),
                    _ => return Err(no_text(block, &format!("{at}[{i}]"))),
                }
            }
            all.retain(|text| !text.is_empty());
            Ok(all.join("\n\n"))
        }
        Value::Null => Ok(String::new()),
        other => {
            let found = format!("it is {}, expected a string or a list of blocks", kind(other));
            Err(Refusal::invalid(at, found))
        }
    }
}

/// Removes a first line that is a stamp.
fn without_stamp(text: &str) -> &str {
    match text.strip_prefix(STAMP) {
        Some(rest) => {
            note("a stamp before the system prompt is left out");
            rest.split_once('\n').map_or("", |(_, rest)| rest.trim_start())
        }
        None => text,
    }
}

fn no_text(block: &Value, at: &str) -> Refusal {
    let found = format!("it is {}, and only text is taken", kind(&block["type"]));
    Refusal::unsupported(format!("{at}.type"), found)
}

/// Converts a message of Anthropic's into one or more of OpenAI's.
fn message_into(message: &Value, at: &str, all: &mut Vec<Value>) -> Result<(), Refusal> {
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
    let (mut text, mut thinking, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for (i, block) in blocks.iter().enumerate() {
        match block["type"].as_str() {
            Some("text") => text.push(block["text"].as_str().unwrap_or_default()),
            Some("thinking") => thinking.push(block["thinking"].as_str().unwrap_or_default()),
            Some("redacted_thinking") => note("redacted thinking is left out"),
            Some("tool_use") => {
                calls.push(tool_call(&block["id"], &block["name"], block["input"].clone()));
            }
            Some("tool_result") => {
                // Text that precedes it stays before it.
                if !text.is_empty() {
                    all.push(json!({"role": role, "content": text.join("\n\n")}));
                    text.clear();
                }
                let content = texts(&block["content"], &format!("{at}[{i}].content"))?;
                let id = &block["tool_use_id"];
                all.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
            }
            _ => return Err(no_text(block, &format!("{at}[{i}]"))),
        }
    }
    if !(text.is_empty() && thinking.is_empty() && calls.is_empty()) {
        let mut message = json!({"role": role, "content": text.join("\n\n")});
        if !thinking.is_empty() {
            message["reasoning_content"] = thinking.join("\n\n").into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        all.push(message);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_become_messages_of_templates() {
        let body = json!({
            "system": [
                {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=a1b2c;"},
                {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}},
            ],
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": ""},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "7"}]},
                    {"type": "text", "text": "And?"},
                ]},
            ],
            "tools": [
                {"name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": true},
                {"name": "web_search", "type": "web_search_20250305"},
            ],
            "tool_choice": {"type": "auto"},
            "thinking": {"type": "disabled"},
        });
        let (context, _) = take(&mut Fields::new(body.as_object().unwrap().clone())).unwrap();
        let got = &context["messages"];
        assert_eq!(got[0], json!({"role": "system", "content": "Be kind."}));
        assert_eq!(
            (&got[2]["content"], &got[2]["reasoning_content"]),
            (&json!("I look."), &json!("Hm."))
        );
        assert_eq!(
            got[2]["tool_calls"][0]["function"],
            json!({"name": "f", "arguments": {"a": 1}})
        );
        assert_eq!(got[3], json!({"role": "tool", "tool_call_id": "t1", "content": "7"}));
        assert_eq!(got[4], json!({"role": "user", "content": "And?"}));
        let tools = context["tools"].as_array().unwrap();
        assert_eq!(tools.len(), 1, "others run elsewhere");
        assert_eq!(tools[0]["function"]["parameters"], json!({"type": "object"}));
        assert_eq!(tools[0]["function"]["strict"], true);
        assert_eq!(context["enable_thinking"], false);
    }

    #[test]
    fn the_schema_of_an_answer_has_two_names() {
        let format = json!({"type": "json_schema", "schema": {"type": "integer"}});
        for (body, wanted) in [
            (json!({"output_config": {"format": format, "effort": "low"}}), Some(&format)),
            (json!({"output_format": format}), Some(&format)),
            (json!({"output_format": null, "output_config": {"effort": "low"}}), None),
            (json!({"response_format": format}), Some(&format)),
        ] {
            let mut fields = Fields::new(body.as_object().unwrap().clone());
            take_format(&mut fields).unwrap();
            assert_eq!(fields.any("response_format").as_ref(), wanted, "{body}");
        }
    }
}
