//! The tools that a model may call, and the types that their schemas give to arguments.

use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;

/// The maximum number of references and combinations that are followed in a schema.
const MAX_DEPTH: u32 = 16;

/// The tools of a request. Notations that write values without their type read them as the schemas say.
#[derive(Clone, Debug, Default)]
pub struct Tools(Arc<[Tool]>);

#[derive(Debug)]
struct Tool {
    name: String,
    parameters: Value,
}

impl Tools {
    /// The tools of a request, as OpenAI's API has them: `{"type": "function", "function": {"name": …, "parameters": {…}}}`, or
    /// the inner object alone. Those without a name are left out.
    pub fn of(tools: &[Value]) -> Tools {
        let one = |tool: &Value| {
            let tool = tool.get("function").unwrap_or(tool);
            let name = tool.get("name")?.as_str()?.to_owned();
            let parameters = tool.get("parameters").or_else(|| tool.get("input_schema"));
            Some(Tool { name, parameters: parameters.cloned().unwrap_or(Value::Null) })
        };
        Tools(tools.iter().filter_map(one).collect())
    }

    /// True if a tool has this name.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// The index of the tool with this name.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|tool| tool.name == name)
    }

    /// The longest name of a tool that `text` begins with.
    pub(super) fn prefix_of(&self, text: &str) -> Option<&str> {
        let names = self.0.iter().map(|tool| tool.name.as_str());
        names.filter(|name| text.starts_with(name)).max_by_key(|name| name.len())
    }

    /// The types that a parameter of a tool may have; `None` if its schema does not say.
    pub(super) fn types(&self, tool: Option<usize>, key: &str) -> Option<Types> {
        let root = &self.0.get(tool?)?.parameters;
        types(properties(root)?.get(key)?, root, 0)
    }

    /// The types of a value within the arguments of a tool: at the keys of objects, and `item` for those of lists.
    pub(super) fn types_at<'k>(
        &self,
        tool: Option<usize>,
        path: impl Iterator<Item = &'k str>,
    ) -> Option<Types> {
        let root = &self.0.get(tool?)?.parameters;
        let mut schema = root;
        for key in path {
            for _ in 0..MAX_DEPTH {
                let referred = schema.get("$ref").and_then(Value::as_str);
                match referred.and_then(|path| root.pointer(path.strip_prefix('#')?)) {
                    Some(referred) => schema = referred,
                    None => break,
                }
            }
            schema = match properties(schema).and_then(|all| all.get(key)) {
                Some(schema) => schema,
                None => schema.get("items")?,
            };
        }
        types(schema, root, 0)
    }

    /// How the value of a parameter is written where text stands without quotes.
    pub fn written(&self, name: &str, key: &str) -> Written {
        match Kind::of(self.types(self.find(name), key)) {
            Kind::Text => Written::Text,
            kind if kind.may_be_text() => Written::Either,
            _ => Written::Json,
        }
    }

    /// The words of Python that are read as a value of a parameter which may be a truth value or nothing.
    pub fn python_words(&self, name: &str, key: &str) -> impl Iterator<Item = &'static str> {
        let types = self.types(self.find(name), key);
        let may_be = move |wanted: Types| types.is_some_and(|types| types.has(wanted));
        let words = PYTHON.iter().filter(move |(_, types, _)| may_be(*types));
        words.map(|(word, ..)| *word)
    }

    /// True if the schema of a tool names parameters, and not this one.
    pub(super) fn lacks(&self, tool: Option<usize>, key: &str) -> bool {
        let tool = tool.and_then(|tool| self.0.get(tool));
        let properties = tool.and_then(|tool| properties(&tool.parameters));
        properties.is_some_and(|all| !all.contains_key(key))
    }
}

/// How a value is written where text stands without quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// As text.
    Text,
    /// As JSON.
    Json,
    /// As either: its schema allows text and other types, or does not say.
    Either,
}

fn properties(schema: &Value) -> Option<&serde_json::Map<String, Value>> {
    schema.get("properties")?.as_object()
}

/// A set of JSON types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Types(u8);

impl Types {
    const STRING: Types = Types(1);
    const NUMBER: Types = Types(2);
    const BOOLEAN: Types = Types(4);
    const NULL: Types = Types(8);
    const ARRAY: Types = Types(16);
    const OBJECT: Types = Types(32);
    const ALL: Types = Types(63);

    fn has(self, other: Types) -> bool {
        self.0 & other.0 != 0
    }

    /// True for text and nothing else.
    pub(super) fn is_text(self) -> bool {
        self == Types::STRING
    }

    fn named(name: &str) -> Option<Types> {
        Some(match name {
            "string" => Types::STRING,
            "number" | "integer" => Types::NUMBER,
            "boolean" => Types::BOOLEAN,
            "null" => Types::NULL,
            "array" => Types::ARRAY,
            "object" => Types::OBJECT,
            _ => return None,
        })
    }

