//! Converts the messages of a conversation from OpenAI's format to that of Hugging Face's chat templates.
//!
//! Templates expect strings where OpenAI has lists of parts or null, and objects for the arguments of calls where OpenAI has JSON strings.

use serde_json::{Map, Value, json};

use super::fields::kind;
use super::json::{JsonBudget, JsonError};
use super::refusal::Refusal;
use super::tools;

/// The sentence in place of a picture that a tool has returned.
pub const PICTURE: &str = "[The tool has returned a picture, which you cannot see.]";
/// The same for a file.
pub const FILE: &str = "[The tool has returned a file, which you cannot read.]";

/// Converts messages for a template.
///
/// # Errors
/// A message is invalid, or has content that is not text.
pub fn for_template(messages: Vec<Value>) -> Result<Vec<Value>, Refusal> {
    if messages.is_empty() {
        return Err(Refusal::invalid("messages", "there is none"));
    }
    let mut budget = JsonBudget::after(&messages);
    let all = messages.into_iter().enumerate();
    all.map(|(i, message)| one(message, &format!("messages[{i}]"), &mut budget)).collect()
}

/// The number of bytes in the texts of messages.
pub fn bytes(messages: &[Value]) -> usize {
    let texts = messages.iter().filter_map(|message| message["content"].as_str());
    texts.map(str::len).sum()
}

fn one(message: Value, at: &str, budget: &mut JsonBudget) -> Result<Value, Refusal> {
    let Value::Object(mut message) = message else {
        return Err(Refusal::invalid(at, format!("it is {}, expected an object", kind(&message))));
    };
    let role = role(message.get("role"), at)?;
    message.insert("role".to_owned(), role.into());
    with_older_call(&mut message);
    let called = calls(&mut message, at, budget)?;
    let content = match message.get_mut("content").map(Value::take) {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) if role == "tool" => result(&parts, &format!("{at}.content"))?,
        Some(Value::Array(parts)) => joined(&parts, &format!("{at}.content"))?,
        None | Some(Value::Null) if called || role == "assistant" => String::new(),
        other => {
            let found = other.as_ref().map_or("missing".to_owned(), kind);
            let param = format!("{at}.content");
            return Err(Refusal::invalid(param, format!("it is {found}, expected a string")));
        }
    };
    message.insert("content".to_owned(), content.into());
    // gpt-oss's name for it.
    if let Some(thinking @ Value::String(_)) = message.get("reasoning_content").cloned() {
        message.entry("thinking").or_insert(thinking);
    }
    Ok(message.into())
}

/// Returns the template's name for the role of the message `at`: a developer takes the role of the system, and `function`, OpenAI's
/// older name, is that of a tool. Templates ignore a message with any other role, or render it in ways of their own.
///
/// # Errors
/// The role is missing, or is none of these.
pub fn role(given: Option<&Value>, at: &str) -> Result<&'static str, Refusal> {
    Ok(match given.and_then(Value::as_str) {
        Some("system" | "developer") => "system",
        Some("user") => "user",
        Some("assistant") => "assistant",
        Some("tool" | "function") => "tool",
        _ => {
            let found = given.filter(|given| !given.is_null()).map_or("missing".to_owned(), kind);
            let expected = "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"";
            let message = format!("it is {found}, expected {expected}");
            return Err(Refusal::invalid(format!("{at}.role"), message));
        }
    })
}

/// Replaces the call of a message in OpenAI's older form, to which a message of the role `function` answers.
fn with_older_call(message: &mut Map<String, Value>) {
    let has_calls = message.get("tool_calls").is_some_and(|calls| !calls.is_null());
    match message.shift_remove("function_call") {
        Some(call @ Value::Object(_)) if !has_calls => {
            let calls = json!([{"type": "function", "function": call}]);
            message.insert("tool_calls".to_owned(), calls);
        }
        _ => {}
    }
}

/// Joins the text of parts.
///
/// # Errors
/// A part is not text.
pub fn joined(parts: &[Value], at: &str) -> Result<String, Refusal> {
    let mut texts = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        let kind_of = part["type"].as_str();
        // A refusal is the text of the answer.
        let text = if kind_of == Some("refusal") { &part["refusal"] } else { &part["text"] };
        match (kind_of, text.as_str()) {
            (Some("text" | "input_text" | "output_text" | "refusal"), Some(text)) => {
                texts.push(text)
            }
            (Some(other), _) if !["text", "refusal"].contains(&other) => {
                let param = format!("{at}[{i}].type");
                return Err(Refusal::unsupported(
                    param,
                    format!("it is {}, and only text is taken", kind(&part["type"])),
                ));
            }
            _ => {
                let param = format!("{at}[{i}]");
                return Err(Refusal::invalid(param, "expected a part with a type and a text"));
            }
        }
    }
    // Joined as in llama-server and vLLM: one part may be instructions, and the next their subject.
    Ok(texts.join("\n"))
}

