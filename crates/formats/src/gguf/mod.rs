//! GGUF, versions 1 to 3, little-endian.
//!
//! ```text
//! "GGUF" | u32 version | u64 tensors | u64 entries            version 1: counts and lengths are u32
//! entry  : string key | u32 type | value                      string: u64 length, bytes
//! tensor : string name | u32 dimensions | u64 ne[…] | u32 type | u64 offset
//! data   : from the next multiple of general.alignment on
//! ```
//!
//! [`parse`] checks the whole header once and borrows everything from it. It guarantees: keys and names are
//! unique, non-empty UTF-8 without zero bytes; arrays hold as many elements as they announce; every shape has
//! one to four dimensions, none zero, and whole blocks; tensors follow one another in file order, each at the
//! first multiple of the alignment after the one before, all inside the file. That last rule is ggml's, so a
//! file that it loads loads here too, and the reverse, with these exceptions: version 1 is read here and not
//! there; zero dimensions, empty names, names with a zero byte, booleans other than 0 and 1, and alignments
//! below 8 or above [`MAX_ALIGNMENT`] are refused here. As in ggml, the file may end right after the last
//! tensor without padding, and bytes after it are ignored.
//!
//! Files written by `alight pack` have tensors in another layout, under type ids of their own; see [`packed`].
//! Only alight reads those. In some of them the experts of several tensors are stored side by side. The same
//! rule applies: each expert, and each tensor's part of one, is at the first offset that its alignment allows.

mod cursor;
mod error;
mod parse;
mod value;
pub mod write;

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

pub use error::{GgufError, GgufField};
pub use parse::parse;
pub use value::{Array, KeptArray, Strings, Value, ValueType};

use crate::packed;
use alight_types::GgmlType;

/// Alignment of tensor data if the file does not state one.
pub const DEFAULT_ALIGNMENT: u64 = 32;
/// Smallest alignment: the specification requires multiples of 8.
pub const MIN_ALIGNMENT: u32 = 8;
/// Largest alignment: the largest page that a file can be mapped with (512 MiB, where the base page
/// is 64 KiB).
pub const MAX_ALIGNMENT: u32 = 1 << 29;
/// Maximum bytes of a key.
pub const MAX_KEY: u64 = 65_535;
/// Maximum bytes of a tensor's name, by the specification. (ggml allows only 63.)
pub const MAX_NAME: u64 = 64;
/// Maximum bytes of a header. The largest in use are tens of megabytes (vocabularies); the limit bounds the
/// time that a hostile file of any size can take.
pub const MAX_HEADER: usize = 256 << 20;
/// Maximum number of tensors and of metadata entries.
pub const MAX_ENTRIES: u64 = 1 << 20;

/// A header that has been checked. Borrows from the bytes it was read from.
#[derive(Clone, Debug)]
pub struct Gguf<'a> {
    /// Format version, 1 to 3.
    pub version: u32,
    /// Alignment of tensor data in bytes, a power of two.
    pub alignment: u64,
    /// Bytes of the header, before padding.
    pub header_len: u64,
    /// The offset of tensor data: `header_len` rounded up to the alignment. In a file without tensors this may be past its end.
    pub data_start: u64,
    /// The end of the last tensor; `data_start` if there are none. Bytes after it are ignored.
    pub data_end: u64,
    /// True if `alight pack` wrote the file: it names a layout that is known here, and tensors may be packed.
    pub packed: bool,
    /// Key and value, in file order.
    pub metadata: Vec<(&'a str, Value<'a>)>,
    /// The tensors, in file order, which is also the order of their data.
    pub tensors: Vec<TensorInfo<'a>>,
    keys: HashMap<&'a str, u32>,
    names: HashMap<&'a str, u32>,
}

