//! Arguments that are written as literals of Python, or in Gemma's notation, turned into JSON while they arrive.

use super::json::{MAX_HEAD, Open, within};
use super::schema::{Tools, python, string};
use super::{earliest, floor};
use crate::format::Literal;
use serde_json::value::RawValue;

/// The maximum nesting depth of lists and objects.
const MAX_DEPTH: usize = 64;
/// Gemma's quote, a token of its own: text between two of them has no escapes.
const QUOTE: &str = "<|\"|>";

/// The mark that ends a string.
#[derive(Clone, Copy, Debug)]
struct Quote {
    mark: &'static str,
    escapes: bool,
}

const RAW: Quote = Quote { mark: QUOTE, escapes: false };
const DOUBLE: Quote = Quote { mark: "\"", escapes: true };
const SINGLE: Quote = Quote { mark: "'", escapes: true };
const LONG_DOUBLE: Quote = Quote { mark: "\"\"\"", escapes: true };
const LONG_SINGLE: Quote = Quote { mark: "'''", escapes: true };

/// The quotes of a notation, the longest first.
const GEMMA_QUOTES: [Quote; 3] = [RAW, DOUBLE, SINGLE];
const PYTHON_QUOTES: [Quote; 4] = [LONG_DOUBLE, LONG_SINGLE, DOUBLE, SINGLE];

#[derive(Clone, Copy, Debug)]
enum Expect {
    /// A key or a value, or the end of the list.
    Item,
    /// The value of a key.
    Value,
    /// A comma, or the end of the list.
    Comma,
}

/// A list or an object that has not ended.
#[derive(Debug)]
struct LiteralLevel {
    close: char,
    keys: bool,
    /// Nothing has been written in it.
    first: bool,
    /// It wraps all arguments, and is not written itself.
    wraps: bool,
}

/// The arguments of a call that have arrived so far.
#[derive(Debug)]
pub(super) struct Values {
    form: &'static Literal,
    tool: Option<usize>,
    levels: Vec<LiteralLevel>,
    expect: Expect,
    /// The key whose value comes next.
    key: Option<String>,
    /// The string that has begun.
    string: Option<Quote>,
}

impl Values {
    pub(super) fn new(form: &'static Literal, tool: Option<usize>) -> Values {
        let level = LiteralLevel { close: form.body.1, keys: true, first: true, wraps: false };
        Values { form, tool, levels: vec![level], expect: Expect::Item, key: None, string: None }
    }

    /// Reads from the beginning of `text`, and writes JSON to `out`. Returns the number of bytes read, and whether the arguments have
    /// ended. One of `ends` cannot stand in a value without quotes.
    pub(super) fn step(
        &mut self,
        text: &str,
        last: bool,
        tools: Option<&Tools>,
        ends: &[&str],
        out: &mut String,
    ) -> Result<(usize, bool), Open> {
        if let Some(quote) = self.string {
            return self.string(quote, text, last, out).map(|len| (len, false));
        }
        let blank = text.len() - text.trim_start().len();
        if blank > 0 {
            return Ok((blank, false));
        }
        let close = self.levels.last().ok_or(Open::No)?.close;
        let read = match self.expect {
            Expect::Item | Expect::Comma if text.starts_with(close) => {
                return Ok((close.len_utf8(), self.close(out)));
            }
            Expect::Comma if text.starts_with(',') => {
                self.expect = Expect::Item;
                Ok(1)
            }
            Expect::Comma => Err(Open::No),
            Expect::Item if self.levels.last().is_some_and(|level| level.keys) => self.key(text),
            Expect::Item | Expect::Value => self.value(text, last, tools, ends, out),
        };
        match read {
            Err(Open::More) if last => Err(Open::No),
            read => read.map(|len| (len, false)),
        }
    }

    /// Ends the innermost list or object. Returns true if it was the outermost.
    fn close(&mut self, out: &mut String) -> bool {
        let level = self.levels.pop();
        let Some(LiteralLevel { keys, first, wraps, .. }) = level else { return true };
        match (wraps, self.levels.last_mut()) {
            (true, Some(outer)) => outer.first = first,
            _ => out.push(if keys { '}' } else { ']' }),
        }
        self.expect = Expect::Comma;
        self.levels.is_empty()
    }

