//! Headers of weight files into a catalog: metadata, and tensors with name, shape, type, offset and
//! length. GGUF versions 1 to 3, split files, packed files; safetensors and its index of shards; torch's
//! zip files; what llama.cpp wrote before GGUF; and the files of tokenizers.
//!
//! Everything here is a pure function over bytes that the caller holds. A file is hostile until its
//! header has been checked.
//!
//! **Invariant:** no I/O, no thread, no panic, whatever the bytes are. No parser recurses as deep as a
//! file asks.
//!
//! **Invariant:** every number in a file has a limit. Time is linear in the header's length; memory is
//! proportional to what was read, never to what a number promises: nothing is allocated for a count
//! before the file is known to be large enough to hold what it counts.
//!
//! **Invariant:** a parser asks a [`Source`] for its bytes by their places: memory that nobody else writes
//! to, or a [`Header`], which copies each piece out of the file once. All that a catalog borrows (names,
//! text, arrays) it borrows from there. So a process that writes to the file can change what is read, but
//! not what has been checked.
//!
//! **Invariant:** one typed error for each way in which a header can lie. It names the key or the tensor,
//! what was found and what was expected. It does not know the file's name, which the caller adds.
//!
//! **Invariant:** formats are told by content ([`recognise()`]), never by name. What llama.cpp refuses as
//! malformed is refused here too: a file works in both or in neither, except for [packed] files, which only
//! this program reads.
//!
//! **Invariant:** nothing in a file is executed. The pickles of torch run on a machine that has the opcodes
//! and names of `state_dict()`s and no others, and there is no second, more trusting way.

#![forbid(unsafe_code)]

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
