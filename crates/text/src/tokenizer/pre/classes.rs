//! A text as an array of character classes, which is all that the splitters look at.
//!
//! Classes are bit sets from the Unicode general category: letters are L*, numbers N*, marks M*,
//! punctuation P*, symbols S*; white space is the property of that name. ASCII comes from a table
//! made at compile time.

use unicode_general_category::{GeneralCategory as G, get_general_category};

/// L*.
pub(crate) const LETTER: u8 = 1;
/// N*.
pub(crate) const NUMBER: u8 = 2;
/// White_Space.
pub(crate) const SPACE: u8 = 4;
/// M*.
pub(crate) const MARK: u8 = 8;
/// P*.
pub(crate) const PUNCTUATION: u8 = 16;
/// S*.
pub(crate) const SYMBOL: u8 = 32;
/// Carriage return or line feed.
pub(crate) const NEWLINE: u8 = 64;
/// Past the end of the piece; no character has it.
pub(crate) const END: u8 = 128;

const ASCII: [u8; 128] = {
    let mut table = [0u8; 128];
    let mut c = 0u8;
    while c < 128 {
        table[c as usize] = match c {
            b'\n' | b'\r' => SPACE | NEWLINE,
            b' ' | 0x09..=0x0d => SPACE,
            b'0'..=b'9' => NUMBER,
            b'a'..=b'z' | b'A'..=b'Z' => LETTER,
            b'$' | b'+' | b'<' | b'=' | b'>' | b'^' | b'`' | b'|' | b'~' => SYMBOL,
            0x21..=0x7e => PUNCTUATION,
            _ => 0,
        };
        c += 1;
    }
    table
};

fn class(c: char) -> u8 {
    if let Some(&class) = ASCII.get(c as usize) {
        return class;
    }
    if c.is_whitespace() {
        return SPACE;
    }
    match get_general_category(c) {
        G::UppercaseLetter
        | G::LowercaseLetter
        | G::TitlecaseLetter
        | G::ModifierLetter
        | G::OtherLetter => LETTER,
        G::DecimalNumber | G::LetterNumber | G::OtherNumber => NUMBER,
        G::NonspacingMark | G::SpacingMark | G::EnclosingMark => MARK,
        G::ConnectorPunctuation
        | G::DashPunctuation
        | G::OpenPunctuation
        | G::ClosePunctuation
        | G::InitialPunctuation
        | G::FinalPunctuation
        | G::OtherPunctuation => PUNCTUATION,
        G::MathSymbol | G::CurrencySymbol | G::ModifierSymbol | G::OtherSymbol => SYMBOL,
        _ => 0,
    }
}

/// One text, character by character.
pub(crate) struct Characters {
    /// The characters.
    pub(crate) chars: Vec<char>,
    /// Their classes.
    pub(crate) classes: Vec<u8>,
    /// The byte offset of each, followed by the length of the text.
    pub(crate) starts: Vec<u32>,
}

impl Characters {
    /// `text` must be shorter than 4 GiB (the tokenizer checks that).
    pub(crate) fn new(text: &str) -> Characters {
        let mut all = Characters {
            chars: Vec::with_capacity(text.len()),
            classes: Vec::with_capacity(text.len()),
            starts: Vec::with_capacity(text.len() + 1),
        };
        for (at, c) in text.char_indices() {
            all.chars.push(c);
            all.classes.push(class(c));
            all.starts.push(at as u32);
        }
        all.starts.push(text.len() as u32);
        all
    }
}

/// A part of a text; positions are relative to its own beginning and may be past its end.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    chars: &'a [char],
    classes: &'a [u8],
}

impl<'a> Piece<'a> {
    pub(crate) fn new(all: &'a Characters, from: usize, to: usize) -> Piece<'a> {
        Piece { chars: &all.chars[from..to], classes: &all.classes[from..to] }
    }

    pub(crate) fn len(self) -> usize {
        self.chars.len()
    }

    /// The class at `at`, [`END`] past the end.
    #[inline]
    pub(crate) fn class(self, at: usize) -> u8 {
        self.classes.get(at).copied().unwrap_or(END)
    }

    /// True if the class at `at` has one of the bits `of`.
    #[inline]
    pub(crate) fn is(self, at: usize, of: u8) -> bool {
        self.class(at) & of != 0
    }

    /// The character at `at`, NUL past the end.
    #[inline]
    pub(crate) fn char(self, at: usize) -> char {
        self.chars.get(at).copied().unwrap_or('\0')
    }

    /// The first position from `at` on whose class has none of the bits `of`.
    #[inline]
    pub(crate) fn skip(self, mut at: usize, of: u8) -> usize {
        while self.is(at, of) {
            at += 1;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ascii_table_says_what_unicode_says() {
        for c in (0u8..128).map(char::from) {
            let expected = match get_general_category(c) {
                _ if c == '\n' || c == '\r' => SPACE | NEWLINE,
                _ if c.is_whitespace() => SPACE,
                G::UppercaseLetter | G::LowercaseLetter => LETTER,
                G::DecimalNumber => NUMBER,
                G::Control => 0,
                G::MathSymbol | G::CurrencySymbol | G::ModifierSymbol | G::OtherSymbol => SYMBOL,
                _ => PUNCTUATION,
            };
            assert_eq!(class(c), expected, "{c:?}");
        }
    }

    #[test]
    fn classes_beyond_ascii() {
        for (c, expected) in [
            ('é', LETTER),
            ('日', LETTER),
            ('ʰ', LETTER),
            ('²', NUMBER),
            ('Ⅻ', NUMBER),
            ('٣', NUMBER),
            ('\u{301}', MARK),
            ('\u{93e}', MARK),
            ('。', PUNCTUATION),
            ('—', PUNCTUATION),
            ('€', SYMBOL),
            ('🚀', SYMBOL),
            ('\u{a0}', SPACE),
            ('\u{85}', SPACE),
            ('\u{3000}', SPACE),
            ('\u{2028}', SPACE),
            ('\u{200b}', 0),
            ('\u{200d}', 0),
            ('\u{fffe}', 0),
        ] {
            assert_eq!(class(c), expected, "{c:?}");
        }
    }
}
