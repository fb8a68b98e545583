//! Text from a model, a file or a file name, prepared for a terminal: none of it can drive the
//! terminal.
//!
//! A terminal obeys control characters (C0, DEL and C1, in UTF-8 as well), and characters for bidirectional text make it show
//! text in another order than it was written in. Those are shown as escapes, `\u{1b}`. Everything that is written for people
//! passes through here: [`one_line`] for messages, names and paths, which never break a line either; [`visible`] for a piece of a
//! text in which every character matters; [`printable`] for texts of several lines; [`Filter`] for an answer that arrives in
//! pieces. JSON has its own escapes for them, [`escape_json`]. An answer's bytes reach a pipe or a file unchanged.

use std::borrow::Cow;
use std::io;
use std::path::Path;

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};

/// Returns true if a character may do more to a terminal than appear on it.
fn drives(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        // Line and paragraph separators; embeddings, overrides and isolates of direction; the deprecated format characters;
        // interlinear annotations. The marks of direction (U+200E, U+200F, U+061C) stay: they belong to ordinary Hebrew and
        // Arabic, and do not reorder text.
        '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{206f}' | '\u{fff9}'..='\u{fffb}' => true,
        c => c.is_control(),
    }
}

/// Returns the text with everything that could drive a terminal shown as an escape. Newlines and tabs stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(drives) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut filter = Filter::default();
    filter.push(text, &mut out);
    filter.finish(&mut out);
    Cow::Owned(out)
}

