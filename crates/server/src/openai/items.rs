//! Converts the items of `/v1/responses` into messages of a conversation, and its other fields into those of
//! `/v1/chat/completions`.

use alight_chat::body::fields::{Fields, kind};
use alight_chat::body::messages::{joined, role};
use alight_chat::body::options::NO_LOGPROBS;
use alight_chat::body::refusal::Refusal;
use serde_json::{Map, Value, json};

use crate::apart::left_out_tools;
use crate::asking::tool_call;

/// Names of fields in chat completions, and here.
pub(super) const NAMES: [(&str, &str); 2] =
    [("max_tokens", "max_output_tokens"), ("response_format", "text.format")];

/// Renames the fields to those of chat completions; also returns those that are left. The body
/// has the fields of its endpoint.
pub(crate) fn renamed(object: Map<String, Value>) -> Result<(Fields, Fields), Refusal> {
    let mut fields = Fields::new(object);
    let likelihoods = json!("message.output_text.logprobs");
    let wanted = |include: &Value| include.as_array().is_some_and(|all| all.contains(&likelihoods));
    fields.only("include", |include| !wanted(include), NO_LOGPROBS)?;
    let mut body = Map::new();
    let instructions = fields.string("instructions")?;
    let input = fields.any("input").ok_or_else(|| Refusal::invalid("input", "it is missing"))?;
    body.insert("messages".to_owned(), messages(instructions, input)?.into());
    // Here an answer is always an item of its own.
    body.insert("continue_final_message".to_owned(), false.into());
    if let Some(tools) = fields.list("tools")? {
        // Other tools are run by OpenAI's server, not by the client.
        let all = tools.len();
        let tools = tools.iter().filter(|tool| tool["type"] == "function");
        let tools = tools.map(|tool| {
            let mut function = tool.clone();
            function.as_object_mut().map(|fields| fields.shift_remove("type"));
            json!({"type": "function", "function": function})
        });
        let tools: Vec<Value> = tools.collect();
        left_out_tools(all - tools.len());
        body.insert("tools".to_owned(), tools.into());
    }
    if let Some(effort) = fields.object("reasoning")?.and_then(|mut r| r.shift_remove("effort")) {
        body.insert("reasoning_effort".to_owned(), effort);
    }
    if let Some(format) = fields.object("text")?.and_then(|mut text| text.shift_remove("format")) {
        body.insert("response_format".to_owned(), format);
    }
    for (from, to) in [
        ("max_output_tokens", "max_tokens"),
        ("model", "model"),
        ("stream", "stream"),
        ("return_progress", "return_progress"),
        ("timings_per_token", "timings_per_token"),
        ("tool_choice", "tool_choice"),
        ("parallel_tool_calls", "parallel_tool_calls"),
        ("temperature", "temperature"),
        ("top_p", "top_p"),
        ("top_k", "top_k"),
        ("min_p", "min_p"),
        ("seed", "seed"),
        ("stop", "stop"),
        ("grammar", "grammar"),
        ("regex", "regex"),
        ("chat_template_kwargs", "chat_template_kwargs"),
    ] {
        if let Some(value) = fields.any(from) {
            body.insert(to.to_owned(), value);
        }
    }
    Ok((Fields::new(body), fields))
}

fn messages(instructions: Option<String>, input: Value) -> Result<Vec<Value>, Refusal> {
    let mut all = Vec::new();
    if let Some(text) = instructions.filter(|text| !text.is_empty()) {
        all.push(json!({"role": "system", "content": text}));
    }
    match input {
        Value::String(text) => all.push(json!({"role": "user", "content": text})),
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                message(item, &format!("input[{i}]"), &mut all)?;
            }
        }
        other => {
            let message = format!("it is {}, expected a string or a list of items", kind(&other));
            return Err(Refusal::invalid("input", message));
        }
    }
    Ok(all)
}

