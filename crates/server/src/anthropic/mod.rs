//! Anthropic's endpoints, one file each, and the code they share: their bodies as chat templates expect them.

mod blocks;
pub(crate) mod count_tokens;
pub(crate) mod messages;
pub(crate) mod models;
mod tools;

use alight_chat::body::conversation::{self, ToolChoice};
use alight_chat::body::fields::{Fields, kind};
use alight_chat::body::refusal::Refusal;
use alight_chat::body::thinking::{BUDGET, EFFORT, SWITCH};
use serde_json::{Map, Value, json};

use self::blocks::{message_into, no_text};
use self::tools::AnthropicTools;
use crate::apart::note;
use crate::failure::Failure;

/// Claude Code begins its system prompt with a stamp that differs from request to request: with it, no two prompts would share a
/// prefix.
const STAMP: &str = "x-anthropic-billing-header:";

/// The conversation of a body, as a template expects it.
struct Taken {
    context: Map<String, Value>,
    /// The calls that the client wants.
    choice: ToolChoice,
    /// The places of the tools in the request.
    places: Vec<String>,
}

/// Takes the conversation of a body.
fn take(fields: &mut Fields) -> Result<Taken, Failure> {
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
    let mut places = Vec::new();
    if let Some(tools) = fields.list("tools")? {
        let AnthropicTools { functions, places: own } = AnthropicTools::take(&tools)?;
        places = own;
        body.insert("tools".to_owned(), functions.into());
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
    take_thinking(fields, &mut body)?;
    let (context, choice) = conversation::take_with_choice(&mut Fields::new(body))?;
    Ok(Taken { context, choice, places })
}

/// Takes the fields about thinking, and passes them on under OpenAI's and llama-server's names.
fn take_thinking(fields: &mut Fields, body: &mut Map<String, Value>) -> Result<(), Refusal> {
    if let Some(mut config) = fields.object("output_config")? {
        if let Some(effort) = config.shift_remove("effort") {
            body.insert(EFFORT.to_owned(), effort);
        }
        fields.insert("output_config", config.into());
    }
    for name in [EFFORT, BUDGET, "chat_template_kwargs"] {
        if let Some(value) = fields.any(name) {
            body.insert(name.to_owned(), value);
        }
    }
    let Some(thinking) = fields.object("thinking")? else { return Ok(()) };
    let mut thinking = Fields::new(thinking);
    let what = "\"enabled\", \"adaptive\" or \"disabled\"";
    let wanted = thinking.read("type", what, |kind| match kind.as_str()? {
        "enabled" | "adaptive" => Some(true),
        "disabled" => Some(false),
        _ => None,
    });
    let tokens = thinking.count("budget_tokens");
    let in_thinking = |refusal: Refusal| Refusal {
        param: refusal.param.as_ref().map(|param| format!("thinking.{param}")),
        message: format!("thinking.{}", refusal.message),
        ..refusal
    };
    let (wanted, tokens) = (wanted.map_err(in_thinking)?, tokens.map_err(in_thinking)?);
    let wanted = wanted.unwrap_or(true);
    let variables = body.entry("chat_template_kwargs").or_insert_with(|| json!({}));
    if let Some(variables) = variables.as_object_mut() {
        variables.entry(SWITCH).or_insert(wanted.into());
    }
    if let Some(tokens) = tokens.filter(|_| wanted) {
        body.insert(BUDGET.to_owned(), tokens.into());
    }
    Ok(())
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
        let mut fields = Fields::new(body.as_object().unwrap().clone());
        let Taken { context, places, .. } = take(&mut fields).unwrap();
        assert_eq!(places, ["tools[0]"]);
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
    fn thinking_is_wanted_limited_or_not() {
        for (more, switch, budget, effort) in [
            (
                json!({"thinking": {"type": "enabled", "budget_tokens": 7}}),
                json!(true),
                json!(7),
                Value::Null,
            ),
            (json!({"thinking": {"type": "adaptive"}}), json!(true), Value::Null, Value::Null),
            (
                json!({"thinking": {"type": "disabled", "budget_tokens": 7}}),
                json!(false),
                Value::Null,
                Value::Null,
            ),
            (json!({"output_config": {"effort": "max"}}), Value::Null, Value::Null, json!("max")),
        ] {
            let mut body = json!({"messages": [{"role": "user", "content": "a"}]});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let context =
                take(&mut Fields::new(body.as_object().unwrap().clone())).unwrap().context;
            let got = |name: &str| context.get(name).cloned().unwrap_or_default();
            assert_eq!((got(SWITCH), got(BUDGET), got(EFFORT)), (switch, budget, effort));
        }
        for (thinking, param) in [
            (json!({"type": "on"}), "thinking.type"),
            (json!({"budget_tokens": -1}), "thinking.budget_tokens"),
        ] {
            let body =
                json!({"messages": [{"role": "user", "content": "a"}], "thinking": thinking});
            let failure = take(&mut Fields::new(body.as_object().unwrap().clone())).err().unwrap();
            assert_eq!(failure.param.as_deref(), Some(param));
            assert!(
                failure.message.starts_with(&format!("{param}: it is ")),
                "{}",
                failure.message
            );
        }
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
