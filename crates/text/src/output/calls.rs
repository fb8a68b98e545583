//! Tool calls: turns the text between two marks into a name and arguments as JSON.

use std::collections::HashMap;

use serde_json::value::RawValue;

/// A tool call, or, [in pieces](super::Parser::in_pieces), a piece of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The tool's name. In pieces, only the first one has it; it is empty in those that follow.
    pub name: String,
    /// The arguments: a JSON object, as text. If the model wrote JSON, this is that text unchanged.
    pub arguments: String,
}

/// The notation in which a model writes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// `{"name": …, "arguments": {…}}`, or `<function=NAME><parameter=KEY>VALUE</parameter></function>`.
    ChatMl,
    /// `call:NAME{key:<|"|>text<|"|>,key:1}`
    Gemma,
    /// `NAME[ARGS]{…}`, or a list of `{"name": …, "arguments": {…}}`.
    Mistral,
}

/// The text is not a call; `true`: it may have been cut too early, in a string.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unfinished(pub(super) bool);

/// The maximum number of bytes of white space before a call.
const BLANK: usize = 64;
/// The maximum nesting depth of Gemma's lists and objects.
const DEPTH: u32 = 64;

/// Returns whether a text with this beginning may be a call; `None`: more of it is needed.
pub(super) fn may_be(style: Style, text: &str) -> Option<bool> {
    let blank = text.len() - text.len().min(BLANK);
    let head = &text[..super::floor(text, text.len() - blank)];
    let begun = head.trim_start();
    if begun.is_empty() {
        return if blank > 0 { Some(false) } else { None };
    }
    let begins = |with: &str| match begun.starts_with(with) {
        false if with.starts_with(begun) => None,
        known => Some(known),
    };
    match style {
        Style::ChatMl if begun.starts_with('{') => Some(true),
        Style::ChatMl => begins("<function="),
        Style::Gemma => begins("call:"),
        Style::Mistral => {
            let name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            Some(begun.starts_with(|c: char| c == '[' || c == '{' || name(c)))
        }
    }
}

/// Parses the calls in the text between two marks.
pub(super) fn parse(style: Style, text: &str) -> Result<Vec<Call>, Unfinished> {
    let text = text.trim();
    match style {
        Style::ChatMl if text.starts_with('<') => functions(text),
        Style::ChatMl => Ok(vec![object(text)?]),
        Style::Gemma => gemma(text).map(|call| vec![call]).ok_or(Unfinished(true)),
        Style::Mistral if text.starts_with('{') => Ok(vec![object(text)?]),
        Style::Mistral if text.starts_with('[') => list(text),
        Style::Mistral => {
            let end = text.find(['[', '{']).ok_or(Unfinished(false))?;
            let start = match text.find("[ARGS]") {
                Some(at) => at + "[ARGS]".len(),
                None => text.find('{').ok_or(Unfinished(false))?,
            };
            let arguments = arguments(&text[start..]).ok_or(Unfinished(true))?;
            Ok(vec![Call { name: named(&text[..end])?, arguments }])
        }
    }
}

/// The arguments of a call, if they are a JSON object; missing arguments are an empty one.
pub(super) fn arguments(text: &str) -> Option<String> {
    let text = text.trim();
    if text.is_empty() {
        return Some("{}".to_owned());
    }
    let is_object = text.starts_with('{') && serde_json::from_str::<&RawValue>(text).is_ok();
    is_object.then(|| text.to_owned())
}

pub(super) fn named(name: &str) -> Result<String, Unfinished> {
    let name = name.trim();
    if name.is_empty() { Err(Unfinished(false)) } else { Ok(name.to_owned()) }
}

type Fields = HashMap<String, Box<RawValue>>;

/// Converts the result of reading JSON; the error tells whether the text ended too early.
fn read<T>(result: serde_json::Result<T>) -> Result<T, Unfinished> {
    result.map_err(|error| Unfinished(error.is_eof()))
}

fn object(text: &str) -> Result<Call, Unfinished> {
    call(read(serde_json::from_str(text))?)
}

fn list(text: &str) -> Result<Vec<Call>, Unfinished> {
    let fields: Vec<Fields> = read(serde_json::from_str(text))?;
    let calls: Result<Vec<Call>, Unfinished> = fields.into_iter().map(call).collect();
    calls.and_then(|calls| if calls.is_empty() { Err(Unfinished(false)) } else { Ok(calls) })
}