    fn of(value: &Value) -> Types {
        match value {
            Value::String(_) => Types::STRING,
            Value::Number(_) => Types::NUMBER,
            Value::Bool(_) => Types::BOOLEAN,
            Value::Null => Types::NULL,
            Value::Array(_) => Types::ARRAY,
            Value::Object(_) => Types::OBJECT,
        }
    }
}

/// The types that a schema allows; `None` if it does not say.
fn types(schema: &Value, root: &Value, depth: u32) -> Option<Types> {
    if depth > MAX_DEPTH {
        return None;
    }
    let schema = schema.as_object()?;
    let any = |all: &Value| {
        let each = all.as_array()?.iter().map(|one| types(one, root, depth + 1));
        each.reduce(|a, b| Some(Types(a?.0 | b?.0))).flatten()
    };
    let mut found = match schema.get("type") {
        Some(Value::String(name)) => Types::named(name)?,
        Some(Value::Array(names)) => {
            let each = names.iter().map(|name| Types::named(name.as_str()?));
            each.reduce(|a, b| Some(Types(a?.0 | b?.0)))??
        }
        _ => {
            let reference = schema.get("$ref").and_then(Value::as_str);
            let referred = reference.and_then(|path| root.pointer(path.strip_prefix('#')?));
            let listed = schema.get("enum").and_then(Value::as_array);
            if let Some(referred) = referred {
                types(referred, root, depth + 1)?
            } else if let Some(value) = schema.get("const") {
                Types::of(value)
            } else if let Some(values) = listed {
                Types(values.iter().fold(0, |all, value| all | Types::of(value).0))
            } else if let Some(all) = schema.get("anyOf").or_else(|| schema.get("oneOf")) {
                any(all)?
            } else if let Some(all) = schema.get("allOf").and_then(Value::as_array) {
                let known = all.iter().filter_map(|one| types(one, root, depth + 1));
                known.reduce(|a, b| Types(a.0 & b.0))?
            } else if schema.contains_key("properties") {
                Types::OBJECT
            } else if schema.contains_key("items") {
                Types::ARRAY
            } else {
                return None;
            }
        }
    };
    if schema.get("nullable") == Some(&Value::Bool(true)) {
        found = Types(found.0 | Types::NULL.0);
    }
    (found.0 != 0).then_some(found)
}

/// The type that a value is read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Text.
    Text,
    /// Anything else, or text that is not JSON of these types.
    Json(Types),
    /// Unknown: JSON if it is that, except a string in quotes.
    Guess,
}

impl Kind {
    pub(super) fn of(types: Option<Types>) -> Kind {
        match types {
            None => Kind::Guess,
            Some(types) if types.is_text() => Kind::Text,
            Some(types) => Kind::Json(types),
        }
    }

    /// A value of which the notation says that it is JSON.
    pub(super) const JSON: Kind = Kind::Json(Types(Types::ALL.0 & !Types::STRING.0));

    /// True if a value may be text.
    pub(super) fn may_be_text(self) -> bool {
        match self {
            Kind::Text | Kind::Guess => true,
            Kind::Json(types) => types.has(Types::STRING),
        }
    }

    /// True if a value may be a list.
    pub(super) fn may_be_list(self) -> bool {
        match self {
            Kind::Text => false,
            Kind::Guess => true,
            Kind::Json(types) => types.has(Types::ARRAY),
        }
    }

    /// True if a value may be an object.
    pub(super) fn may_be_object(self) -> bool {
        match self {
            Kind::Text => false,
            Kind::Guess => true,
            Kind::Json(types) => types.has(Types::OBJECT),
        }
    }

    /// A value of which nothing was written, and none of its elements.
    pub(super) fn empty(self) -> &'static str {
        match self {
            Kind::Json(types) if types == Types::ARRAY => "[]",
            Kind::Json(types) if types == Types::OBJECT => "{}",
            _ => "\"\"",
        }
    }

    /// The value as JSON text.
    pub(super) fn json(self, text: &str) -> String {
        let json = match self {
            Kind::Text => None,
            Kind::Guess => parsed(text).filter(|(types, _)| !types.is_text()),
            Kind::Json(wanted) => parsed(text)
                // Text that is also allowed as text stays as it is written.
                .filter(|(types, _)| {
                    (wanted.has(*types) && !types.is_text()) || !wanted.has(Types::STRING)
                })
                .or_else(|| python(text).filter(|(types, _)| wanted.has(*types))),
        };
        json.map_or_else(|| string(text), |(_, json)| json.to_owned())
    }
}

