//! The files of llama.cpp before GGUF: `ggml`, `ggmf` and `ggjt`, little-endian.
//!
//! ```text
//! u32 magic | [u32 version: not in ggml] | i32 n_vocab n_embd n_mult n_head n_layer n_rot ftype
//! token × n_vocab : u32 length | bytes | [f32 score: not in ggml]
//! tensor × …      : i32 dimensions | i32 name length | i32 type | i32 ne[…] | name
//!                   | [ggjt: zeros up to a multiple of 32 bytes] | data                    until the end
//! ```
//!
//! Files made by GPT4All announce 32001 tokens and hold 32000; the missing one is padding.
//!
//! [`parse`] walks over the whole file without touching the data. It guarantees: numbers are in range; names
//! are unique, non-empty UTF-8 without zero bytes; types are ones that files of this age have; rows are whole
//! blocks; every tensor is inside the file. The further requirements of a model are checked where its parts are
//! merged, see [`parts`]. Since the tensors are not counted, a file that was cut between two of them is
//! detected only there.
//!
//! The number of a type does not determine the layout of its blocks: the layout changed three times, and the
//! magic does not distinguish the first two. See [`Era`] for the layouts, and [`blocks`] for their conversion to GGUF's.
//!
//! Everything here is from the sources of llama.cpp between March and August of 2023 and its converters. Only
//! LLaMA models of that time are supported: other programs wrote other headers after the same magic, and those
//! fail in the first numbers.

pub mod blocks;
mod era;
mod error;
mod half;
mod parse;
pub mod parts;
pub mod vocabulary;

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

pub use era::{Era, LegacyType, LegacyTypeError};
pub use error::{GgmlError, GgmlField};
pub use parse::parse;
pub use vocabulary::GgmlVocabulary;

/// Maximum number of tokens; the largest vocabulary of any model is a quarter of it.
pub const MAX_VOCAB: i32 = 1 << 20;
/// Maximum bytes of a token's text; the longest of LLaMA's has 48.
pub const MAX_TOKEN: u32 = 64 << 10;
/// Maximum bytes of all tokens together, which are kept, as in GGUF's headers.
pub const MAX_VOCAB_BYTES: u64 = 256 << 20;
/// Maximum number of layers.
pub const MAX_LAYERS: i32 = 1 << 12;
/// Maximum number of tensors; the largest model of that time has 723.
pub const MAX_TENSORS: usize = 1 << 16;
/// Maximum bytes of a name, as in GGUF.
pub const MAX_NAME: u32 = 64;
/// Data of `ggjt` begins at a multiple of this many bytes.
pub const ALIGNMENT: u64 = 32;

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Magic {
    /// Without a version and without scores.
    Ggml,
    /// With a version, always 1, and scores.
    Ggmf,
    /// Aligned, so that it can be mapped; versions 1 to 3 differ in the layout of their blocks.
    Ggjt,
}

impl fmt::Display for Magic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Magic::Ggml => "ggml",
            Magic::Ggmf => "ggmf",
            Magic::Ggjt => "ggjt",
        })
    }
}

/// The numbers of the header. All are at least 1, except for `ftype`, and `n_head` divides `n_embd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hparams {
    /// Rows of the embedding.
    pub n_vocab: u32,
    /// Hidden size.
    pub n_embd: u32,
    /// The intermediate size is a multiple of this.
    pub n_mult: u32,
    /// Attention heads.
    pub n_head: u32,
    /// Layers.
    pub n_layer: u32,
    /// Elements of a head that are rotated, at most all of them.
    pub n_rot: u32,
    /// The type of most tensors; each tensor's own type is decisive.
    pub ftype: u32,
}

impl Hparams {
    /// Elements of one head.
    pub fn head_dim(&self) -> u32 {
        self.n_embd / self.n_head.max(1)
    }

    /// The intermediate size by the formula of LLaMA 1. Later models differ; the number of rows of `w1` is
    /// decisive, see [`parts::MergedModel::n_ff`].
    pub fn formula_n_ff(&self) -> u64 {
        let mult = u64::from(self.n_mult.max(1));
        (2 * (4 * u64::from(self.n_embd)) / 3).div_ceil(mult) * mult
    }

