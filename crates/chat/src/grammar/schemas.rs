//! Schemas as people and programs write them, made into those that llguidance reads, and the place of a fault in one.

use serde_json::{Map, Value};

use crate::decoded::decoded;

/// Maximum number of values that are copied because a reference to them has escapes.
const MAX_COPIED: usize = 50_000;
/// Maximum number of parts of a schema that are compiled alone to find the one at fault.
#[cfg(feature = "grammar")]
const MAX_PARTS: usize = 64;
/// The beginning of the names of definitions that are added.
const ADDED: &str = "alight-reference-";

/// Keywords whose value is an object of schemas, a schema, or a list of schemas. Definitions come first: a fault in one is shown there.
#[cfg(feature = "grammar")]
const OBJECTS: [&str; 5] =
    ["$defs", "definitions", "properties", "patternProperties", "dependentSchemas"];
#[cfg(feature = "grammar")]
const SINGLE: [&str; 9] = [
    "items",
    "additionalProperties",
    "additionalItems",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
];
#[cfg(feature = "grammar")]
const LISTS: [&str; 5] = ["anyOf", "oneOf", "allOf", "prefixItems", "items"];

/// Rewrites what llguidance does not read as the standard has it: references with escapes. Unless the client insists on the whole
/// schema, patterns that look around are left out, as other keywords are that cannot be held.
pub(super) fn prepare(schema: &mut Value, strict: bool) {
    if !strict {
        each(schema, &mut |object| {
            let around = |pattern: &Value| pattern.as_str().is_some_and(looks_around);
            if object.get("pattern").is_some_and(around) {
                object.shift_remove("pattern");
            }
        });
    }
    plain_references(schema);
}

/// The keywords of a schema that no grammar can hold, of those that are left out here.
pub(super) fn left_out(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    each(&mut schema.clone(), &mut |object| {
        if let Some(pattern) =
            object.get("pattern").and_then(Value::as_str).filter(|p| looks_around(p))
        {
            found.push(format!("pattern {pattern:?} (it looks around)"));
        }
    });
    found
}

/// The keywords that a warning of llguidance's names.
#[cfg(feature = "grammar")]
pub(super) fn of_warning(text: &str) -> Vec<String> {
    let line = reason(text);
    if let Some(keys) = unknown_keys(&line) {
        return keys;
    }
    match line.split_once("Unknown format: ") {
        Some((_, format)) => vec![format!("format {format}")],
        None => vec![line],
    }
}

/// The keywords of a schema that llguidance says it does not know.
fn unknown_keys(reason: &str) -> Option<Vec<String>> {
    let (_, keys) = reason.split_once("Unimplemented keys: ")?;
    let (keys, _) = keys.rsplit_once(']')?;
    serde_json::from_str(&format!("{keys}]")).ok()
}

/// A reason of llguidance's in a sentence for those who wrote the schema.
pub(super) fn in_words(reason: String) -> String {
    match unknown_keys(&reason) {
        Some(keys) => format!("no answer can be held to {}", keys.join(", ")),
        None => reason,
    }
}

/// True if a regular expression looks around, or refers to an earlier part.
fn looks_around(pattern: &str) -> bool {
    ["(?=", "(?!", "(?<=", "(?<!"].iter().any(|begin| pattern.contains(begin))
}

/// Visits each object that may be a schema. Values of `const`, `enum`, `default` and `examples` are none.
fn each(value: &mut Value, visit: &mut dyn FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            // A property may have the name of a keyword: then its value is a schema and no string.
            visit(object);
            for (key, inner) in object {
                if !["const", "enum", "default", "examples"].contains(&&**key) || inner.is_object()
                {
                    each(inner, visit);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| each(item, visit)),
        _ => {}
    }
}

