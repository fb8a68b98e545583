//! Converts model files into model files.
//!
//! [`pack`] writes a model with its matrices in tiles, which the kernels read fastest, on page boundaries and
//! in the order of use, so that it can be mapped and used in place. [`unpack`] is its inverse, bit for bit.
//! [`Conversion`] turns other programs' formats (Hugging Face, Meta, llama.cpp before GGUF) into one GGUF
//! file, and [`quantize`] writes a model with weights of other types. PEFT's folders of LoRA adapters become
//! GGUF adapters, and [`merge()`] adds those to the weights of a model.
//!
//! A conversion has two halves. `import/` reads headers and small files only: the kind of source (`find`),
//! its tensors (`catalog`, `meta`, `legacy`), the mapping of names and configuration for an architecture
//! (`arch/`, one table each), the tokenizer's files (`tokenizer/`). It ends in a plan, or in an error that
//! names the file, the key or the tensor. `write/` makes a file from a plan and knows neither formats nor
//! architectures.
//!
//! **Invariant:** a new file appears under its name when it is complete and on disk, or not at all; an
//! existing file stays until then. A file that appears under the name in the meantime also stays, unless
//! replacing is requested.
//!
//! **Invariant:** a source that changes while it is read is an error, whatever its timestamps show
//! afterwards.
//!
//! **Invariant:** nothing is written before everything is known to fit. Every tensor of a source has a place
//! or a reason to be left out; guesses and losses are reported ([`About`]).
//!
//! **Invariant:** the network is determined by the source's own files alone. The tokenizer comes as a
//! whole from the folder given for it, or from the source's folder.
//!
//! **Invariant:** packing moves bits and changes none: the packed file describes the layout of its
//! source, and [`unpack`] compares the SHA-256. Quantising yields the same bits as the kernels. The
//! bytes of a new file do not depend on the number of threads.
//!
//! **Invariant:** memory is bounded: a few buffers of some megabytes, whatever the size of a tensor, the header,
//! and the factors of adapters. Pages of a source that were not cached before are not cached afterwards.
//!
//! **Invariant:** nothing is printed. Progress is reported to a callback, which can also stop the
//! work.

#![forbid(unsafe_code)]

mod adapters;
mod copy;
mod dest;
mod error;
mod files;
mod imatrix;
mod import;
mod kept;
mod merge;
mod mix;
mod order;
mod pack;
mod pipe;
mod quantize;
mod read;
mod restore;
mod sink;
mod source;
mod tensor_types;
mod unpack;
mod write;

use std::ops::ControlFlow;
use std::time::Duration;

use alight_pages::Threads;

pub use adapters::{ScaledAdapter, misfits};
pub use error::ConvertError;
pub use imatrix::{MeasuredTensor, imatrix_file};
pub use import::{About, Conversion, Converted, Request, format_of};
pub use kept::{PackedOnce, all_packed, pack_once, remove_packed};
pub use merge::merge;
pub use mix::{QuantizationMix, UnknownMix};
pub use pack::{Kept, KeptReason, Packed, is_packed_from, pack, pack_unnamed};
pub use quantize::{Quantization, quantize};
pub use tensor_types::{TensorPattern, TensorTypeError, TensorTypes, quantized_type};
pub use unpack::{Unpacked, unpack};

/// Options for writing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Replace an existing file.
    pub force: bool,
    /// Where a file is packed: put the output matrix into planes, if its type allows it, so that a token whose sampler looks at few of the logits reads
    /// about half of it. All others read it more slowly.
    pub planes: bool,
}

/// Progress of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the source that have been read.
    pub done: u64,
    /// Bytes of the source.
    pub total: u64,
}

/// Receives progress a few times per second or more often. `Break` stops the work, which then ends
/// with [`ConvertError::Stopped`] and leaves nothing behind.
pub type OnProgress<'f> = dyn FnMut(Progress) -> ControlFlow<()> + 'f;

/// Amounts read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Bytes of the source.
    pub read: u64,
    /// Bytes of the new file.
    pub written: u64,
    /// From opening the source until the new file is safe on disk.
    pub took: Duration,
    /// The threads that made the new file.
    pub threads: Threads,
}
