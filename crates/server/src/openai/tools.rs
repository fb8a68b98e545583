//! The tools of `/v1/responses` as functions, which templates show, and the calls of these functions as the items that clients expect.

use std::collections::HashSet;

use alight_chat::body::fields::kind;
use alight_chat::body::refusal::Refusal;
use alight_chat::body::tools::{CustomGrammar, INPUT, of_custom};
use serde_json::{Map, Value, json};

use crate::apart::left_out_tools;

/// The kind of tool that a client has in the place of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ToolKind {
    Function,
    /// A tool whose input is a text.
    Custom,
    /// A tool that the client runs, and whose parameters OpenAI has published.
    Published(&'static PublishedTool),
}

/// A tool that the client runs, whose parameters OpenAI has published: those of its calls are in a field of the item.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PublishedTool {
    /// Its type, which is the name of its function.
    name: &'static str,
    /// The type of the items of its calls. Those of the results have `_output` after it.
    call: &'static str,
    /// The field of these items that has the parameters.
    field: &'static str,
    description: &'static str,
}

static PUBLISHED: [PublishedTool; 3] = [
    PublishedTool {
        name: "local_shell",
        call: "local_shell_call",
        field: "action",
        description: "Runs a command on the user's machine, and returns its output.",
    },
    PublishedTool {
        name: "shell",
        call: "shell_call",
        field: "action",
        description: "Runs commands in a shell of the user's machine, one after another, and returns their output.",
    },
    PublishedTool {
        name: "apply_patch",
        call: "apply_patch_call",
        field: "operation",
        description: "Creates, changes or deletes one file by a patch, and returns whether that has succeeded.",
    },
];

impl PublishedTool {
    /// Returns the tool of this type.
    fn of_type(name: &Value) -> Option<&'static PublishedTool> {
        PUBLISHED.iter().find(|tool| *name == tool.name)
    }

    /// Returns the tool whose calls are items of this type.
    pub(super) fn of_call(kind: &str) -> Option<&'static PublishedTool> {
        PUBLISHED.iter().find(|tool| tool.call == kind)
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    fn parameters(&self) -> Value {
        let text = |about: &str| json!({"type": "string", "description": about});
        let number = |about: &str| json!({"type": "integer", "description": about});
        let timeout = number("The time after which it is ended, in milliseconds");
        let (properties, required) = match self.name {
            "local_shell" => (
                json!({
                    "command": {"type": "array", "items": {"type": "string"}, "description": "The program and its arguments"},
                    "working_directory": text("The folder in which it runs"),
                    "timeout_ms": timeout,
                    "env": {"type": "object", "additionalProperties": {"type": "string"}, "description": "Variables of its environment"},
                    "user": text("The user that runs it"),
                }),
                json!(["command"]),
            ),
            "shell" => (
                json!({
                    "commands": {"type": "array", "items": {"type": "string"}, "description": "The commands"},
                    "timeout_ms": timeout,
                    "max_output_length": number("The maximum number of characters of output"),
                }),
                json!(["commands"]),
            ),
            _ => (
                json!({
                    "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
                    "path": text("The file, relative to the working folder"),
                    "diff": text("The patch, in the V4A format; none to delete the file"),
                }),
                json!(["type", "path"]),
            ),
        };
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
    }

    fn function(&self) -> Value {
        json!({"type": "function", "function": {
            "name": self.name, "description": self.description, "parameters": self.parameters(),
        }})
    }

    /// The parameters in the item of a call, as arguments of the function.
    pub(super) fn arguments(&self, item: &Value) -> Value {
        let mut arguments = item[self.field].clone();
        if let Some(fields) = arguments.as_object_mut() {
            fields.retain(|name, value| !(value.is_null() || name == "type" && *value == "exec"));
        }
        arguments
    }

    /// The parameters for the item of a call.
    fn parameters_of(&self, arguments: &str) -> Value {
        let given: Option<Map<String, Value>> = serde_json::from_str(arguments).ok();
        let mut given = given.unwrap_or_default();
        let defaults = match self.name {
            "local_shell" => json!({"type": "exec", "command": [], "env": {}}),
            "shell" => json!({"commands": []}),
            _ => json!({"type": "update_file", "path": "", "diff": ""}),
        };
        for (name, value) in defaults.as_object().into_iter().flatten() {
            given.entry(name).or_insert(value.clone());
        }
        given.into()
    }
}

