//! Arguments as nested elements: the key of each value is the name of its tag, lists have elements `item`, and a token precedes every
//! tag. They are turned into JSON while they arrive; the tool's schema says what is text.

use super::calls::Output;
use super::certain;
use super::json::{Open, within};
use super::literals::push_escaped;
use super::params::Took;
use super::schema::{Kind, Tools, string};
use crate::format::Elements;

/// The maximum nesting depth.
const MAX_DEPTH: usize = 64;
/// The tag of a list's elements.
const ITEM: &str = "item";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// A value so far.
    Value,
    /// Text, which is emitted as it comes.
    Text,
    Object,
    List,
}

/// An element that has not ended.
#[derive(Debug)]
struct Level {
    key: String,
    shape: Shape,
    kind: Kind,
    /// Nothing has been written in it.
    first: bool,
    /// The text so far.
    held: String,
}

/// The arguments of a call that have arrived so far.
#[derive(Debug)]
pub(super) struct Tree {
    form: &'static Elements,
    tool: Option<usize>,
    /// The first is all arguments.
    levels: Vec<Level>,
}

impl Tree {
    pub(super) fn new(form: &'static Elements, tool: Option<usize>) -> Tree {
        let all = Level {
            key: String::new(),
            shape: Shape::Object,
            kind: Kind::Guess,
            first: true,
            held: String::new(),
        };
        Tree { form, tool, levels: vec![all] }
    }

    /// Reads from the beginning of `text`, which is not empty. One of `ends` ends the call.
    pub(super) fn step(
        &mut self,
        text: &str,
        last: bool,
        tools: Option<&Tools>,
        ends: &[&'static str],
        out: &mut Output<'_, '_>,
    ) -> Took {
        let mark = self.form.mark;
        let len = text.find(mark).unwrap_or_else(|| certain(text, &[mark]));
        if len > 0 {
            let more = self.text(&text[..len]);
            return Took::Text(out.more(&more, &text[..len]));
        }
        if let Some(end) = ends.iter().find(|end| text.starts_with(**end)) {
            return self.end(end, out, false);
        }
        if text.starts_with(self.form.close) {
            return self.end(self.form.close, out, true);
        }
        let tag = within(text, |text| {
            let rest = text.strip_prefix(mark).ok_or(Open::More)?;
            let rest = match rest.strip_prefix('<') {
                Some(rest) => rest,
                None if rest.is_empty() => return Err(Open::More),
                None => return Err(Open::No),
            };
            let end = rest.find('>').ok_or(Open::More)?;
            Ok((rest[..end].trim().to_owned(), mark.len() + end + 2))
        });
        match tag {
            Ok((tag, len)) => {
                let mut more = String::new();
                match tag.strip_prefix('/') {
                    Some(_) if self.levels.len() > 1 => self.close(&mut more),
                    Some(_) => {}
                    None if self.levels.len() < MAX_DEPTH => self.open(tag, tools, &mut more),
                    None => {}
                }
                Took::Text(out.more(&more, &text[..len]))
            }
            Err(Open::More) if !last => Took::Text(0),
            // The mark alone is no text, and half a tag is none.
            Err(Open::More) => Took::Text(out.more("", text)),
            Err(Open::No) => Took::Text(out.more("", mark)),
        }
    }

    fn end(&mut self, raw: &'static str, out: &mut Output<'_, '_>, own: bool) -> Took {
        let mut more = String::new();
        while self.levels.len() > 1 {
            self.close(&mut more);
        }
        more.push_str(if self.levels[0].first { "{}" } else { "}" });
        let len = out.more(&more, if own { raw } else { "" });
        out.whole();
        Took::Ended(len)
    }

    /// Text of the innermost element.
    fn text(&mut self, text: &str) -> String {
        let mut more = String::new();
        match self.levels.last_mut() {
            Some(Level { shape: Shape::Text, .. }) => push_escaped(text, &mut more),
            Some(level) => level.held.push_str(text),
            None => {}
        }
        more
    }

    /// Writes what precedes the value of an element: the bracket before the first one in it, a comma, its key.
    fn before(&mut self, at: usize, out: &mut String) {
        let parent = &mut self.levels[at - 1];
        if std::mem::take(&mut parent.first) {
            out.push(if parent.shape == Shape::List { '[' } else { '{' });
        } else {
            out.push(',');
        }
        if parent.shape == Shape::Object {
            out.push_str(&string(&self.levels[at].key));
            out.push(':');
        }
    }

    fn open(&mut self, tag: String, tools: Option<&Tools>, out: &mut String) {
        let at = self.levels.len() - 1;
        match self.levels[at].shape {
            // It was no value, but has elements.
            Shape::Value => {
                let kind = self.levels[at].kind;
                let list = kind.may_be_list() && (tag == ITEM || !kind.may_be_object());
                self.before(at, out);
                self.levels[at].shape = if list { Shape::List } else { Shape::Object };
            }
            Shape::Text => {
                push_escaped(&format!("<{tag}>"), out);
                return;
            }
            Shape::Object | Shape::List => {}
        }
        let path = self.levels[1..].iter().map(|level| level.key.as_str()).chain([tag.as_str()]);
        let types = tools.and_then(|tools| tools.types_at(self.tool, path));
        let kind = Kind::of(types);
        let shape = if kind == Kind::Text { Shape::Text } else { Shape::Value };
        self.levels.push(Level { key: tag, shape, kind, first: true, held: String::new() });
        if shape == Shape::Text {
            self.before(at + 1, out);
            out.push('"');
        }
    }

    fn close(&mut self, out: &mut String) {
        let at = self.levels.len() - 1;
        if self.levels[at].shape == Shape::Value {
            self.before(at, out);
        }
        let Some(level) = self.levels.pop() else { return };
        // Blanks are a value where the schema says that text is one.
        let is_text = level.kind != Kind::Guess && level.kind.may_be_text();
        let is_empty = match is_text {
            true => level.held.is_empty(),
            false => level.held.trim().is_empty(),
        };
        match level.shape {
            Shape::Text => out.push('"'),
            Shape::Value if is_empty => out.push_str(level.kind.empty()),
            Shape::Value => out.push_str(&level.kind.json(&level.held)),
            Shape::Object => out.push_str(if level.first { "{}" } else { "}" }),
            Shape::List => out.push_str(if level.first { "[]" } else { "]" }),
        }
    }
}
