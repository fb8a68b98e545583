//! Metadata values. Strings and arrays borrow from the file's bytes; the parser has already walked each array,
//! so the iterators here cannot fail.

use std::fmt;

use crate::source::{Kept, Pieces};
use crate::text::shown;

/// The type of a metadata value or of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ValueType {
    /// Unsigned, 8 bits.
    U8 = 0,
    /// Signed, 8 bits.
    I8 = 1,
    /// Unsigned, 16 bits.
    U16 = 2,
    /// Signed, 16 bits.
    I16 = 3,
    /// Unsigned, 32 bits.
    U32 = 4,
    /// Signed, 32 bits.
    I32 = 5,
    /// IEEE float, 32 bits.
    F32 = 6,
    /// One byte, 0 or 1.
    Bool = 7,
    /// Length and bytes.
    Str = 8,
    /// Element type, count, elements.
    Array = 9,
    /// Unsigned, 64 bits (from version 2 on).
    U64 = 10,
    /// Signed, 64 bits (from version 2 on).
    I64 = 11,
    /// IEEE float, 64 bits (from version 2 on).
    F64 = 12,
}

impl ValueType {
    /// The type with this number in a file.
    pub const fn from_id(id: u32) -> Option<ValueType> {
        Some(match id {
            0 => ValueType::U8,
            1 => ValueType::I8,
            2 => ValueType::U16,
            3 => ValueType::I16,
            4 => ValueType::U32,
            5 => ValueType::I32,
            6 => ValueType::F32,
            7 => ValueType::Bool,
            8 => ValueType::Str,
            9 => ValueType::Array,
            10 => ValueType::U64,
            11 => ValueType::I64,
            12 => ValueType::F64,
            _ => return None,
        })
    }

    /// The number of this type in a file.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// Bytes of one value, or `None` for strings and arrays.
    pub const fn size(self) -> Option<usize> {
        Some(match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => 1,
            ValueType::U16 | ValueType::I16 => 2,
            ValueType::U32 | ValueType::I32 | ValueType::F32 => 4,
            ValueType::U64 | ValueType::I64 | ValueType::F64 => 8,
            ValueType::Str | ValueType::Array => return None,
        })
    }

    /// Short name, as in `u32` or `str`.
    pub const fn name(self) -> &'static str {
        match self {
            ValueType::U8 => "u8",
            ValueType::I8 => "i8",
            ValueType::U16 => "u16",
            ValueType::I16 => "i16",
            ValueType::U32 => "u32",
            ValueType::I32 => "i32",
            ValueType::F32 => "f32",
            ValueType::Bool => "bool",
            ValueType::Str => "str",
            ValueType::Array => "array",
            ValueType::U64 => "u64",
            ValueType::I64 => "i64",
            ValueType::F64 => "f64",
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One metadata value.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // the variants explain themselves
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// The bytes as stored in the file: GGUF requires UTF-8, but not all writers comply, so code that needs
    /// text uses [`Value::as_str`].
    Str(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// The type of the value.
    pub const fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::Str(_) => ValueType::Str,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// An integer of any width and sign.
    pub const fn as_int(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v as i128,
            Value::I8(v) => v as i128,
            Value::U16(v) => v as i128,
            Value::I16(v) => v as i128,
            Value::U32(v) => v as i128,
            Value::I32(v) => v as i128,
            Value::U64(v) => v as i128,
            Value::I64(v) => v as i128,
            _ => return None,
        })
    }

    /// A float of either width.
    pub const fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(v) => Some(v as f64),
            Value::F64(v) => Some(v),
            _ => None,
        }
    }

    /// A string that is UTF-8.
    pub const fn as_str(&self) -> Option<&'a str> {
        match *self {
            Value::Str(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Some(text),
                Err(_) => None,
            },
            _ => None,
        }
    }
}

impl fmt::Display for Value<'_> {
    /// Numbers and booleans as Rust writes them, strings quoted and truncated, arrays by type and count.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U8(v) => v.fmt(f),
            Value::I8(v) => v.fmt(f),
            Value::U16(v) => v.fmt(f),
            Value::I16(v) => v.fmt(f),
            Value::U32(v) => v.fmt(f),
            Value::I32(v) => v.fmt(f),
            Value::F32(v) => v.fmt(f),
            Value::Bool(v) => v.fmt(f),
            Value::Str(v) => f.pad(&shown(v)),
            Value::Array(v) => write!(f, "[{} × {}]", v.elem_type, v.len),
            Value::U64(v) => v.fmt(f),
            Value::I64(v) => v.fmt(f),
            Value::F64(v) => v.fmt(f),
        }
    }
}

/// An array of scalars or strings, stored as the file's bytes.
///
/// Invariant, established by the parser: `bytes` holds exactly `len` elements of `elem_type`,
/// which is never `Array`; strings have lengths of 8 bytes (`wide`) or 4.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Array<'a> {
    pub(super) elem_type: ValueType,
    pub(super) len: usize,
    pub(super) bytes: &'a [u8],
    pub(super) wide: bool,
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array[{} × {}]", self.elem_type, self.len)
    }
}

