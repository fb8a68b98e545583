//! Arguments between tags, turned into JSON while they arrive. Text stands there without quotes and escapes: the tool's schema, or
//! the tag, decides which values are text and which are JSON.

use super::calls::Output;
use super::json::{MAX_HEAD, Open, within};
use super::literals::push_escaped;
use super::schema::{Kind, Tools, string};
use super::{certain, earliest, floor};
use crate::format::Tagged;

/// The maximum number of bytes of white space before a tag.
const MAX_BLANK: usize = 64;
const CDATA: &str = "<![CDATA[";

/// The surroundings of a call's arguments.
pub(super) struct Around<'a> {
    pub(super) tools: Option<&'a Tools>,
    /// The marks that end all calls, or begin others.
    pub(super) ends: &'a [&'static str],
}

#[derive(Debug)]
enum Step {
    /// Between two arguments.
    Keys,
    /// After a key, where another tag precedes the value.
    Open(String),
    Value(PendingValue),
}

/// An argument whose value is arriving.
#[derive(Debug)]
struct PendingValue {
    key: String,
    kind: Kind,
    /// It may turn out to hold all arguments.
    wraps: bool,
    /// None of it has been read.
    fresh: bool,
    /// The text so far, if it is not emitted as it comes.
    held: String,
    /// The strings in it, if it is a list or an object in JSON.
    strings: Strings,
}

/// The strings in a list or an object in JSON: at its end so far one may be open.
#[derive(Clone, Copy, Debug, Default)]
struct Strings {
    /// The text so far is not blank, and is a list or an object.
    is_nested: Option<bool>,
    is_open: bool,
    /// The next character is escaped.
    escaped: bool,
}

impl Strings {
    fn take(&mut self, text: &str) {
        let is_nested = match self.is_nested {
            Some(is_nested) => is_nested,
            None => match text.trim_start().bytes().next() {
                Some(first) => *self.is_nested.insert(matches!(first, b'[' | b'{')),
                None => return,
            },
        };
        for byte in text.bytes().filter(|_| is_nested) {
            let escaped = std::mem::take(&mut self.escaped);
            match byte {
                b'\\' if self.is_open => self.escaped = !escaped,
                b'"' if !escaped => self.is_open = !self.is_open,
                _ => {}
            }
        }
    }
}

/// The arguments of a call that have arrived so far.
#[derive(Debug)]
pub(super) struct Params {
    form: &'static Tagged,
    tool: Option<usize>,
    /// No argument has been emitted.
    first: bool,
    step: Step,
}

/// The result of a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Took {
    /// Text of this length was read; 0: more is needed.
    Text(usize),
    /// The call has ended after this length.
    Ended(usize),
    /// The arguments are a JSON object, which begins here.
    Json,
}

impl Params {
    /// Creates the arguments of a call, of which the first key may have been read already.
    pub(super) fn new(form: &'static Tagged, tool: Option<usize>, key: Option<String>) -> Params {
        let step = key.map_or(Step::Keys, Step::Open);
        Params { form, tool, first: true, step }
    }

    /// Reads from the beginning of `text`, which is not empty.
    pub(super) fn step(
        &mut self,
        text: &str,
        last: bool,
        around: &Around<'_>,
        out: &mut Output<'_, '_>,
    ) -> Took {
        match &mut self.step {
            Step::Keys => self.keys(text, last, around, out),
            Step::Open(_) => self.open(text, last, around, out),
            Step::Value(value) => {
                let form = self.form;
                let (len, close) = match value.begin(form, text, last) {
                    Some(len) if len > 0 => return Took::Text(out.more("", &text[..len])),
                    Some(_) => value.end(form, text, last, around),
                    None => return Took::Text(0),
                };
                match close {
                    // The beginning of a tag.
                    None if len == 0 && last => Took::Text(out.more("", text)),
                    Some(mark) if len == 0 => {
                        let arguments = value.close(&mut self.first);
                        self.step = Step::Keys;
                        Took::Text(out.more(&arguments, &text[..mark]))
                    }
                    _ => Took::Text(out.more(&value.take(&text[..len]), &text[..len])),
                }
            }
        }
    }

