//! Calls whose arguments are nested elements, as rules of an llguidance grammar: MiniMax M3's.

use alight_text::format::Elements;
use serde_json::{Map, Value, json};

use super::notation::{Writer, described, rules_of, strings};

/// Elements in one another whose schemas are held; deeper ones are free.
const MAX_HELD_DEPTH: usize = 8;
/// The rules for a value of any shape: text, or elements. A list's elements have the same tag.
const FREE: &str = "anyvalue";

/// Writes the rules of one call's arguments.
pub(super) struct TreeWriter<'w> {
    pub(super) writer: &'w Writer<'w>,
    pub(super) form: &'static Elements,
    pub(super) rules: &'w mut String,
    /// The number of rules so far, which names them.
    pub(super) count: usize,
    /// The prefix of their names.
    pub(super) name: String,
}

impl TreeWriter<'_> {
    /// The rules that the calls of all tools share. A free value ends with the mark of the tag that closes it.
    pub(super) fn shared(writer: &Writer<'_>, form: &Elements) -> String {
        let (mark, open) = (writer.mark(form.mark), writer.mark(&format!("{}<", form.mark)));
        let mut rules = String::new();
        let text = writer.until("anytext", "(?s:.*)", form.mark, &mut rules);
        let element = format!("{open} KEY \">\" {FREE} \"</\" KEY \">\"");
        format!("{rules}{FREE}: {text} | anyelement+ {mark}\nanyelement: {element}\n")
    }

    /// The elements of an object; `None` if its schema names none.
    pub(super) fn object(&mut self, schema: &Value, depth: usize) -> Option<String> {
        let properties: &Map<String, Value> = schema.get("properties")?.as_object()?;
        if properties.is_empty() || depth > MAX_HELD_DEPTH {
            return None;
        }
        let required = schema["required"].as_array();
        let is_required =
            |key: &str| required.is_some_and(|all| all.iter().any(|one| *one == *key));
        let all: Vec<String> = properties
            .iter()
            .map(|(key, schema)| {
                let element = self.element(key, schema, depth);
                format!("(BLANK? {element}){}", if is_required(key) { "" } else { "?" })
            })
            .collect();
        Some(all.join(" "))
    }

    /// An element: a rule of its own.
    fn element(&mut self, tag: &str, schema: &Value, depth: usize) -> String {
        self.count += 1;
        let own = format!("{}_{}", self.name, self.count);
        let (open, close) =
            (format!("{}<{tag}>", self.form.mark), format!("{}</{tag}>", self.form.mark));
        let end = self.writer.mark(&close);
        let free = format!("{FREE} {}", json!(format!("</{tag}>")));
        let value = match schema["type"].as_str() {
            Some("object") => match self.object(schema, depth + 1) {
                Some(elements) => format!("{elements} BLANK? {end}"),
                None => free,
            },
            Some("array") if depth < MAX_HELD_DEPTH && schema["items"].is_object() => {
                let item = self.element("item", &schema["items"], depth + 1);
                format!("(BLANK? {item})* BLANK? {end}")
            }
            Some("integer" | "number" | "boolean" | "null") => {
                let json = rules_of(schema.clone(), false, ", ", ": ");
                self.rules.push_str(&format!("j{own}: %json {json}\n"));
                format!("j{own} {end}")
            }
            _ => match strings(schema) {
                Some(texts) => format!("({}) {end}", texts.join(" | ")),
                None if schema["type"] == json!("string") => {
                    self.writer.until(&format!("t{own}"), &described(schema), &close, self.rules)
                }
                None => free,
            },
        };
        self.rules.push_str(&format!("e{own}: {} {value}\n", self.writer.mark(&open)));
        format!("e{own}")
    }
}
