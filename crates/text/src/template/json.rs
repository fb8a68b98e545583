//! The filter `tojson`, as `transformers` defines it: Python's `json.dumps` with
//! `ensure_ascii=False`, without HTML escaping.

use std::fmt::Write as _;

use super::budget::{Result, fail};
use super::machine::{Args, TemplateMachine};
use super::value::{Buffer, Seq, Text, Value, sort};

struct JsonStyle {
    /// The indentation of one level of nesting; `None`: all on one line.
    indent: Option<Text>,
    sort: bool,
    ascii: bool,
    item: Text,
    key: Text,
}

impl TemplateMachine<'_> {
    pub(super) fn json_of(&mut self, value: &Value, args: Args) -> Result<Value> {
        let [ascii, indent, separators, sort] =
            args.bind("tojson", ["ensure_ascii", "indent", "separators", "sort_keys"])?;
        let truth = |value: Option<Value>| value.is_some_and(|value| value.truth());
        let given = |value: Option<Value>| value.filter(|value| !matches!(value, Value::None));
        let indent = match given(indent) {
            None => None,
            Some(Value::Text(text)) => Some(text),
            Some(value) => {
                let Some(width) = value.int() else {
                    return fail("tojson takes a number or a string as 'indent'");
                };
                let mut spaces = Buffer::new(&self.budget)?;
                spaces.repeat(" ", usize::try_from(width.max(0)).unwrap_or(usize::MAX))?;
                Some(spaces.into_text()?)
            }
        };
        let (item, key) = match given(separators) {
            None => {
                let item = if indent.is_some() { "," } else { ", " };
                (Text::new(item, &self.budget)?, Text::new(": ", &self.budget)?)
            }
            Some(separators) => match &*self.items(&separators)? {
                [Value::Text(item), Value::Text(key)] => (item.clone(), key.clone()),
                _ => return fail("tojson takes two strings as 'separators'"),
            },
        };
        let style = JsonStyle { indent, sort: truth(sort), ascii: truth(ascii), item, key };
        let mut out = Buffer::new(&self.budget)?;
        self.write_json(value, 0, &style, &mut out)?;
        out.into_value()
    }

    /// Recurses as deep as values nest.
    fn write_json(
        &self,
        value: &Value,
        depth: usize,
        style: &JsonStyle,
        out: &mut Buffer,
    ) -> Result<()> {
        self.budget.steps(1)?;
        match value {
            Value::None => out.push_str("null"),
            Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
            Value::Int(n) => out.push_str(&n.to_string()),
            Value::Float(x) => out.push_str(&json_float(*x)),
            Value::Text(text) => json_text(text, style.ascii, out),
            Value::List(items) | Value::Tuple(items) | Value::Group(items) => {
                self.write_json_list(items, depth, style, out)
            }
            Value::Dict(map) => {
                if map.len() == 0 {
                    return out.push_str("{}");
                }
                let entries = map.entries();
                let mut order: Vec<u32> = (0..entries.len() as u32).collect();
                if style.sort {
                    sort(&mut order, &self.budget, |a, b| {
                        self.order(&entries[*a as usize].0, &entries[*b as usize].0)
                    })?;
                }
                out.push('{')?;
                for (i, at) in order.into_iter().enumerate() {
                    let (key, value) = &entries[at as usize];
                    begin_item(i, depth + 1, style, out)?;
                    match key {
                        Value::Text(key) => json_text(key, style.ascii, out)?,
                        Value::Bool(_) | Value::None | Value::Int(_) | Value::Float(_) => {
                            out.push('"')?;
                            self.write_json(key, depth + 1, style, out)?;
                            out.push('"')?;
                        }
                        key => return fail(format!("{} cannot be a key in JSON", key.type_name())),
                    }
                    out.push_str(&style.key)?;
                    self.write_json(value, depth + 1, style, out)?;
                }
                new_line(depth, style, out)?;
                out.push('}')
            }
            Value::Undefined(missing) => {
                fail(format!("{} cannot become JSON", self.describe_missing(*missing)))
            }
            value => fail(format!("{} cannot become JSON", value.type_name())),
        }
    }

    fn write_json_list(
        &self,
        items: &Seq,
        depth: usize,
        style: &JsonStyle,
        out: &mut Buffer,
    ) -> Result<()> {
        if items.is_empty() {
            return out.push_str("[]");
        }
        out.push('[')?;
        for (i, item) in items.iter().enumerate() {
            begin_item(i, depth + 1, style, out)?;
            self.write_json(item, depth + 1, style, out)?;
        }
        new_line(depth, style, out)?;
        out.push(']')
    }
}

fn begin_item(number: usize, depth: usize, style: &JsonStyle, out: &mut Buffer) -> Result<()> {
    if number > 0 {
        out.push_str(&style.item)?;
    }
    new_line(depth, style, out)
}

fn new_line(depth: usize, style: &JsonStyle, out: &mut Buffer) -> Result<()> {
    match &style.indent {
        Some(indent) => {
            out.push('\n')?;
            out.repeat(indent, depth)
        }
        None => Ok(()),
    }
}

fn json_float(x: f64) -> String {
    if x.is_nan() {
        "NaN".into()
    } else if x.is_infinite() {
        if x > 0.0 { "Infinity" } else { "-Infinity" }.into()
    } else {
        super::print::float(x)
    }
}

fn json_text(text: &str, ascii: bool, out: &mut Buffer) -> Result<()> {
    out.push('"')?;
    let special = |c: char| c < ' ' || c == '"' || c == '\\' || (ascii && !c.is_ascii());
    let mut rest = text;
    while let Some(at) = rest.find(special) {
        out.push_str(&rest[..at])?;
        let mut tail = rest[at..].chars();
        match tail.next().unwrap_or_default() {
            '"' => out.push_str("\\\"")?,
            '\\' => out.push_str("\\\\")?,
            '\n' => out.push_str("\\n")?,
            '\r' => out.push_str("\\r")?,
            '\t' => out.push_str("\\t")?,
            '\u{8}' => out.push_str("\\b")?,
            '\u{c}' => out.push_str("\\f")?,
            c => {
                let mut escape = String::new();
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(escape, "\\u{unit:04x}");
                }
                out.push_str(&escape)?;
            }
        }
        rest = tail.as_str();
    }
    out.push_str(rest)?;
    out.push('"')
}