/// A function that the model sees, and the tool that it is for the client.
#[derive(Clone, Debug)]
struct OwnTool {
    /// The name of the function.
    function: String,
    kind: ToolKind,
    namespace: Option<String>,
    /// The name within the namespace.
    name: String,
}

/// The tools that the client runs.
#[derive(Clone, Debug, Default)]
pub(super) struct ClientTools {
    tools: Vec<OwnTool>,
    /// The functions that the model sees, and the places of their tools in the request.
    pub(super) functions: Vec<Value>,
    pub(super) places: Vec<String>,
    /// The grammars that the inputs of some functions follow.
    pub(super) with_grammar: Vec<CustomGrammar>,
    names: HashSet<String>,
}

/// Returns the name of the function of a tool in a namespace.
fn flat_name(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        None => name.to_owned(),
        // Codex's names of MCP servers end so already.
        Some(namespace) if namespace.ends_with("__") => format!("{namespace}{name}"),
        Some(namespace) => format!("{namespace}__{name}"),
    }
}

impl ClientTools {
    /// Takes the tools of a request. Those that only OpenAI's server runs are left out.
    pub(super) fn take(tools: Vec<Value>) -> Result<ClientTools, Refusal> {
        let mut all = ClientTools::default();
        let mut left_out = 0;
        for (i, tool) in tools.iter().enumerate() {
            let at = format!("tools[{i}]");
            if tool["type"] != "namespace" {
                left_out += usize::from(!all.add(tool, None, at)?);
                continue;
            }
            let name = tool["name"].as_str();
            let missing = || Refusal::invalid(format!("{at}.name"), "expected a string");
            let namespace = name.ok_or_else(missing)?;
            let Some(inner) = tool["tools"].as_array() else {
                let found = kind(&tool["tools"]);
                let why = format!("it is {found}, expected a list");
                return Err(Refusal::invalid(format!("{at}.tools"), why));
            };
            let first = all.functions.len();
            for (j, tool) in inner.iter().enumerate() {
                left_out +=
                    usize::from(!all.add(tool, Some(namespace), format!("{at}.tools[{j}]"))?);
            }
            // The first one has the description of all.
            if let (Some(function), Some(about)) =
                (all.functions.get_mut(first), tool["description"].as_str())
                && !about.is_empty()
            {
                let own = function["function"]["description"].as_str().unwrap_or_default();
                let both = format!("{own}\n(About the tools {namespace}: {about})");
                function["function"]["description"] = both.trim_start().into();
            }
        }
        left_out_tools(left_out);
        Ok(all)
    }

