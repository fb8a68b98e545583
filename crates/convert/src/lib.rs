//! Model files into model files.
//!
//! [`pack`] writes a model with its matrices in tiles, as the kernels read them fastest, on page
//! boundaries and in the order of use, so that it is mapped and computed on in place. [`unpack`] is
//! its inverse, bit for bit: the packed file says how its source looked, and a checksum proves it.
//! [`Conversion`] turns what other programs have (Hugging Face, Meta, llama.cpp before GGUF) into one GGUF
//! file, and [`quantize`] writes a model with weights of other types.
//!
//! What holds for all:
//! - The new file appears under its name when it is complete and on the disk, or not at all; a file
//!   that was there before stays until then.
//! - Memory is bounded: a few buffers of some megabytes, whatever the size of a tensor, and the
//!   header.
//! - Every byte of the source is read once; reading goes on beside transforming and writing.
//! - Nothing is printed. Progress is told to a callback, which can also stop the work.

#![forbid(unsafe_code)]

mod copy;
mod dest;
mod error;
mod files;
mod import;
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

pub use error::ConvertError;
pub use import::{About, Conversion, Converted, Request, format_of};
pub use pack::{Kept, KeptReason, Packed, pack, pack_unnamed};
pub use quantize::{Recipe, UnknownRecipe, quantize};
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
}
