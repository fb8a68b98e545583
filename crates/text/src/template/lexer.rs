//! Splits a template's source into tokens, like jinja2's lexer with `trim_blocks` and
//! `lstrip_blocks`. Tokens are made one at a time; none are kept.

use std::borrow::Cow;

use super::shown::clip;
use super::text::is_space;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum TokenKind<'s> {
    /// Text outside tags.
    Data(&'s str),
    /// `{%`
    BlockBegin,
    /// `%}`
    BlockEnd,
    /// `{{`
    PrintBegin,
    /// `}}`
    PrintEnd,
    Name(&'s str),
    Text(Cow<'s, str>),
    Int(i128),
    Float(f64),
    /// An operator or a bracket.
    Op(&'static str),
    End,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Token<'s> {
    pub(super) kind: TokenKind<'s>,
    pub(super) line: u32,
}

/// The mistake in a source, and its line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SyntaxError {
    pub(super) line: u32,
    pub(super) message: String,
}

pub(super) fn error<T>(line: u32, message: impl Into<String>) -> Result<T, SyntaxError> {
    Err(SyntaxError { line, message: message.into() })
}

impl TokenKind<'_> {
    /// For messages.
    pub(super) fn describe(&self) -> String {
        match self {
            TokenKind::Data(_) => "text".into(),
            TokenKind::BlockBegin => "'{%'".into(),
            TokenKind::BlockEnd => "'%}'".into(),
            TokenKind::PrintBegin => "'{{'".into(),
            TokenKind::PrintEnd => "'}}'".into(),
            TokenKind::Name(name) => format!("'{}'", clip(name)),
            TokenKind::Text(_) => "a string".into(),
            TokenKind::Int(_) | TokenKind::Float(_) => "a number".into(),
            TokenKind::Op(op) => format!("'{op}'"),
            TokenKind::End => "the end of the template".into(),
        }
    }
}

/// Longest first.
const OPERATORS: [&str; 26] = [
    "**", "//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";",
];

#[derive(Clone, Copy, PartialEq)]
enum LexState {
    Data,
    Block,
    Print,
    /// Between `{% raw %}` and `{% endraw %}`.
    Raw,
}

pub(super) struct Lexer<'s> {
    source: &'s str,
    at: usize,
    line: u32,
    state: LexState,
    /// Closing brackets still expected.
    brackets: Vec<&'static str>,
    /// Only the beginning of a line precedes this offset.
    line_starting: bool,
}

/// Normalises line ends to `\n`, without one at the end, as the lexer expects of its source.
pub(super) fn normalise(source: &str) -> String {
    let mut text = source.replace("\r\n", "\n").replace('\r', "\n");
    if text.ends_with('\n') {
        text.pop();
    }
    text
}

fn lines_in(text: &str) -> u32 {
    // A source is far shorter than 4 GiB.
    text.bytes().filter(|b| *b == b'\n').count() as u32
}

impl<'s> Lexer<'s> {
    /// Creates a lexer for a source from [`normalise`].
    pub(super) fn new(source: &'s str) -> Lexer<'s> {
        let (at, line, state, brackets) = (0, 1, LexState::Data, Vec::new());
        Lexer { source, at, line, state, brackets, line_starting: true }
    }

    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    /// Advances by `n` bytes.
    fn skip(&mut self, n: usize) -> &'s str {
        let text = &self.source[self.at..self.at + n];
        self.line += lines_in(text);
        self.at += n;
        text
    }

    fn skip_space(&mut self) {
        let rest = self.rest();
        self.skip(rest.len() - rest.trim_start_matches(is_space).len());
    }

    fn token(&self, kind: TokenKind<'s>) -> Token<'s> {
        Token { kind, line: self.line }
    }

    pub(super) fn next(&mut self) -> Result<Token<'s>, SyntaxError> {
        loop {
            let token = match self.state {
                LexState::Data => self.data()?,
                LexState::Raw => Some(self.raw()?),
                LexState::Block | LexState::Print => self.inside()?,
            };
            match token {
                Some(Token { kind: TokenKind::Data(""), .. }) | None => {}
                Some(token) => return Ok(token),
            }
        }
    }

