//! Weight-file headers into a catalog: metadata, and tensors with name, shape, type, offset and
//! length.
//!
//! Everything here is a pure function over bytes that the caller holds: no I/O, no threads, and no
//! panic whatever the bytes are. Names, strings and arrays borrow from those bytes: from memory that
//! nobody else writes to, or from the copies in a [`Header`]. A file is hostile until its header has been checked: every
//! number in it has a limit, and nothing is allocated in proportion to a number before the file is
//! known to be large enough to hold what the number counts.
//!
//! Errors say which key or tensor, what was found and what was expected; they do not know the
//! file's name, which the caller adds.

#![forbid(unsafe_code)]

pub mod ggml;
pub mod gguf;
pub mod packed;
pub mod recognise;
pub mod safetensors;
mod source;
pub mod split;
mod text;
pub mod tokenizer;
pub mod torch;

pub use alight_types::{GgmlType, TypeError};
pub use recognise::{Format, recognise};
pub use source::{Header, Memory, Source};
