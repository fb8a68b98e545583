//! One error for each way in which a GGUF header can be wrong. Every message names the place (key or tensor),
//! and gives the value found and the expected one; none contains the file's name.

use std::fmt;

use thiserror::Error;

use super::value::ValueType;
use crate::text::shown;
use alight_types::TypeError;

/// The place in a header where something was read. Names are escaped and truncated for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GgufField {
    /// The fixed header: magic, version, counts.
    Header,
    /// The key of metadata entry number `.0`, counted from 0.
    Key(u64),
    /// The value of the key `.0`.
    Value(Box<str>),
    /// The name of tensor number `.0`, counted from 0.
    TensorName(u64),
    /// The description of the tensor `.0`.
    Tensor(Box<str>),
}

impl fmt::Display for GgufField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GgufField::Header => write!(f, "header"),
            GgufField::Key(index) => write!(f, "metadata key {index}"),
            GgufField::Value(key) => write!(f, "metadata {}", shown(key.as_bytes())),
            GgufField::TensorName(index) => write!(f, "name of tensor {index}"),
            GgufField::Tensor(name) => write!(f, "tensor {}", shown(name.as_bytes())),
        }
    }
}

impl GgufError {
    /// The error for a file that begins with `head`, which is not GGUF; two kinds of such files are common.
    pub(super) fn of_other(head: &[u8], found: [u8; 4]) -> GgufError {
        let text = head.trim_ascii_start().to_ascii_lowercase();
        if head.starts_with(b"version https://git-lfs") {
            GgufError::LfsPointer
        } else if text.starts_with(b"<!doctype html") || text.starts_with(b"<html") {
            GgufError::WebPage
        } else {
            GgufError::BadMagic { found }
        }
    }
}

/// The reason why bytes are not a valid GGUF header, or why a value is not of the requested kind.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages explain the fields
pub enum GgufError {
    #[error("not a GGUF file: it begins with {}, expected \"GGUF\"", shown(.found))]
    BadMagic { found: [u8; 4] },