    fn quotes(&self) -> &'static [Quote] {
        if self.form.python { &PYTHON_QUOTES } else { &GEMMA_QUOTES }
    }

    /// The quote at the beginning of a text.
    fn quote(&self, text: &str) -> Result<Option<Quote>, Open> {
        let quotes = self.quotes();
        let found = quotes.iter().find(|quote| text.starts_with(quote.mark));
        // `""` may still become `"""`.
        let longer = quotes.iter().any(|quote| quote.mark != text && quote.mark.starts_with(text));
        if longer { Err(Open::More) } else { Ok(found.copied()) }
    }

    fn key(&mut self, text: &str) -> Result<usize, Open> {
        let named = self.levels.len() == 1 || self.levels.last().is_some_and(|level| level.wraps);
        let separator = if named && self.form.python { '=' } else { ':' };
        let (key, len) = within(text, |text| {
            let quote = self.quote(text)?;
            let (key, end) = match quote {
                Some(Quote { mark, .. }) => {
                    let rest = &text[mark.len()..];
                    let len = rest.find(mark).ok_or(Open::More)?;
                    (&rest[..len], len + 2 * mark.len())
                }
                None => {
                    let end = text.find([':', '=', ',', '}', ')', '\n']).ok_or(Open::More)?;
                    (text[..end].trim(), end)
                }
            };
            let after = text[end..].trim_start();
            match after.chars().next() {
                None => Err(Open::More),
                // An object that wraps the arguments has the separators of a dictionary.
                Some(c) if c == separator || (self.wrapped() && c == ':') => {
                    Ok((key.to_owned(), text.len() - after.len() + 1))
                }
                Some(_) => Err(Open::No),
            }
        })?;
        if key.is_empty() {
            return Err(Open::No);
        }
        (self.key, self.expect) = (Some(key), Expect::Value);
        Ok(len)
    }

    fn wrapped(&self) -> bool {
        self.levels.last().is_some_and(|level| level.wraps)
    }

    /// Writes what precedes a value: a comma, and its key.
    fn before_value(&mut self, out: &mut String) {
        let Some(level) = self.levels.last_mut() else { return };
        if !std::mem::take(&mut level.first) {
            out.push(',');
        }
        if let Some(key) = self.key.take() {
            out.push_str(&string(&key));
            out.push(':');
        }
    }

    fn value(
        &mut self,
        text: &str,
        last: bool,
        tools: Option<&Tools>,
        ends: &[&str],
        out: &mut String,
    ) -> Result<usize, Open> {
        let quote = match self.quote(text) {
            Err(Open::More) if last => None,
            quote => quote?,
        };
        if let Some(quote) = quote {
            self.before_value(out);
            out.push('"');
            self.string = Some(quote);
            return Ok(quote.mark.len());
        }
        let (close, keys) = match text.as_bytes()[0] {
            b'{' => ('}', true),
            b'[' => (']', false),
            b'(' if self.form.python => (')', false),
            _ => return self.bare(text, ends, out),
        };
        if self.levels.len() >= MAX_DEPTH {
            return Err(Open::No);
        }
        let level = self.levels.last().ok_or(Open::No)?;
        let wraps = keys && self.levels.len() == 1 && self.is_wrap(tools);
        let first = !wraps || level.first;
        if wraps {
            self.key = None;
        } else {
            self.before_value(out);
            out.push(if keys { '{' } else { '[' });
        }
        self.levels.push(LiteralLevel { close, keys, first, wraps });
        self.expect = Expect::Item;
        Ok(1)
    }

    /// True if the current key is no parameter, but wraps all arguments.
    fn is_wrap(&self, tools: Option<&Tools>) -> bool {
        let key = self.key.as_deref().filter(|key| self.form.wraps.contains(key));
        key.is_some_and(|key| tools.is_some_and(|tools| tools.lacks(self.tool, key)))
    }

    /// A value without quotes: JSON, a word of Python's, or else text.
    fn bare(&mut self, text: &str, ends: &[&str], out: &mut String) -> Result<usize, Open> {
        let len = within(text, |text| {
            let stops: &[char] =
                if self.form.python { &[',', '}', ']', ')'] } else { &[',', '}', ']'] };
            let end = text.find(stops);
            match earliest(text, ends) {
                Some((at, _)) if end.is_none_or(|end| at < end) => Err(Open::No),
                _ => end.ok_or(Open::More),
            }
        })?;
        let value = text[..len].trim();
        self.before_value(out);
        match (serde_json::from_str::<&RawValue>(value), python(value)) {
            (Ok(json), _) => out.push_str(json.get()),
            (_, Some((_, word))) => out.push_str(word),
            _ => out.push_str(&string(value)),
        }
        self.expect = Expect::Comma;
        Ok(len)
    }

    fn string(
        &mut self,
        quote: Quote,
        text: &str,
        last: bool,
        out: &mut String,
    ) -> Result<usize, Open> {
        let Quote { mark, escapes } = quote;
        let first = |c: char| mark.starts_with(c) || (escapes && c == '\\');
        let mut at = 0;
        while at < text.len() {
            let rest = &text[at..];
            let plain = rest.find(first).unwrap_or(rest.len());
            push_escaped(&rest[..plain], out);
            at += plain;
            let rest = &text[at..];
            if rest.is_empty() {
                break;
            }
            if rest.starts_with(mark) {
                out.push('"');
                (self.string, self.expect) = (None, Expect::Comma);
                return Ok(at + mark.len());
            }
            let len = if rest.starts_with('\\') && escapes {
                match escape(rest, out) {
                    Some(len) => len,
                    // Half an escape, or half a quote, is no text.
                    None if last => return Ok(text.len()),
                    None => break,
                }
            } else if mark.starts_with(rest) {
                match last {
                    true => return Ok(text.len()),
                    false => break,
                }
            } else {
                let len = floor(rest, 1).max(rest.chars().next().map_or(1, char::len_utf8));
                push_escaped(&rest[..len], out);
                len
            };
            at += len;
        }
        if at == 0 { Err(Open::More) } else { Ok(at) }
    }
}