    /// Ends the text of the answer.
    pub(super) fn finish(&mut self, out: &mut Output<'_, '_>) {
        if matches!(self.step, Step::Keys) {
            self.end("", false, out);
        }
    }

    /// Ends the call; `marked`: at a mark of the notation.
    fn end(&mut self, raw: &str, marked: bool, out: &mut Output<'_, '_>) -> Took {
        let len = out.more(if self.first { "{}" } else { "}" }, raw);
        out.whole_if(marked);
        Took::Ended(len)
    }

    fn keys(
        &mut self,
        text: &str,
        last: bool,
        around: &Around<'_>,
        out: &mut Output<'_, '_>,
    ) -> Took {
        let form = self.form;
        let blank = text.len() - text.trim_start().len();
        if blank > 0 {
            return Took::Text(out.more("", &text[..blank]));
        }
        if !form.close.is_empty() && text.starts_with(form.close) {
            return self.end(form.close, true, out);
        }
        if around.ends.iter().any(|end| text.starts_with(end)) {
            return self.end("", true, out);
        }
        if self.first && text.starts_with('{') {
            return Took::Json;
        }
        if text.starts_with(form.key_open) {
            return match within(text, |text| self.key(text)) {
                Ok((key, kind, len)) => {
                    let more = match form.value_open.is_empty() {
                        true => self.begin(key, kind, around.tools),
                        false => {
                            self.step = Step::Open(key);
                            String::new()
                        }
                    };
                    Took::Text(out.more(&more, &text[..len]))
                }
                Err(Open::More) if !last => Took::Text(0),
                Err(_) => self.end("", false, out),
            };
        }
        let strays = form.value_closes.iter().chain([&form.key_close]);
        let mut strays = strays.filter(|mark| mark.starts_with('<'));
        if let Some(stray) = strays.find(|mark| text.starts_with(**mark)) {
            return Took::Text(out.more("", &text[..stray.len()]));
        }
        let tags = self.tags(around);
        let strays = form.value_closes.iter().chain([&form.key_close]);
        if tags.iter().chain(strays).any(|tag| tag.starts_with(text)) {
            return Took::Text(if last { out.more("", text) } else { 0 });
        }
        self.unexpected(text, last, around, out)
    }

