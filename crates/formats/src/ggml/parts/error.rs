//! One error for each way in which parts do not form a model. Parts are counted from 0; the caller knows their names.

use thiserror::Error;

use crate::ggml::LegacyType;
use crate::text::shown;

/// The reason why parts do not form a whole model.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages explain the fields
pub enum PartsError {
    #[error("no parts were given")]
    None,

    #[error("part {part} is {found}, expected {expected} as the first part is")]
    Kind { part: u32, found: String, expected: String },

    #[error(
        "part {part} has {what} {found}, expected {expected} as the first part has; they are not \
         parts of one model"
    )]
    Hparam { part: u32, what: &'static str, found: u32, expected: u32 },

    #[error("part {part} has another vocabulary than the first, from token {token} on")]
    Vocabulary { part: u32, token: usize },

    #[error(
        "the embedding has rows of {found} elements, and the model's {n_embd} are no multiple of it: \
         it cannot be a part of them"
    )]
    Width { found: u64, n_embd: u32 },

    #[error(
        "{found} parts, expected {expected}: the first holds one of {expected} pieces of the embedding"
    )]
    Count { found: usize, expected: u32 },

    #[error(
        "part {part}: tensor {} is missing; the file was cut short between two tensors, or is no \
         LLaMA model",
        shown(.name.as_bytes())
    )]
    Missing { part: u32, name: Box<str> },

    #[error("part {part}: tensor {} is not one of a LLaMA model", shown(.name.as_bytes()))]
    Unknown { part: u32, name: Box<str> },

    #[error("part {part}: tensor {} is of type {found}, expected {expected}", shown(.name.as_bytes()))]
    Type { part: u32, name: Box<str>, found: LegacyType, expected: LegacyType },

    #[error("part {part}: tensor {} has the shape {found:?}, expected {expected:?}", shown(.name.as_bytes()))]
    Shape { part: u32, name: Box<str>, found: Box<[u64]>, expected: Box<[u64]> },

    #[error("tensor {}: {full} {} cannot be cut into {parts} equal parts", shown(.name.as_bytes()), ["columns", "rows"][usize::from(*axis != 0)])]
    Indivisible { name: Box<str>, axis: usize, full: u64, parts: usize },

    #[error(
        "tensor \"layers.0.attention.wk.weight\" has {rows} rows in all parts, expected heads of \
         {head_dim} rows whose number divides {n_head}"
    )]
    KvHeads { rows: u64, head_dim: u64, n_head: u32 },

    #[error(
        "part {part}: tensor {} differs from that of the first part from element {element} on, but \
         every part repeats it",
        shown(.name.as_bytes())
    )]
    ReplicaDiffers { part: u32, name: Box<str>, element: u64 },

    #[error("part {part}: the bytes are not those that were parsed")]
    Bytes { part: u32 },
}