    /// Adds a tool. Returns false if the client does not run it.
    fn add(&mut self, tool: &Value, namespace: Option<&str>, at: String) -> Result<bool, Refusal> {
        let published = PublishedTool::of_type(&tool["type"]);
        let kind = match (tool["type"].as_str(), published) {
            (Some("function"), _) => ToolKind::Function,
            (Some("custom"), _) => ToolKind::Custom,
            // A container of OpenAI's may run its commands.
            (_, Some(known))
                if tool["environment"]["type"].as_str().is_none_or(|t| t == "local") =>
            {
                ToolKind::Published(known)
            }
            _ => return Ok(false),
        };
        let given = published.map(|known| known.name).or(tool["name"].as_str());
        let missing = || Refusal::invalid(format!("{at}.name"), "expected a string");
        let name = given.ok_or_else(missing)?.to_owned();
        let mut function = flat_name(namespace, &name);
        while !self.names.insert(function.clone()) {
            function.push('_');
        }
        let mut shown = match &kind {
            ToolKind::Function => {
                let mut fields = tool.clone();
                for name in ["type", "defer_loading", "allowed_callers", "output_schema"] {
                    fields.as_object_mut().map(|fields| fields.shift_remove(name));
                }
                json!({"type": "function", "function": fields})
            }
            ToolKind::Custom => {
                let held = CustomGrammar::of(&function, &format!("{at}.format"), &tool["format"]);
                self.with_grammar.extend(held);
                of_custom(&name, &tool["description"], &tool["format"])
            }
            ToolKind::Published(known) => known.function(),
        };
        shown["function"]["name"] = function.as_str().into();
        self.functions.push(shown);
        self.places.push(at);
        self.tools.push(OwnTool { function, kind, namespace: namespace.map(str::to_owned), name });
        Ok(true)
    }

    /// The functions whose input is a text.
    pub(super) fn custom(&self) -> Vec<String> {
        let custom = self.tools.iter().filter(|tool| tool.kind == ToolKind::Custom);
        custom.map(|tool| tool.function.clone()).collect()
    }

    /// Returns the name of the function that a call in the conversation, or a choice, names.
    pub(super) fn function_of(&self, named: &Value) -> Value {
        let (Some(name), namespace) = (named["name"].as_str(), named["namespace"].as_str()) else {
            return named["name"].clone();
        };
        let known = self
            .tools
            .iter()
            .find(|tool| tool.name == name && tool.namespace.as_deref() == namespace);
        known.map_or_else(|| flat_name(namespace, name), |tool| tool.function.clone()).into()
    }

    /// Returns the choice of tools with the names of functions.
    pub(super) fn choice(&self, mut choice: Value) -> Value {
        let of = |chosen: &mut Value| {
            if let Some(known) = PublishedTool::of_type(&chosen["type"]) {
                *chosen = json!({"type": "function", "name": known.name});
            } else if chosen["name"].is_string() {
                chosen["name"] = self.function_of(chosen);
            }
        };
        if let Some(listed) = choice.get_mut("tools").and_then(Value::as_array_mut) {
            listed.iter_mut().for_each(of);
        } else if choice.is_object() {
            of(&mut choice);
        }
        choice
    }

    fn tool(&self, function: &str) -> Option<&OwnTool> {
        self.tools.iter().find(|tool| tool.function == function)
    }

    /// Returns the kind of tool that this function is for the client.
    pub(super) fn kind(&self, function: &str) -> ToolKind {
        self.tool(function).map_or(ToolKind::Function, |tool| tool.kind.clone())
    }