/// Gives the targets of references with escapes names without any: llguidance takes each step of a reference as it is written.
fn plain_references(schema: &mut Value) {
    let mut targets: Vec<(String, String)> = Vec::new();
    let root = &*schema;
    let mut escaped = Vec::new();
    references(root, &mut escaped);
    let mut left = MAX_COPIED;
    for reference in escaped {
        let pointer = decoded(&reference[1..]);
        let size = root.pointer(&pointer).map(count);
        let Some(rest) = size.and_then(|size| left.checked_sub(size)) else { continue };
        if targets.iter().all(|(known, _)| *known != reference) {
            left = rest;
            targets.push((reference, pointer));
        }
    }
    if targets.is_empty() {
        return;
    }
    each(schema, &mut |object| {
        let known = object.get("$ref").and_then(Value::as_str);
        let at = known.and_then(|known| targets.iter().position(|(target, _)| target == known));
        if let Some(at) = at {
            object.insert("$ref".to_owned(), format!("#/$defs/{ADDED}{at}").into());
        }
    });
    let copies: Vec<Value> =
        targets.iter().filter_map(|(_, pointer)| schema.pointer(pointer).cloned()).collect();
    let Some(object) = schema.as_object_mut() else { return };
    let definitions = object.entry("$defs").or_insert_with(|| Map::new().into());
    let Some(definitions) = definitions.as_object_mut() else { return };
    for (at, copy) in copies.into_iter().enumerate() {
        definitions.insert(format!("{ADDED}{at}"), copy);
    }
}

/// Collects the references within the schema that have escapes.
fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            if let Some(reference) = object.get("$ref").and_then(Value::as_str)
                && reference.starts_with("#/")
                && reference.contains(['~', '%'])
            {
                found.push(reference.to_owned());
            }
            object.values().for_each(|inner| references(inner, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Object(object) => object.values().map(count).sum(),
        Value::Array(items) => items.iter().map(count).sum(),
        _ => 0,
    }
}

/// Says why a schema makes no grammar, and where the fault is: in the deepest part that fails in the same way alone. `fails` compiles
/// a part and returns the reason if it fails.
#[cfg(feature = "grammar")]
pub(super) fn located(root: &Value, why: &str, fails: impl Fn(Value) -> Option<String>) -> String {
    let wanted = reason(why);
    let (mut at, mut path, mut left) = (root, String::new(), MAX_PARTS);
    'deeper: loop {
        if let Some(target) = at.get("$ref").and_then(Value::as_str)
            && let Some(found) = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer))
            && left > 0
        {
            (at, path, left) = (found, target[1..].to_owned(), left - 1);
            continue;
        }
        for (step, part) in parts(at) {
            if left == 0 {
                break 'deeper;
            }
            left -= 1;
            let same = fails(alone(part, root)).is_some_and(|why| reason(&why) == wanted);
            if same {
                (at, path) = (part, format!("{path}/{step}"));
                continue 'deeper;
            }
        }
        break;
    }
    let why = in_words(wanted);
    if path.is_empty() { why } else { format!("at {path}: {why}") }
}

/// A part of a schema with the definitions that it may refer to.
#[cfg(feature = "grammar")]
fn alone(part: &Value, root: &Value) -> Value {
    let mut part = part.clone();
    if let Some(object) = part.as_object_mut() {
        for name in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(name) {
                object.entry(name).or_insert_with(|| definitions.clone());
            }
        }
    }
    part
}

/// The schemas within a schema, each with its pointer.
#[cfg(feature = "grammar")]
fn parts(schema: &Value) -> Vec<(String, &Value)> {
    let step = |text: &str| text.replace('~', "~0").replace('/', "~1");
    let mut all = Vec::new();
    for name in OBJECTS {
        let inner = schema.get(name).and_then(Value::as_object).into_iter().flatten();
        all.extend(inner.map(|(key, part)| (format!("{name}/{}", step(key)), part)));
    }
    let single = SINGLE.iter().filter_map(|name| Some((*name, schema.get(name)?)));
    all.extend(single.filter(|(_, part)| part.is_object()).map(|(name, part)| (name.into(), part)));
    for name in LISTS {
        let inner = schema.get(name).and_then(Value::as_array).into_iter().flatten();
        all.extend(inner.enumerate().map(|(i, part)| (format!("{name}/{i}"), part)));
    }
    all
}

