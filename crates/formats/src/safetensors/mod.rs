//! safetensors, and the index of a model in several such files.
//!
//! ```text
//! u64 N | N bytes of JSON, from '{', padded with spaces | data
//! {"__metadata__": {"key": "text", …}, "name": {"dtype": "F16", "shape": [3, 5], "data_offsets": [b, e]}, …}
//! ```
//!
//! The format is described in the README of <https://github.com/huggingface/safetensors>, which also defines
//! the limits and rules here (100 MB of header, no hole, no overlap, nothing after the last tensor). [`parse`]
//! guarantees: names are unique; tensors are contiguous, from the end of the header to the end of the file,
//! each as long as its shape and dtype require. Alignment is not guaranteed: data may begin at any byte, so
//! code that computes in place has to check.
//!
//! Where that README is ambiguous, it is read strictly. The `safetensors` crate (0.8) accepts some headers that
//! are refused here: a duplicate key (it takes one of the two), a field that the README does not name,
//! `"__metadata__": null`, spaces before the `{`, more than [`MAX_RANK`] dimensions, and the types of less than
//! a byte (`F4`, `F6_…`), `F8_E8M0` and `C64`, which are unknown here. Everything accepted here is accepted by
//! that crate, too. The crate is not used because its parsed header does not reveal duplicate keys.
//!
//! Only the header is read, once, without building a tree in memory.

mod dtype;
mod error;
mod index;
mod json;
mod parse;

use std::borrow::Cow;
use std::ops::Range;

pub use dtype::Dtype;
pub use error::SafeTensorsError;
pub use index::{
    Index, IndexError, SafeTensorsCatalog, SafeTensorsPlaced, SafeTensorsShard,
    SafeTensorsShardName, merge, parse_index, whole,
};
pub use json::{JsonError, JsonField};
pub use parse::parse;

/// Maximum bytes of a header: the format's own limit.
pub const MAX_HEADER: u64 = 100_000_000;
/// Maximum bytes of the index of a model in several files; one of 100,000 tensors has 10 MB.
pub const MAX_INDEX: u64 = 64 << 20;
/// Maximum number of dimensions of a tensor. The format has no limit; no library that writes it exceeds this.
pub const MAX_RANK: usize = 64;
/// Maximum number of tensors of a file, and of a model in several.
pub const MAX_TENSORS: usize = 1 << 20;
/// Maximum number of metadata entries.
pub const MAX_METADATA: usize = 1 << 16;

/// A header that has been checked. Borrows from the bytes it was read from, except for text with escapes.
#[derive(Clone, Debug)]
pub struct SafeTensors<'a> {
    /// Bytes before the data, including the eight of the header's length.
    pub data_start: u64,
    /// The end of the last tensor, which is the length of the file.
    pub data_end: u64,
    /// `__metadata__`: key and text, in the order of the file.
    pub metadata: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// The tensors, in the order of their data.
    pub tensors: Vec<Tensor<'a>>,
    /// Indices into `tensors`, by name.
    by_name: Vec<u32>,
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor<'a> {
    /// Its name, unique in the file. May be empty.
    pub name: Cow<'a, str>,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Extents, outermost first: a matrix of 3 rows and 5 columns is `[3, 5]`. Empty for one element. Any of them may be 0.
    pub shape: Vec<u64>,
    /// The range of its data, in bytes from the start of the file.
    pub range: Range<u64>,
}

impl Tensor<'_> {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        // The parser has checked that this does not overflow.
        self.shape.iter().product()
    }

    /// Bytes of data.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The data, as a slice of the bytes of the file; `None` if these are not the bytes that were parsed.
    pub fn data<'f>(&self, file: &'f [u8]) -> Option<&'f [u8]> {
        let (start, end) = (self.range.start.try_into().ok()?, self.range.end.try_into().ok()?);
        file.get::<Range<usize>>(start..end)
    }
}

impl<'a> SafeTensors<'a> {
    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&Tensor<'a>> {
        let found = self.by_name.binary_search_by(|&at| self.name(at).cmp(name)).ok()?;
        self.tensors.get(self.by_name[found] as usize)
    }

    /// The text of a metadata key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.metadata.iter().find(|(found, _)| found == key).map(|(_, value)| value.as_ref())
    }

    fn name(&self, at: u32) -> &str {
        self.tensors.get(at as usize).map_or("", |tensor| tensor.name.as_ref())
    }
}
