//! The input of a custom tool while the model writes it: a text, which is the only argument of a function.

use serde_json::Value;

use crate::body::tools::INPUT;

/// The text in the arguments of a call, piece by piece.
#[derive(Debug, Default)]
pub(crate) struct CustomInput {
    state: State,
    /// The arguments before the text, or an escape in it that is not complete.
    held: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    /// Before the text.
    #[default]
    Before,
    /// In the text.
    Within,
    /// After it.
    After,
    /// The arguments have another form, and are held up to their end.
    Other,
}

impl CustomInput {
    /// Takes more of the arguments, and returns the text that is certain.
    pub(crate) fn push(&mut self, arguments: &str) -> String {
        let mut text = String::new();
        self.held.push_str(arguments);
        if self.state == State::Before {
            match beginning(&self.held) {
                Some(Ok(at)) => {
                    self.held.drain(..at);
                    self.state = State::Within;
                }
                Some(Err(())) => self.state = State::Other,
                None => {}
            }
        }
        if self.state == State::Within {
            self.within(&mut text);
        }
        text
    }

    fn within(&mut self, text: &mut String) {
        let held = std::mem::take(&mut self.held);
        let mut rest = &*held;
        while let Some(c) = rest.chars().next() {
            match c {
                '"' => {
                    self.state = State::After;
                    return;
                }
                '\\' => match escape(rest) {
                    Some((meant, len)) => {
                        text.push_str(&meant);
                        rest = &rest[len..];
                    }
                    None => break,
                },
                c => {
                    text.push(c);
                    rest = &rest[c.len_utf8()..];
                }
            }
        }
        self.held = rest.to_owned();
    }

    /// Ends the arguments. If they had another form, their only text or all of them are the input.
    pub(crate) fn finish(self) -> String {
        if self.state != State::Other {
            return String::new();
        }
        match serde_json::from_str(&self.held) {
            Ok(Value::String(text)) => text,
            Ok(Value::Object(fields)) if fields.len() == 1 => {
                let only = fields.values().next().and_then(Value::as_str);
                only.map_or_else(|| self.held.clone(), str::to_owned)
            }
            _ => self.held,
        }
    }
}

/// Where the text begins in arguments of the usual form; an error if they have another one, and `None` if more is needed.
fn beginning(arguments: &str) -> Option<Result<usize, ()>> {
    let name = format!("\"{INPUT}\"");
    let mut rest = arguments;
    for part in ["{", &*name, ":", "\""] {
        rest = rest.trim_start();
        match rest.strip_prefix(part) {
            Some(after) => rest = after,
            None if part.starts_with(rest) => return None,
            None => return Some(Err(())),
        }
    }
    Some(Ok(arguments.len() - rest.len()))
}

/// The meaning of the escape at the beginning of a text, and its length; `None` if more is needed.
fn escape(text: &str) -> Option<(String, usize)> {
    let unit = |at: usize| {
        let digits = text.get(at + 2..at + 6).filter(|_| text[at..].starts_with("\\u"))?;
        u16::from_str_radix(digits, 16).ok()
    };
    let second = text[1..].chars().next()?;
    if second != 'u' {
        let meant = match second {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            other => other,
        };
        return Some((meant.to_string(), 1 + second.len_utf8()));
    }
    if text.len() < 6 {
        return None;
    }
    let first = unit(0);
    let is_high = first.is_some_and(|unit| (0xd800..0xdc00).contains(&unit));
    if !is_high {
        let meant = first
            .map_or(char::REPLACEMENT_CHARACTER.into(), |unit| String::from_utf16_lossy(&[unit]));
        return Some((meant, text.floor_char_boundary(6)));
    }
    let after = &text[6..];
    match unit(6) {
        Some(low) => Some((String::from_utf16_lossy(&[first.unwrap_or_default(), low]), 12)),
        None if after.len() < 6 && ("\\u".starts_with(after) || after.starts_with("\\u")) => None,
        None => Some((char::REPLACEMENT_CHARACTER.into(), 6)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The input in these arguments, cut into pieces of this many bytes.
    fn input(arguments: &str, size: usize) -> String {
        let (mut input, mut all, mut rest) = (CustomInput::default(), String::new(), arguments);
        while !rest.is_empty() {
            let at = (size..=rest.len()).find(|at| rest.is_char_boundary(*at));
            let (piece, after) = rest.split_at(at.unwrap_or(rest.len()));
            all += &input.push(piece);
            rest = after;
        }
        all + &input.finish()
    }

    #[test]
    fn the_text_is_the_same_however_its_arguments_are_cut() {
        let text = "*** Begin\n\t\"a\\b\"\r\u{8}\u{c} é 😀 /\u{1} }";
        let escaped: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
        for (arguments, wanted) in [
            (serde_json::json!({"input": text}).to_string(), text),
            (format!(" {{ \"input\" :\n\"{escaped}\" }}"), text),
            ("{\"input\": \"cut in the mid".to_owned(), "cut in the mid"),
            ("{\"input\": \"cut \\".to_owned(), "cut "),
            ("{\"inp".to_owned(), ""),
            (String::new(), ""),
            ("{\"text\": \"a\"}".to_owned(), "a"),
            ("\"a\\nb\"".to_owned(), "a\nb"),
            ("plain".to_owned(), "plain"),
            ("{\"input\": 7}".to_owned(), "{\"input\": 7}"),
            ("{\"input\": \"\\ud800x\\ud800\\n\"}".to_owned(), "\u{fffd}x\u{fffd}\n"),
        ] {
            for size in 1..=arguments.len().max(1) {
                assert_eq!(input(&arguments, size), wanted, "{arguments} by {size}");
            }
        }
    }
}
