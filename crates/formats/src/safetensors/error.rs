//! One error for each way in which a safetensors header can be wrong. Every message names the tensor, and gives
//! the value found and the expected one; none contains the file's name.

use thiserror::Error;

use super::json::JsonError;
use super::{Dtype, MAX_HEADER};
use crate::text::shown;

/// The reason why bytes are not a valid safetensors file.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages explain the fields
pub enum SafeTensorsError {
    #[error(
        "not a safetensors file: it has {found} bytes, expected 8 at least, the length of the header"
    )]
    TooShort { found: u64 },

    #[error("the header has 0 bytes, expected an object of JSON")]
    NoHeader,

    #[error(
        "the header says that it has {found} bytes, expected at most {MAX_HEADER}; this is no \
         safetensors file, or its first 8 bytes are wrong"
    )]
    HeaderTooLong { found: u64 },

    #[error(
        "the header says that it has {found} bytes, but only {available} follow; the file is cut \
         short or its first 8 bytes are wrong"
    )]
    HeaderPastEnd { found: u64, available: u64 },

    #[error("the header begins with {}, expected \"{{\"", shown(&[*found]))]
    NotAnObject { found: u8 },

    #[error("header: {0}")]
    Json(#[from] JsonError),

    #[error("tensor {} is there twice", shown(.tensor.as_bytes()))]
    DuplicateTensor { tensor: Box<str> },

    #[error(
        "tensor {}: dtype {} is unknown, expected one of {}",
        shown(.tensor.as_bytes()), shown(.found.as_bytes()), dtypes()
    )]
    UnknownDtype { tensor: Box<str>, found: Box<str> },

    #[error(
        "tensor {}: shape {} of {dtype} has more elements or bytes than 64 bits can count",
        shown(.tensor.as_bytes()), dims(.shape)
    )]
    ShapeOverflow { tensor: Box<str>, dtype: Dtype, shape: Vec<u64> },

    #[error(
        "tensor {}: its data ends at {end}, before it begins at {begin}",
        shown(.tensor.as_bytes())
    )]
    Reversed { tensor: Box<str>, begin: u64, end: u64 },

    #[error(
        "tensor {}: {found} bytes of data, expected {expected} for shape {} of {dtype}",
        shown(.tensor.as_bytes()), dims(.shape)
    )]
    Size { tensor: Box<str>, found: u64, expected: u64, dtype: Dtype, shape: Vec<u64> },

    #[error(
        "tensor {}: its data ends at {end}, but there are only {available} bytes after the header; \
         the file is cut short or its header is wrong",
        shown(.tensor.as_bytes())
    )]
    PastEnd { tensor: Box<str>, end: u64, available: u64 },

    #[error(
        "tensor {}: its data begins at {found}, which leaves a hole: the tensor before it ends at \
         {expected}",
        shown(.tensor.as_bytes())
    )]
    Hole { tensor: Box<str>, found: u64, expected: u64 },

    #[error(
        "tensor {}: its data begins at {found}, inside another tensor, which ends at {expected}",
        shown(.tensor.as_bytes())
    )]
    Overlap { tensor: Box<str>, found: u64, expected: u64 },

    #[error(
        "the file has {found} bytes after the header, but its tensors take {expected}: bytes that \
         belong to no tensor are not allowed"
    )]
    Trailing { found: u64, expected: u64 },
}

fn dtypes() -> String {
    Dtype::ALL.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ")
}

/// `[a, b, c]`, truncated if it is long.
fn dims(shape: &[u64]) -> String {
    const SHOWN: usize = 8;
    if shape.len() <= SHOWN {
        return format!("{shape:?}");
    }
    let shown: Vec<String> = shape[..SHOWN].iter().map(u64::to_string).collect();
    format!("[{}, … {} dimensions]", shown.join(", "), shape.len())
}