/// A reason of llguidance's in a line, without positions in the text of a grammar: its first line; of a regular expression, which is shown below
/// that, also what is wrong with it.
pub(super) fn reason(why: &str) -> String {
    let mut lines = why.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let wrong = lines.find_map(|line| line.strip_prefix("error: "));
    let wrong = wrong.filter(|_| first.ends_with(':')).map(|wrong| format!("{first} {wrong}"));
    let line = wrong.as_deref().unwrap_or(first);
    // `12(3): ` or `at 12(3): `, the line and the column.
    let position = |text: &str| {
        let text = text.strip_prefix("at ").unwrap_or(text);
        let rest = text.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix('(')?;
        let (inside, rest) = rest.split_once("): ")?;
        inside.bytes().all(|byte| byte.is_ascii_digit()).then(|| rest.to_owned())
    };
    position(line).unwrap_or_else(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_with_escapes_have_targets_without() {
        let mut schema = json!({
            "$defs": {"a/b": {"type": "integer"}, "c d": {"$ref": "#/$defs/a~1b"}, "e": {"type": "null"}},
            "properties": {"x": {"$ref": "#/$defs/a~1b"}, "y": {"$ref": "#/$defs/c%20d"}, "z": {"$ref": "#/$defs/e"}}
        });
        plain_references(&mut schema);
        for (key, wanted) in [("x", "integer"), ("z", "null")] {
            let reference = schema["properties"][key]["$ref"].as_str().unwrap();
            assert!(!reference.contains(['~', '%']), "{reference}");
            assert_eq!(schema.pointer(&reference[1..]).unwrap()["type"], wanted);
        }
        // One that refers to another.
        let y = schema["properties"]["y"]["$ref"].as_str().unwrap();
        let y = schema.pointer(&y[1..]).unwrap()["$ref"].as_str().unwrap();
        assert_eq!(schema.pointer(&y[1..]).unwrap()["type"], "integer");
        // References to nothing stay, to be refused.
        let mut wrong = json!({"$ref": "#/$defs/a~1b"});
        plain_references(&mut wrong);
        assert_eq!(wrong, json!({"$ref": "#/$defs/a~1b"}));
    }

    #[test]
    fn patterns_that_look_around_are_left_out_unless_the_client_insists() {
        let schema = json!({"properties": {"pattern": {"type": "string", "pattern": "^(?!x)a"}, "b": {"pattern": "^a"}}});
        let mut lenient = schema.clone();
        prepare(&mut lenient, false);
        assert_eq!(
            lenient,
            json!({"properties": {"pattern": {"type": "string"}, "b": {"pattern": "^a"}}})
        );
        let mut strict = schema.clone();
        prepare(&mut strict, true);
        assert_eq!(strict, schema);
        assert_eq!(left_out(&schema).len(), 1);
    }

    #[test]
    fn a_reason_has_no_position_in_a_grammar() {
        assert_eq!(reason("12(3): no such type\n12: start: a"), "no such type");
        assert_eq!(reason("at 12(3): no such type"), "no such type");
        assert_eq!(reason("no such type (here)"), "no such type (here)");
    }

    #[test]
    fn a_reason_is_a_sentence() {
        let why = "regex parse error:\n    (?=a)b\n    ^^^\nerror: look-around is not supported";
        assert_eq!(reason(why), "regex parse error: look-around is not supported");
        assert_eq!(reason("\n  a: b\nerror: c"), "a: b");
        let keys = "Unimplemented keys: [\"uniqueItems\",\"not\"]";
        assert_eq!(in_words(keys.to_owned()), "no answer can be held to uniqueItems, not");
        assert_eq!(in_words("no such type".to_owned()), "no such type");
    }
}
