//! The size of a schema, or of a terminal of a grammar, after it is compiled. llguidance merges the items of `allOf`, and the
//! keywords next to a `$ref`, and copies the schemas that are referenced there: a list of two references to a list of two references,
//! and so on, doubles with each step. So does a terminal of two terminals of two terminals.

use std::collections::HashMap;
use std::ops::Range;

use serde_json::{Deserializer, Value};

use super::REGEX as PATTERN;
use crate::decoded::decoded;

/// Maximum number of values of a schema, including the copies made by merging.
const MAX_VALUES: u64 = 200_000;
/// Maximum number of parts of a terminal, including those of the terminals that it names. If it may end after each of n parts, two
/// tokens make n² / 2.
const PARTS: u64 = 8000;
/// Keywords that may be next to a reference without being merged with its target.
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

/// Checks that a schema is small enough to be compiled.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    let mut sizes = Sizes { root: schema, named: HashMap::new(), known: HashMap::new() };
    sizes.look(schema)?;
    if sizes.of(schema, false)? > MAX_VALUES {
        return Err(format!(
            "with the references copied that are in allOf, or beside other keywords, the schema has more than {MAX_VALUES} values"
        ));
    }
    Ok(())
}

/// Checks that the terminals and schemas of an llguidance grammar are small enough to be compiled. llguidance itself rejects invalid grammars.
pub(super) fn check_grammar(lark: &str) -> Result<(), String> {
    let mut terminals = Terminals { of: HashMap::new(), known: HashMap::new() };
    terminals.read(lark)?;
    let names: Vec<&str> = terminals.of.keys().copied().collect();
    for name in names {
        if terminals.parts(name) > PARTS {
            return Err(format!(
                "the terminal {name} has more than {PARTS} parts, with those of the terminals that it names"
            ));
        }
    }
    Ok(())
}

/// The terminals of a grammar.
struct Terminals<'g> {
    /// By name: the number of its own parts, and the terminals that it names.
    of: HashMap<&'g str, (u64, Vec<&'g str>)>,
    /// By name: the number of parts including those of other terminals; 0 while it is being computed.
    known: HashMap<&'g str, u64>,
}

impl<'g> Terminals<'g> {
    fn read(&mut self, lark: &'g str) -> Result<(), String> {
        let mut at = 0;
        // The rule that the parts belong to, and the parts on the current line: if a colon follows, the line's first word is the name
        // of another rule.
        let mut whose = "";
        let mut line = Line::default();
        while at < lark.len() {
            if lark[at..].starts_with("//") {
                at += lark[at..].find('\n').unwrap_or(lark.len() - at);
                continue;
            }
            let part = part_at(lark, at);
            let text = &lark[part.clone()];
            at = part.end;
            match text.as_bytes()[0] {
                b'\n' => {
                    self.add(whose, &mut line);
                }
                b':' if !line.named => {
                    if let Some(name) = line.words.first().copied() {
                        whose = name;
                    }
                    line = Line { named: true, ..Line::default() };
                }
                b'%' => {
                    let mut values = Deserializer::from_str(&lark[at..]).into_iter::<Value>();
                    if let Some(Ok(value)) = values.next() {
                        at += values.byte_offset();
                        if text == "%json" {
                            check(&value)?;
                        }
                    }
                }
                b'/' if text.len() > PATTERN => {
                    let found = text.len();
                    return Err(format!(
                        "an expression has {found} bytes, expected at most {PATTERN}"
                    ));
                }
                b'/' => line.parts += text.len() as u64,
                b'"' => line.parts += 1,
                first if first.is_ascii_alphabetic() || first == b'_' => line.words.push(text),
                _ => {}
            }
        }
        self.add(whose, &mut line);
        Ok(())
    }

    /// Adds the contents of a line, and resets it.
    fn add(&mut self, whose: &'g str, line: &mut Line<'g>) {
        let line = std::mem::take(line);
        if is_terminal(whose) {
            let (parts, others) = self.of.entry(whose).or_default();
            *parts += line.parts + line.words.len() as u64;
            others.extend(line.words);
        }
    }

    fn parts(&mut self, name: &'g str) -> u64 {
        if let Some(parts) = self.known.get(name) {
            return *parts;
        }
        let Some((own, others)) = self.of.get(name).cloned() else { return 0 };
        self.known.insert(name, 0);
        let parts =
            others.into_iter().fold(own, |all, other| all.saturating_add(self.parts(other)));
        self.known.insert(name, parts);
        parts
    }
}

/// The contents of a line of a grammar.
#[derive(Default)]
struct Line<'g> {
    parts: u64,
    words: Vec<&'g str>,
    /// True after the line's colon.
    named: bool,
}

