//! What the files of tokenizers come to, whichever of the three formats they are in.

use std::borrow::Cow;

/// What GGUF calls `token_type`; SentencePiece has the same kinds under the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum TokenType {
    /// Ordinary text.
    Normal = 1,
    /// What could not be encoded.
    Unknown = 2,
    /// Begin and end of text, padding: never made from text.
    Control = 3,
    /// Found in the text before anything is merged.
    UserDefined = 4,
    /// Stands for nothing.
    Unused = 5,
    /// One byte, written `<0x0A>`.
    Byte = 6,
}

/// One token.
#[derive(Clone, Debug, PartialEq)]
pub struct Token<'a> {
    /// Its number, the row of the embedding.
    pub id: u32,
    /// As GGUF has it: with `▁` or `Ġ` for spaces where it is ordinary text, else as it is spelled.
    pub text: Cow<'a, str>,
    /// How early it is merged, or its logarithmic probability; 0 where the model has none. Finite.
    pub score: f32,
    /// What it is.
    pub ty: TokenType,
}

/// How text becomes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// Neighbours whose joint text is the token of highest score are merged first.
    SentencePiece,
    /// Merges by rank, over an alphabet of bytes.
    ByteLevel,
    /// Merges by rank, over characters; spaces are `▁`.
    Characters,
    /// The most probable sequence of tokens.
    Unigram,
}

impl Model {
    /// Its name in `tokenizer.ggml.model`.
    pub fn name(self) -> &'static str {
        match self {
            Model::SentencePiece => "llama",
            Model::ByteLevel => "gpt2",
            Model::Characters => "gemma4",
            Model::Unigram => "t5",
        }
    }
}

/// The ids of tokens with a meaning, as far as the file says. All are tokens of the file.
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
    /// What could not be encoded.
    pub unknown: Option<u32>,
    /// What fills up batches.
    pub padding: Option<u32>,
}

/// What a file says, in the terms of GGUF.
#[derive(Clone, Debug, PartialEq)]
pub struct Vocabulary<'a> {
    /// How text becomes tokens.
    pub model: Model,
    /// `tokenizer.ggml.pre`: how text is cut before it is merged.
    pub pre: &'static str,
    /// Ascending by id, each id once. There may be holes.
    pub tokens: Vec<Token<'a>>,
    /// `left right` by rank, of a model that has ranks.
    pub merges: Vec<Cow<'a, str>>,
    /// Tokens with a meaning.
    pub special: Special,
    /// True if begin of text goes before every text.
    pub add_bos: Option<bool>,
    /// True if end of text goes after every text.
    pub add_eos: Option<bool>,
    /// True if a space goes before every text.
    pub add_space_prefix: bool,
    /// Of unigram: whether spaces at the ends of a text, and of several all but one, are left out.
    pub remove_extra_whitespaces: bool,
    /// Of unigram: how text is normalised, as SentencePiece compiles it; empty: not.
    pub charsmap: Cow<'a, [u8]>,
    /// What a person should know: what GGUF cannot say, and what is not as usual.
    pub notes: Vec<String>,
}

/// True if a token that is added and not called special must be one by its spelling: some models
/// have those. The same spellings as in llama.cpp's `does_token_look_special`
/// (`conversion/base.py`): DeepSeek Coder's padding, Gemma's mask and its spare tokens, and what
/// stands in `<|…|>`.
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
