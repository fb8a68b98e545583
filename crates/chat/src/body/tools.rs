//! Tools that are no functions with a schema, as functions that a template can show.

use serde_json::{Value, json};

use super::conversation::ToolChoice;
use super::fields::kind;
use super::refusal::Refusal;

/// The only parameter of the function of a custom tool: the text that the tool gets.
pub const INPUT: &str = "input";

/// The grammar that the input of a custom tool follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomGrammar {
    /// The name of the function.
    pub function: String,
    /// The field of the request with the grammar.
    pub param: String,
    /// Its language.
    pub syntax: String,
    /// Its text.
    pub definition: String,
}

impl CustomGrammar {
    /// The grammar in the field `at` of a custom tool, if it has one.
    pub fn of(function: &str, at: &str, format: &Value) -> Option<CustomGrammar> {
        let (syntax, definition) = grammar(format)?;
        let inner = if format["grammar"].is_object() { ".grammar" } else { "" };
        Some(CustomGrammar {
            function: function.to_owned(),
            param: format!("{at}{inner}.definition"),
            syntax: syntax.to_owned(),
            definition: definition.to_owned(),
        })
    }
}

/// Turns a tool of the request into a function, and notes in `choice` that it is a custom one.
///
/// # Errors
/// It is of another type.
pub(super) fn to_function(
    tool: &mut Value,
    at: &str,
    choice: &mut ToolChoice,
) -> Result<(), Refusal> {
    let of = tool.get("type").cloned().unwrap_or_default();
    match of.as_str() {
        Some("custom") => {
            let custom = tool["custom"].take();
            let Some(name) = custom["name"].as_str() else {
                return Err(Refusal::invalid(format!("{at}.custom.name"), "expected a string"));
            };
            choice.custom.push(name.to_owned());
            let at = format!("{at}.custom.format");
            choice.with_grammar.extend(CustomGrammar::of(name, &at, &custom["format"]));
            *tool = of_custom(name, &custom["description"], &custom["format"]);
            Ok(())
        }
        Some("function") => Ok(()),
        None if of.is_null() => Ok(()),
        _ => {
            let why = format!("it is {}, expected \"function\" or \"custom\"", kind(&of));
            Err(Refusal::unsupported(format!("{at}.type"), why))
        }
    }
}

/// The language and the text of the grammar that the input of a custom tool should follow. Chat completions have it in an object of its own.
fn grammar(format: &Value) -> Option<(&str, &str)> {
    let inner = if format["grammar"].is_object() { &format["grammar"] } else { format };
    let definition = inner["definition"].as_str().filter(|_| format["type"] == "grammar")?;
    Some((inner["syntax"].as_str().unwrap_or("lark"), definition))
}

/// Returns the function of a custom tool. A grammar for its input becomes part of the description.
pub fn of_custom(name: &str, description: &Value, format: &Value) -> Value {
    let mut description = description.as_str().unwrap_or_default().to_owned();
    if let Some((syntax, definition)) = grammar(format) {
        let blank = if description.is_empty() { "" } else { "\n\n" };
        description += &format!("{blank}The input follows this grammar ({syntax}):\n{definition}");
    }
    let input = json!({"type": "string", "description": "The input of the tool, as plain text"});
    json!({"type": "function", "function": {
        "name": name,
        "description": description,
        "parameters": {
            "type": "object",
            "properties": {INPUT: input},
            "required": [INPUT],
            "additionalProperties": false,
        },
    }})
}

/// Returns the call of a custom tool as that of its function.
pub(super) fn of_custom_call(call: &mut Value) {
    if let Some(custom @ Value::Object(_)) = call.get_mut("custom").map(Value::take) {
        let arguments = json!({INPUT: custom["input"]});
        *call = json!({
            "id": call["id"],
            "type": "function",
            "function": {"name": custom["name"], "arguments": arguments},
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_custom_tool_becomes_a_function_of_one_text() {
        let grammar = json!({"syntax": "lark", "definition": "start: \"a\""});
        let format = json!({"type": "grammar", "grammar": grammar});
        let mut choice = ToolChoice::default();
        let mut tool = json!({"type": "custom", "custom": {"name": "f", "description": "d", "format": format}});
        to_function(&mut tool, "tools[0]", &mut choice).unwrap();
        let function = &tool["function"];
        assert_eq!((&function["name"], &tool["type"]), (&json!("f"), &json!("function")));
        let description = function["description"].as_str().unwrap();
        assert!(description.starts_with("d\n\n") && description.ends_with("start: \"a\""));
        assert_eq!(function["parameters"]["required"], json!([INPUT]));
        assert_eq!(choice.custom, ["f"]);
        let held = &choice.with_grammar[0];
        assert_eq!(
            (&*held.function, &*held.syntax, &*held.definition),
            ("f", "lark", "start: \"a\"")
        );
        assert_eq!(held.param, "tools[0].custom.format.grammar.definition");
        // In `/v1/responses`, the grammar is in the format itself.
        let flat = json!({"type": "grammar", "syntax": "regex", "definition": "a+"});
        assert_eq!(super::grammar(&flat), Some(("regex", "a+")));
        assert_eq!(super::grammar(&json!({"type": "text"})), None);
    }

    #[test]
    fn another_type_of_tool_is_refused_by_name() {
        let mut choice = ToolChoice::default();
        for (tool, param) in [
            (json!({"type": "function", "function": {"name": "f"}}), None),
            (json!({"function": {"name": "f"}}), None),
            (json!({"type": "web_search"}), Some("tools[3].type")),
            (json!({"type": "custom"}), Some("tools[3].custom.name")),
        ] {
            let mut tool = tool;
            let refusal = to_function(&mut tool, "tools[3]", &mut choice).err();
            assert_eq!(refusal.and_then(|refusal| refusal.param).as_deref(), param, "{tool}");
        }
    }
}
