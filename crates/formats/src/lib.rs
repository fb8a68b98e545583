//! Parses headers of weight files into a catalog: metadata, and tensors with name, shape, type, offset and
//! length. GGUF versions 1 to 3, split files, packed files; safetensors and its index of shards; torch's zip
//! files; llama.cpp's formats before GGUF; tokenizer files; and LoRA adapters.
//!
//! Everything here is a pure function over bytes that the caller holds. A file is hostile until its header has been checked.
//!
//! **Invariant:** no I/O, no thread, no panic, whatever the bytes are. No parser recurses to a depth that a file chooses.
//!
//! **Invariant:** every number in a file has a limit. Time is linear in the header's length; memory is
//! proportional to the bytes read, never to an announced number: nothing is allocated for a count before the
//! file is known to be large enough to hold that many elements.
//!
//! **Invariant:** a parser requests ranges of bytes from a [`Source`]: memory that nothing else writes to, or a
//! [`Header`], which copies each piece out of the file once. A catalog borrows names, text and arrays only from
//! there. So a process that writes to the file can change what is read, but not what has been checked.
//!
//! **Invariant:** there is one typed error for each way in which a header can be wrong. It names the key or the
//! tensor, the value found and the expected one. It does not contain the file's name, which the caller adds.
//!
//! **Invariant:** formats are recognised by content ([`recognise()`]), never by name. Files that llama.cpp
//! refuses as malformed are refused here too: a file works in both or in neither, except for [packed] files,
//! which only this program reads.
//!
//! **Invariant:** nothing in a file is executed. Torch's pickles run on a machine that has only the opcodes and
//! names of `state_dict()`s, and there is no second, more permissive path.

#![forbid(unsafe_code)]

pub mod adapter;
pub mod ggml;
pub mod gguf;
pub mod packed;
pub mod recognise;
pub mod safetensors;
mod shards;
mod source;
pub mod split;
mod text;
pub mod tokenizer;
pub mod torch;

pub use alight_types::{GgmlType, TypeError};
pub use recognise::{Format, recognise};
pub use source::{Header, Kept, Memory, Pieces, Source};