    /// Tags that may follow an argument.
    fn tags(&self, around: &Around<'_>) -> Vec<&'static str> {
        let own = [self.form.key_open, self.form.close];
        own.into_iter().filter(|tag| !tag.is_empty()).chain(around.ends.iter().copied()).collect()
    }

    /// Text where a tag was expected: a key without its opening, or else it is skipped up to the next tag, if there is one.
    fn unexpected(
        &mut self,
        text: &str,
        last: bool,
        around: &Around<'_>,
        out: &mut Output<'_, '_>,
    ) -> Took {
        let window = &text[..floor(text, MAX_HEAD)];
        let full = window.len() < text.len() || last;
        if !self.form.value_open.is_empty() {
            match bare_key(self.form, window) {
                Ok(len) => {
                    self.step = Step::Open(window[..len].trim().to_owned());
                    return Took::Text(out.more("", &text[..len]));
                }
                Err(Open::More) if !full => return Took::Text(0),
                Err(_) => {}
            }
        }
        match earliest(window, &self.tags(around)) {
            Some((at, _)) => Took::Text(out.more("", &text[..at])),
            None if full => self.end("", false, out),
            None => Took::Text(0),
        }
    }

    /// The key at the beginning of a text, its type if the tag says it, and the number of bytes.
    fn key(&self, text: &str) -> Result<(String, Option<Kind>, usize), Open> {
        let form = self.form;
        let rest = &text[form.key_open.len()..];
        if !form.value_open.is_empty() {
            // Whatever mark follows: models double it, or leave it out.
            let end = rest.find('<').ok_or(Open::More)?;
            let key = rest[..end].trim();
            let known = if key.is_empty() { Err(Open::No) } else { Ok(key.to_owned()) };
            return known.map(|key| (key, None, form.key_open.len() + end));
        }
        let end = rest.find(form.key_close).ok_or(Open::More)?;
        let (key, attributes) = attribute(&rest[..end]);
        let is = |texts: [&str; 2]| texts.iter().any(|text| attributes.contains(text));
        let kind = if is(["string=\"true\"", "type=\"string\""]) {
            Some(Kind::Text)
        } else if is(["string=\"false\"", "type=\""]) {
            Some(Kind::JSON)
        } else {
            None
        };
        if key.is_empty() {
            return Err(Open::No);
        }
        Ok((key.to_owned(), kind, form.key_open.len() + end + form.key_close.len()))
    }

    fn open(
        &mut self,
        text: &str,
        last: bool,
        around: &Around<'_>,
        out: &mut Output<'_, '_>,
    ) -> Took {
        let form = self.form;
        let blank = text.len() - text.trim_start().len();
        if blank > 0 {
            return Took::Text(out.more("", &text[..blank]));
        }
        if text.starts_with(form.key_close) {
            return Took::Text(out.more("", form.key_close));
        }
        if text.starts_with(form.value_open) {
            let Step::Open(key) = std::mem::replace(&mut self.step, Step::Keys) else {
                return Took::Text(0);
            };
            let more = self.begin(key, None, around.tools);
            return Took::Text(out.more(&more, form.value_open));
        }
        if !last && [form.key_close, form.value_open].iter().any(|tag| tag.starts_with(text)) {
            return Took::Text(0);
        }
        // A key without a value.
        self.step = Step::Keys;
        self.keys(text, last, around, out)
    }

    /// Begins a value; returns the arguments that are certain with it.
    fn begin(&mut self, key: String, kind: Option<Kind>, tools: Option<&Tools>) -> String {
        let lacks = |key: &str| tools.is_some_and(|tools| tools.lacks(self.tool, key));
        let wraps = self.form.wraps.contains(&&*key) && lacks(&key);
        let types = || tools.and_then(|tools| tools.types(self.tool, &key));
        let kind = kind.unwrap_or_else(|| Kind::of(types()));
        let mut more = String::new();
        if kind == Kind::Text && !wraps {
            push_key(&key, &mut self.first, &mut more);
            more.push('"');
        }
        let (held, strings) = (String::new(), Strings::default());
        self.step = Step::Value(PendingValue { key, kind, wraps, fresh: true, held, strings });
        more
    }
}

/// Writes what precedes a value.
fn push_key(key: &str, first: &mut bool, out: &mut String) {
    out.push(if std::mem::take(first) { '{' } else { ',' });
    out.push_str(&string(key));
    out.push(':');
}

/// The length of a key that its opening tag does not precede.
fn bare_key(form: &Tagged, text: &str) -> Result<usize, Open> {
    let end = text.find('<').ok_or(Open::More)?;
    match &text[end..] {
        rest if rest.starts_with(form.key_close) && !text[..end].trim().is_empty() => Ok(end),
        rest if form.key_close.starts_with(rest) => Err(Open::More),
        _ => Err(Open::No),
    }
}

/// The name at the beginning of a tag's text, with or without quotes, and the attributes after it.
pub(super) fn attribute(text: &str) -> (&str, &str) {
    let text = text.trim();
    for quote in ['"', '\''] {
        if let Some((name, rest)) = text.strip_prefix(quote).and_then(|text| text.split_once(quote))
        {
            return (name.trim(), rest);
        }
    }
    (text, "")
}

impl PendingValue {
    fn is_streamed(&self) -> bool {
        self.kind == Kind::Text && !self.wraps
    }