    /// Returns the item of a call of this function with these arguments. Those of a custom tool are its input.
    pub(super) fn item(
        &self,
        (id, call_id): (&str, &str),
        status: &str,
        function: &str,
        arguments: &str,
    ) -> Value {
        let tool = self.tool(function);
        let name = tool.map_or(function, |tool| tool.name.as_str());
        let mut item = json!({"id": id, "type": "", "status": status, "call_id": call_id});
        let (of, field, value) = match self.kind(function) {
            ToolKind::Function => ("function_call", "arguments", arguments.into()),
            ToolKind::Custom => ("custom_tool_call", INPUT, arguments.into()),
            ToolKind::Published(known) => {
                item["type"] = known.call.into();
                item[known.field] = known.parameters_of(arguments);
                return item;
            }
        };
        item["type"] = of.into();
        item["name"] = name.into();
        if let Some(namespace) = tool.and_then(|tool| tool.namespace.as_deref()) {
            item["namespace"] = namespace.into();
        }
        item[field] = value;
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> ClientTools {
        let format = json!({"type": "grammar", "syntax": "lark", "definition": "start: \"a\""});
        let tools = json!([
            {"type": "web_search"},
            {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": true},
            {"type": "namespace", "name": "mcp__docs__", "description": "The docs.", "tools": [
                {"type": "function", "name": "look", "description": "Looks.", "parameters": {}, "defer_loading": true},
                {"type": "custom", "name": "ask"},
            ]},
            {"type": "namespace", "name": "crm", "tools": [{"type": "function", "name": "list"}]},
            {"type": "custom", "name": "edit", "format": format},
            {"type": "local_shell"},
            {"type": "shell", "environment": {"type": "container_auto"}},
        ]);
        ClientTools::take(tools.as_array().unwrap().clone()).unwrap()
    }

    #[test]
    fn tools_become_functions_and_their_calls_come_back_in_their_own_shape() {
        let tools = tools();
        let names: Vec<&str> =
            tools.functions.iter().map(|f| f["function"]["name"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            ["look", "mcp__docs__look", "mcp__docs__ask", "crm__list", "edit", "local_shell"]
        );
        assert_eq!(tools.functions[0]["function"]["strict"], true);
        let function = &tools.functions[1]["function"];
        assert_eq!(function["description"], "Looks.\n(About the tools mcp__docs__: The docs.)");
        assert_eq!(function.get("defer_loading"), None);
        assert_eq!(tools.places[2], "tools[2].tools[1]");
        assert_eq!(tools.custom(), ["mcp__docs__ask", "edit"]);
        let held = &tools.with_grammar[0];
        assert_eq!((&*held.function, &*held.param), ("edit", "tools[4].format.definition"));
        for (function, arguments, wanted) in [
            ("look", "{}", json!({"type": "function_call", "name": "look", "arguments": "{}"})),
            (
                "mcp__docs__look",
                "{}",
                json!({"type": "function_call", "name": "look", "namespace": "mcp__docs__", "arguments": "{}"}),
            ),
            ("edit", "a\nb", json!({"type": "custom_tool_call", "name": "edit", "input": "a\nb"})),
            (
                "local_shell",
                "{\"command\": [\"ls\"]}",
                json!({"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"], "env": {}}}),
            ),
            ("other", "{}", json!({"type": "function_call", "name": "other", "arguments": "{}"})),
        ] {
            let mut item = tools.item(("i", "c"), "completed", function, arguments);
            for name in ["id", "call_id", "status"] {
                item.as_object_mut().unwrap().shift_remove(name).unwrap();
            }
            assert_eq!(item, wanted);
        }
    }

    #[test]
    fn calls_and_choices_name_functions() {
        let tools = tools();
        for (named, wanted) in [
            (json!({"name": "look"}), "look"),
            (json!({"name": "look", "namespace": "mcp__docs__"}), "mcp__docs__look"),
            (json!({"name": "gone", "namespace": "old"}), "old__gone"),
        ] {
            assert_eq!(tools.function_of(&named), wanted);
        }
        let choice = json!({"type": "function", "name": "list", "namespace": "crm"});
        assert_eq!(tools.choice(choice.clone())["name"], "crm__list");
        let some = json!({"type": "allowed_tools", "mode": "auto", "tools": [choice, {"type": "local_shell"}]});
        let some = tools.choice(some);
        assert_eq!(
            (&some["tools"][0]["name"], &some["tools"][1]["name"]),
            (&json!("crm__list"), &json!("local_shell"))
        );
        assert_eq!(tools.choice(json!("auto")), "auto");
    }

    #[test]
    fn a_tool_without_a_name_is_refused() {
        for (tools, param) in [
            (json!([{"type": "function"}]), "tools[0].name"),
            (json!([{"type": "namespace", "tools": []}]), "tools[0].name"),
            (json!([{"type": "namespace", "name": "n"}]), "tools[0].tools"),
            (
                json!([{"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}]),
                "tools[0].tools[0].name",
            ),
        ] {
            let refusal = ClientTools::take(tools.as_array().unwrap().clone()).unwrap_err();
            assert_eq!(refusal.param.as_deref(), Some(param));
        }
    }
}
