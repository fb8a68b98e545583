//! JSON of a call that arrives piece by piece.
//!
//! If a model writes the arguments as a JSON object, that text is passed on as it arrives. A call that has begun this way
//! remains a call, whatever follows: its arguments are what the model wrote of them, up to the end of the object, of the call
//! or of the text.
//!
//! Invariant: decisions depend on the text alone, not on how it is cut.

use serde_json::Deserializer;

use super::calls::named;
use super::floor;
use crate::format::Object;

/// The maximum number of bytes of a call before its arguments, and after them.
pub(super) const MAX_HEAD: usize = 1024;

/// The reason why the text around arguments was not read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Open {
    /// More of it is needed.
    More,
    /// It is not valid.
    No,
}

/// The text that may follow the arguments of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tail {
    /// The end of the call.
    Done,
    /// Other fields of the call's object, and its end.
    Object,
    /// The same, in a list of calls.
    List,
    /// The next call of a list, or the list's end.
    Item,
}

/// Reads the text around arguments. At most [`MAX_HEAD`] bytes are examined, each time more text has arrived.
pub(super) fn within<T>(text: &str, read: impl FnOnce(&str) -> Result<T, Open>) -> Result<T, Open> {
    match read(&text[..floor(text, MAX_HEAD)]) {
        Err(Open::More) if text.len() >= MAX_HEAD => Err(Open::No),
        read => read,
    }
}

/// Reads JSON that may end anywhere.
pub(super) struct JsonReader<'t> {
    text: &'t str,
    pub(super) at: usize,
}

impl<'t> JsonReader<'t> {
    pub(super) fn new(text: &'t str) -> JsonReader<'t> {
        JsonReader { text, at: 0 }
    }

    pub(super) fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    pub(super) fn blank(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    pub(super) fn eat(&mut self, wanted: char) -> Result<bool, Open> {
        self.blank();
        let next = self.rest().chars().next().ok_or(Open::More)?;
        self.at += if next == wanted { next.len_utf8() } else { 0 };
        Ok(next == wanted)
    }

    pub(super) fn expect(&mut self, wanted: char) -> Result<(), Open> {
        if self.eat(wanted)? { Ok(()) } else { Err(Open::No) }
    }

    pub(super) fn string(&mut self) -> Result<String, Open> {
        let mut strings = Deserializer::from_str(self.rest()).into_iter::<String>();
        let read = strings.next();
        self.at += strings.byte_offset();
        match read {
            Some(Ok(text)) => Ok(text),
            Some(Err(error)) if !error.is_eof() => Err(Open::No),
            _ => Err(Open::More),
        }
    }

    /// Skips a value. One in brackets is not read.
    pub(super) fn value(&mut self) -> Result<(), Open> {
        self.blank();
        if self.rest().starts_with('"') {
            return self.string().map(drop);
        }
        let end = self.rest().find([',', '}', ']', '{', '[']).ok_or(Open::More)?;
        let plain = end > 0 && self.rest()[end..].starts_with([',', '}']);
        self.at += end;
        if plain { Ok(()) } else { Err(Open::No) }
    }

    /// `{"name": …, "arguments": {`, perhaps with other fields before the arguments; returns the name. The reader then stands at the
    /// brace of the arguments.
    pub(super) fn object(&mut self, keys: &Object) -> Result<String, Open> {
        self.expect('{')?;
        let mut name = None;
        loop {
            let key = self.string()?;
            self.expect(':')?;
            if keys.name.is_empty() {
                name = Some(key);
            } else if key == keys.name {
                self.blank();
                name = Some(self.string()?);
                self.expect(',')?;
                continue;
            } else if !keys.arguments.contains(&&*key) {
                self.value()?;
                self.expect(',')?;
                continue;
            }
            let name = name.as_deref().and_then(named).ok_or(Open::No)?;
            self.expect('{')?;
            self.at -= 1;
            return Ok(name);
        }
    }

    /// The rest of a call's object after its arguments; returns the id in it.
    pub(super) fn object_end(&mut self, keys: Option<&Object>) -> Result<Option<String>, Open> {
        let mut id = None;
        while self.eat(',')? {
            let key = self.string()?;
            self.expect(':')?;
            self.blank();
            let is_id = keys.is_some_and(|keys| !keys.last_id.is_empty() && key == keys.last_id);
            if is_id && self.rest().starts_with('"') {
                id = Some(self.string()?);
            } else {
                self.value()?;
            }
        }
        self.expect('}')?;
        Ok(id)
    }
}

/// The arguments of a call that have arrived so far.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    depth: u32,
    string: bool,
    escaped: bool,
    /// A line has ended in a string, which is impossible in JSON: the model forgot to close it, and a mark in it counts.
    broken: bool,
}

/// Where arguments end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// Not in this text.
    Later,
    /// The object is whole.
    Whole,
    /// At a mark.
    Marked,
}

impl Arguments {
    /// Returns how much of this text belongs to the arguments, and whether they end there. One of `marks` ends them; in a string,
    /// only if `anywhere`.
    pub(super) fn take(
        &mut self,
        text: &str,
        marks: &[&str],
        anywhere: bool,
        last: bool,
    ) -> (usize, Ends) {
        for (at, byte) in text.bytes().enumerate() {
            if anywhere || !self.string || self.broken {
                let rest = &text.as_bytes()[at..];
                let begun = marks.iter().filter(|mark| mark.as_bytes()[0] == byte);
                for mark in begun.map(|mark| mark.as_bytes()) {
                    if rest.starts_with(mark) {
                        return (at, Ends::Marked);
                    }
                    if !last && mark.starts_with(rest) {
                        return (at, Ends::Later);
                    }
                }
            }
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.string => self.escaped = true,
                b'\n' if self.string => self.broken = true,
                b'"' => self.string = !self.string,
                _ if self.string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return (at + 1, Ends::Whole);
                    }
                }
                _ => {}
            }
        }
        (text.len(), Ends::Later)
    }
}