    /// The text up to a tag without the white space that the tag removes; `sign` follows the tag's opening.
    fn before_tag(&self, text: &'s str, sign: Option<u8>, print: bool) -> &'s str {
        if sign == Some(b'-') {
            return text.trim_end_matches(is_space);
        }
        if sign == Some(b'+') || print {
            return text;
        }
        let line = text.rfind('\n').map_or(0, |at| at + 1);
        if (line > 0 || self.line_starting) && text[line..].chars().all(is_space) {
            return &text[..line];
        }
        text
    }

    /// `None`: something that is not a token, such as a comment.
    fn data(&mut self) -> Result<Option<Token<'s>>, SyntaxError> {
        let rest = self.rest();
        let bytes = rest.as_bytes();
        let opens = |at: &usize| bytes[*at] == b'{' && matches!(bytes[at + 1], b'%' | b'{' | b'#');
        let Some(at) = (0..bytes.len().saturating_sub(1)).find(opens) else {
            if rest.is_empty() {
                return Ok(Some(self.token(TokenKind::End)));
            }
            let token = self.token(TokenKind::Data(rest));
            self.skip(rest.len());
            return Ok(Some(token));
        };
        let sign = bytes.get(at + 2).copied().filter(|b| matches!(b, b'-' | b'+'));
        let opening = bytes[at + 1];
        if at > 0 {
            // The tag itself follows with the next call.
            let text = self.before_tag(&rest[..at], sign, opening == b'{');
            let token = self.token(TokenKind::Data(text));
            self.skip(at);
            // Whether the tag begins a line has been determined.
            self.line_starting = false;
            return Ok(Some(token));
        }
        let length = 2 + usize::from(sign.is_some());
        self.line_starting = false;
        match opening {
            b'#' => {
                self.comment(length)?;
                Ok(None)
            }
            b'{' => {
                let token = self.token(TokenKind::PrintBegin);
                self.skip(length);
                self.state = LexState::Print;
                Ok(Some(token))
            }
            _ => {
                if let Some(length) = raw_tag(&rest[length..], "raw") {
                    self.skip(rest.len() - length.len());
                    self.state = LexState::Raw;
                    return Ok(None);
                }
                let token = self.token(TokenKind::BlockBegin);
                self.skip(length);
                self.state = LexState::Block;
                Ok(Some(token))
            }
        }
    }

    /// Handles the text after a tag's end: `-` removes all white space, no sign removes a line end.
    fn after_tag(&mut self, sign: Option<u8>) {
        if sign == Some(b'-') {
            let from = self.at;
            self.skip_space();
            self.line_starting = self.source[from..self.at].ends_with('\n');
        } else if sign.is_none() && self.rest().starts_with('\n') {
            self.skip(1);
            self.line_starting = true;
        } else {
            self.line_starting = false;
        }
    }

    fn comment(&mut self, opening: usize) -> Result<(), SyntaxError> {
        let line = self.line;
        self.skip(opening);
        let rest = self.rest();
        let Some(at) = rest.find("#}") else {
            return error(line, "the comment that begins here has no end ('#}')");
        };
        let sign = rest[..at].bytes().last().filter(|b| matches!(b, b'-' | b'+'));
        self.skip(at + 2);
        self.after_tag(sign);
        Ok(())
    }