/// One tensor of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    /// Its name, unique in the file.
    pub name: &'a str,
    /// Number of dimensions stated in the file, 1 to 4.
    pub n_dims: u32,
    /// Extents, innermost first: a matrix `[rows, cols]` has `ne = [cols, rows, 1, 1]`. All are above 0.
    pub ne: [u64; 4],
    /// Type of the elements; `ne[0]` is a multiple of its block.
    pub ty: GgmlType,
    /// Set if the data is in tiles of [`packed::TILE_ROWS`] rows, or in planes, instead of in rows; `ne[1]` is a multiple of
    /// that number. The number of bytes is the same. See [`packed`].
    pub packed: Option<packed::Packing>,
    /// The offset of its data, in bytes from the start of the file.
    pub offset: u64,
    /// Bytes of data, without padding. They are all in the file: `offset + nbytes` is at most its length, and
    /// so is the end of [`TensorInfo::range`].
    pub nbytes: u64,
    /// The bytes from each of the `ne[2]` experts to the next, if other tensors' parts are between them. `None`
    /// if not; the data is then the `nbytes` bytes from `offset` on.
    pub stride: Option<u64>,
}

impl<'a> TensorInfo<'a> {
    /// The extents stated in the file, innermost first.
    pub fn shape(&self) -> &[u64] {
        &self.ne[..(self.n_dims as usize).min(4)]
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        // The parser has checked that this does not overflow.
        self.ne.iter().product()
    }

    /// Bytes of one row of `ne[0]` elements.
    pub fn row_bytes(&self) -> u64 {
        self.ty.row_bytes(self.ne[0]).unwrap_or(0)
    }

    /// The number of its type in a file.
    pub fn type_id(&self) -> u32 {
        let packed = self.packed.and_then(|packing| packed::packed_id(self.ty, packing));
        packed.unwrap_or(self.ty.id())
    }

    /// The range from the first byte of its data in the file to the last. If [`TensorInfo::stride`] is set, it
    /// includes data of other tensors.
    pub fn range(&self) -> Range<usize> {
        let end = match self.stride {
            None => self.offset + self.nbytes,
            Some(_) => self.expert(self.ne[2] - 1).end,
        };
        self.offset as usize..end as usize
    }

    /// The ranges of the data in the file, in its order: a single one, or one for each expert.
    pub fn pieces(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let count = if self.stride.is_some() { self.ne[2] } else { 1 };
        let (offset, one, stride) = (self.offset, self.nbytes / count, self.stride.unwrap_or(0));
        (0..count).map(move |piece| offset + piece * stride..offset + piece * stride + one)
    }

    /// The range of the data of one of the `ne[2]` experts.
    pub fn expert(&self, expert: u64) -> Range<u64> {
        let one = self.nbytes / self.ne[2];
        let start = self.offset + expert * self.stride.unwrap_or(one);
        start..start + one
    }

    /// The data, from the bytes of the file: in place, or a copy if other tensors' experts are in between.
    /// `None` if these are not the bytes that were parsed.
    pub fn data<'f>(&self, file: &'f [u8]) -> Option<Cow<'f, [u8]>> {
        let whole = file.get(self.range())?;
        let Some(stride) = self.stride else { return Some(Cow::Borrowed(whole)) };
        let one = (self.nbytes / self.ne[2]) as usize;
        let experts = whole.chunks(stride as usize).flat_map(|expert| &expert[..one]);
        Some(Cow::Owned(experts.copied().collect()))
    }
}

impl<'a> Gguf<'a> {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value<'a>> {
        let index = *self.keys.get(key)?;
        self.metadata.get(index as usize).map(|(_, value)| value)
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo<'a>> {
        self.tensors.get(self.tensor_index(name)?)
    }

    /// The index of the tensor called `name` in [`Gguf::tensors`].
    pub fn tensor_index(&self, name: &str) -> Option<usize> {
        self.names.get(name).map(|index| *index as usize)
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// [`GgufError::MissingTensor`].
    pub fn require_tensor(&self, name: &str) -> Result<&TensorInfo<'a>, GgufError> {
        self.tensor(name).ok_or_else(|| GgufError::MissingTensor { name: name.into() })
    }

    /// The value of `key` as a `T`, or `None` if the key is absent. Integers of any width and sign are
    /// converted if the value fits, and floats of either width; nothing else is.
    ///
    /// # Errors
    /// The value is of another kind, out of range, or text that is not UTF-8.
    pub fn value<T: FromValue<'a>>(&self, key: &str) -> Result<Option<T>, GgufError> {
        self.get(key).map(|value| T::from_value(key, value)).transpose()
    }

    /// As [`Gguf::value`], for a required key.
    ///
    /// # Errors
    /// As [`Gguf::value`], and [`GgufError::MissingKey`].
    pub fn require<T: FromValue<'a>>(&self, key: &str) -> Result<T, GgufError> {
        self.value(key)?.ok_or_else(|| GgufError::MissingKey { key: key.into() })
    }
}