/// Writes text as it stands in a JSON string.
pub(super) fn push_escaped(text: &str, out: &mut String) {
    if !text.is_empty() {
        let quoted = string(text);
        out.push_str(&quoted[1..quoted.len() - 1]);
    }
}

/// Writes an escape of JSON or Python as it stands in a JSON string; returns its length. `None`: more text is needed.
fn escape(text: &str, out: &mut String) -> Option<usize> {
    let c = text[1..].chars().next()?;
    let plain = match c {
        'n' | 't' | 'r' | 'b' | 'f' | '\\' | '"' => {
            out.push('\\');
            out.push(c);
            return Some(2);
        }
        '\'' => "'",
        '/' => "/",
        '\n' => "",
        'a' => "\u{7}",
        'v' => "\u{b}",
        '0' => "\0",
        'x' | 'u' | 'U' => return hex(text, c, out),
        // Python keeps the backslash.
        _ => {
            push_escaped(&text[..1 + c.len_utf8()], out);
            return Some(1 + c.len_utf8());
        }
    };
    push_escaped(plain, out);
    Some(1 + c.len_utf8())
}

/// The same for a character's number.
fn hex(text: &str, c: char, out: &mut String) -> Option<usize> {
    let wanted = match c {
        'x' => 2,
        'u' => 4,
        _ => 8,
    };
    let digits = &text[2..];
    let found = digits.bytes().take(wanted).take_while(u8::is_ascii_hexdigit).count();
    if found < wanted {
        if found == digits.len() {
            return None;
        }
        push_escaped(&text[..2], out);
        return Some(2);
    }
    let digits = &digits[..wanted];
    match u32::from_str_radix(digits, 16).ok().and_then(char::from_u32) {
        Some(c) => push_escaped(c.encode_utf8(&mut [0; 4]), out),
        // Half of a pair, which JSON writes in the same way.
        None if wanted == 4 => {
            out.push_str("\\u");
            out.push_str(digits);
        }
        None => push_escaped(&text[..2 + wanted], out),
    }
    Some(2 + wanted)
}

/// The name before the arguments, which must begin with a key, and the number of bytes up to them; `list` if calls stand in a list, whose bracket may be missing.
pub(super) fn head(
    form: &'static Literal,
    text: &str,
    list: bool,
) -> Result<(String, usize), Open> {
    within(text, |text| {
        let mut rest = text.trim_start();
        if list {
            rest = rest.strip_prefix('[').unwrap_or(rest).trim_start();
        }
        match rest.strip_prefix(form.open) {
            Some(after) => rest = after,
            None if form.open.starts_with(rest) => return Err(Open::More),
            None => return Err(Open::No),
        }
        let (open, _) = form.body;
        let name = |c: char| c.is_alphanumeric() || "_-.:/$".contains(c);
        let end = rest.find(|c| !name(c));
        let Some(end) = end else {
            return Err(if rest.len() < MAX_HEAD / 4 { Open::More } else { Open::No });
        };
        let after = rest[end..].trim_start();
        if end == 0 {
            return Err(Open::No);
        }
        match after.chars().next() {
            None => Err(Open::More),
            Some(c) if c == open => {
                // A text that only mentions the name has something else after it.
                let first = after[c.len_utf8()..].trim_start();
                if !first.starts_with(form.body.1) {
                    Values::new(form, None).key(first)?;
                }
                Ok((rest[..end].to_owned(), text.len() - after.len() + c.len_utf8()))
            }
            Some(_) => Err(Open::No),
        }
    })
}
