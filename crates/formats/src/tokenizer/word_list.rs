//! BERT's `vocab.txt`: a token of WordPiece on each line, whose number is its id.

use std::borrow::Cow;
use std::collections::HashMap;

use super::TokenizerError as E;
use super::vocabulary::{Model, Special, Token, TokenType, Vocabulary, WordPieceRules};

/// Texts of special tokens, as far as there are any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordListSpecial<'s> {
    /// Stands for text without tokens.
    pub unknown: &'s str,
    /// Begins a text.
    pub begin: &'s str,
    /// Ends a text.
    pub end: &'s str,
    /// Fills up batches.
    pub padding: &'s str,
    /// Others.
    pub others: &'s [&'s str],
}

/// The text of a token in GGUF's terms, in which one that begins a word has a `▁` before it, and one that continues a word has lost its `##`.
pub(super) fn piece_text<'a>(text: &Cow<'a, str>, kind: TokenType) -> Cow<'a, str> {
    match (kind, text.strip_prefix("##")) {
        (TokenType::Control | TokenType::Unknown, _) => text.clone(),
        (_, Some(rest)) if !rest.is_empty() => Cow::Owned(rest.to_owned()),
        _ => Cow::Owned(format!("▁{text}")),
    }
}

/// Reads a file. Text is normalised by `rules`, which are in another one.
///
/// # Errors
/// It is not UTF-8, has no token or two of the same text, or none that stands for unknown text.
pub fn parse<'a>(
    file: &'a [u8],
    rules: WordPieceRules,
    special: &WordListSpecial<'_>,
) -> Result<Vocabulary<'a>, E> {
    let text = str::from_utf8(file).map_err(|error| E::NotUtf8 { at: error.valid_up_to() })?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    if u32::try_from(text.len()).is_err() {
        return Err(E::TooLong { len: text.len() });
    }
    let mut ids = HashMap::new();
    let mut tokens = Vec::new();
    for (id, line) in (0..).zip(text.split('\n')) {
        let line = line.strip_suffix('\r').unwrap_or(line);
        if let Some(first) = ids.insert(line, id) {
            let (first, second) = (first.into(), id.into());
            return Err(E::DuplicateToken { first, second, text: line.into() });
        }
        let is_control = [special.begin, special.end, special.padding].contains(&line);
        let kind = match line {
            "" => TokenType::Unused,
            line if line == special.unknown => TokenType::Unknown,
            line if is_control || special.others.contains(&line) => TokenType::Control,
            _ => TokenType::Normal,
        };
        tokens.push(Token { id, text: piece_text(&line.into(), kind), score: 0.0, ty: kind });
    }
    let id = |text: &str| ids.get(text).copied();
    if id(special.unknown).is_none() {
        return Err(E::Inconsistent { problem: "no token stands for unknown text ([UNK])" });
    }
    Ok(Vocabulary {
        model: Model::WordPiece,
        pre: "default",
        tokens,
        merges: Vec::new(),
        special: Special {
            bos: id(special.begin),
            eos: id(special.end),
            unknown: id(special.unknown),
            padding: id(special.padding),
            ..Special::default()
        },
        add_bos: Some(true),
        add_eos: Some(true),
        add_space_prefix: false,
        remove_extra_whitespaces: false,
        charsmap: Cow::Borrowed(&[]),
        word_piece: Some(rules),
        notes: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: WordPieceRules = WordPieceRules {
        lowercase: true,
        strip_accents: true,
        clean_text: true,
        split_ideographs: true,
    };
    const SPECIAL: WordListSpecial<'_> = WordListSpecial {
        unknown: "[UNK]",
        begin: "[CLS]",
        end: "[SEP]",
        padding: "[PAD]",
        others: &["[MASK]"],
    };

    #[test]
    fn a_line_is_a_token() {
        let file = b"[PAD]\n[UNK]\r\n[CLS]\n[SEP]\n[MASK]\na\n##b\n##\n";
        let found = parse(file, RULES, &SPECIAL).unwrap();
        let texts: Vec<&str> = found.tokens.iter().map(|token| &*token.text).collect();
        assert_eq!(texts, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁a", "b", "▁##"]);
        assert_eq!((found.special.bos, found.special.eos), (Some(2), Some(3)));
        assert_eq!((found.special.unknown, found.special.padding), (Some(1), Some(0)));
        let kinds = found.tokens.iter().filter(|token| token.ty == TokenType::Control).count();
        assert_eq!(kinds, 4);
        let wrong = |file: &[u8]| parse(file, RULES, &SPECIAL).unwrap_err();
        assert!(matches!(wrong(b"[UNK]\na\na\n"), E::DuplicateToken { first: 1, second: 2, .. }));
        assert!(matches!(wrong(b"a\n"), E::Inconsistent { .. }));
        assert!(matches!(wrong(b"[UNK]\n\xff"), E::NotUtf8 { at: 6 }));
    }
}