/// Named forms of [`Gguf::value`].
macro_rules! getters {
    ($($name:ident -> $type:ty, $what:literal;)*) => {
        impl<'a> Gguf<'a> {
            $(
                #[doc = concat!("The value of `key` as ", $what, "; `None` if the key is absent.")]
                ///
                /// # Errors
                /// As [`Gguf::value`].
                pub fn $name(&self, key: &str) -> Result<Option<$type>, GgufError> {
                    self.value(key)
                }
            )*
        }
    };
}

getters! {
    get_u32 -> u32, "an integer of any width that fits 32 bits unsigned";
    get_u64 -> u64, "an integer of any width that fits 64 bits unsigned";
    get_i64 -> i64, "an integer of any width that fits 64 bits signed";
    get_f32 -> f32, "a float of either width, rounded to f32";
    get_bool -> bool, "a boolean";
    get_str -> &'a str, "UTF-8 text";
    get_array -> Array<'a>, "an array";
    get_strings -> Strings<'a>, "an array of strings";
}

/// The types that a metadata value can be converted to. See [`Gguf::value`].
pub trait FromValue<'a>: Sized {
    /// Converts `value`; `key` is for the error.
    ///
    /// # Errors
    /// The value is of another kind or out of range.
    fn from_value(key: &str, value: &Value<'a>) -> Result<Self, GgufError>;
}

fn wrong(key: &str, value: &Value<'_>, expected: &'static str) -> GgufError {
    GgufError::WrongType { key: key.into(), found: value.value_type(), expected }
}

macro_rules! from_int {
    ($($type:ty)*) => {$(
        impl<'a> FromValue<'a> for $type {
            fn from_value(key: &str, value: &Value<'a>) -> Result<Self, GgufError> {
                let found = value.as_int().ok_or_else(|| wrong(key, value, "an integer"))?;
                <$type>::try_from(found).map_err(|_| GgufError::OutOfRange {
                    key: key.into(),
                    found,
                    expected: stringify!($type),
                })
            }
        }
    )*};
}

from_int! { u8 u16 u32 u64 usize i8 i16 i32 i64 }

impl<'a> FromValue<'a> for f64 {
    fn from_value(key: &str, value: &Value<'a>) -> Result<Self, GgufError> {
        value.as_f64().ok_or_else(|| wrong(key, value, "a float"))
    }
}

impl<'a> FromValue<'a> for f32 {
    fn from_value(key: &str, value: &Value<'a>) -> Result<Self, GgufError> {
        f64::from_value(key, value).map(|wide| wide as f32)
    }
}

impl<'a> FromValue<'a> for bool {
    fn from_value(key: &str, value: &Value<'a>) -> Result<Self, GgufError> {
        match value {
            Value::Bool(flag) => Ok(*flag),
            _ => Err(wrong(key, value, "bool")),
        }
    }
}

impl<'a> FromValue<'a> for &'a [u8] {
    fn from_value(key: &str, value: &Value<'a>) -> Result<Self, GgufError> {
        match value {
            Value::Str(bytes) => Ok(bytes),
            _ => Err(wrong(key, value, "str")),
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    fn from_value(key: &str, value: &Value<'a>) -> Result<Self, GgufError> {
        let bytes = <&[u8]>::from_value(key, value)?;
        std::str::from_utf8(bytes).map_err(|error| GgufError::NotUtf8 {
            place: GgufField::Value(key.into()),
            text: crate::text::shown(bytes).into(),
            at: error.valid_up_to(),
        })
    }
}

impl<'a> FromValue<'a> for Array<'a> {
    fn from_value(key: &str, value: &Value<'a>) -> Result<Self, GgufError> {
        match value {
            Value::Array(array) => Ok(*array),
            _ => Err(wrong(key, value, "array")),
        }
    }
}

impl<'a> FromValue<'a> for Strings<'a> {
    fn from_value(key: &str, value: &Value<'a>) -> Result<Self, GgufError> {
        let array = Array::from_value(key, value)?;
        array.iter_str().ok_or_else(|| GgufError::WrongElementType {
            key: key.into(),
            found: array.elem_type(),
            expected: "str",
        })
    }
}