    /// llama.cpp's name for the number in `ftype`, if it has one.
    pub fn ftype_name(&self) -> Option<&'static str> {
        const NAMES: [&str; 19] = [
            "F32",
            "F16",
            "Q4_0",
            "Q4_1",
            "Q4_1_SOME_F16",
            "Q4_2",
            "Q4_3",
            "Q8_0",
            "Q5_0",
            "Q5_1",
            "Q2_K",
            "Q3_K_S",
            "Q3_K_M",
            "Q3_K_L",
            "Q4_K_S",
            "Q4_K_M",
            "Q5_K_S",
            "Q5_K_M",
            "Q6_K",
        ];
        NAMES.get(self.ftype as usize).copied()
    }
}

/// A file that has been parsed. Borrows from the bytes it was read from.
#[derive(Clone, Debug)]
pub struct Ggml<'a> {
    /// The kind of file.
    pub magic: Magic,
    /// The version in the file; `None` for `ggml`, which has none.
    pub version: Option<u32>,
    /// The layout of blocks, as far as magic and version determine it; see [`Ggml::assume_era`].
    pub era: Era,
    /// The numbers of the header.
    pub hparams: Hparams,
    /// The tokens.
    pub vocabulary: GgmlVocabulary<'a>,
    /// The offset of the first tensor's description, in bytes.
    pub tensors_start: u64,
    /// The tensors in file order.
    pub tensors: Vec<GgmlTensor<'a>>,
    names: HashMap<&'a str, u32>,
}

/// One tensor of a file, or of one part of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GgmlTensor<'a> {
    /// Its name, unique in the file, as in Meta's checkpoints: `layers.0.attention.wq.weight`.
    pub name: &'a str,
    /// 1 or 2.
    pub n_dims: u32,
    /// Extents, innermost first: a matrix `[rows, cols]` has `ne = [cols, rows]`. All are above 0.
    pub ne: [u64; 2],
    /// Type of the elements; F32 if there is one dimension.
    pub ty: LegacyType,
    /// The offset of its data, in bytes from the start of the file.
    pub offset: u64,
    /// Bytes of data; `offset + nbytes` is at most the length of the file.
    pub nbytes: u64,
}

impl GgmlTensor<'_> {
    /// The extents stated in the file, innermost first.
    pub fn shape(&self) -> &[u64] {
        &self.ne[..(self.n_dims as usize).min(2)]
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.ne[0] * self.ne[1]
    }

    /// Bytes of one row of `ne[0]` elements.
    pub fn row_bytes(&self) -> u64 {
        self.nbytes / self.ne[1].max(1)
    }

    /// The range of the data in the file.
    pub fn range(&self) -> Range<usize> {
        self.offset as usize..(self.offset + self.nbytes) as usize
    }

    /// The data, as a slice of the bytes of the file; `None` if these are not the bytes that were parsed.
    pub fn data<'f>(&self, file: &'f [u8]) -> Option<&'f [u8]> {
        file.get(self.range())
    }
}

impl<'a> Ggml<'a> {
    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&GgmlTensor<'a>> {
        self.tensors.get(*self.names.get(name)? as usize)
    }

    /// Sets the era of the blocks, which only the user can know: files from the first days have nothing that
    /// distinguishes them from later ones, and have the same size.
    ///
    /// # Errors
    /// [`GgmlError::Era`]: files of this magic and version, or with these types, are not of that era.
    pub fn assume_era(mut self, era: Era) -> Result<Self, GgmlError> {
        let possible = self.era == era
            || (self.magic == Magic::Ggml && era == Era::Rows && self.era == Era::Pairs);
        let foreign = self.tensors.iter().find(|tensor| era.block(tensor.ty).is_none());
        if !possible || foreign.is_some() {
            return Err(GgmlError::Era {
                magic: self.magic,
                version: self.version,
                wanted: era,
                ty: foreign.map(|tensor| tensor.ty),
            });
        }
        self.era = era;
        Ok(self)
    }
}
