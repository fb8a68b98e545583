//! Reasons why a tokenizer file is invalid. Every message gives the value found and the expected one; none
//! contains the file's name.

use thiserror::Error;

use crate::text::shown;

/// The reason why bytes are not a valid tokenizer.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages explain the fields
pub enum TokenizerError {
    #[error(
        "not the file of a tokenizer: expected SentencePiece's tokenizer.model, Hugging Face's \
         tokenizer.json, or Llama 3's tokenizer.model (lines of a token in base64 and its rank)"
    )]
    NotRecognised,

    #[error("{len} bytes, expected less than 2^32")]
    TooLong { len: usize },

    #[error("there are no tokens")]
    Empty,

    #[error("token {token}: its text is empty")]
    EmptyText { token: u64 },

    #[error("token {token}: its text {text} is not UTF-8")]
    TokenText { token: u64, text: Box<str> },

    #[error("token {token}: its score is {found}, expected a finite number")]
    Score { token: u64, found: f64 },

    #[error("tokens {first} and {second} have the same text {}", shown(.text.as_bytes()))]
    DuplicateToken { first: u64, second: u64, text: Box<str> },

    #[error(
        "id {id} belongs to two tokens, {} and {}",
        shown(.first.as_bytes()), shown(.second.as_bytes())
    )]
    DuplicateId { id: u32, first: Box<str>, second: Box<str> },

    #[error("token {token}: {} is no byte, expected <0x00> to <0xFF>", shown(.text.as_bytes()))]
    NotAByte { token: u64, text: Box<str> },

    #[error("{problem}")]
    Inconsistent { problem: &'static str },

    // SentencePiece
    #[error("{message} at byte {at}: {problem}")]
    Wire { message: &'static str, at: usize, problem: &'static str },

    #[error(
        "{message} at byte {at}: field {field} has wire type {found}, expected {expected} for it"
    )]
    WireType { message: &'static str, at: usize, field: u32, found: u8, expected: u8 },

    #[error("token {token}: its type is {found}, expected 1 to 6")]
    Type { token: u64, found: u64 },

    #[error("model_type is {found}: {advice}")]
    ModelType { found: u64, advice: &'static str },

    // tokenizer.json
    #[error("the text is not UTF-8 from byte {at} on")]
    NotUtf8 { at: usize },

    #[error("{part} is not the JSON of a tokenizer, at line {line}, column {column}: {reason}")]
    Json { part: &'static str, line: usize, column: usize, reason: Box<str> },

    #[error("{part} has {len} bytes, expected at most {most}")]
    PartTooLong { part: &'static str, len: usize, most: usize },

    #[error("{part}: {} is not supported: {advice}", shown(.found.as_bytes()))]
    Unsupported { part: &'static str, found: Box<str>, advice: &'static str },

    #[error(
        "the pre_tokenizer cuts text by rules that have no name in GGUF, and another cut would give \
         fluent nonsense: {rules}; ignore_merges: {ignore_merges}"
    )]
    UnknownPre { rules: Box<str>, ignore_merges: bool },

    #[error(
        "merge {merge}: {} is not two tokens with one space between", shown(.text.as_bytes())
    )]
    MergeText { merge: usize, text: Box<str> },

    #[error(
        "merge {merge} of {} and {}: {} is no token of the vocabulary",
        shown(.left.as_bytes()), shown(.right.as_bytes()), shown(.missing.as_bytes())
    )]
    MergeOfUnknown { merge: usize, left: Box<str>, right: Box<str>, missing: Box<str> },

    #[error(
        "merges {first} and {second} are the same, of {} and {}",
        shown(.left.as_bytes()), shown(.right.as_bytes())
    )]
    DuplicateMerge { first: usize, second: usize, left: Box<str>, right: Box<str> },

    #[error(
        "its tokens are too long: to try every cut of each takes more than {limit} bytes, ten times as many as \
         the largest vocabularies that there are"
    )]
    LongTokens { limit: u64 },

    // tiktoken
    #[error("line {line}: {problem}")]
    Line { line: usize, problem: &'static str },

    #[error("line {line}: rank {found}, expected {expected}: ranks count up from 0")]
    Rank { line: usize, found: u64, expected: u64 },

    #[error("no token is the single byte 0x{byte:02x}, so that some texts could not be encoded")]
    MissingByte { byte: u8 },

    #[error(
        "{found} ranks: the special tokens of such a file are not in it and only known for Llama 3, \
         which has {expected}; a tokenizer.json has them"
    )]
    NotLlama3 { found: usize, expected: usize },
}
