//! Tools, calls and results as text, for models whose template does not show them, or not in a notation that is known.

use alight_text::Vocabulary;
use alight_text::format::Format;
use serde_json::{Map, Value, json};

/// The text before the list of tools.
const LIST: &str =
    "You can call functions. Each line describes one, with the JSON schema of its arguments:";
/// The text before the example of a call.
const CALL: &str = "To call a function, write its name and its arguments exactly in this form, and nothing after it:";
/// The text after it.
const REST: &str = "Write several calls one after the other. Their results come in the next message. If no function helps, answer in plain words.";

/// Describes the tools of a conversation in its system prompt, and takes them from the variables of the template. Returns false if there
/// are none.
pub(super) fn describe_tools(vocabulary: &Vocabulary, context: &mut Map<String, Value>) -> bool {
    let Some(Value::Array(tools)) = context.shift_remove("tools") else { return false };
    if tools.is_empty() {
        return false;
    }
    let has = |text: &str| vocabulary.template_has(text);
    let example = vocabulary.output_format().notation().example(&has);
    let example = example.or_else(|| Format::Plain.notation().example(&has)).unwrap_or_default();
    let lines = tools.iter().map(|tool| spaced(&tool["function"]));
    let lines: Vec<String> = lines.collect();
    let text = format!("{LIST}\n{}\n\n{CALL}\n{example}\n\n{REST}", lines.join("\n"));
    if let Some(Value::Array(messages)) = context.get_mut("messages") {
        match messages.first_mut().filter(|first| first["role"] == "system") {
            Some(first) => {
                let own = first["content"].as_str().unwrap_or_default();
                first["content"] = joined(own, &text).into();
            }
            None => messages.insert(0, json!({"role": "system", "content": text})),
        }
    }
    true
}

/// Writes the calls of a message into its text.
pub(super) fn write_calls(message: &mut Value) {
    let Some(Value::Array(calls)) =
        message.as_object_mut().and_then(|m| m.shift_remove("tool_calls"))
    else {
        return;
    };
    let calls = calls.iter().map(|call| {
        let function =
            json!({"name": call["function"]["name"], "arguments": call["function"]["arguments"]});
        format!("<tool_call>\n{}\n</tool_call>", spaced(&function))
    });
    let calls: Vec<String> = calls.collect();
    let text = message["content"].as_str().unwrap_or_default();
    let line = if text.is_empty() { "" } else { "\n" };
    message["content"] = format!("{text}{line}{}", calls.join("\n")).into();
}

/// Makes the result of a call a message of the user's.
pub(super) fn write_result(message: &mut Value) {
    let text = message["content"].as_str().unwrap_or_default();
    let text = format!("<tool_response>\n{text}\n</tool_response>");
    *message = json!({"role": "user", "content": text});
}

/// Two texts with an empty line between them, if both have text.
pub(super) fn joined(first: &str, second: &str) -> String {
    let blank = if first.is_empty() || second.is_empty() { "" } else { "\n\n" };
    format!("{first}{blank}{second}")
}

/// A value as JSON with the blanks that templates and models write. Recurses as deep as values nest, which bodies limit.
pub(super) fn spaced(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(spaced).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(entries) => {
            let entry =
                |(key, value): (&String, &Value)| format!("{}: {}", json!(key), spaced(value));
            let entries: Vec<String> = entries.iter().map(entry).collect();
            format!("{{{}}}", entries.join(", "))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_results_are_text() {
        let call = json!({"function": {"name": "f", "arguments": {"a": [1, 2], "b": "é"}}});
        let mut message =
            json!({"role": "assistant", "content": "So.", "tool_calls": [call, call]});
        write_calls(&mut message);
        let written = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, 2], \"b\": \"é\"}}\n</tool_call>";
        let wanted = format!("So.\n{written}\n{written}");
        assert_eq!(message, json!({"role": "assistant", "content": wanted}));
        let mut result = json!({"role": "tool", "tool_call_id": "1", "content": "7"});
        write_result(&mut result);
        let wanted = "<tool_response>\n7\n</tool_response>";
        assert_eq!(result, json!({"role": "user", "content": wanted}));
    }
}
