//! Errors. Every message names the file.

use std::io;
use std::path::PathBuf;

use alight_files::FilesError;
use alight_formats::GgmlType;
use alight_formats::ggml::GgmlError;
use alight_formats::ggml::blocks::BlockError;
use alight_formats::ggml::parts::PartsError;
use alight_formats::gguf::GgufError;
use alight_formats::safetensors::{IndexError, SafeTensorsError};
use alight_formats::torch::TorchError;
use alight_pages::{MapError, ReplaceError};
use thiserror::Error;

/// The reason why a file was not made. Nothing is left of it, and an earlier file is unchanged.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// The source cannot be mapped, or was changed while it was read.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The source does not consist of GGUF files that form a model.
    #[error(transparent)]
    Files(FilesError),
    /// There is no model to convert at a path.
    #[error("'{}' {problem}", path.display())]
    NoModel {
        /// The file or folder.
        path: PathBuf,
        /// A clause whose subject is the path.
        problem: String,
    },
    /// The header of the new file cannot be made.
    #[error("{}: {source}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: GgufError,
    },
    /// A small file next to the weights is wrong: configuration, tokenizer, settings.
    #[error("{}: {problem}", path.display())]
    Side {
        /// The file.
        path: PathBuf,
        /// The mistake, the expected value, the remedy.
        problem: String,
    },
    /// The source cannot be converted.
    #[error("{}: {problem}", path.display())]
    Source {
        /// The file or folder.
        path: PathBuf,
        /// The reason, and a remedy.
        problem: String,
    },
    /// A safetensors file is malformed.
    #[error("{}: {source}", path.display())]
    SafeTensors {
        /// The file.
        path: PathBuf,
        /// The mistake in it.
        source: SafeTensorsError,
    },
    /// Safetensors files do not belong together, or do not match their index.
    #[error("{}: {source}", path.display())]
    Index {
        /// The index, or the folder.
        path: PathBuf,
        /// The mismatch.
        source: IndexError,
    },
    /// A torch file is malformed.
    #[error("{}: {source}", path.display())]
    Torch {
        /// The file.
        path: PathBuf,
        /// The mistake in it.
        source: TorchError,
    },
    /// A llama.cpp file from before GGUF is malformed.
    #[error("{}: {source}", path.display())]
    Ggml {
        /// The file.
        path: PathBuf,
        /// The mistake in it.
        source: GgmlError,
    },
    /// The parts of an old model do not belong together.
    #[error("{}: {source}", path.display())]
    Parts {
        /// The first part.
        path: PathBuf,
        /// The mismatch.
        source: PartsError,
    },
    /// A tensor is of a type that weights in GGUF do not have.
    #[error(
        "{}: tensor \"{tensor}\" is of type {dtype}, which weights in GGUF do not have: take the \
         model in F16, BF16 or F32",
        path.display()
    )]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type, by the file's own name.
        dtype: &'static str,
    },
    /// The source of `pack` is packed.
    #[error("'{}' is packed already; `alight unpack` restores the original", path.display())]
    AlreadyPacked {
        /// The file.
        path: PathBuf,
    },
    /// There is no place for a packed file that is to be kept.
    #[error(
        "there is no place for a packed file of {}: the model's folder cannot be written to, or its name is taken there, and \
         there is no cache folder (XDG_CACHE_HOME, HOME)",
        path.display()
    )]
    NoPlace {
        /// The model.
        path: PathBuf,
    },
    /// The source of `unpack` is not packed.
    #[error("'{}' is not packed: there is nothing to unpack", path.display())]
    NotPacked {
        /// The file.
        path: PathBuf,
    },
    /// The source has more bytes that belong to nothing than a packed file keeps.
    #[error(
        "{}: {found} bytes between or after its tensors belong to nothing, and the packed file \
         keeps at most {limit} of them; cut them off first",
        path.display()
    )]
    Junk {
        /// The file.
        path: PathBuf,
        /// Number of such bytes.
        found: u64,
        /// Number of bytes that are kept.
        limit: u64,
    },
    /// Most of the new file would be padding.
    #[error(
        "{}: its general.alignment would make {found} bytes of it, most of them padding (at most {limit}): \
         convert it first, which gives it another",
        path.display()
    )]
    Padding {
        /// The source.
        path: PathBuf,
        /// Size of the new file, in bytes.
        found: u64,
        /// Its maximum.
        limit: u64,
    },
    /// The header of the new file would exceed the limit.
    #[error("{}: its header cannot hold what packing adds ({found} bytes, at most {limit})", path.display())]
    HeaderTooLong {
        /// The source.
        path: PathBuf,
        /// Its length, in bytes.
        found: u64,
        /// The maximum.
        limit: u64,
    },
    /// A tensor has a type that cannot be decoded to floats here.
    #[error(
        "{}: tensor \"{tensor}\" is {ty}, which cannot be converted: take a file of another type of \
         this model (F16, BF16 or F32 is best)",
        path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        ty: GgmlType,
    },
    /// A weight is infinite or NaN.
    #[error(
        "{}: tensor \"{tensor}\" has a weight that is infinite or not a number: the file is damaged",
        path.display()
    )]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A weight is too large for its new type.
    #[error(
        "{}: tensor \"{tensor}\" has the weight {found}, more than F16 can hold: take bf16, or another \
         type",
        path.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The weight.
        found: f32,
    },
    /// A block of quantised weights would have a scale that is not a finite f16.
    #[error(
        "{}: tensor \"{tensor}\" has a weight of {found}: the scale of its block is too large for {ty}, which stores it as f16; \
         `--tensor-type NAME=bf16` stores it as it is",
        path.display()
    )]
    ScaleTooLarge {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The largest weight of its row, regardless of its sign.
        found: f32,
        /// The type.
        ty: GgmlType,
    },
    /// Blocks of an old file cannot be converted to current ones.
    #[error("{}: tensor \"{tensor}\": {source}", path.display())]
    Blocks {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The reason.
        source: BlockError,
    },
    /// A row is longer than the limit for rows in memory.
    #[error(
        "{}: a row of tensor \"{tensor}\" takes {found} bytes, more than the {limit} that fit into \
         memory",
        path.display()
    )]
    LongRow {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Bytes of the row.
        found: u64,
        /// The maximum.
        limit: u64,
    },
    /// The pieces from the files do not add up to the whole tensor, or not to whole blocks.
    #[error("{}: what there is of tensor \"{tensor}\" does not make it whole", path.display())]
    Pieces {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A packed file's description of its source makes no sense.
    #[error(
        "{}: metadata \"{key}\" {problem}: the file is damaged, or no alight has packed it",
        path.display()
    )]
    Restore {
        /// The packed file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// The mistake in its value.
        problem: String,
    },
    /// The unpacked file differs from the one that was packed.
    #[error(
        "{}: its weights have changed since it was packed: unpacked they have the SHA-256 {found}, \
         expected {expected}; get the original again",
        path.display()
    )]
    Checksum {
        /// The packed file.
        path: PathBuf,
        /// The computed checksum.
        found: String,
        /// The checksum in the file.
        expected: String,
    },
    /// The new file would replace one that belongs to its source.
    #[error("'{}' is the source itself, or belongs to it; give another name for the new file", path.display())]
    SameFile {
        /// The file.
        path: PathBuf,
    },
    /// The source cannot be read.
    #[error("{}: cannot read at byte {at}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Offset in bytes.
        at: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The new file cannot be written.
    #[error("{}: cannot write: {source}; nothing was left behind", path.display())]
    Write {
        /// The file to be written.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The new file cannot be created or moved into place.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    /// The callback requested it.
    #[error("stopped; nothing was written")]
    Stopped,
}

impl From<FilesError> for ConvertError {
    fn from(error: FilesError) -> ConvertError {
        match error {
            FilesError::Map(error) => ConvertError::Map(error),
            error => ConvertError::Files(error),
        }
    }
}