fn call(mut fields: Fields) -> Result<Call, Unfinished> {
    let name = fields.get("name").ok_or(Unfinished(false))?;
    let name: String = serde_json::from_str(name.get()).map_err(|_| Unfinished(false))?;
    let given = fields.remove("arguments").or_else(|| fields.remove("parameters"));
    let text = given.map_or("{}".to_owned(), |given| given.get().to_owned());
    // Some models write the object as a string.
    let text = serde_json::from_str::<String>(&text).unwrap_or(text);
    Ok(Call { name: named(&name)?, arguments: arguments(&text).ok_or(Unfinished(false))? })
}

/// `<function=NAME><parameter=KEY>VALUE</parameter></function>`, one or more.
fn functions(mut text: &str) -> Result<Vec<Call>, Unfinished> {
    let mut calls = Vec::new();
    while !text.is_empty() {
        let rest = text.strip_prefix("<function=").ok_or(Unfinished(false))?;
        let (name, mut rest) = rest.split_once('>').ok_or(Unfinished(true))?;
        let mut arguments = serde_json::Map::new();
        while let Some(after) = rest.trim_start().strip_prefix("<parameter=") {
            let (key, after) = after.split_once('>').ok_or(Unfinished(true))?;
            let (value, after) = after.split_once("</parameter>").ok_or(Unfinished(true))?;
            arguments.insert(key.trim().to_owned(), parameter(value));
            rest = after;
        }
        let rest = rest.trim_start();
        text = match rest.strip_prefix("</function>") {
            Some(after) => after.trim_start(),
            None if rest.is_empty() => rest,
            None => return Err(Unfinished(true)),
        };
        let arguments = serde_json::Value::Object(arguments).to_string();
        calls.push(Call { name: named(name)?, arguments });
    }
    Ok(calls)
}

/// A parameter's value. Templates write strings bare and everything else as JSON, so JSON other than a string
/// is taken as such; only the schema of the tool could distinguish the string `1` from the number.
fn parameter(value: &str) -> serde_json::Value {
    let value = value.strip_prefix('\n').unwrap_or(value);
    let value = value.strip_suffix('\n').unwrap_or(value);
    match serde_json::from_str(value) {
        Ok(serde_json::Value::String(_)) | Err(_) => value.into(),
        Ok(other) => other,
    }
}

fn gemma(text: &str) -> Option<Call> {
    let rest = text.strip_prefix("call:")?;
    let at = rest.find('{')?;
    let mut reader = Gemma { rest: &rest[at..], out: String::new() };
    reader.value(0)?;
    let whole = reader.rest.trim().is_empty();
    let name = named(&rest[..at]).ok()?;
    whole.then_some(Call { name, arguments: reader.out })
}

/// Converts Gemma's notation into JSON.
struct Gemma<'a> {
    rest: &'a str,
    out: String,
}

impl Gemma<'_> {
    const QUOTE: &'static str = "<|\"|>";

    fn eat(&mut self, token: &str) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn push_string(&mut self, text: &str) {
        self.out.push_str(&serde_json::Value::from(text).to_string());
    }

    fn string(&mut self) -> Option<()> {
        let (text, rest) = self.rest.split_once(Self::QUOTE)?;
        self.rest = rest;
        self.push_string(text);
        Some(())
    }

    fn value(&mut self, depth: u32) -> Option<()> {
        if depth > DEPTH {
            None
        } else if self.eat(Self::QUOTE) {
            self.string()
        } else if self.eat("{") {
            self.items('{', "}", depth)
        } else if self.eat("[") {
            self.items('[', "]", depth)
        } else {
            let end = self.rest.find([',', '}', ']'])?;
            let (text, rest) = self.rest.split_at(end);
            self.rest = rest;
            match serde_json::from_str::<&RawValue>(text.trim()) {
                Ok(json) => self.out.push_str(json.get()),
                Err(_) => self.push_string(text.trim()),
            }
            Some(())
        }
    }

    fn items(&mut self, open: char, close: &str, depth: u32) -> Option<()> {
        self.out.push(open);
        let mut first = true;
        while !self.eat(close) {
            if !first {
                if !self.eat(",") {
                    return None;
                }
                self.out.push(',');
            }
            first = false;
            if open == '{' {
                if self.eat(Self::QUOTE) {
                    self.string()?;
                    if !self.eat(":") {
                        return None;
                    }
                } else {
                    let (key, rest) = self.rest.split_once(':')?;
                    self.rest = rest;
                    self.push_string(key.trim().trim_matches('"'));
                }
                self.out.push(':');
            }
            self.value(depth + 1)?;
        }
        self.out.push_str(close);
        Some(())
    }
}