/// Adds an item. The thinking, text and calls of the model up to the next message of another role are one message.
fn message(item: &Value, at: &str, all: &mut Vec<Value>) -> Result<(), Refusal> {
    match item["type"].as_str().unwrap_or("message") {
        "message" => {
            let role = role(item.get("role"), at)?;
            let text = text(&item["content"], &format!("{at}.content"))?;
            // Templates support one system message, before all others.
            if role == "system" && all.len() == 1 && all[0]["role"] == "system" {
                let before = all[0]["content"].as_str().unwrap_or_default();
                all[0]["content"] = format!("{before}\n\n{text}").into();
            } else if role == "assistant" {
                let own = own(all);
                let before = own["content"].as_str().unwrap_or_default();
                let blank = if before.is_empty() { "" } else { "\n\n" };
                own["content"] = format!("{before}{blank}{text}").into();
            } else {
                all.push(json!({"role": role, "content": text}));
            }
        }
        "function_call" => {
            let call = tool_call(&item["call_id"], &item["name"], item["arguments"].clone());
            let own = own(all);
            if own["tool_calls"].is_null() {
                own["tool_calls"] = json!([]);
            }
            own["tool_calls"].as_array_mut().into_iter().for_each(|calls| calls.push(call.clone()));
        }
        "function_call_output" => {
            let content = text(&item["output"], &format!("{at}.output"))?;
            all.push(json!({"role": "tool", "tool_call_id": item["call_id"], "content": content}));
        }
        "reasoning" => {
            // Only OpenAI can read encrypted reasoning.
            let parts = item["content"].as_array().or(item["summary"].as_array());
            let texts = parts.into_iter().flatten().filter_map(|part| part["text"].as_str());
            let thought = texts.collect::<Vec<_>>().join("\n\n");
            if !thought.is_empty() {
                own(all)["reasoning_content"] = thought.into();
            }
        }
        other => {
            let message = format!(
                "it is {other:?}, expected \"message\", \"function_call\", \"function_call_output\" or \"reasoning\""
            );
            return Err(Refusal::unsupported(format!("{at}.type"), message));
        }
    }
    Ok(())
}

/// Returns the model's message that is being assembled.
fn own(all: &mut Vec<Value>) -> &mut Value {
    if all.last().is_none_or(|last| last["role"] != "assistant") {
        all.push(json!({"role": "assistant", "content": ""}));
    }
    let last = all.len() - 1;
    &mut all[last]
}

fn text(content: &Value, at: &str) -> Result<String, Refusal> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => joined(parts, at),
        other => {
            let message = format!("it is {}, expected a string or a list of parts", kind(other));
            Err(Refusal::invalid(at, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_become_messages_of_one_conversation() {
        let input = json!([
            {"role": "developer", "content": [{"type": "input_text", "text": "Be short."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "7"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "8"}]},
        ]);
        let got = messages(Some("Be kind.".to_owned()), input).unwrap();
        let call = |id: &str, name: &str| tool_call(&json!(id), &json!(name), json!("{}"));
        assert_eq!(
            Value::from(got),
            json!([
                {"role": "system", "content": "Be kind.\n\nBe short."},
                {"role": "user", "content": "Hi"},
                {
                    "role": "assistant", "content": "I look.", "reasoning_content": "Hm.",
                    "tool_calls": [call("c1", "f"), call("c2", "g")],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "7"},
                {"role": "tool", "tool_call_id": "c2", "content": "8"},
            ])
        );
        for (input, param) in [
            (json!(7), "input"),
            (json!([{"type": "item_reference", "id": "x"}]), "input[0].type"),
            (json!([{"content": "x"}]), "input[0].role"),
            (json!([{"role": "bob", "content": "x"}]), "input[0].role"),
            (
                json!([{"role": "user", "content": [{"type": "input_image"}]}]),
                "input[0].content[0].type",
            ),
        ] {
            assert_eq!(messages(None, input).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