    /// The length of what precedes the value's text; `None`: more is needed.
    fn begin(&mut self, form: &Tagged, text: &str, last: bool) -> Option<usize> {
        if !self.fresh {
            return Some(0);
        }
        let before = if form.cdata { CDATA } else { "\n" };
        let expected = form.cdata || form.newlines;
        if expected && !last && text != before && before.starts_with(text) {
            return None;
        }
        self.fresh = false;
        Some(if expected && text.starts_with(before) { before.len() } else { 0 })
    }

    /// Returns how much of the text belongs to the value, and the length of the tag that ends it there.
    ///
    /// A value may contain its closing tag: in text, and in a string in JSON, only that counts which another tag of the notation follows.
    fn end(
        &self,
        form: &Tagged,
        text: &str,
        last: bool,
        around: &Around<'_>,
    ) -> (usize, Option<usize>) {
        let Some((at, mark)) = earliest(text, form.value_closes) else {
            return (certain(text, form.value_closes), None);
        };
        let in_string = || {
            let mut strings = self.strings;
            strings.take(&text[..at]);
            strings.is_open
        };
        if !self.kind.may_be_text() && !in_string() {
            return (at, Some(mark.len()));
        }
        match self.follows(form, &text[at + mark.len()..], last, around) {
            Ok(true) => (at, Some(mark.len())),
            Ok(false) => (at + mark.len(), None),
            // The text before it is certain.
            Err(_) => (at, None),
        }
    }

    /// Returns true if a tag of the notation follows, after which a value has ended.
    fn follows(
        &self,
        form: &Tagged,
        text: &str,
        last: bool,
        around: &Around<'_>,
    ) -> Result<bool, Open> {
        let mut rest = text;
        loop {
            let after = rest.trim_start();
            if rest.len() - after.len() > MAX_BLANK || text.len() - after.len() > MAX_HEAD {
                return Ok(false);
            }
            match form.value_closes.iter().find(|mark| after.starts_with(**mark)) {
                Some(mark) => rest = &after[mark.len()..],
                None => {
                    rest = after;
                    break;
                }
            }
        }
        let own = [form.key_open, form.close];
        let mut tags = own.iter().filter(|tag| !tag.is_empty()).chain(around.ends);
        if tags.clone().any(|tag| rest.starts_with(tag)) {
            return Ok(true);
        }
        let strays = form.value_closes;
        if tags.any(|tag| tag.starts_with(rest)) || strays.iter().any(|tag| tag.starts_with(rest)) {
            return if last { Ok(true) } else { Err(Open::More) };
        }
        if form.value_open.is_empty() {
            return Ok(false);
        }
        match bare_key(form, &rest[..floor(rest, MAX_BLANK)]) {
            Ok(_) => Ok(true),
            Err(Open::More) if last => Ok(true),
            Err(Open::More) if rest.len() < MAX_BLANK => Err(Open::More),
            Err(_) => Ok(false),
        }
    }

    /// Takes text of the value; returns the arguments that are certain with it.
    fn take(&mut self, text: &str) -> String {
        let mut more = String::new();
        if self.is_streamed() {
            push_escaped(text, &mut more);
        } else {
            self.held.push_str(text);
            self.strings.take(text);
        }
        more
    }

    /// Ends the value; returns the rest of its argument.
    fn close(&self, first: &mut bool) -> String {
        if self.is_streamed() {
            return "\"".to_owned();
        }
        let mut more = String::new();
        let all = self.wraps.then(|| Kind::JSON.json(&self.held));
        let all = all.as_deref().and_then(|all| all.strip_prefix('{')?.strip_suffix('}'));
        match all.map(str::trim) {
            Some("") => {}
            Some(all) => {
                more.push(if std::mem::take(first) { '{' } else { ',' });
                more.push_str(all);
            }
            None => {
                push_key(&self.key, first, &mut more);
                more.push_str(&self.kind.json(&self.held));
            }
        }
        more
    }
}
