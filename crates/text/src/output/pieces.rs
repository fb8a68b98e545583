//! Calls whose arguments are emitted while the model writes them.
//!
//! If a model writes the arguments as a JSON object, that text is passed on as it arrives. A call that has begun this way
//! remains a call, whatever follows: its arguments are what the model wrote of them, up to the end of the object, of the call
//! or of the text.
//!
//! Invariant: decisions depend on the text alone, not on how it is cut.

use serde_json::Deserializer;

use super::calls::{Call, Style, named};
use super::{Each, Part, floor, give};

/// The maximum number of bytes of a call before its arguments, and after them.
pub(super) const BESIDE: usize = 1024;

/// The reason why the text around arguments was not read to its end.
pub(super) enum Open {
    /// More of it is needed.
    More,
    /// It is not valid.
    No,
}

/// The beginning of a call whose arguments can be emitted in pieces.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) name: String,
    /// The offset of the arguments.
    pub(super) at: usize,
    /// The text that may follow them.
    pub(super) tail: Tail,
}

/// The text that may follow the arguments of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tail {
    /// Nothing.
    Nothing,
    /// Other fields of the call's object, and its end.
    Object,
    /// The same, in a list of calls.
    List,
}

/// The text found after the arguments of a call.
pub(super) enum AfterArguments {
    /// The end of the call, at this offset in bytes.
    End(usize),
    /// The next call of the list.
    Next(Head),
}

/// Reads the beginning of a call from this text.
pub(super) fn head(style: Style, text: &str) -> Result<Head, Open> {
    within(text, |text| {
        let mut reader = Reader { text, at: 0 };
        reader.blank();
        match reader.rest().chars().next() {
            None => Err(Open::More),
            Some('{') if style != Style::Gemma => reader.object(Tail::Object),
            Some('[') if style == Style::Mistral => {
                reader.at += 1;
                reader.object(Tail::List)
            }
            Some(_) if style == Style::Mistral => reader.named(),
            Some(_) => Err(Open::No),
        }
    })
}

/// Reads the text after the arguments of a call.
pub(super) fn after_arguments(tail: Tail, text: &str) -> Result<AfterArguments, Open> {
    within(text, |text| {
        let mut reader = Reader { text, at: 0 };
        if tail == Tail::Nothing {
            return Ok(AfterArguments::End(0));
        }
        while reader.eat(',')? {
            reader.string()?;
            reader.expect(':')?;
            reader.value()?;
        }
        reader.expect('}')?;
        if tail == Tail::List {
            if reader.eat(',')? {
                return reader.object(tail).map(AfterArguments::Next);
            }
            reader.expect(']')?;
        }
        Ok(AfterArguments::End(reader.at))
    })
}

/// Reads the text around arguments. At most [`BESIDE`] bytes are examined, each time more text has arrived.
fn within<T>(text: &str, read: impl FnOnce(&str) -> Result<T, Open>) -> Result<T, Open> {
    match read(&text[..floor(text, BESIDE)]) {
        Err(Open::More) if text.len() >= BESIDE => Err(Open::No),
        read => read,
    }
}

/// Reads JSON that may end anywhere.
struct Reader<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Reader<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn blank(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn eat(&mut self, wanted: char) -> Result<bool, Open> {
        self.blank();
        let next = self.rest().chars().next().ok_or(Open::More)?;
        self.at += if next == wanted { next.len_utf8() } else { 0 };
        Ok(next == wanted)
    }

    fn expect(&mut self, wanted: char) -> Result<(), Open> {
        if self.eat(wanted)? { Ok(()) } else { Err(Open::No) }
    }

    fn string(&mut self) -> Result<String, Open> {
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
    fn value(&mut self) -> Result<(), Open> {
        self.blank();
        if self.rest().starts_with('"') {
            return self.string().map(drop);
        }
        let end = self.rest().find([',', '}', ']', '{', '[']).ok_or(Open::More)?;
        let plain = end > 0 && self.rest()[end..].starts_with([',', '}']);
        self.at += end;
        if plain { Ok(()) } else { Err(Open::No) }
    }

    /// `{"name": …, "arguments": {`, perhaps with other fields before the arguments.
    fn object(&mut self, tail: Tail) -> Result<Head, Open> {
        self.expect('{')?;
        let mut name = None;
        loop {
            let key = self.string()?;
            self.expect(':')?;
            match &*key {
                "name" => {
                    self.blank();
                    name = Some(self.string()?);
                }
                "arguments" | "parameters" => {
                    let name = name.as_deref().ok_or(Open::No)?;
                    let name = named(name).map_err(|_| Open::No)?;
                    self.expect('{')?;
                    return Ok(Head { name, at: self.at - 1, tail });
                }
                _ => self.value()?,
            }
            self.expect(',')?;
        }
    }

    /// `NAME[ARGS]{`, with or without the mark, perhaps with the id of the call before it.
    fn named(&mut self) -> Result<Head, Open> {
        let brace = self.rest().find('{').ok_or(Open::More)?;
        let head = &self.rest()[..brace];
        let name = &head[..head.find('[').unwrap_or(brace)];
        let between = head[name.len()..].trim_end();
        let name = named(name).map_err(|_| Open::No)?;
        let marked = between.is_empty() || between.find("[ARGS]") == between.len().checked_sub(6);
        if !marked || name.contains(char::is_whitespace) {
            return Err(Open::No);
        }
        Ok(Head { name, at: self.at + brace, tail: Tail::Nothing })
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

/// Emits a piece of a call; returns the length of its text.
pub(super) fn give_piece(name: String, arguments: &str, raw: &str, each: &mut Each<'_>) -> usize {
    give(Part::Call(Call { name, arguments: arguments.to_owned() }), raw, each)
}