    #[error(
        "not a GGUF file, but the pointer of Git LFS to one: `git lfs pull` in its folder fetches the file, and `alight pull \
         USER/REPO` fetches it from the hub"
    )]
    LfsPointer,

    #[error(
        "not a GGUF file, but a web page: download the file itself, not the page that shows it"
    )]
    WebPage,

    #[error("GGUF version {found} is not supported, expected 1, 2 or 3")]
    Version { found: u32 },

    #[error(
        "the file is big-endian GGUF (version {version}): its weights would have to be byte-swapped, \
         which is not supported; convert it to little-endian"
    )]
    BigEndian { version: u32 },

    /// The bytes end before the length announced by the header.
    #[error(
        "{place}: {what} at byte {at} needs {needed} bytes, but only {available} are left; \
         the file is cut short or its header is wrong"
    )]
    Truncated { place: GgufField, what: &'static str, at: u64, needed: u64, available: u64 },

    /// The file is long enough, but no valid header is this long.
    #[error("{place}: the header continues past {limit} bytes, more than any model needs")]
    HeaderTooLarge { place: GgufField, limit: u64 },

    #[error(
        "the header announces {found} {what}, but the file could hold at most {limit}; the file is cut short or its header \
         is wrong"
    )]
    Count { what: &'static str, found: u64, limit: u64 },

    #[error("{place}: the name is empty")]
    EmptyName { place: GgufField },

    #[error("{place}: {found} bytes long, expected at most {limit}")]
    NameTooLong { place: GgufField, found: u64, limit: u64 },

    #[error("{place}: a zero byte at offset {at} in {text}")]
    NulInName { place: GgufField, text: Box<str>, at: usize },

    #[error("{place}: not UTF-8 from byte {at} on: {text}")]
    NotUtf8 { place: GgufField, text: Box<str>, at: usize },

    #[error("metadata key {} occurs twice, as entries {first} and {second}", shown(.key.as_bytes()))]
    DuplicateKey { key: Box<str>, first: u64, second: u64 },

    #[error("tensor {} occurs twice, as tensors {first} and {second}", shown(.name.as_bytes()))]
    DuplicateTensor { name: Box<str>, first: u64, second: u64 },

    #[error("{place}: value type {found} is unknown, expected 0 to {limit}")]
    ValueTypeId { place: GgufField, found: u32, limit: u32 },

    #[error("{place}: an array of arrays, expected scalars or strings")]
    NestedArray { place: GgufField },

    #[error("{place}: the boolean at byte {at} is {found}, expected 0 or 1")]
    Bool { place: GgufField, found: u8, at: u64 },

    #[error("{place}: {found} dimensions, expected 1 to 4")]
    Dimensions { place: GgufField, found: u32 },

    #[error("{place}: dimension {index} is {found}, expected 1 to {}", i64::MAX)]
    Dimension { place: GgufField, index: usize, found: u64 },

    #[error("{place}: shape {} has more elements or bytes than 63 bits can count", dims(.ne))]
    ShapeOverflow { place: GgufField, ne: [u64; 4] },

    #[error("{place}: {reason}")]
    TensorType { place: GgufField, reason: TypeError },

    #[error("{place}: rows of {found} elements, expected a multiple of {block} for type {ty}")]
    PartialBlock { place: GgufField, found: u64, block: u64, ty: crate::GgmlType },

    #[error("metadata \"general.alignment\" is of type {found}, expected u32")]
    AlignmentType { found: ValueType },

    #[error(
        "metadata \"general.alignment\" is {found}, expected a power of two from {min} to {max}"
    )]
    Alignment { found: u32, min: u32, max: u32 },

    #[error("{place}: data offset {found} is not a multiple of the alignment {alignment}")]
    Misaligned { place: GgufField, found: u64, alignment: u64 },

    #[error(
        "{place}: data offset {found} leaves a gap, expected {expected}, where the tensor before it ends"
    )]
    Gap { place: GgufField, found: u64, expected: u64 },

    #[error(
        "{place}: data offset {found} lies inside the tensors before it (out of order or \
         overlapping), expected {expected}"
    )]
    Overlap { place: GgufField, found: u64, expected: u64 },

    #[error(
        "{place}: its {nbytes} bytes of data at byte {start} end past the end of the file, which has \
         {file} bytes; the file is cut short or its header is wrong"
    )]
    PastEnd { place: GgufField, start: u64, nbytes: u64, file: u64 },

    #[error(
        "metadata \"alight.layout.version\" is {found}, and this alight knows version {known}: the file \
         was packed by a newer alight; pack the original again, or update alight"
    )]
    NewerLayout { found: u64, known: u64 },

    #[error(
        "metadata \"alight.layout\" is {}, expected \"tiles16\": the file was packed in a layout that \
         this alight does not know; pack the original again",
        shown(.found)
    )]
    UnknownLayout { found: Box<[u8]> },

    #[error(
        "{place}: is packed, but the file does not say in which layout: metadata \"alight.layout\" is \
         missing"
    )]
    PackedWithoutLayout { place: GgufField },

    #[error("{place}: is packed and has {found} rows, expected a multiple of {tile}")]
    PackedRows { place: GgufField, found: u64, tile: u64 },

    #[error("{place}: is packed and begins at byte {found}, expected a multiple of {alignment}")]
    PackedMisaligned { place: GgufField, found: u64, alignment: u64 },

    #[error(
        "metadata \"alight.layout.experts\" has {found} numbers, expected pairs: the first of some tensors, and how many there are"
    )]
    ExpertsPairs { found: usize },

    #[error(
        "metadata \"alight.layout.experts\" names {count} tensors from {first} on, expected at least two of the file's {tensors}, \
         after those that it has named before"
    )]
    ExpertsRun { first: u32, count: u32, tensors: usize },

    #[error(
        "{place}: has the shape {}, but its experts are declared to be side by side with {expected} of other tensors: expected \
         [columns, rows, {expected}], and at least two experts",
        dims(.found)
    )]
    ExpertsShape { place: GgufField, found: Box<[u64; 4]>, expected: u64 },

    // Requests of a caller that a valid header does not meet:
    #[error("metadata {} is missing", shown(.key.as_bytes()))]
    MissingKey { key: Box<str> },

    #[error("metadata {} is of type {found}, expected {expected}", shown(.key.as_bytes()))]
    WrongType { key: Box<str>, found: ValueType, expected: &'static str },

    #[error("metadata {} is an array of {found}, expected an array of {expected}", shown(.key.as_bytes()))]
    WrongElementType { key: Box<str>, found: ValueType, expected: &'static str },

    #[error("metadata {} is {found}, which is out of range for {expected}", shown(.key.as_bytes()))]
    OutOfRange { key: Box<str>, found: i128, expected: &'static str },

    #[error("tensor {} is missing", shown(.name.as_bytes()))]
    MissingTensor { name: Box<str> },
}

/// `[a, b, c, d]` without trailing ones.
fn dims(ne: &[u64; 4]) -> String {
    let used = ne.iter().rposition(|n| *n != 1).map_or(1, |last| last + 1);
    format!("{:?}", &ne[..used])
}
