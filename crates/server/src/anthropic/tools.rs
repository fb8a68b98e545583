//! The tools of Anthropic's requests as functions that templates show.

use alight_chat::body::fields::kind;
use alight_chat::body::refusal::Refusal;
use serde_json::{Value, json};

use crate::apart::left_out_tools;

/// The tools that the client runs, as functions, and their places in the request.
pub(super) struct AnthropicTools {
    pub(super) functions: Vec<Value>,
    pub(super) places: Vec<String>,
}

/// Beginnings of the types of tools that only Anthropic's server runs.
const ELSEWHERE: [&str; 7] = [
    "advisor_",
    "code_execution_",
    "fetch_",
    "mcp_toolset",
    "tool_search_",
    "web_fetch_",
    "web_search_",
];

impl AnthropicTools {
    /// Takes the tools of a request. Those that only Anthropic's server runs are left out.
    pub(super) fn take(tools: &[Value]) -> Result<AnthropicTools, Refusal> {
        let mut all = AnthropicTools { functions: Vec::new(), places: Vec::new() };
        let mut left_out = 0;
        for (i, tool) in tools.iter().enumerate() {
            let own = tool["type"].as_str().filter(|kind| *kind != "custom");
            let schema = match own {
                None => (tool["description"].clone(), tool["input_schema"].clone()),
                Some(of) if ELSEWHERE.iter().any(|begin| of.starts_with(begin)) => {
                    left_out += 1;
                    continue;
                }
                Some(of) => published(of).ok_or_else(|| {
                    let found = kind(&tool["type"]);
                    let why = format!(
                        "it is {found}, expected \"custom\", or bash, text_editor or memory with a date"
                    );
                    Refusal::unsupported(format!("tools[{i}].type"), why)
                })?,
            };
            let (description, parameters) = schema;
            all.functions.push(json!({"type": "function", "function": {
                "name": tool["name"],
                "description": description,
                "parameters": parameters,
                "strict": tool["strict"] == true,
            }}));
            all.places.push(format!("tools[{i}]"));
        }
        left_out_tools(left_out);
        Ok(all)
    }
}

/// The description and the schema of a tool that clients run, and of which they send only the type: as Anthropic has published them.
fn published(of: &str) -> Option<(Value, Value)> {
    let date = of.rsplit_once('_').map_or("", |(_, date)| date);
    let (description, properties, required) = if of.starts_with("bash_") {
        let about = "Runs a command in a shell that stays open from call to call.";
        let properties = json!({
            "command": {"type": "string", "description": "The command; it may be missing only with restart"},
            "restart": {"type": "boolean", "description": "true to start the shell again"},
        });
        (about, properties, json!([]))
    } else if of.starts_with("text_editor_") {
        let mut commands = vec!["view", "create", "str_replace", "insert"];
        // Later editors cannot undo.
        if date < "20250429" {
            commands.push("undo_edit");
        }
        let inserted = if date < "20250728" { "new_str" } else { "insert_text" };
        let mut properties = files(&commands);
        properties[inserted] = text("The text to insert, or the new text of str_replace");
        properties["new_str"] = text(
            "For str_replace, the text in place of old_str; where there is no insert_text, the text to insert",
        );
        let about = "Views, creates and edits text files. str_replace needs old_str to occur exactly once; insert puts text after a line.";
        (about, properties, json!(["command", "path"]))
    } else if of.starts_with("memory_") {
        let commands = ["view", "create", "str_replace", "insert", "delete", "rename"];
        let mut properties = files(&commands);
        properties["insert_text"] = text("For insert: the text");
        properties["new_str"] = text("For str_replace: the text in place of old_str");
        properties["old_path"] = text("For rename: the path so far");
        properties["new_path"] = text("For rename: the new path");
        let about = "Keeps notes in files of the folder /memories, which stay from one conversation to the next. View the folder before you begin.";
        (about, properties, json!(["command"]))
    } else {
        return None;
    };
    let schema = json!({"type": "object", "properties": properties, "required": required});
    Some((description.into(), schema))
}

/// The parameters that both tools for files have.
fn files(commands: &[&str]) -> Value {
    json!({
        "command": {"type": "string", "enum": commands, "description": "The command to run"},
        "path": text("The file or folder; not for rename"),
        "view_range": {
            "type": "array", "items": {"type": "integer"},
            "description": "For view: the first and the last line; -1 is the end of the file",
        },
        "file_text": text("For create: the text of the file"),
        "old_str": text("For str_replace: the text to replace"),
        "insert_line": {"type": "integer", "description": "For insert: the line after which it is inserted; 0 is the beginning"},
    })
}

fn text(about: &str) -> Value {
    json!({"type": "string", "description": about})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typed_tool_has_its_published_parameters() {
        for (of, name, has, has_not) in [
            ("bash_20250124", "bash", "restart", "path"),
            ("text_editor_20250124", "str_replace_editor", "new_str", "insert_text"),
            ("text_editor_20250728", "str_replace_based_edit_tool", "insert_text", "old_path"),
            ("memory_20250818", "memory", "old_path", "restart"),
        ] {
            let tools = json!([{"type": "web_search_20250305", "name": "web_search"}, {"type": of, "name": name}]);
            let all = AnthropicTools::take(tools.as_array().unwrap()).unwrap();
            assert_eq!(all.places, ["tools[1]"]);
            let function = &all.functions[0]["function"];
            assert_eq!(function["name"], name);
            let properties = function["parameters"]["properties"].as_object().unwrap();
            assert!(properties.contains_key(has) && !properties.contains_key(has_not), "{of}");
            let undoes = function.to_string().contains("undo_edit");
            assert_eq!(undoes, of == "text_editor_20250124");
        }
    }

    #[test]
    fn a_tool_that_is_not_known_is_refused_by_name() {
        let tools = json!([{"name": "f", "input_schema": {}}, {"type": "computer_20250124", "name": "computer"}]);
        let refusal = AnthropicTools::take(tools.as_array().unwrap()).err().unwrap();
        assert_eq!(refusal.param.as_deref(), Some("tools[1].type"));
        assert!(refusal.message.contains("computer_20250124"), "{}", refusal.message);
    }
}