    fn raw(&mut self) -> Result<Token<'s>, SyntaxError> {
        let line = self.line;
        let rest = self.rest();
        for (at, _) in rest.match_indices("{%") {
            let tag = &rest[at + 2..];
            let sign = tag.bytes().next().filter(|b| matches!(b, b'-' | b'+'));
            let Some(after) = raw_tag(&tag[usize::from(sign.is_some())..], "endraw") else {
                continue;
            };
            let text = self.before_tag(&rest[..at], sign, false);
            let token = self.token(TokenKind::Data(text));
            let end = &rest.as_bytes()[..rest.len() - after.len()];
            let sign = end.get(end.len() - 3).copied().filter(|b| matches!(b, b'-' | b'+'));
            self.skip(end.len());
            self.after_tag(sign);
            self.state = LexState::Data;
            return Ok(token);
        }
        error(line, "the raw block that begins here has no end ('{% endraw %}')")
    }

    /// Reads a token inside a tag; `None` is white space.
    fn inside(&mut self) -> Result<Option<Token<'s>>, SyntaxError> {
        let rest = self.rest();
        let bytes = rest.as_bytes();
        if self.brackets.is_empty()
            && let Some(token) = self.closing(bytes)
        {
            return Ok(Some(token));
        }
        let Some(c) = rest.chars().next() else {
            return error(self.line, "the template ends inside a tag");
        };
        if is_space(c) {
            self.skip_space();
            return Ok(None);
        }
        if c.is_ascii_digit() {
            return self.number().map(Some);
        }
        if c == '_' || c.is_alphabetic() {
            let end = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
            let token = self.token(TokenKind::Name(&rest[..end]));
            self.skip(end);
            return Ok(Some(token));
        }
        if matches!(c, '\'' | '"') {
            return self.text(c).map(Some);
        }
        let Some(op) = OPERATORS.iter().find(|op| rest.starts_with(**op)) else {
            let c = c.escape_default();
            return error(self.line, format!("there is a character that means nothing: '{c}'"));
        };
        self.balance(op)?;
        let token = self.token(TokenKind::Op(op));
        self.skip(op.len());
        Ok(Some(token))
    }

    fn balance(&mut self, op: &'static str) -> Result<(), SyntaxError> {
        match op {
            "{" => self.brackets.push("}"),
            "(" => self.brackets.push(")"),
            "[" => self.brackets.push("]"),
            "}" | ")" | "]" => match self.brackets.pop() {
                Some(expected) if expected == op => {}
                Some(expected) => {
                    return error(self.line, format!("expected '{expected}', found '{op}'"));
                }
                None => return error(self.line, format!("'{op}' closes nothing")),
            },
            _ => {}
        }
        Ok(())
    }

    /// The end of the tag, if it is next.
    fn closing(&mut self, bytes: &[u8]) -> Option<Token<'s>> {
        let print = self.state == LexState::Print;
        let sign = bytes.first().copied().filter(|b| *b == b'-' || (*b == b'+' && !print));
        let closing: &[u8] = if print { b"}}" } else { b"%}" };
        let skipped = usize::from(sign.is_some());
        if !bytes[skipped..].starts_with(closing) {
            return None;
        }
        let token = self.token(if print { TokenKind::PrintEnd } else { TokenKind::BlockEnd });
        self.skip(skipped + 2);
        self.state = LexState::Data;
        // After `}}` a line end remains.
        let sign = if print && sign.is_none() { Some(b'+') } else { sign };
        self.after_tag(sign);
        Some(token)
    }

    fn number(&mut self) -> Result<Token<'s>, SyntaxError> {
        let rest = self.rest();
        let after_dot = self.at > 0 && self.source.as_bytes()[self.at - 1] == b'.';
        let line = self.line;
        let plain = |text: &str| text.replace('_', "");
        let too_large = |_| SyntaxError { line, message: "a number is too large".into() };
        for (prefix, radix) in [("0b", 2), ("0o", 8), ("0x", 16)] {
            let Some(digits) = rest.get(..2).filter(|p| p.eq_ignore_ascii_case(prefix)) else {
                continue;
            };
            let digits = &rest[digits.len()..];
            let end = digits_end(digits, |b| char::from(b).is_digit(radix), true);
            if end > 0 {
                let value = i128::from_str_radix(&plain(&digits[..end]), radix);
                let token = self.token(TokenKind::Int(value.map_err(too_large)?));
                self.skip(2 + end);
                return Ok(token);
            }
        }
        let whole = digits_end(rest, |b| b.is_ascii_digit(), false);
        let mut end = whole;
        if !after_dot {
            if rest.as_bytes().get(end) == Some(&b'.') {
                let fraction = digits_end(&rest[end + 1..], |b| b.is_ascii_digit(), false);
                end += if fraction > 0 { 1 + fraction } else { 0 };
            }
            if let Some(b'e' | b'E') = rest.as_bytes().get(end) {
                let signed = matches!(rest.as_bytes().get(end + 1), Some(b'+' | b'-'));
                let from = end + 1 + usize::from(signed);
                let exponent =
                    rest.get(from..).map_or(0, |r| digits_end(r, |b| b.is_ascii_digit(), false));
                end = if exponent > 0 { from + exponent } else { end };
            }
        }
        let kind = if end > whole {
            TokenKind::Float(plain(&rest[..end]).parse().unwrap_or(f64::NAN))
        } else {
            // As in Python, 0 may be repeated, and no other number begins with 0.
            if rest.starts_with('0') {
                end = digits_end(rest, |b| b == b'0', false);
            }
            TokenKind::Int(plain(&rest[..end]).parse().map_err(too_large)?)
        };
        let token = self.token(kind);
        self.skip(end);
        Ok(token)
    }

    fn text(&mut self, quote: char) -> Result<Token<'s>, SyntaxError> {
        let rest = self.rest();
        let mut escaped = false;
        let mut escapes = false;
        for (at, c) in rest.char_indices().skip(1) {
            if escaped {
                escaped = false;
            } else if c == '\\' {
                (escaped, escapes) = (true, true);
            } else if c == quote {
                let inner = &rest[1..at];
                let line = self.line;
                let text = if escapes { unescape(inner, line)?.into() } else { inner.into() };
                let token = self.token(TokenKind::Text(text));
                self.skip(at + 1);
                return Ok(token);
            }
        }
        error(self.line, "the string that begins here has no end")
    }
}

