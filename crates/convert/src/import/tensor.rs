//! What the readers of a source, its architecture and the plan of a conversion tell each other.

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
    /// Its type as GGUF calls it; `None` if GGUF has none such.
    pub(crate) ty: Option<GgmlType>,
    /// Its type as its file calls it.
    pub(crate) dtype: &'static str,
    /// Extents, outermost first.
    pub(crate) shape: Vec<u64>,
    /// Number of its file.
    pub(crate) file: usize,
    /// Where in the file it begins, in bytes.
    pub(crate) offset: u64,
}

impl Tensor {
    /// As an architecture looks at it.
    pub(crate) fn described(&self) -> Described<'_> {
        Described { name: &self.name, shape: &self.shape }
    }

    /// Its extents as GGUF has them, innermost first; one of 1 for a single number.
    pub(crate) fn ne(&self) -> Vec<u64> {
        if self.shape.is_empty() { vec![1] } else { self.shape.iter().rev().copied().collect() }
    }

    /// What its elements are.
    ///
    /// # Errors
    /// GGUF has no such type.
    pub(crate) fn elements(&self, maps: &[Map]) -> Result<Elements, ConvertError> {
        self.ty.map(Elements::Gguf).ok_or_else(|| ConvertError::Dtype {
            path: maps.get(self.file).map(|map| map.path().to_owned()).unwrap_or_default(),
            tensor: self.name.clone(),
            dtype: self.dtype,
        })
    }
}

/// A tensor of a source, as an architecture looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Described<'a> {
    /// Its name in the source.
    pub(crate) name: &'a str,
    /// Extents, outermost first: a matrix is `[rows, columns]`.
    pub(crate) shape: &'a [u64],
}

/// What becomes of a tensor of a source.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Rule {
    /// It is written.
    Take {
        /// Its name in GGUF.
        name: String,
        /// For the rows of queries and keys of this many heads, which stand in halves in the source
        /// (row `k · d/2 + j` of a head of `d` rows) and in pairs in GGUF (row `2j + k`).
        heads: Option<u64>,
        /// What is done to every element: 1 is added to the norms of Gemma, which the source has less one.
        change: Change,
        /// How it stands in the tensor of that name.
        place: Place,
    },
    /// It is written as several tensors, each of some of its rows.
    Several(Vec<Rule>),
    /// It belongs to another.
    Beside,
    /// It is left out, for this reason.
    Skip(&'static str),
    /// It is left out if it is a copy of the source's tensor `of`, which the configuration says it
    /// is. If it is not, it is written under `name`, where the architecture has one for it.
    Copy {
        /// Name in the source.
        of: String,
        /// Name in GGUF.
        name: Option<&'static str>,
    },
}

/// How a tensor of a source stands in one of the new file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is all of it.
    Whole,
    /// It is all of it, a matrix of one row that becomes a vector.
    Row,
    /// It is all of it, a vector that becomes a matrix of so many rows.
    OfRows(u64),
    /// It is the matrix of one expert of so many.
    Expert { index: u64, count: u64 },
    /// Of its blocks of MXFP4, `[experts, rows, blocks, 16]`, it is every `step`-th row of each expert, from `first` on.
    Blocks { first: u64, step: u64 },
    /// It is the first (0) or the second (1) half of the rows of each of its matrices.
    Half(u64),
    /// Each of its matrices is transposed, and it is the `part`-th of `of` equal parts of the rows that come of it.
    Turned { part: u64, of: u64 },
    /// Of its numbers `[experts, rows]`, it is every `step`-th of each expert, from `first` on.
    Numbers { first: u64, step: u64 },
    /// It is these of its rows (first, how many) in this order; extents between the rows and the columns are of 1.
    Rows(Vec<(u64, u64)>),
    /// It is all of it, its columns in this order: (first, how many).
    Columns(Vec<(u64, u64)>),
    /// The first `rows` of every `of` rows of its are a matrix of a head, which stands transposed: `[heads, columns, rows]`.
    Transposed { rows: u64, of: u64 },
    /// These of its rows are a matrix for each of so many heads: `[heads, rows / heads, columns]`.
    Heads(Vec<(u64, u64)>),
}

/// What the configuration and the names of tensors say about a network.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Network {
    /// `general.architecture`.
    pub(crate) architecture: &'static str,
    /// Metadata of the network, in the order in which it is written.
    pub(crate) keys: Vec<(String, Entry)>,
    /// One for each tensor of the source, in the order in which they were given.
    pub(crate) rules: Vec<Rule>,
    /// Vectors that are computed and not read: name in GGUF, elements.
    pub(crate) extra: Vec<(String, Vec<f32>)>,
    /// Rows of the embedding.
    pub(crate) vocab: u64,
    /// Rows and columns that have a scale together, of matrices of F8.
    pub(crate) tile: Option<(u64, u64)>,
    /// What a person should know: what the source says and GGUF cannot.
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
    /// The whole number that it is, or the first of those.
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
