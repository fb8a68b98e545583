//! The conversation of a body, with its tools and what else a chat template may look for.

use serde_json::{Map, Value};

use super::fields::Fields;
use super::messages;
use super::refusal::Refusal;

/// What a template sees of messages.
pub fn context(messages: Vec<Value>) -> Map<String, Value> {
    Map::from_iter([
        ("messages".to_owned(), messages.into()),
        ("add_generation_prompt".to_owned(), true.into()),
    ])
}

/// Takes the conversation of a body, as a template sees it. It has `tools` if the model may call any.
///
/// # Errors
/// Messages or tools that are none, or a choice of tools that cannot be kept.
pub fn take(fields: &mut Fields) -> Result<Map<String, Value>, Refusal> {
    let missing = || Refusal::invalid("messages", "they are missing");
    let given = fields.list("messages")?.ok_or_else(missing)?;
    let mut context = context(messages::for_template(given)?);
    let tools = fields.list("tools")?.filter(|tools| !tools.is_empty());
    let choice = fields.any("tool_choice").unwrap_or("auto".into());
    match (tools, choice.as_str()) {
        (None, Some("auto" | "none")) | (Some(_), Some("none")) => {}
        (Some(tools), Some("auto")) => {
            context.insert("tools".to_owned(), tools.into());
        }
        (None, _) => return Err(Refusal::invalid("tool_choice", "there are no tools")),
        (Some(_), _) => {
            let why = "a model cannot be made to call a tool here: \"auto\" and \"none\" are taken";
            return Err(Refusal::unsupported("tool_choice", why));
        }
    }
    if let Some(effort) = fields.string("reasoning_effort")? {
        context.insert("reasoning_effort".to_owned(), effort.into());
    }
    for (key, value) in fields.object("chat_template_kwargs")?.unwrap_or_default() {
        if context.contains_key(&key) || key == "tools" {
            let param = format!("chat_template_kwargs.{key}");
            return Err(Refusal::invalid(param, "it is a field of its own"));
        }
        context.insert(key, value);
    }
    Ok(context)
}