/// By Lark's rule, a terminal's name has no lowercase letters.
fn is_terminal(name: &str) -> bool {
    name.bytes().any(|byte| byte.is_ascii_uppercase())
        && !name.bytes().any(|byte| byte.is_ascii_lowercase())
}

/// The range of a text, expression, word, directive, or single character that begins at byte `at` of a grammar.
fn part_at(lark: &str, at: usize) -> Range<usize> {
    let rest = &lark[at..];
    let word = |text: &str| {
        text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len())
    };
    let quoted = |mark: u8| {
        let mut escaped = false;
        let end = rest.bytes().skip(1).position(|byte| {
            let ends = byte == mark && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends || byte == b'\n'
        });
        end.map_or(rest.len(), |end| end + 2)
    };
    let len = match rest.as_bytes()[0] {
        mark @ (b'"' | b'/') => quoted(mark),
        b'%' => 1 + word(&rest[1..]),
        first if first.is_ascii_alphabetic() || first == b'_' => word(rest),
        _ => rest.chars().next().map_or(1, char::len_utf8),
    };
    at..at + len
}

struct Sizes<'s> {
    root: &'s Value,
    /// Schemas by their `$id` and `$anchor`.
    named: HashMap<&'s str, &'s Value>,
    /// By reference: the size of its target; 0 while it is being computed.
    known: HashMap<&'s str, u64>,
}

impl<'s> Sizes<'s> {
    /// Collects the names of all schemas, and rejects patterns that are too long.
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

    /// Returns the number of values of a schema. If it is `merged`, each of its references is as large as its target.
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
        // A recursive schema is not copied into itself.
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

    /// Definitions `d0` to `d{n}`, each made of the next; the last is a string.
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
        // The same schemas by other names.
        let by_id = json!({"$id": "https://x.org/y", "$defs": {"a": {"$anchor": "b", "enum": vec![1; 500]}},
            "allOf": vec![json!({"$ref": "https://x.org/y#b"}); 500]});
        assert!(check(&by_id).is_err());
        let escaped = json!({"$defs": {"a b": {"enum": vec![1; 500]}}, "allOf": vec![json!({"$ref": "#/$defs/a%20b"}); 500]});
        assert!(check(&escaped).is_err());
        assert!(check(&json!({"allOf": [{"$ref": "#/$defs/no"}]})).is_err());
        let lark = |schema: &Value| format!("start: a\na: %json {schema}\n");
        assert!(check_grammar(&lark(&chain(24, both))).is_err());
        assert!(check_grammar(&lark(&chain(8, both))).is_ok());
    }

    #[test]
    fn what_does_not_is_not() {
        // Shared by many, and recursive, as the schemas of real programs are.
        let both = |next: String| json!({"properties": {"a": {"$ref": next}, "b": {"$ref": next, "title": "b"}}});
        assert!(check(&chain(500, both)).is_ok());
        let tree = json!({"$defs": {"node": {"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"left": {"$ref": "#/$defs/node"}}}]},
            "base": {"properties": {"name": {"type": "string"}}}}, "$ref": "#/$defs/node"});
        assert!(check(&tree).is_ok());
    }

    #[test]
    fn terminals_have_the_parts_of_those_that_they_name() {
        let twice = |n: usize| {
            let one = |i| format!("A{i}: A{} // A: B\n  | A{} \"A{i} :\"? /[:\"]/\n", i + 1, i + 1);
            format!("start: A0\n{}A{n}: \"a\"\n", (0..n).map(one).collect::<String>())
        };
        assert!(check_grammar(&twice(8)).is_ok());
        assert!(check_grammar(&twice(13)).unwrap_err().contains("has more than 8000 parts"));
        assert!(check_grammar(&twice(300)).is_err());
        // Rules that name rules are not terminals, and recursive terminals are refused elsewhere.
        let rules = "start: a\na: b b b\nb: \"x\" a? a a\nA: A A A\nB[lazy]: \"x\"\n";
        assert!(check_grammar(rules).is_ok());
        assert!(check_grammar(&format!("start: A\nA.1: /{}/\n", "a?".repeat(1500))).is_ok());
        assert!(check_grammar(&format!("start: /{}/\n", "a?".repeat(2500))).is_err());
        assert!(check_grammar(&format!("start: A\nA: {}\n", "\"a\"? ".repeat(9000))).is_err());
        for odd in
            ["%", "a: \"", "a: /", ":", "a: \"\\", "é: É", "//", "a: b//\n%json {", "A:\n\n:\n"]
        {
            assert!(check_grammar(odd).is_ok(), "{odd:?}");
        }
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
