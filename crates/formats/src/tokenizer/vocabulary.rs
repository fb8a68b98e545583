//! The common result of reading a tokenizer file, whichever of the three formats it is in.

use std::borrow::Cow;

/// GGUF's `token_type`; SentencePiece has the same types with the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum TokenType {
    /// Ordinary text.
    Normal = 1,
    /// Represents text that could not be encoded.
    Unknown = 2,
    /// Begin and end of text, padding: never made from text.
    Control = 3,
    /// Matched in the text before anything is merged.
    UserDefined = 4,
    /// Not used.
    Unused = 5,
    /// One byte, written `<0x0A>`.
    Byte = 6,
}

/// One token.
#[derive(Clone, Debug, PartialEq)]
pub struct Token<'a> {
    /// Its id, the row of the embedding.
    pub id: u32,
    /// GGUF's form: with `▁` or `Ġ` for spaces in ordinary text, otherwise as it is spelled.
    pub text: Cow<'a, str>,
    /// Its priority in merging, or its log probability; 0 if the model has none. Finite.
    pub score: f32,
    /// Its type.
    pub ty: TokenType,
}

/// How text becomes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// Neighbours whose joint text is the token with the highest score are merged first.
    SentencePiece,
    /// Merges by rank, over an alphabet of bytes.
    ByteLevel,
    /// Merges by rank, over characters; spaces are `▁`.
    Characters,
    /// The most probable sequence of tokens.
    Unigram,
    /// The longest tokens of each word, from its beginning on.
    WordPiece,
}

impl Model {
    /// Its name in `tokenizer.ggml.model`.
    pub fn name(self) -> &'static str {
        match self {
            Model::SentencePiece => "llama",
            Model::ByteLevel => "gpt2",
            Model::Characters => "gemma4",
            Model::Unigram => "t5",
            Model::WordPiece => "bert",
        }
    }
}

/// The ids of special tokens, as far as the file has them. All are tokens of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Special {
    /// Begin of text.
    pub bos: Option<u32>,
    /// End of text.
    pub eos: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    /// End of message.
    pub eom: Option<u32>,
    /// Unknown text.
    pub unknown: Option<u32>,
    /// Padding of batches.
    pub padding: Option<u32>,
}

/// How WordPiece normalises text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordPieceRules {
    /// True if text is lower-cased.
    pub lowercase: bool,
    /// True if marks are removed.
    pub strip_accents: bool,
    /// True if control characters are removed.
    pub clean_text: bool,
    /// True if ideographs are words of their own.
    pub split_ideographs: bool,
}

/// The contents of a file, in GGUF's terms.
#[derive(Clone, Debug, PartialEq)]
pub struct Vocabulary<'a> {
    /// How text becomes tokens.
    pub model: Model,
    /// `tokenizer.ggml.pre`: how text is split before it is merged.
    pub pre: &'static str,
    /// In ascending order of ids, each id once. There may be gaps.
    pub tokens: Vec<Token<'a>>,
    /// `left right` by rank, for models that have ranks.
    pub merges: Vec<Cow<'a, str>>,
    /// Special tokens.
    pub special: Special,
    /// True if begin of text is put before every text.
    pub add_bos: Option<bool>,
    /// True if end of text is put after every text.
    pub add_eos: Option<bool>,
    /// True if a space is put before every text.
    pub add_space_prefix: bool,
    /// For Unigram: true if spaces at the ends of a text are removed, and runs of spaces become one.
    pub remove_extra_whitespaces: bool,
    /// For Unigram: the normalisation of text, as compiled by SentencePiece; empty for none.
    pub charsmap: Cow<'a, [u8]>,
    /// For WordPiece: how text is normalised.
    pub word_piece: Option<WordPieceRules>,
    /// Notes for the user: settings that GGUF cannot express, and unusual ones.
    pub notes: Vec<String>,
}

/// Returns true if the spelling shows that an added token not marked as special must be one: some models have
/// those. The same spellings as in llama.cpp's `does_token_look_special` (`conversion/base.py`): DeepSeek
/// Coder's padding, Gemma's mask and its spare tokens, and names in `<|…|>`.
pub fn looks_special(text: &str) -> bool {
    let within = |open, close| text.starts_with(open) && text.ends_with(close);
    matches!(text, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || within("<|", "|>")
        || within("<｜", "｜>")
        || within("<unused", ">")
}

/// The byte that a token spells as `<0x0A>`.
pub fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if hex { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_two_digits_of_hexadecimal() {
        assert_eq!(byte_of("<0x0A>"), Some(10));
        assert_eq!(byte_of("<0xff>"), Some(255));
        for text in ["<0xGG>", "<0x-1>", "<0x+1>", "<0x1>", "<0x123>", "0x0A", "<0x0A", ""] {
            assert_eq!(byte_of(text), None, "{text}");
        }
    }

    #[test]
    fn special_by_spelling() {
        for text in ["<pad>", "<|im_end|>", "<｜begin▁of▁sentence｜>", "<unused12>", "[@BOS@]"]
        {
            assert!(looks_special(text), "{text}");
        }
        for text in ["", "</b>", "<|", "|>", "<unused", "<think>", "a<|b|>"] {
            assert!(!looks_special(text), "{text}");
        }
    }
}
