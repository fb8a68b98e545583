//! Values as text: Python's `str` and `repr`.

use std::fmt::Write as _;

use unicode_general_category::{GeneralCategory as Category, get_general_category};

use super::budget::{RenderStop, Result};
use super::machine::{TemplateMachine, TemplateObject};
use super::names::ViewKind;
use super::value::{Buffer, MAX_DEPTH, Seq, Value};

/// A float as Python writes it: always with a point or an exponent.
pub(super) fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.into();
    }
    // Python switches to an exponent of at least two digits below 1e-4 and from 1e16 on.
    if x == 0.0 || (1e-4..1e16).contains(&x.abs()) {
        return format!("{x:?}");
    }
    exponent(&format!("{x:e}"))
}

/// Converts Rust's `1.5e-7` to Python's `1.5e-07`.
pub(super) fn exponent(text: &str) -> String {
    let (digits, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// Returns true if `repr` shows a character unchanged. Plane 16 counts as printable, unlike in
/// Python: characters there that callers put into messages as stand-ins for other text are kept.
pub(super) fn printable(c: char) -> bool {
    match get_general_category(c) {
        Category::Control
        | Category::Format
        | Category::Surrogate
        | Category::Unassigned
        | Category::LineSeparator
        | Category::ParagraphSeparator => false,
        Category::PrivateUse => c >= '\u{100000}',
        Category::SpaceSeparator => c == ' ',
        _ => true,
    }
}

/// Python's `repr` of a string.
pub(super) fn quoted(text: &str, out: &mut Buffer) -> Result<()> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote)?;
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\")?,
            '\n' => out.push_str("\\n")?,
            '\r' => out.push_str("\\r")?,
            '\t' => out.push_str("\\t")?,
            c if c == quote => {
                out.push('\\')?;
                out.push(c)?;
            }
            c if c.is_ascii_graphic() || c == ' ' || (!c.is_ascii() && printable(c)) => {
                out.push(c)?;
            }
            c => {
                let code = c as u32;
                let mut escape = String::new();
                let _ = match code {
                    0..=0xff => write!(escape, "\\x{code:02x}"),
                    0x100..=0xffff => write!(escape, "\\u{code:04x}"),
                    _ => write!(escape, "\\U{code:08x}"),
                };
                out.push_str(&escape)?;
            }
        }
    }
    out.push(quote)
}

impl TemplateMachine<'_> {
    /// Appends `str(value)` to `out`.
    pub(super) fn write(&self, value: &Value, out: &mut Buffer) -> Result<()> {
        match value {
            Value::Undefined(_) => Ok(()),
            Value::Text(text) => out.push_str(text),
            _ => self.write_repr(value, 0, out),
        }
    }

    /// Appends `repr(value)` to `out`. Recurses as deep as values and namespaces nest, which is
    /// limited here because namespaces may contain themselves.
    pub(super) fn write_repr(&self, value: &Value, depth: u32, out: &mut Buffer) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(RenderStop::TooDeep("it prints values that nest too deeply"));
        }
        self.budget.steps(1)?;
        match value {
            Value::Undefined(_) => out.push_str("Undefined"),
            Value::None => out.push_str("None"),
            Value::Bool(b) => out.push_str(if *b { "True" } else { "False" }),
            Value::Int(n) => out.push_str(&n.to_string()),
            Value::Float(x) => out.push_str(&float(*x)),
            Value::Text(text) => quoted(text, out),
            Value::List(items) => self.write_items("[", items, "]", depth, out),
            Value::Tuple(items) | Value::Group(items) => {
                let close = if items.len() == 1 { ",)" } else { ")" };
                self.write_items("(", items, close, depth, out)
            }
            Value::Dict(map) => {
                out.push('{')?;
                for (i, (key, value)) in map.entries().iter().enumerate() {
                    out.push_str(if i > 0 { ", " } else { "" })?;
                    self.write_repr(key, depth + 1, out)?;
                    out.push_str(": ")?;
                    self.write_repr(value, depth + 1, out)?;
                }
                out.push('}')
            }
            Value::View(kind, _) => {
                out.push_str(match kind {
                    ViewKind::Keys => "dict_keys",
                    ViewKind::Values => "dict_values",
                    ViewKind::Items => "dict_items",
                })?;
                let items = self.items(value)?;
                self.write_items("([", &items, "])", depth, out)
            }
            Value::Range(range) => {
                let stop = range.get(range.len as usize);
                let step =
                    if range.step == 1 { String::new() } else { format!(", {}", range.step) };
                out.push_str(&format!("range({}, {stop}{step})", range.start))
            }
            Value::Iter(once) => out.push_str(&format!("<{} object>", once.name)),
            Value::Object(index) => self.write_object(*index, depth, out),
            Value::Loop(place, number) => {
                let state = self.loop_state(*place, *number)?;
                let text = format!("<LoopContext {}/{}>", state.index0 + 1, state.items.len());
                out.push_str(&text)
            }
            Value::Builtin(builtin) => out.push_str(&format!("<function {builtin:?}>")),
            Value::Method(bound) => out.push_str(&format!("<method {:?}>", bound.method)),
        }
    }

    fn write_items(
        &self,
        open: &str,
        items: &Seq,
        close: &str,
        depth: u32,
        out: &mut Buffer,
    ) -> Result<()> {
        out.push_str(open)?;
        for (i, item) in items.iter().enumerate() {
            out.push_str(if i > 0 { ", " } else { "" })?;
            self.write_repr(item, depth + 1, out)?;
        }
        out.push_str(close)
    }

    fn write_object(&self, index: u32, depth: u32, out: &mut Buffer) -> Result<()> {
        match &self.objects[index as usize] {
            TemplateObject::Namespace(vars) => {
                out.push_str("<Namespace {")?;
                for (i, (key, value)) in vars.iter().enumerate() {
                    out.push_str(if i > 0 { ", " } else { "" })?;
                    quoted(key, out)?;
                    out.push_str(": ")?;
                    self.write_repr(value, depth + 1, out)?;
                }
                out.push_str("}>")
            }
            TemplateObject::Macro { code, .. } => match self.program.macros[*code as usize].name {
                Some(name) => {
                    out.push_str("<Macro ")?;
                    quoted(self.name(name), out)?;
                    out.push('>')
                }
                None => out.push_str("<Macro anonymous>"),
            },
            TemplateObject::Cycler { .. } => out.push_str("<Cycler>"),
            TemplateObject::Joiner { .. } => out.push_str("<Joiner>"),
        }
    }

    /// `str(value)`; a value that is already a text is not copied.
    pub(super) fn text_of(&self, value: &Value) -> Result<super::value::Text> {
        match value {
            Value::Text(text) => Ok(text.clone()),
            _ => {
                let mut out = Buffer::new(&self.budget)?;
                self.write(value, &mut out)?;
                out.into_text()
            }
        }
    }
}
