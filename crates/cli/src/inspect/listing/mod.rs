//! The contents shown by `alight inspect` for formats other than GGUF: read by that format's file,
//! shown by [`human`] and [`json`], the same way for all.

pub mod human;
pub mod json;

use std::ops::Range;

use alight_pages::Map;
use serde_json::Value;

use super::cached::{AsFound, Cached};
use super::summary::Summary;

/// A model as read by a format's reader. Everything is checked: ranges are within their files.
#[derive(Debug)]
pub struct Listing {
    /// Name of the format, one word, for `format` in the JSON: "safetensors".
    pub format: &'static str,
    /// The same for the user, with details of this model: "safetensors, 3 shards".
    pub described: String,
    /// The order of shapes.
    pub order: ShapeOrder,
    /// The files, at least one.
    pub files: Vec<ListedFile>,
    /// Key and value, in the order of the file.
    pub metadata: Vec<(String, Value)>,
    /// The tensors, in the order of their data.
    pub tensors: Vec<ListedTensor>,
    /// Unusual properties of the model that are not errors.
    pub notes: Vec<String>,
}

/// The order in which a format writes shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShapeOrder {
    /// As in torch: a matrix of 3 rows and 5 columns is 3 × 5.
    OutermostFirst,
    /// As in ggml: it is 5 × 3.
    InnermostFirst,
}

/// One file.
#[derive(Debug)]
pub struct ListedFile {
    /// The file, mapped; only its header has been touched.
    pub map: Map,
    /// Details about it: "GGJT version 3", or nothing.
    pub about: String,
    /// Bytes before the data of the first tensor; in formats whose header is elsewhere, bytes that
    /// belong to no tensor.
    pub header_bytes: u64,
    /// From the first byte of tensor data to the last, as offsets in the file.
    pub data: Range<u64>,
}

/// One tensor.
#[derive(Debug)]
pub struct ListedTensor {
    /// Name.
    pub name: String,
    /// The format's name of the type.
    pub ty: &'static str,
    /// Dimensions, in the order given by [`Listing::order`].
    pub shape: Vec<u64>,
    /// Index into [`Listing::files`].
    pub file: usize,
    /// The range of its data, as offsets in the file.
    pub range: Range<u64>,
}

impl ListedTensor {
    /// Returns the number of elements.
    pub fn elements(&self) -> u64 {
        // Readers check it against the bytes.
        self.shape.iter().fold(1, |product, n| product.saturating_mul(*n))
    }

    /// Returns the bytes of its data.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl Listing {
    fn cached(&self, found: &AsFound) -> Cached {
        let tensors = self.tensors.iter().map(|t| (t.file, [t.range.clone()]));
        Cached::of(self.files.iter().map(|file| &file.map), tensors, found)
    }

    fn summary(&self) -> Summary {
        Summary::of(self.tensors.iter().map(|t| (t.ty, t.elements(), t.bytes())))
    }
}

impl ShapeOrder {
    /// Returns its name in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            ShapeOrder::OutermostFirst => "outermost first",
            ShapeOrder::InnermostFirst => "innermost first",
        }
    }
}