/// [`printable`] in one line: newlines and tabs are shown as escapes too. For text that may contain a name, so that a name never
/// begins a new line.
pub fn one_line(text: &str) -> Cow<'_, str> {
    let breaks = |c| matches!(c, '\n' | '\t' | '\r');
    if !text.contains(breaks) {
        return printable(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if breaks(c) || drives(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Returns bytes of a text with every character distinguishable: invisible ones are shown as escapes, and so are quotes ('), backslashes,
/// and bytes that are not characters. For text between such quotes. None of it drives a terminal.
pub fn visible(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() + 2);
    for chunk in bytes.utf8_chunks() {
        // Of the characters escaped here, only double quotes are harmless: a backslash in the text has become two.
        out.push_str(&chunk.valid().escape_debug().to_string().replace("\\\"", "\""));
        chunk.invalid().iter().for_each(|byte| out.push_str(&format!("\\x{byte:02x}")));
    }
    out
}

/// Returns a path for display, in one line; parts that are not UTF-8 become U+FFFD.
pub fn path(path: &Path) -> String {
    one_line(&path.to_string_lossy()).into_owned()
}

/// [`printable`] for a text that arrives in pieces. The result does not depend on where it is split.
#[derive(Debug, Default)]
pub struct Filter {
    /// The last character was a carriage return. Before a newline it has no effect; anywhere else
    /// it would let the following text overwrite the line.
    carriage_return: bool,
}

impl Filter {
    /// Appends the displayed form of the next piece to `out`.
    pub fn push(&mut self, piece: &str, out: &mut String) {
        for c in piece.chars() {
            if std::mem::take(&mut self.carriage_return) && c != '\n' {
                out.push_str("\\r");
            }
            match c {
                '\r' => self.carriage_return = true,
                c if drives(c) => out.extend(c.escape_default()),
                c => out.push(c),
            }
        }
    }

    /// Appends the pending characters at the end of the text.
    pub fn finish(&mut self, out: &mut String) {
        if std::mem::take(&mut self.carriage_return) {
            out.push_str("\\r");
        }
    }
}

/// Writes `value` as JSON in which nothing drives a terminal; a parser reads the same text from it.
///
/// # Errors
/// Those of `out`, and of values that JSON cannot represent.
pub fn escape_json<T: Serialize + ?Sized>(value: &T, out: impl io::Write) -> io::Result<()> {
    let mut serializer = Serializer::with_formatter(out, Harmless(CompactFormatter));
    Ok(value.serialize(&mut serializer)?)
}

/// As [`CompactFormatter`], except for characters that JSON allows in strings although they can drive a terminal.
struct Harmless(CompactFormatter);

impl Formatter for Harmless {
    fn write_string_fragment<W>(&mut self, out: &mut W, fragment: &str) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        let mut rest = fragment;
        while let Some(at) = rest.find(drives) {
            let (before, from) = rest.split_at(at);
            self.0.write_string_fragment(out, before)?;
            let mut chars = from.chars();
            if let Some(c) = chars.next() {
                // All of them are in the first plane, so four digits suffice.
                write!(out, "\\u{:04x}", u32::from(c))?;
            }
            rest = chars.as_str();
        }
        self.0.write_string_fragment(out, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that is shown as an escape, with characters in between that must stay.
    const WILD: &str =
        "a\u{1b}[2Jb\r\0\u{7f}\u{9b}c\u{202e}d\u{2066}e\r\nf\r\r\ng\u{2028}\u{fff9}é\t\r";

    #[test]
    fn what_drives_a_terminal_is_shown_and_not_sent() {
        assert_eq!(
            printable("plain, é, 日本, \u{200f}שלום\n\tx"),
            "plain, é, 日本, \u{200f}שלום\n\tx"
        );
        assert_eq!(
            printable(WILD),
            "a\\u{1b}[2Jb\\r\\u{0}\\u{7f}\\u{9b}c\\u{202e}d\\u{2066}e\nf\\r\ng\\u{2028}\\u{fff9}é\t\\r"
        );
        for c in (0..=0x10ffff).filter_map(char::from_u32) {
            let shown = printable(c.encode_utf8(&mut [0; 4])).into_owned();
            assert!(!shown.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "{c:?}");
        }
    }

    #[test]
    fn a_name_stays_in_its_line() {
        assert_eq!(one_line("plain, é, 日本"), "plain, é, 日本");
        assert_eq!(one_line("a\u{1b}[2J\u{202e}"), "a\\u{1b}[2J\\u{202e}");
        assert_eq!(one_line("a\r\nb\tc\u{9b}\n"), "a\\r\\nb\\tc\\u{9b}\\n");
        assert_eq!(path(Path::new("a\nb\r")), "a\\nb\\r");
        for c in (0..=0x10ffff).filter_map(char::from_u32) {
            let shown = one_line(c.encode_utf8(&mut [0; 4])).into_owned();
            assert!(!shown.contains(char::is_control), "{c:?}");
        }
    }

    #[test]
    fn what_is_not_seen_of_a_piece_is_shown() {
        for (piece, shown) in [
            (&b" the"[..], " the"),
            (b"\n\t\r\n", "\\n\\t\\r\\n"),
            ("\u{a0}\u{200b}\u{feff}\u{3000}".as_bytes(), "\\u{a0}\\u{200b}\\u{feff}\\u{3000}"),
            ("日本é שלום हिन्दी 🙂".as_bytes(), "日本é שלום हिन्दी 🙂"),
            (b"it's \"so\" \\n \\\"", "it\\'s \"so\" \\\\n \\\\\""),
            (b"\xe2\x82", "\\xe2\\x82"),
            (b"a\xff\xc3\xa9", "a\\xffé"),
        ] {
            assert_eq!(visible(piece), shown);
        }
        for c in (0..=0x10ffff).filter_map(char::from_u32) {
            let shown = visible(c.encode_utf8(&mut [0; 4]).as_bytes());
            let hides = |c: char| drives(c) || c.is_control() || c.is_whitespace() && c != ' ';
            assert!(!shown.contains(hides), "{c:?}");
        }
    }

    #[test]
    fn pieces_give_what_the_whole_gives() {
        let ends: Vec<usize> = (0..=WILD.len()).filter(|&at| WILD.is_char_boundary(at)).collect();
        for &first in &ends {
            for &second in ends.iter().filter(|&&second| second >= first) {
                let (mut filter, mut out) = (Filter::default(), String::new());
                for piece in [&WILD[..first], &WILD[first..second], &WILD[second..]] {
                    filter.push(piece, &mut out);
                }
                filter.finish(&mut out);
                assert_eq!(out, printable(WILD), "{first} {second}");
            }
        }
    }

    #[test]
    fn json_means_the_same_and_drives_nothing() {
        let mut out = Vec::new();
        escape_json(&serde_json::json!({WILD: [WILD, "plain \"é\" \\", 1.5]}), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            !text.contains(drives) && text.contains("\\u009b") && text.contains("\\u202e"),
            "{text}"
        );
        assert!(text.contains("é"), "what is harmless stays as it is: {text}");
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read[WILD][0], WILD);
    }
}