/// A text that is JSON, without the blanks around it, and its type.
fn parsed(text: &str) -> Option<(Types, &str)> {
    let text = text.trim();
    serde_json::from_str::<&RawValue>(text).ok()?;
    let types = match text.as_bytes()[0] {
        b'"' => Types::STRING,
        b'{' => Types::OBJECT,
        b'[' => Types::ARRAY,
        b't' | b'f' => Types::BOOLEAN,
        b'n' => Types::NULL,
        _ => Types::NUMBER,
    };
    Some((types, text))
}

/// Python's words for truth values and for nothing, with their JSON: templates feed them back, and models imitate that.
const PYTHON: [(&str, Types, &str); 3] = [
    ("True", Types::BOOLEAN, "true"),
    ("False", Types::BOOLEAN, "false"),
    ("None", Types::NULL, "null"),
];

/// A word of Python as JSON, and its type.
pub(super) fn python(text: &str) -> Option<(Types, &'static str)> {
    let found = PYTHON.iter().find(|(word, ..)| *word == text.trim());
    found.map(|(_, types, json)| (*types, *json))
}

/// A text as a JSON string.
pub(super) fn string(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kind(schema: Value) -> Kind {
        let defs = json!({"t": {"type": "string"}, "n": {"$ref": "#/$defs/m"}, "m": {"type": "integer"}, "r": {"$ref": "#/$defs/r"}});
        let parameters = json!({"type": "object", "properties": {"k": schema}, "$defs": defs});
        let tools = Tools::of(&[
            json!({"type": "function", "function": {"name": "f", "parameters": parameters}}),
        ]);
        Kind::of(tools.types(tools.find("f"), "k"))
    }

    fn read(schema: Value, texts: &[&str]) -> Vec<String> {
        let kind = kind(schema);
        texts.iter().map(|text| kind.json(text)).collect()
    }

    #[test]
    fn text_stays_text() {
        let texts = ["1.50", "true", "null", "[1, 2]", "{\"a\": 1}", "\"q\"", " x "];
        let quoted: Vec<String> = texts.iter().map(|text| string(text)).collect();
        for schema in [
            json!({"type": "string"}),
            json!({"type": ["string"]}),
            json!({"enum": ["1.50", "x"]}),
            json!({"const": "x"}),
            json!({"$ref": "#/$defs/t"}),
            json!({"allOf": [{"description": "d"}, {"type": "string"}]}),
            json!({"anyOf": [{"type": "string"}, {"const": "a"}]}),
        ] {
            assert_eq!(read(schema.clone(), &texts), quoted, "{schema}");
        }
    }

    #[test]
    fn other_types_are_json_or_else_text() {
        let read = |schema, text| read(schema, &[text]).remove(0);
        assert_eq!(read(json!({"type": "integer"}), "\n3.0 "), "3.0");
        assert_eq!(read(json!({"type": "number"}), "1.50"), "1.50");
        assert_eq!(read(json!({"type": "integer"}), "three"), "\"three\"");
        assert_eq!(read(json!({"type": "boolean"}), "True"), "true");
        assert_eq!(read(json!({"type": "array"}), "[1,\n 2]"), "[1,\n 2]");
        assert_eq!(read(json!({"type": "object"}), "{\"a\": [}"), "\"{\\\"a\\\": [}\"");
        assert_eq!(read(json!({"$ref": "#/$defs/n"}), "7"), "7");
        assert_eq!(read(json!({"type": "integer", "nullable": true}), "None"), "null");
    }

    #[test]
    fn unions_are_json_of_a_member_or_else_text() {
        let read = |schema, text| read(schema, &[text]).remove(0);
        let either = || json!({"anyOf": [{"type": "string"}, {"type": "null"}]});
        assert_eq!(read(either(), "null"), "null");
        assert_eq!(read(either(), "1"), "\"1\"");
        assert_eq!(read(either(), "\"q\""), "\"\\\"q\\\"\"");
        assert_eq!(read(json!({"type": ["string", "number"]}), "1.0"), "1.0");
        assert_eq!(read(json!({"type": ["string", "number"]}), "true"), "\"true\"");
    }

    #[test]
    fn without_a_schema_it_is_a_guess() {
        for schema in [json!({}), json!(true), json!({"$ref": "#/$defs/r"}), json!({"type": "any"})]
        {
            assert_eq!(
                read(schema, &["1", "\"x\"", "y", "{\"a\": 1}"]),
                ["1", "\"\\\"x\\\"\"", "\"y\"", "{\"a\": 1}"]
            );
        }
        let tools = Tools::of(&[json!({"name": "g"})]);
        assert_eq!(tools.types(tools.find("g"), "k"), None);
        assert_eq!(tools.types(None, "k"), None);
        assert!(!tools.lacks(tools.find("g"), "k"));
    }
}
