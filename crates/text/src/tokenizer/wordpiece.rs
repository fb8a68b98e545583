//! WordPiece, the tokenizer of BERT: text is normalised and cut into words, and each word into the longest tokens from its beginning on.
//!
//! In GGUF, a token that begins a word has a `▁` before it, and one that continues a word has lost its `##`. The rules are those of
//! Hugging Face's `BertNormalizer`, `BertPreTokenizer` and `WordPiece`. llama.cpp differs in these points: it has no longest word,
//! it lower-cases to one character only (`İ` becomes two), and a `▁` of the text itself can spell the beginning of a word. The library has
//! the categories of Unicode 8, so a mark or a punctuation character that is newer is an ordinary character there, and here it is not.
//!
//! Invariant: a word with tokens has at most [`MAX_CHARS`] characters, so a character costs at most that many look-ups, and encoding takes
//! time proportional to the text, and memory independent of it.

use alight_formats::gguf::{Gguf, GgufError};
use unicode_general_category::{GeneralCategory as G, get_general_category};
use unicode_normalization::UnicodeNormalization;

use super::stop::StopCheck;
use super::vocab::{Lookup, Vocab};

/// Maximum number of characters of a word that is looked up. A longer one is unknown.
const MAX_CHARS: usize = 100;

/// Precedes a word.
const MARK: &str = "\u{2581}";

/// The parts of the model other than its vocabulary.
pub(crate) struct WordPiece {
    /// True if control characters are removed.
    clean_text: bool,
    /// True if ideographs are words of their own.
    split_ideographs: bool,
    strip_accents: bool,
    lowercase: bool,
}

impl WordPiece {
    /// Reads the model's metadata other than the vocabulary.
    ///
    /// # Errors
    /// A key of another type.
    pub(crate) fn new(gguf: &Gguf<'_>, vocab: &Vocab) -> Result<WordPiece, GgufError> {
        let flag = |name: &str| gguf.get_bool(&format!("tokenizer.ggml.normalizer.{name}"));
        // Files from before the keys existed: a vocabulary of lower-cased text has no such token.
        let is_cased = || vocab.id("\u{2581}The".as_bytes()).is_some();
        let lowercase = flag("lowercase")?.unwrap_or_else(|| !is_cased());
        Ok(WordPiece {
            clean_text: flag("clean_text")?.unwrap_or(true),
            split_ideographs: flag("handle_chinese_chars")?.unwrap_or(true),
            strip_accents: flag("strip_accents")?.unwrap_or(lowercase),
            lowercase,
        })
    }

    /// Appends the tokens of `text`.
    pub(crate) fn encode(
        &self,
        text: &str,
        vocab: Lookup<'_>,
        unknown: Option<u32>,
        check: &mut StopCheck,
        out: &mut Vec<u32>,
    ) {
        self.words(text, |word| {
            if check.stopped() {
                return;
            }
            if !word.is_some_and(|word| cut(word, vocab, check, out)) {
                out.extend(unknown);
            }
        });
    }

    /// Calls `each` with the words of `text` in order, each after a [`MARK`]; with `None` for one that is too long to have tokens.
    pub(crate) fn words(&self, text: &str, mut each: impl FnMut(Option<&str>)) {
        let kept = text.chars().filter(|&c| !(self.clean_text && is_removed(c)));
        let spaced = kept.flat_map(|c| {
            let alone = self.split_ideographs && is_ideograph(c);
            [' ', c, ' '].into_iter().skip(usize::from(!alone)).take(if alone { 3 } else { 1 })
        });
        let mut word = Word::default();
        if self.strip_accents {
            let stripped = spaced.nfd().filter(|&c| !is_accent(c));
            stripped.for_each(|c| self.push(c, &mut word, &mut each));
        } else {
            spaced.for_each(|c| self.push(c, &mut word, &mut each));
        }
        word.end(&mut each);
    }

    fn push(&self, c: char, word: &mut Word, each: &mut impl FnMut(Option<&str>)) {
        if !self.lowercase {
            return word.push(c, each);
        }
        if c.is_ascii() {
            return word.push(c.to_ascii_lowercase(), each);
        }
        c.to_lowercase().for_each(|c| word.push(c, each));
    }
}

/// Appends the tokens of a word. Returns false, and appends none, if a part of it is no token.
fn cut(word: &str, vocab: Lookup<'_>, check: &mut StopCheck, out: &mut Vec<u32>) -> bool {
    let before = out.len();
    let longest = vocab.vocab.texts().longest();
    let mut at = 0;
    while at < word.len() {
        // The first token has the mark of the word.
        let shortest = if at == 0 { MARK.len() + 1 } else { 1 };
        let mut end = word.floor_char_boundary(word.len().min(at.saturating_add(longest)));
        let found = loop {
            if end < at + shortest || check.step() {
                break None;
            }
            let piece = &word[at..end];
            // A token with a mark and more begins a word.
            let begins = at > 0 && piece.len() > MARK.len() && piece.starts_with(MARK);
            match vocab.plain_id(piece.as_bytes()).filter(|_| !begins) {
                Some(id) => break Some(id),
                None => end = word.floor_char_boundary(end - 1),
            }
        };
        let Some(id) = found else {
            out.truncate(before);
            return false;
        };
        out.push(id);
        at = end;
    }
    true
}

/// The word that is being read.
#[derive(Default)]
struct Word {
    /// Empty, or a [`MARK`] and the characters, of which only the first [`MAX_CHARS`] are kept.
    text: String,
    chars: usize,
}

