//! How large a schema becomes when it is compiled. llguidance merges what `allOf` lists, and what stands beside a `$ref`, and copies the
//! schemas that are referred to there: a list of two references to a list of two references, and so on, doubles with each step.

use std::collections::HashMap;

use serde_json::{Deserializer, Value};

use crate::http::decoded;

/// Most values that a schema may have with what is merged copied.
const MOST: u64 = 200_000;
/// Most bytes of a pattern: the time to compile one grows with its square.
pub(super) const PATTERN: usize = 4096;
/// What may stand beside a reference without being merged with what it refers to.
const BESIDE: [&str; 11] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
    "$schema",
    "$defs",
    "definitions",
];

/// Whether a schema may be compiled.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    let mut sizes = Sizes { root: schema, named: HashMap::new(), known: HashMap::new() };
    sizes.look(schema)?;
    if sizes.of(schema, false)? > MOST {
        return Err(format!(
            "with the references copied that are in allOf, or beside other keywords, the schema has more than {MOST} values"
        ));
    }
    Ok(())
}

/// Whether the schemas in a grammar of llguidance's may be compiled.
pub(super) fn check_all_in(lark: &str) -> Result<(), String> {
    for (at, mark) in lark.match_indices("%json") {
        // What is no JSON is refused by llguidance, or stands in a text.
        let mut values = Deserializer::from_str(&lark[at + mark.len()..]).into_iter::<Value>();
        if let Some(Ok(schema)) = values.next() {
            check(&schema)?;
        }
    }
    Ok(())
}

struct Sizes<'s> {
    root: &'s Value,
    /// Schemas by their `$id` and `$anchor`.
    named: HashMap<&'s str, &'s Value>,
    /// By reference: the size of what it refers to; 0 while that is being found.
    known: HashMap<&'s str, u64>,
}

impl<'s> Sizes<'s> {
    /// Finds the names of all schemas, and patterns that are too long.
    fn look(&mut self, value: &'s Value) -> Result<(), String> {
        let Value::Object(object) = value else {
            return value.as_array().into_iter().flatten().try_for_each(|item| self.look(item));
        };
        for (key, inner) in object {
            let pattern = match (&key[..], inner) {
                ("$id" | "id" | "$anchor" | "$dynamicAnchor", Value::String(name)) => {
                    self.named.insert(name, value);
                    0
                }
                ("pattern", Value::String(pattern)) => pattern.len(),
                ("patternProperties", Value::Object(all)) => {
                    all.keys().map(String::len).max().unwrap_or(0)
                }
                _ => 0,
            };
            if pattern > PATTERN {
                return Err(format!("a pattern has {pattern} bytes, expected at most {PATTERN}"));
            }
            self.look(inner)?;
        }
        Ok(())
    }

    /// The values of a schema. If it is `merged`, each of its references is as large as what it refers to.
    fn of(&mut self, value: &'s Value, merged: bool) -> Result<u64, String> {
        let mut all = 1u64;
        match value {
            Value::Object(object) => {
                let alone = object.keys().all(|key| key == "$ref" || BESIDE.contains(&&key[..]));
                for (key, inner) in object {
                    let size = match (&key[..], inner) {
                        ("$ref" | "$dynamicRef", Value::String(reference)) if merged || !alone => {
                            self.referred(reference)?
                        }
                        ("allOf", _) => self.of(inner, true)?,
                        _ => self.of(inner, merged)?,
                    };
                    all = all.saturating_add(size);
                }
            }
            Value::Array(items) => {
                for item in items {
                    all = all.saturating_add(self.of(item, merged)?);
                }
            }
            _ => {}
        }
        Ok(all)
    }

    fn referred(&mut self, reference: &'s str) -> Result<u64, String> {
        if let Some(size) = self.known.get(reference) {
            return Ok(*size);
        }
        // What leads back to itself is not copied in itself.
        self.known.insert(reference, 0);
        let target = self.target(reference).ok_or_else(|| {
            let shown: String = reference.chars().take(80).collect();
            format!("the schema has nothing at the reference {shown:?}")
        })?;
        let size = self.of(target, true)?;
        self.known.insert(reference, size);
        Ok(size)
    }

    fn target(&self, reference: &str) -> Option<&'s Value> {
        let (schema, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let schema = match schema {
            "" => self.root,
            name => self.named.get(name)?,
        };
        match fragment {
            "" => Some(schema),
            pointer if pointer.starts_with('/') => schema.pointer(&decoded(pointer)),
            anchor => self.named.get(anchor).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Definitions `d0` to `d{n}`, each made of the next; the last is a text.
    fn chain(n: usize, of: impl Fn(String) -> Value) -> Value {
        let one = |i: usize| match i {
            i if i < n => of(format!("#/$defs/d{}", i + 1)),
            _ => json!({"type": "string", "pattern": "a"}),
        };
        let all: serde_json::Map<_, _> = (0..=n).map(|i| (format!("d{i}"), one(i))).collect();
        json!({"$defs": all, "$ref": "#/$defs/d0"})
    }

    #[test]
    fn what_doubles_is_refused() {
        let both = |next: String| json!({"allOf": [{"$ref": next}, {"$ref": next}]});
        assert!(check(&chain(8, both)).is_ok());
        assert!(check(&chain(24, both)).unwrap_err().contains("200000"));
        let beside = |next: String| json!({"$ref": next, "properties": {"a": {"$ref": next}}});
        assert!(check(&chain(24, beside)).is_err());
        // By other names of the same schemas.
        let by_id = json!({"$id": "https://x.org/y", "$defs": {"a": {"$anchor": "b", "enum": vec![1; 500]}},
            "allOf": vec![json!({"$ref": "https://x.org/y#b"}); 500]});
        assert!(check(&by_id).is_err());
        let escaped = json!({"$defs": {"a b": {"enum": vec![1; 500]}}, "allOf": vec![json!({"$ref": "#/$defs/a%20b"}); 500]});
        assert!(check(&escaped).is_err());
        assert!(check(&json!({"allOf": [{"$ref": "#/$defs/no"}]})).is_err());
        let lark = |schema: &Value| format!("start: a\na: %json {schema}\n");
        assert!(check_all_in(&lark(&chain(24, both))).is_err());
        assert!(check_all_in(&lark(&chain(8, both))).is_ok());
    }

    #[test]
    fn what_does_not_is_not() {
        // Shared by many, and leading back to itself, as the schemas of real programs do.
        let both = |next: String| json!({"properties": {"a": {"$ref": next}, "b": {"$ref": next, "title": "b"}}});
        assert!(check(&chain(500, both)).is_ok());
        let tree = json!({"$defs": {"node": {"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"left": {"$ref": "#/$defs/node"}}}]},
            "base": {"properties": {"name": {"type": "string"}}}}, "$ref": "#/$defs/node"});
        assert!(check(&tree).is_ok());
    }

    #[test]
    fn long_patterns_are_refused() {
        let long = "a?".repeat(PATTERN);
        assert!(check(&json!({"items": {"pattern": long}})).is_err());
        assert!(check(&json!({"patternProperties": {&long: true}})).is_err());
        assert!(
            check(&json!({"properties": {"pattern": {"type": "string"}}, "const": long})).is_ok()
        );
    }
}