/// `iter_*` for one element type.
macro_rules! numbers {
    ($($name:ident, $type:ty, $variant:ident, $size:literal;)*) => {$(
        #[doc = concat!("The elements, if they are of type `", stringify!($type), "`.")]
        pub fn $name(&self) -> Option<impl ExactSizeIterator<Item = $type> + Clone + use<'a>> {
            (self.elem_type == ValueType::$variant).then(|| {
                self.bytes.as_chunks::<$size>().0.iter().map(|c| <$type>::from_le_bytes(*c))
            })
        }
    )*};
}

impl<'a> Array<'a> {
    /// The type of the elements, never `Array`.
    pub const fn elem_type(&self) -> ValueType {
        self.elem_type
    }

    /// Number of elements.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements as stored in the file, including string lengths. Not aligned.
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Bytes of the length before each element, if they are strings: 8 or 4, little-endian.
    pub const fn length_bytes(&self) -> usize {
        if self.wide { 8 } else { 4 }
    }

    /// Returns the array with shared ownership of the copy of the header that contains it.
    pub fn keep(&self, pieces: &Pieces) -> KeptArray {
        let Array { elem_type, len, bytes, wide } = *self;
        KeptArray { elem_type, len, bytes: pieces.keep(bytes), wide }
    }

    /// The elements, if they are strings. Their bytes need not be UTF-8.
    pub fn iter_str(&self) -> Option<Strings<'a>> {
        (self.elem_type == ValueType::Str).then(|| self.strings_from(0))
    }

    /// The elements starting with the one whose length is at byte `at` of an array of strings. From any other
    /// byte on, the results are meaningless; there are none after the end.
    #[inline]
    pub fn strings_from(&self, at: usize) -> Strings<'a> {
        let rest = self.bytes.get(at..).unwrap_or_default();
        Strings { rest, left: self.len, wide: self.wide }
    }

    numbers! {
        iter_f32, f32, F32, 4;
        iter_f64, f64, F64, 8;
        iter_i8, i8, I8, 1;
        iter_u16, u16, U16, 2;
        iter_i16, i16, I16, 2;
        iter_u32, u32, U32, 4;
        iter_i32, i32, I32, 4;
        iter_u64, u64, U64, 8;
        iter_i64, i64, I64, 8;
    }

    /// The elements, if they are of type `u8`.
    pub fn as_u8(&self) -> Option<&'a [u8]> {
        (self.elem_type == ValueType::U8).then_some(self.bytes)
    }

    /// The elements, if they are booleans.
    pub fn iter_bool(&self) -> Option<impl ExactSizeIterator<Item = bool> + Clone + use<'a>> {
        (self.elem_type == ValueType::Bool).then(|| self.bytes.iter().map(|b| *b != 0))
    }

    /// The elements, if they are integers of any width and sign.
    pub fn iter_int(&self) -> Option<impl ExactSizeIterator<Item = i128> + Clone + use<'a>> {
        let (size, signed) = match self.elem_type {
            ValueType::U8 => (1, false),
            ValueType::I8 => (1, true),
            ValueType::U16 => (2, false),
            ValueType::I16 => (2, true),
            ValueType::U32 => (4, false),
            ValueType::I32 => (4, true),
            ValueType::U64 => (8, false),
            ValueType::I64 => (8, true),
            _ => return None,
        };
        Some(self.bytes.chunks_exact(size).map(move |chunk| {
            let mut wide = [0; 8];
            wide[..size].copy_from_slice(chunk);
            let bits = u64::from_le_bytes(wide);
            if signed {
                // Shifts up and back to extend the sign.
                let unused = 64 - 8 * size as u32;
                i128::from(((bits << unused) as i64) >> unused)
            } else {
                i128::from(bits)
            }
        }))
    }
}

/// An array that outlives the header it was parsed from.
#[derive(Clone, Debug)]
pub struct KeptArray {
    elem_type: ValueType,
    len: usize,
    /// The bytes of the original array, which the parser has walked.
    bytes: Kept,
    wide: bool,
}

impl KeptArray {
    /// The array.
    pub fn get(&self) -> Array<'_> {
        let KeptArray { elem_type, len, ref bytes, wide } = *self;
        Array { elem_type, len, bytes, wide }
    }
}

/// The strings of an array, in order.
#[derive(Clone, Debug)]
pub struct Strings<'a> {
    rest: &'a [u8],
    left: usize,
    wide: bool,
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        // The parser has walked these bytes by the same rule. So `?` only ends a walk that started later, at
        // the end of the array.
        if self.left == 0 {
            return None;
        }
        let (len, rest) = if self.wide {
            let (head, rest) = self.rest.split_first_chunk::<8>()?;
            (usize::try_from(u64::from_le_bytes(*head)).ok()?, rest)
        } else {
            let (head, rest) = self.rest.split_first_chunk::<4>()?;
            (usize::try_from(u32::from_le_bytes(*head)).ok()?, rest)
        };
        let (text, rest) = rest.split_at_checked(len)?;
        self.rest = rest;
        self.left -= 1;
        Some(text)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Strings<'_> {}
