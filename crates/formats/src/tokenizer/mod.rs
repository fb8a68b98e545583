//! Tokenizer files, as distributed with weights: SentencePiece's `tokenizer.model`, Hugging Face's
//! `tokenizer.json`, and Llama 3's `tokenizer.model`, which is a tiktoken file. All are converted to a
//! [`Vocabulary`], in GGUF's terms. BERT's `vocab.txt` is known by its name alone ([`word_list`]).
//!
//! Pure functions over the bytes of a file, which is hostile until it has been checked: no panic, memory in
//! proportion to the file's length, one typed error for each way in which it can be wrong.

pub mod alphabet;
mod error;
pub mod json;
pub mod sentencepiece;
pub mod tiktoken;
mod vocabulary;
mod wire;
pub mod word_list;

pub use error::TokenizerError;
pub use vocabulary::{
    Model, Special, Token, TokenType, Vocabulary, WordPieceRules, byte_of, looks_special,
};

/// Maximum bytes of a file. Real ones have up to 40 MB.
pub const MAX_FILE: usize = u32::MAX as usize;

/// Maximum sum of the squared lengths of tokens. It bounds the bytes looked up where every split of a token
/// into two others is tried, and the length of the merges made from these splits. Gemma's 262 144 tokens sum to 27 million.
const MAX_CUTS: u64 = 1 << 28;

/// Counts a token of `len` bytes, for which every split is tried.
fn count_cuts(sum: &mut u64, len: usize) -> Result<(), TokenizerError> {
    let len = len as u64;
    *sum = sum.saturating_add(len.saturating_mul(len));
    match *sum <= MAX_CUTS {
        true => Ok(()),
        false => Err(TokenizerError::LongTokens { limit: MAX_CUTS }),
    }
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SentencePiece's `tokenizer.model`.
    SentencePiece,
    /// Hugging Face's `tokenizer.json`.
    Json,
    /// A tiktoken file, Llama 3's `tokenizer.model`.
    Tiktoken,
}

/// Recognises the format by content, since two of them share a name.
pub fn recognise(file: &[u8]) -> Option<Kind> {
    let text = file.trim_ascii_start();
    if let Some(rest) = text.strip_prefix(b"{")
        && matches!(rest.trim_ascii_start().first(), Some(b'"' | b'}'))
    {
        return Some(Kind::Json);
    }
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii_end();
    let mut words = line.split(|byte| *byte == b' ');
    let base64 = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
    if let (Some(token @ [_, ..]), Some(rank @ [_, ..]), None) =
        (words.next(), words.next(), words.next())
        && token.iter().all(base64)
        && rank.iter().all(u8::is_ascii_digit)
    {
        return Some(Kind::Tiktoken);
    }
    // The first field of a model is a piece: tag, length, and another tag.
    match file {
        [0x0a, _, _, ..] => Some(Kind::SentencePiece),
        _ => None,
    }
}

/// A parsed file.
#[derive(Clone, Debug)]
pub enum File<'a> {
    /// SentencePiece's.
    SentencePiece(sentencepiece::SentencePiece<'a>),
    /// Hugging Face's.
    Json(Box<json::File<'a>>),
    /// tiktoken's.
    Tiktoken(tiktoken::Ranks),
}

impl Kind {
    /// Reads a file of this format.
    ///
    /// # Errors
    /// It is invalid.
    pub fn parse(self, file: &[u8]) -> Result<File<'_>, TokenizerError> {
        Ok(match self {
            Kind::SentencePiece => File::SentencePiece(sentencepiece::parse(file)?),
            Kind::Json => File::Json(Box::new(json::parse(file)?)),
            Kind::Tiktoken => File::Tiktoken(tiktoken::parse(file)?),
        })
    }
}

impl<'a> File<'a> {
    /// Converts the file to GGUF's terms.
    ///
    /// # Errors
    /// It has settings that GGUF cannot express, or is inconsistent.
    pub fn vocabulary(&self) -> Result<Vocabulary<'a>, TokenizerError> {
        match self {
            File::SentencePiece(file) => Ok(file.vocabulary()),
            File::Json(file) => file.vocabulary(),
            File::Tiktoken(file) => file.llama3(),
        }
    }
}

/// Reads a file in any of the formats.
///
/// # Errors
/// It is in none of them, or invalid.
pub fn read(file: &[u8]) -> Result<Vocabulary<'_>, TokenizerError> {
    recognise(file).ok_or(TokenizerError::NotRecognised)?.parse(file)?.vocabulary()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_apart_by_content() {
        for json in ["{\"version\": 1}", "\n{\n  \"model\": {", " {}", "{ \"a"] {
            assert_eq!(recognise(json.as_bytes()), Some(Kind::Json), "{json}");
        }
        assert_eq!(recognise(b"IQ== 0\nIg== 1\n"), Some(Kind::Tiktoken));
        assert_eq!(recognise(b"IQ== 0\r\nIg== 1\r\n"), Some(Kind::Tiktoken));
        assert_eq!(recognise(b"\x0a\x0e\x0a\x05<unk>"), Some(Kind::SentencePiece));
        assert_eq!(recognise(b"\x0a\x7b\x0a\x05<unk>"), Some(Kind::SentencePiece));
        for other in
            [&b""[..], b"\n", b"GGUF", b"[1]", b"{1}", b"IQ==", b"IQ== x", b"I 1 1", b"PK\x03\x04"]
        {
            assert_eq!(recognise(other), None, "{other:?}");
        }
        assert_eq!(read(b"GGUF").unwrap_err(), TokenizerError::NotRecognised);
    }
}
