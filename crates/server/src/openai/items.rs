//! Converts the items of `/v1/responses` into messages of a conversation, and its other fields into those of
//! `/v1/chat/completions`.

use alight_chat::body::fields::{Fields, kind};
use alight_chat::body::messages::{self, joined, role};
use alight_chat::body::options::NO_LOGPROBS;
use alight_chat::body::refusal::Refusal;
use alight_chat::body::thinking::EFFORT;
use alight_chat::body::tools::INPUT;
use serde_json::{Map, Value, json};

use super::tools::{ClientTools, PublishedTool};
use crate::apart::note;
use crate::asking::tool_call;

/// Names of fields in chat completions, and here.
pub(super) const NAMES: [(&str, &str); 2] =
    [("max_tokens", "max_output_tokens"), ("response_format", "text.format")];

/// Items of conversations that began elsewhere, and which tell the model nothing, or nothing that can be read here.
const LEFT_OUT: [&str; 8] = [
    "compaction",
    "compaction_summary",
    "context_compaction",
    "image_generation_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_list_tools",
    "web_search_call",
];

/// Finds an item of an earlier answer by its id.
pub(super) type FindItem<'f> = &'f dyn Fn(&str) -> Option<Value>;

/// Renames the fields to those of chat completions, which are followed by the others; also returns the tools.
pub(super) fn renamed(
    object: Map<String, Value>,
    find: FindItem<'_>,
) -> Result<(Fields, ClientTools), Refusal> {
    let mut fields = Fields::new(object);
    // The caller knows it: items are remembered unless it is false.
    fields.ignore(&["store"]);
    let likelihoods = json!("message.output_text.logprobs");
    let wanted = |include: &Value| include.as_array().is_some_and(|all| all.contains(&likelihoods));
    fields.only("include", |include| !wanted(include), NO_LOGPROBS)?;
    let instructions = fields.string("instructions")?;
    let input = fields.any("input").ok_or_else(|| Refusal::invalid("input", "it is missing"))?;
    let given = fields.list("tools")?;
    let has_tools = given.is_some();
    let tools = ClientTools::take(given.unwrap_or_default())?;
    let messages = messages_of(instructions, input, &tools, find)?;
    fields.insert("messages", messages.into());
    // Here an answer is always an item of its own.
    fields.insert("continue_final_message", false.into());
    if has_tools {
        fields.insert("tools", tools.functions.clone().into());
    }
    if let Some(choice) = fields.any("tool_choice") {
        fields.insert("tool_choice", tools.choice(choice));
    }
    for (name, inner, to) in
        [("reasoning", "effort", EFFORT), ("text", "format", "response_format")]
    {
        let mut object = fields.object(name)?.unwrap_or_default();
        if let Some(value) = object.shift_remove(inner) {
            fields.insert(to, value);
        }
        for other in Fields::new(object).left() {
            note(&format!("ignored: {name}.{other}"));
        }
    }
    if let Some(most) = fields.any("max_output_tokens") {
        fields.insert("max_tokens", most);
    }
    Ok((fields, tools))
}

fn messages_of(
    instructions: Option<String>,
    input: Value,
    tools: &ClientTools,
    find: FindItem<'_>,
) -> Result<Vec<Value>, Refusal> {
    let mut all = Vec::new();
    if let Some(text) = instructions.filter(|text| !text.is_empty()) {
        all.push(json!({"role": "system", "content": text}));
    }
    let mut conversation = Conversation { all, tools };
    match input {
        Value::String(text) => {
            conversation.all.push(json!({"role": "user", "content": text}));
        }
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                let at = format!("input[{i}]");
                match item["type"].as_str() {
                    Some("item_reference") => {
                        conversation.item(&referred(item, &at, find)?, &at)?
                    }
                    _ => conversation.item(item, &at)?,
                }
            }
        }
        other => {
            let message = format!("it is {}, expected a string or a list of items", kind(&other));
            return Err(Refusal::invalid("input", message));
        }
    }
    Ok(conversation.all)
}

/// Returns the item that a reference names.
fn referred(reference: &Value, at: &str, find: FindItem<'_>) -> Result<Value, Refusal> {
    let missing = || Refusal::invalid(format!("{at}.id"), "expected a string");
    let id = reference["id"].as_str().ok_or_else(missing)?;
    find(id).ok_or_else(|| {
        let found = kind(&reference["id"]);
        let why = format!("the item {found} is not remembered here: send the item itself");
        Refusal::invalid(format!("{at}.id"), why)
    })
}

/// The messages so far.
struct Conversation<'t> {
    all: Vec<Value>,
    tools: &'t ClientTools,
}