/// Joins the text of the parts of a tool's result. A picture or a file becomes a sentence that says so: the tool has answered, and its
/// client cannot ask it for anything else.
///
/// # Errors
/// A part is of an unknown type.
pub fn result(parts: &[Value], at: &str) -> Result<String, Refusal> {
    let readable = parts.iter().map(|part| match sentence(part) {
        Some(sentence) => json!({"type": "text", "text": sentence}),
        None => part.clone(),
    });
    joined(&readable.collect::<Vec<_>>(), at)
}

/// The sentence in place of a part of a tool's result, if it is no text.
pub fn sentence(part: &Value) -> Option<&'static str> {
    match part["type"].as_str()? {
        "image" | "image_url" | "input_image" | "computer_screenshot" => Some(PICTURE),
        "file" | "input_file" | "audio" | "input_audio" | "video_url" | "resource" => Some(FILE),
        _ => None,
    }
}

/// Converts the arguments of calls to objects; other text that a model wrote stays as it is. Their values count towards those of the
/// request. Returns true if there are calls.
fn calls(
    message: &mut Map<String, Value>,
    at: &str,
    budget: &mut JsonBudget,
) -> Result<bool, Refusal> {
    let calls = match message.get_mut("tool_calls") {
        None | Some(Value::Null) => {
            message.shift_remove("tool_calls");
            return Ok(false);
        }
        Some(Value::Array(calls)) => calls,
        Some(other) => {
            let found = format!("it is {}, expected a list", kind(other));
            return Err(Refusal::invalid(format!("{at}.tool_calls"), found));
        }
    };
    for (i, call) in calls.iter_mut().enumerate() {
        tools::of_custom_call(call);
        let arguments = call.get_mut("function").and_then(|f| f.get_mut("arguments"));
        if let Some(arguments) = arguments
            && let Value::String(text) = &*arguments
        {
            // Some clients send an empty string back for a call without arguments.
            let text = if text.trim().is_empty() { "{}" } else { text };
            match budget.parse(text) {
                Ok(object @ Value::Object(_)) => *arguments = object,
                Ok(_) | Err(JsonError::Syntax(_)) => {}
                Err(much) => {
                    let param = format!("{at}.tool_calls[{i}].function.arguments");
                    return Err(Refusal::invalid(param, format!("with it the request has {much}")));
                }
            }
        }
    }
    let called = !calls.is_empty();
    if !called {
        // Some templates only look whether the list is there.
        message.shift_remove("tool_calls");
    }
    Ok(called)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::json::MAX_VALUES;

    #[test]
    fn arguments_of_calls_cost_no_more_than_a_body() {
        let call = |arguments: String| {
            let function = json!({"name": "f", "arguments": arguments});
            json!({"role": "assistant", "tool_calls": [{"function": function}]})
        };
        let half = format!("{{\"a\": [{}1]}}", "1,".repeat(MAX_VALUES / 2));
        let error = for_template(vec![call(half.clone()), call(half.clone())]).unwrap_err();
        assert_eq!(error.param, Some("messages[1].tool_calls[0].function.arguments".to_owned()));
        assert!(for_template(vec![call(half)]).is_ok());
        let deep = format!("{{\"a\": {}1{}}}", "[".repeat(200), "]".repeat(200));
        assert!(for_template(vec![call(deep)]).unwrap_err().message.contains("in one another"));
    }

    #[test]
    fn openai_s_messages_become_those_of_templates() {
        let given = json!([
            {"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "refusal", "refusal": "kind."}]},
            {"role": "user", "content": "Hi", "name": "Ann"},
            {"role": "assistant", "content": null, "reasoning_content": "Hm.", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1]}"}}
            ]},
            {"role": "tool", "content": "7", "tool_call_id": "1"},
            {"role": "developer", "content": "Be short."},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": ""}}]},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\": 1"}}]},
            {"role": "assistant", "content": "b", "tool_calls": []},
        ]);
        let got = Value::from(for_template(given.as_array().unwrap().clone()).unwrap());
        assert_eq!(got[0]["content"], "Be\nkind.");
        assert_eq!(got[1], given[1]);
        let call = &got[2];
        assert_eq!((&call["content"], &call["thinking"]), (&json!(""), &json!("Hm.")));
        assert_eq!(call["tool_calls"][0]["function"]["arguments"], json!({"a": [1]}));
        assert_eq!(got[3], given[3]);
        assert_eq!(got[4], json!({"role": "system", "content": "Be short."}));
        assert_eq!(got[5]["tool_calls"][0]["function"]["arguments"], json!({}));
        assert_eq!(got[6]["tool_calls"][0]["function"]["arguments"], json!("{\"a\": 1"));
        assert_eq!(got[7], json!({"role": "assistant", "content": "b"}));
        assert_eq!(bytes(got.as_array().unwrap()), 8 + 2 + 1 + 9 + 1);
    }

    #[test]
    fn a_tool_s_picture_becomes_a_sentence_and_a_custom_call_that_of_a_function() {
        let given = json!([
            {"role": "assistant", "tool_calls": [{"id": "1", "type": "custom", "custom": {"name": "f", "input": "a\nb"}}]},
            {"role": "tool", "tool_call_id": "1", "content": [
                {"type": "text", "text": "Here:"}, {"type": "image_url", "image_url": {"url": "data:"}}
            ]},
        ]);
        let got = for_template(given.as_array().unwrap().clone()).unwrap();
        let function = json!({"name": "f", "arguments": {"input": "a\nb"}});
        let call = json!({"id": "1", "type": "function", "function": function});
        assert_eq!(got[0]["tool_calls"], json!([call]));
        assert_eq!(got[1]["content"], format!("Here:\n{PICTURE}"));
    }

    #[test]
    fn a_role_is_one_that_templates_have() {
        for (role, wanted) in [
            (json!("developer"), Ok("system")),
            (json!("user"), Ok("user")),
            (json!("function"), Ok("tool")),
            (json!("User"), Err("it is \"User\", expected \"system\", \"developer\", ")),
            (json!("bob"), Err("it is \"bob\", ")),
            (json!(""), Err("it is \"\", ")),
            (json!(7), Err("it is 7, ")),
            (Value::Null, Err("it is missing, ")),
        ] {
            let given = vec![
                json!({"role": "user", "content": "a"}),
                json!({"role": role, "content": "b"}),
            ];
            let got = for_template(given).map(|all| all[1]["role"].clone());
            match wanted {
                Ok(wanted) => assert_eq!(got, Ok(wanted.into())),
                Err(why) => {
                    let refusal = got.unwrap_err();
                    assert_eq!(refusal.param.as_deref(), Some("messages[1].role"));
                    let wanted = format!("messages[1].role: {why}");
                    assert!(refusal.message.starts_with(&wanted), "{}", refusal.message);
                }
            }
        }
    }

    #[test]
    fn a_call_and_its_result_may_have_openai_s_older_form() {
        let call = json!({"name": "f", "arguments": "{\"a\": 1}"});
        let given = vec![
            json!({"role": "assistant", "content": null, "function_call": call}),
            json!({"role": "function", "name": "f", "content": "7"}),
        ];
        let got = for_template(given).unwrap();
        let function = json!({"name": "f", "arguments": {"a": 1}});
        assert_eq!(got[0]["tool_calls"], json!([{"type": "function", "function": function}]));
        assert_eq!(got[0].get("function_call"), None);
        assert_eq!(got[1], json!({"role": "tool", "name": "f", "content": "7"}));
    }

    #[test]
    fn what_is_no_message_is_named() {
        for (messages, param) in [
            (json!([]), "messages"),
            (json!([1]), "messages[0]"),
            (json!([{"role": "user", "content": "a"}, {"content": "b"}]), "messages[1].role"),
            (json!([{"role": "function", "content": null}]), "messages[0].content"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (json!([{"role": "user", "content": 1}]), "messages[0].content"),
            (json!([{"role": "user", "content": [1]}]), "messages[0].content[0]"),
            (
                json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
                "messages[0].content[0].type",
            ),
            (json!([{"role": "assistant", "tool_calls": 1}]), "messages[0].tool_calls"),
        ] {
            let refusal = for_template(messages.as_array().unwrap().clone()).unwrap_err();
            assert_eq!(refusal.param.as_deref(), Some(param), "{messages}");
            assert!(refusal.message.starts_with(&format!("{param}: ")), "{}", refusal.message);
        }
    }
}