impl Word {
    /// Adds a character of the normalised text.
    fn push(&mut self, c: char, each: &mut impl FnMut(Option<&str>)) {
        if c.is_whitespace() {
            self.end(each);
        } else if is_punctuation(c) {
            self.end(each);
            self.add(c);
            self.end(each);
        } else {
            self.add(c);
        }
    }

    fn add(&mut self, c: char) {
        if self.chars == 0 {
            self.text.push_str(MARK);
        }
        if self.chars < MAX_CHARS {
            self.text.push(c);
        }
        self.chars += 1;
    }

    fn end(&mut self, each: &mut impl FnMut(Option<&str>)) {
        match self.chars {
            0 => return,
            1..=MAX_CHARS => each(Some(&self.text)),
            _ => each(None),
        }
        self.text.clear();
        self.chars = 0;
    }
}

/// Characters that are left out. Tabs and ends of lines are not among them, although they are control characters.
fn is_removed(c: char) -> bool {
    match c {
        '\t' | '\n' | '\r' => false,
        ' '..='~' => false,
        '\0' | '\u{fffd}' => true,
        c => matches!(get_general_category(c), G::Control | G::Format | G::PrivateUse),
    }
}

/// Marks that take no place of their own.
fn is_accent(c: char) -> bool {
    !c.is_ascii() && get_general_category(c) == G::NonspacingMark
}

/// P*, and the symbols of ASCII.
fn is_punctuation(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_punctuation();
    }
    matches!(
        get_general_category(c),
        G::ConnectorPunctuation
            | G::DashPunctuation
            | G::OpenPunctuation
            | G::ClosePunctuation
            | G::InitialPunctuation
            | G::FinalPunctuation
            | G::OtherPunctuation
    )
}

/// The ideographs that BERT's own code lists (the sixth range begins one block too late, and so it does there).
fn is_ideograph(c: char) -> bool {
    matches!(c,
        '\u{4e00}'..='\u{9fff}'
        | '\u{3400}'..='\u{4dbf}'
        | '\u{20000}'..='\u{2a6df}'
        | '\u{2a700}'..='\u{2b73f}'
        | '\u{2b740}'..='\u{2b81f}'
        | '\u{2b920}'..='\u{2ceaf}'
        | '\u{f900}'..='\u{faff}'
        | '\u{2f800}'..='\u{2fa1f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNCASED: WordPiece = WordPiece {
        clean_text: true,
        split_ideographs: true,
        strip_accents: true,
        lowercase: true,
    };

    fn words(rules: &WordPiece, text: &str) -> Vec<Option<String>> {
        let mut words = Vec::new();
        rules.words(text, |word| {
            words.push(word.map(|word| word.strip_prefix(MARK).unwrap().to_owned()));
        });
        words
    }

    #[track_caller]
    fn check(rules: &WordPiece, text: &str, expected: &[&str]) {
        let found: Vec<String> = words(rules, text).into_iter().map(Option::unwrap).collect();
        assert_eq!(found, expected, "{text:?}");
    }

    #[test]
    fn text_becomes_words() {
        for (text, expected) in [
            ("", &[][..]),
            (" \t\n", &[]),
            ("Héllo, World!", &["hello", ",", "world", "!"]),
            ("don't 3.14 $x_1", &["don", "'", "t", "3", ".", "14", "$", "x", "_", "1"]),
            // Compatibility ideographs are recognised before they are decomposed.
            ("日本x\u{f900}y", &["日", "本", "x", "\u{8c48}", "y"]),
            ("a\u{ad}b\u{200d}c\0d\u{fffd}e\u{b}f", &["abcdef"]),
            ("a\u{a0}b\u{2028}c", &["a", "b", "c"]),
            ("\u{130}I\u{df}\u{1e9e}", &["iißß"]),
            ("각", &["\u{1100}\u{1161}\u{11a8}"]),
            ("«…»—·", &["«", "…", "»", "—", "·"]),
            ("\u{2581}a €", &["\u{2581}a", "€"]),
            // Unassigned: kept.
            ("a\u{378}", &["a\u{378}"]),
        ] {
            check(&UNCASED, text, expected);
        }
    }

    #[test]
    fn every_rule_can_be_off() {
        let cased = WordPiece { lowercase: false, strip_accents: false, ..UNCASED };
        check(&cased, "Héllo \u{130}", &["Héllo", "\u{130}"]);
        let accented = WordPiece { strip_accents: false, ..UNCASED };
        // One character becomes two.
        check(&accented, "É \u{130}", &["é", "i\u{307}"]);
        check(&WordPiece { split_ideographs: false, ..UNCASED }, "日本", &["日本"]);
        check(
            &WordPiece { clean_text: false, ..UNCASED },
            "a\u{200b}b\u{b}c",
            &["a\u{200b}b", "c"],
        );
    }

    #[test]
    fn a_word_that_is_too_long_has_no_tokens() {
        for (n, is_word) in [(99, true), (100, true), (101, false), (1000, false)] {
            // The characters count, not the bytes; and those after normalising.
            for c in ["a", "ж", "e\u{301}"] {
                let found = words(&UNCASED, &format!("x {} y", c.repeat(n)));
                let known = found.iter().map(Option::is_some).collect::<Vec<_>>();
                assert_eq!(known, [true, is_word, true], "{n} {c}");
            }
        }
    }
}
