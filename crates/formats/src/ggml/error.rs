//! One error for each way in which such a file can be wrong. Every message names the place, and gives the value
//! found and the expected one; none contains the file's name.

use std::fmt;

use thiserror::Error;

use super::{Era, LegacyType, LegacyTypeError, Magic};
use crate::text::shown;

/// The place in a file where something was read. Names are escaped and truncated for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GgmlField {
    /// Magic, version and the seven numbers.
    Header,
    /// Token number `.0`, counted from 0.
    Token(u32),
    /// The description of tensor number `.0`, counted from 0, up to its name.
    TensorNumber(usize),
    /// The tensor `.0`.
    Tensor(Box<str>),
}

impl fmt::Display for GgmlField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GgmlField::Header => write!(f, "header"),
            GgmlField::Token(index) => write!(f, "token {index}"),
            GgmlField::TensorNumber(index) => write!(f, "tensor {index}"),
            GgmlField::Tensor(name) => write!(f, "tensor {}", shown(name.as_bytes())),
        }
    }
}

/// The reason why bytes are not a valid file.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages explain the fields
pub enum GgmlError {
    #[error(
        "not a model file of llama.cpp before GGUF: it begins with {}, expected \"lmgg\", \"fmgg\" or \
         \"tjgg\"",
        shown(.found)
    )]
    BadMagic { found: [u8; 4] },

    #[error(
        "the file is big-endian {magic}: its weights would have to be byte-swapped, which is not \
         supported; convert the original again on a little-endian machine"
    )]
    BigEndian { magic: &'static str },

    #[error(
        "a LoRA adapter (magic ggla), which holds changes to a model and no model; apply it to its \
         base model and convert that"
    )]
    Lora,

    #[error("a saved session of llama.cpp (magic ggsn), which holds a conversation and no model")]
    Session,

    #[error("{magic} version {found} is unknown, expected {expected}")]
    Version { magic: Magic, found: u32, expected: &'static str },

    /// The bytes end before the announced length.
    #[error(
        "{place}: {what} at byte {at} needs {needed} bytes, but only {available} are left; \
         the file is cut short or its header is wrong"
    )]
    Truncated { place: GgmlField, what: &'static str, at: u64, needed: u64, available: u64 },

    #[error(
        "header: {what} is {found}, expected {min} to {max}; the file is damaged, or holds another \
         kind of model than LLaMA"
    )]
    Hparam { what: &'static str, found: i32, min: i32, max: i32 },

    #[error("header: {n_head} heads do not divide {n_embd} embedding elements")]
    Heads { n_head: u32, n_embd: u32 },

    #[error("header: {found} tokens are announced, but the file could hold at most {limit}")]
    TokenCount { found: u32, limit: u64 },

    #[error("{place}: its text has {found} bytes, expected at most {limit}")]
    TokenLength { place: GgmlField, found: u64, limit: u32 },

    #[error("{place} ends more than {limit} bytes after the first, more than any vocabulary has")]
    VocabularyLength { place: GgmlField, limit: u64 },

    #[error("more than {limit} tensors, more than any model has")]
    TensorCount { limit: usize },

    #[error("{place}: {found} dimensions, expected 1 or 2")]
    Dimensions { place: GgmlField, found: i32 },

    #[error("{place}: dimension {index} is {found}, expected 1 to {}", i32::MAX)]
    Dimension { place: GgmlField, index: usize, found: i32 },

    #[error("{place}: the name is {found} bytes long, expected 1 to {limit}")]
    NameLength { place: GgmlField, found: i32, limit: u32 },

    #[error("{place}: a zero byte at offset {at} of the name {text}")]
    NulInName { place: GgmlField, text: Box<str>, at: usize },

    #[error("{place}: the name is not UTF-8 from byte {at} on: {text}")]
    NotUtf8 { place: GgmlField, text: Box<str>, at: usize },

    #[error("tensor {} occurs twice, as tensors {first} and {second}", shown(.name.as_bytes()))]
    DuplicateTensor { name: Box<str>, first: usize, second: usize },

    #[error("{place}: {reason}")]
    TensorType { place: GgmlField, reason: LegacyTypeError },

    #[error("{place}: has one dimension and type {found}, expected F32")]
    VectorType { place: GgmlField, found: LegacyType },

    #[error("{place}: rows of {found} elements, expected a multiple of {block} for type {ty}")]
    PartialBlock { place: GgmlField, found: u64, block: u64, ty: LegacyType },

    #[error("{place}: shape [{}, {}] has more bytes than 63 bits can count", ne[0], ne[1])]
    ShapeOverflow { place: GgmlField, ne: [u64; 2] },

    #[error(
        "blocks cannot be \"{wanted}\" here: only {} files of the first days with F32, F16, Q4_0 and \
         Q4_1 were; this one is {magic}{}{}",
        Magic::Ggml,
        version.map_or(String::new(), |version| format!(" version {version}")),
        ty.map_or(String::new(), |ty| format!(" with {ty}"))
    )]
    Era { magic: Magic, version: Option<u32>, wanted: Era, ty: Option<LegacyType> },

    #[error("token {token} is not UTF-8: {text}")]
    TokenText { token: u32, text: Box<str> },
}