impl Conversation<'_> {
    /// Adds an item. The thinking, text and calls of the model up to the next message of another role are one message.
    fn item(&mut self, item: &Value, at: &str) -> Result<(), Refusal> {
        match item["type"].as_str().unwrap_or("message") {
            "message" => self.message(item, at)?,
            "function_call" => {
                self.call(
                    &item["call_id"],
                    &self.tools.function_of(item),
                    item["arguments"].clone(),
                );
            }
            "custom_tool_call" => {
                let arguments = json!({INPUT: item["input"]});
                self.call(&item["call_id"], &self.tools.function_of(item), arguments);
            }
            "reasoning" => self.reasoning(item),
            // Calls that OpenAI's server has made, with their results.
            "mcp_call" => {
                let name = format!("{}__{}", plain(&item["server_label"]), plain(&item["name"]));
                self.call(&item["id"], &name.into(), item["arguments"].clone());
                let failed = !item["error"].is_null();
                let output = if failed { &item["error"] } else { &item["output"] };
                let sign = if failed { "Error: " } else { "" };
                self.result(&item["id"], format!("{sign}{}", plain(output)));
            }
            "code_interpreter_call" => {
                self.call(&item["id"], &"code_interpreter".into(), json!({"code": item["code"]}));
                self.result(&item["id"], texts_of(&item["outputs"], &["logs"]));
            }
            "file_search_call" => {
                self.call(&item["id"], &"file_search".into(), json!({"queries": item["queries"]}));
                self.result(&item["id"], texts_of(&item["results"], &["filename", "text"]));
            }
            // Calls of tools that clients have run, with parameters of a form of their own.
            "computer_call" => {
                let action = if item["actions"].is_null() { "action" } else { "actions" };
                let arguments = json!({action: item[action]});
                self.call(&item["call_id"], &"computer".into(), arguments);
            }
            "tool_search_call" => {
                let arguments = item["arguments"].clone();
                self.call(&item["call_id"], &"tool_search".into(), arguments);
            }
            "tool_search_output" => {
                let id = &item["call_id"];
                self.result(id, texts_of(&item["tools"], &["name", "description"]));
            }
            "local_shell_call_output" if item["call_id"].is_null() => {
                self.output(&item["id"], item, at)?;
            }
            "function_call_output"
            | "custom_tool_call_output"
            | "local_shell_call_output"
            | "shell_call_output"
            | "apply_patch_call_output"
            | "computer_call_output" => self.output(&item["call_id"], item, at)?,
            other if LEFT_OUT.contains(&other) => {
                note(&format!("an item of the type {other} is left out"));
            }
            other => match PublishedTool::of_call(other) {
                Some(tool) => {
                    self.call(&item["call_id"], &tool.name().into(), tool.arguments(item));
                }
                None => {
                    let found = kind(&item["type"]);
                    let why = format!("it is {found}, which is no type of an item here");
                    return Err(Refusal::unsupported(format!("{at}.type"), why));
                }
            },
        }
        Ok(())
    }

    fn message(&mut self, item: &Value, at: &str) -> Result<(), Refusal> {
        let role = role(item.get("role"), at)?;
        let text = text(&item["content"], &format!("{at}.content"), joined)?;
        let all = &mut self.all;
        // Templates support one system message, before all others.
        if role == "system" && all.len() == 1 && all[0]["role"] == "system" {
            let before = all[0]["content"].as_str().unwrap_or_default();
            all[0]["content"] = format!("{before}\n\n{text}").into();
        } else if role == "assistant" {
            let own = self.own();
            let before = own["content"].as_str().unwrap_or_default();
            let blank = if before.is_empty() { "" } else { "\n\n" };
            own["content"] = format!("{before}{blank}{text}").into();
        } else {
            all.push(json!({"role": role, "content": text}));
        }
        Ok(())
    }

    fn reasoning(&mut self, item: &Value) {
        let parts = item["content"].as_array().filter(|parts| !parts.is_empty());
        let parts = parts.or(item["summary"].as_array());
        let texts = parts.into_iter().flatten().filter_map(|part| part["text"].as_str());
        let thought = texts.collect::<Vec<_>>().join("\n\n");
        if !thought.is_empty() {
            self.own()["reasoning_content"] = thought.into();
        } else if item["encrypted_content"].is_string() {
            note("encrypted reasoning, which only its maker can read, is left out");
        }
    }

    fn call(&mut self, id: &Value, name: &Value, arguments: Value) {
        let call = tool_call(id, name, arguments);
        let own = self.own();
        if own["tool_calls"].is_null() {
            own["tool_calls"] = json!([]);
        }
        own["tool_calls"].as_array_mut().into_iter().for_each(|calls| calls.push(call.clone()));
    }

    fn result(&mut self, id: &Value, text: String) {
        self.all.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
    }

    /// Adds the output that a client sends for a call.
    fn output(&mut self, id: &Value, item: &Value, at: &str) -> Result<(), Refusal> {
        let output = &item["output"];
        let kind_of = item["type"].as_str().unwrap_or_default();
        let text = match (kind_of, output) {
            ("shell_call_output", Value::Array(_)) => output.to_string(),
            ("apply_patch_call_output", output) => {
                let status = plain(&item["status"]);
                let blank = if output.is_null() { "" } else { ": " };
                format!("{status}{blank}{}", plain(output))
            }
            (_, Value::Object(_)) => {
                messages::result(std::slice::from_ref(output), &format!("{at}.output"))?
            }
            _ => text(output, &format!("{at}.output"), messages::result)?,
        };
        self.result(id, text);
        Ok(())
    }

    /// Returns the model's message that is being assembled.
    fn own(&mut self) -> &mut Value {
        if self.all.last().is_none_or(|last| last["role"] != "assistant") {
            self.all.push(json!({"role": "assistant", "content": ""}));
        }
        let last = self.all.len() - 1;
        &mut self.all[last]
    }
}

