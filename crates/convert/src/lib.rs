//! Model files into model files.
//!
//! [`pack`] writes a model with its matrices in tiles, as the kernels read them fastest, on page
//! boundaries and in the order of use, so that it is mapped and computed on in place. [`unpack`] is
//! its inverse, bit for bit. [`Conversion`] turns what other programs have (Hugging Face, Meta, llama.cpp
//! before GGUF) into one GGUF file, and [`quantize`] writes a model with weights of other types.
//!
//! A conversion has two halves. `import/` looks at headers and small files only: what there is (`find`),
//! which tensors (`catalog`, `meta`, `legacy`), what an architecture makes of their names and of the
//! configuration (`arch/`, one table each), what the tokenizer's files say (`tokenizer/`). It ends in a plan,
//! or in an error that names the file, the key or the tensor. `write/` makes a file of a plan and knows
//! neither formats nor architectures.
//!
//! **Invariant:** a new file appears under its name when it is complete and on the disk, or not at all; a
//! file that was there before stays until then. What appears under its name meanwhile stays too, unless
//! it is to be replaced.
//!
//! **Invariant:** a source that is changed while it is read is an error, whatever its times say afterwards.
//!
//! **Invariant:** nothing is written before everything is known to fit. Every tensor of a source has a place
//! or a reason to be left out; what was guessed or lost is told ([`About`]).
//!
//! **Invariant:** what the network is follows from the source's own files alone. The tokenizer comes as a
//! whole from the folder that was given for it, or from the source's.
//!
//! **Invariant:** packing moves bits and changes none: the packed file says how its source looked, and
//! [`unpack`] compares the SHA-256. Quantising gives the bits of the kernels. The bytes of a new file do
//! not depend on the number of threads.
//!
//! **Invariant:** memory is bounded: a few buffers of some megabytes, whatever the size of a tensor, and the
//! header. What of a source was not cached before is not cached afterwards.
//!
//! **Invariant:** nothing is printed. Progress is told to a callback, which can also stop the work.

#![forbid(unsafe_code)]

mod copy;
mod dest;
mod error;
mod files;
mod imatrix;
mod import;
mod mix;
mod order;
mod pack;
mod pipe;
mod quantize;
mod read;
mod restore;
mod sink;
mod source;
mod unpack;
mod write;

use std::ops::ControlFlow;
use std::time::Duration;

use alight_pages::Threads;

pub use error::ConvertError;
pub use import::{About, Conversion, Converted, Request, format_of};
pub use mix::{QuantizationMix, UnknownMix};
pub use pack::{Kept, KeptReason, Packed, is_packed_from, pack, pack_unnamed};
pub use quantize::quantize;
pub use unpack::{Unpacked, unpack};

/// How to write.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Replace a file that is there already.
    pub force: bool,
}

/// How far the work has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the source that have been read.
    pub done: u64,
    /// Bytes of the source.
    pub total: u64,
}

/// Told about progress some times per second or more often; `Break` stops the work, which then ends
/// with [`ConvertError::Stopped`] and leaves nothing behind.
pub type OnProgress<'f> = dyn FnMut(Progress) -> ControlFlow<()> + 'f;

/// What was read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Bytes of the source.
    pub read: u64,
    /// Bytes of the new file.
    pub written: u64,
    /// From opening the source to the new file's being safe on the disk.
    pub took: Duration,
    /// The threads that made the new file.
    pub threads: Threads,
}
