//! The types shared by the readers of a source, its architecture and the plan of a conversion.

use alight_formats::GgmlType;
use alight_formats::gguf::write::Builder;
use alight_pages::Map;

use crate::ConvertError;
use crate::write::{Change, Elements};

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    /// Its name.
    pub(crate) name: String,
    /// Its GGUF type; `None` if weights in GGUF have no such type.
    pub(crate) ty: Option<GgmlType>,
    /// Its type, by the file's own name.
    pub(crate) dtype: &'static str,
    /// Extents, outermost first.
    pub(crate) shape: Vec<u64>,
    /// Index of its file.
    pub(crate) file: usize,
    /// Offset in the file, in bytes.
    pub(crate) offset: u64,
}

impl Tensor {
    /// Returns the architecture's view of it.
    pub(crate) fn described(&self) -> Described<'_> {
        Described { name: &self.name, shape: &self.shape }
    }

    /// Returns its extents in GGUF's order, innermost first; a single 1 for a scalar.
    pub(crate) fn ne(&self) -> Vec<u64> {
        if self.shape.is_empty() { vec![1] } else { self.shape.iter().rev().copied().collect() }
    }

    /// Returns the type of its elements.
    ///
    /// # Errors
    /// Weights in GGUF have no such type.
    pub(crate) fn elements(&self, maps: &[Map]) -> Result<Elements, ConvertError> {
        self.ty.map(Elements::Gguf).ok_or_else(|| ConvertError::Dtype {
            path: maps.get(self.file).map(|map| map.path().to_owned()).unwrap_or_default(),
            tensor: self.name.clone(),
            dtype: self.dtype,
        })
    }
}

/// An architecture's view of a tensor of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Described<'a> {
    /// Its name in the source.
    pub(crate) name: &'a str,
    /// Extents, outermost first: a matrix is `[rows, columns]`.
    pub(crate) shape: &'a [u64],
}

/// The rule for a tensor of a source.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Rule {
    /// It is written.
    Take {
        /// Its name in GGUF.
        name: String,
        /// Number of heads whose rows (of queries and keys) are in halves in the source (row `k ·
        /// d/2 + j` of a head of `d` rows) and in pairs in GGUF (row `2j + k`).
        heads: Option<u64>,
        /// Change to every element: 1 is added to the norms of Gemma, which the source stores minus one.
        change: Change,
        /// Its place in the tensor of that name.
        place: Place,
    },
    /// It is written as several tensors, each with some of its rows.
    Several(Vec<Rule>),
    /// It accompanies another tensor.
    Beside,
    /// It is omitted, for this reason.
    Skip(&'static str),
    /// It is omitted if it is a copy of the source's tensor `of`, as the configuration claims.
    /// Otherwise it is written under `name`, if the architecture has one for it.
    Copy {
        /// Name in the source.
        of: String,
        /// Name in GGUF.
        name: Option<&'static str>,
    },
}

/// The place of a source's tensor in one of the new file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The whole tensor.
    Whole,
    /// The whole tensor, a matrix of one row that becomes a vector.
    Row,
    /// The whole tensor, a vector that becomes a matrix with this number of rows.
    OfRows(u64),
    /// The matrix of the expert `index` of `count`.
    Expert { index: u64, count: u64 },
    /// Every `step`-th row of each expert, from `first` on, of its MXFP4 blocks `[experts, rows, blocks, 16]`.
    Blocks { first: u64, step: u64 },
    /// The first (0) or the second (1) half of the rows of each of its matrices.
    Half(u64),
    /// Each of its matrices transposed, and of the resulting rows the `part`-th of `of` equal parts.
    Turned { part: u64, of: u64 },
    /// Every `step`-th number of each expert, from `first` on, of `[experts, rows]`.
    Numbers { first: u64, step: u64 },
    /// These of its rows (first, count), in this order; extents between the rows and the columns are 1.
    Rows(Vec<(u64, u64)>),
    /// The whole tensor, with its columns in this order: (first, count).
    Columns(Vec<(u64, u64)>),
    /// The first `rows` of every `of` rows are the matrix of a head, which is transposed: `[heads, columns, rows]`.
    Transposed { rows: u64, of: u64 },
    /// These of its rows, one run for each head, form a matrix per head: `[heads, rows / heads,
    /// columns]`.
    Heads(Vec<(u64, u64)>),
}

/// The description of a network, from the configuration and the names of tensors.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Network {
    /// `general.architecture`.
    pub(crate) architecture: &'static str,
    /// Metadata of the network, in the order in which it is written.
    pub(crate) keys: Vec<(String, Entry)>,
    /// One for each tensor of the source, in the order of the tensors.
    pub(crate) rules: Vec<Rule>,
    /// Vectors that are computed and not read: GGUF name, elements.
    pub(crate) extra: Vec<(String, Vec<f32>)>,
    /// Rows of the embedding.
    pub(crate) vocab: u64,
    /// Rows and columns of an F8 matrix that share a scale.
    pub(crate) tile: Option<(u64, u64)>,
    /// Templates that the tokenizer's files do not have: name, text.
    pub(crate) templates: Vec<(&'static str, String)>,
    /// Notes for the user: properties of the source that GGUF cannot express.
    pub(crate) notes: Vec<String>,
}

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
#[allow(dead_code)] // the tokenizers' files come next
pub(crate) enum Entry {
    U8s(Vec<u8>),
    U32(u32),
    I32(i32),
    I32s(Vec<i32>),
    U32s(Vec<u32>),
    F32(f32),
    F32s(Vec<f32>),
    Bool(bool),
    Bools(Vec<bool>),
    Str(String),
    Strs(Vec<String>),
}

impl Entry {
    /// Returns its whole number, or the first of several.
    pub(crate) fn first_number(&self) -> Option<u64> {
        match self {
            Entry::U32(value) => Some((*value).into()),
            Entry::I32(value) => (*value).try_into().ok(),
            Entry::U32s(values) => values.first().map(|value| (*value).into()),
            Entry::I32s(values) => values.first().and_then(|value| (*value).try_into().ok()),
            _ => None,
        }
    }

    /// Writes it under `key`.
    pub(crate) fn write(&self, key: &str, out: &mut Builder) {
        match self {
            Entry::U8s(values) => out.u8s(key, values),
            Entry::U32(value) => out.u32(key, *value),
            Entry::U32s(values) => out.u32s(key, values),
            Entry::I32(value) => out.i32(key, *value),
            Entry::I32s(values) => out.i32s(key, values),
            Entry::F32(value) => out.f32(key, *value),
            Entry::F32s(values) => out.f32s(key, values),
            Entry::Bool(value) => out.bool(key, *value),
            Entry::Bools(values) => out.bools(key, values),
            Entry::Str(value) => out.str(key, value),
            Entry::Strs(values) => out.strs(key, values),
        };
    }
}