/// A text as it is, nothing for null, and any other value as JSON.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The texts in these fields of the objects of a list, a line each.
fn texts_of(list: &Value, fields: &[&str]) -> String {
    let objects = list.as_array().into_iter().flatten();
    let texts = objects.flat_map(|object| fields.iter().filter_map(|name| object[name].as_str()));
    texts.collect::<Vec<_>>().join("\n")
}

/// Returns the text of a string, or of parts.
fn text(
    content: &Value,
    at: &str,
    parts: fn(&[Value], &str) -> Result<String, Refusal>,
) -> Result<String, Refusal> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(all) => parts(all, at),
        other => {
            let message = format!("it is {}, expected a string or a list of parts", kind(other));
            Err(Refusal::invalid(at, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(instructions: Option<String>, input: Value) -> Result<Vec<Value>, Refusal> {
        messages_of(instructions, input, &ClientTools::default(), &|_| None)
    }

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
            (json!([{"type": "item_reference", "id": "x"}]), "input[0].id"),
            (json!([{"type": "nonsense"}]), "input[0].type"),
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

    #[test]
    fn a_conversation_that_began_elsewhere_goes_on() {
        let input = json!([
            {"role": "user", "content": "Hi"},
            {"type": "reasoning", "summary": [], "content": null, "encrypted_content": "x"},
            {"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "q"}},
            {"type": "compaction", "encrypted_content": "x"},
            {"type": "custom_tool_call", "call_id": "c1", "name": "edit", "input": "a\nb"},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
            {"type": "local_shell_call", "call_id": "c2", "action": {"type": "exec", "command": ["ls"], "user": null}},
            {"type": "local_shell_call_output", "id": "c2", "output": "a.txt"},
            {"type": "mcp_call", "id": "m", "server_label": "docs", "name": "look", "arguments": "{}", "output": "found", "error": null},
            {"type": "message", "role": "assistant", "content": "So."},
            {"type": "function_call", "call_id": "c3", "name": "see", "namespace": "cam", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c3", "output": [{"type": "input_image", "image_url": "data:"}]},
            {"type": "apply_patch_call", "call_id": "c4", "operation": {"type": "delete_file", "path": "a"}},
            {"type": "apply_patch_call_output", "call_id": "c4", "status": "failed", "output": "no file"},
        ]);
        let got = Value::from(messages(None, input).unwrap());
        let call = |id: &str, name: &str, arguments: Value| json!({"role": "assistant", "content": "", "tool_calls": [tool_call(&json!(id), &json!(name), arguments)]});
        let result =
            |id: &str, text: &str| json!({"role": "tool", "tool_call_id": id, "content": text});
        let mut spoken = call("c3", "cam__see", json!("{}"));
        spoken["content"] = "So.".into();
        assert_eq!(
            got,
            json!([
                {"role": "user", "content": "Hi"},
                call("c1", "edit", json!({"input": "a\nb"})),
                result("c1", "done"),
                call("c2", "local_shell", json!({"command": ["ls"]})),
                result("c2", "a.txt"),
                call("m", "docs__look", json!("{}")),
                result("m", "found"),
                spoken,
                result("c3", messages::PICTURE),
                call("c4", "apply_patch", json!({"type": "delete_file", "path": "a"})),
                result("c4", "failed: no file"),
            ])
        );
    }

    #[test]
    fn a_reference_is_the_item_that_it_names() {
        let item = json!({"id": "msg_1", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]});
        let find = |id: &str| (id == "msg_1").then(|| item.clone());
        let input =
            json!([{"role": "user", "content": "Hi"}, {"type": "item_reference", "id": "msg_1"}]);
        let got = messages_of(None, input, &ClientTools::default(), &find).unwrap();
        assert_eq!(got[1], json!({"role": "assistant", "content": "Yes."}));
    }

    #[test]
    fn other_fields_follow_those_of_chat_completions() {
        let body = json!({"input": "a", "reasoning": {"effort": "low"}, "max_output_tokens": 3, "min_p": 0.5, "user": "u",
            "text": {"format": {"type": "json_object"}}});
        let (mut fields, _) = renamed(body.as_object().unwrap().clone(), &|_| None).unwrap();
        assert_eq!(fields.any("max_tokens"), Some(json!(3)));
        assert_eq!(fields.any(EFFORT), Some(json!("low")));
        assert_eq!(fields.any("response_format"), Some(json!({"type": "json_object"})));
        assert_eq!(fields.any("min_p"), Some(json!(0.5)));
        assert!(fields.left().any(|name| name == "user"));
    }
}