/// The text after `raw %}` or `endraw %}`, with optional white space and signs.
fn raw_tag<'s>(text: &'s str, word: &str) -> Option<&'s str> {
    let text = text.trim_start_matches(is_space).strip_prefix(word)?;
    let text = text.trim_start_matches(is_space);
    if word == "raw" {
        // All white space after `-%}` is removed.
        return match text.strip_prefix("-%}") {
            Some(text) => Some(text.trim_start_matches(is_space)),
            None => text.strip_prefix("%}"),
        };
    }
    text.strip_prefix(['-', '+']).unwrap_or(text).strip_prefix("%}")
}

/// The end of digits that may be separated by single `_`.
fn digits_end(text: &str, digit: impl Fn(u8) -> bool, leading: bool) -> usize {
    let bytes = text.as_bytes();
    let mut end = 0;
    loop {
        let gap = usize::from((end > 0 || leading) && bytes.get(end) == Some(&b'_'));
        if !bytes.get(end + gap).is_some_and(|b| digit(*b)) {
            return end;
        }
        end += gap + 1;
    }
}

/// Python's escapes in a string.
fn unescape(text: &str, line: u32) -> Result<String, SyntaxError> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        let Some(c) = chars.next() else { break };
        let digits = match c {
            '\n' => continue,
            '\\' | '\'' | '"' => {
                out.push(c);
                continue;
            }
            'x' => 2,
            'u' => 4,
            'U' => 8,
            '0'..='7' => {
                let mut code = c.to_digit(8).unwrap_or(0);
                for _ in 0..2 {
                    let Some(digit) = chars.as_str().chars().next().and_then(|c| c.to_digit(8))
                    else {
                        break;
                    };
                    code = code * 8 + digit;
                    chars.next();
                }
                out.extend(char::from_u32(code));
                continue;
            }
            _ => {
                match plain_escape(c) {
                    Some(c) => out.push(c),
                    None => out.extend(['\\', c]),
                }
                continue;
            }
        };
        let code =
            chars.as_str().get(..digits).filter(|h| h.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = code.and_then(|hex| u32::from_str_radix(hex, 16).ok()).and_then(char::from_u32);
        let Some(code) = code else {
            let problem = format!("'\\{c}' in a string is not followed by a character's number");
            return error(line, problem);
        };
        out.push(code);
        chars.nth(digits - 1);
    }
    Ok(out)
}

fn plain_escape(c: char) -> Option<char> {
    Some(match c {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'a' => '\u{7}',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'v' => '\u{b}',
        _ => return None,
    })
}
