//! Builds GGUF headers from a description: used by the code that writes packed and converted files, and by tests.
//!
//! The header is version 3 (or 2, which differs only in the number). Tensors are laid out in the order in which
//! they were added, each at the next multiple of the alignment, as the format requires. Data is not held here:
//! the caller writes each tensor's bytes at the offset given by [`Builder::layout`], and zeros between them.

use super::parse::nbytes;
use super::{DEFAULT_ALIGNMENT, GgufError, GgufField, Value, ValueType};
use crate::packed::{Packing, SideBySide, packed_id};
use alight_types::{GgmlType, TypeError};

/// Collects metadata and tensors; [`Builder::header`] returns the bytes.
///
/// It does not check that keys and names are unique or short enough; parsing the result does.
#[derive(Clone, Debug)]
pub struct Builder {
    version: u32,
    alignment: u64,
    entries: Vec<u8>,
    n_entries: u64,
    tensors: Vec<Planned>,
    /// The end of the data of the last tensor.
    end: u64,
}

/// A tensor with a fixed location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Its name.
    pub name: String,
    /// Extents, innermost first.
    pub shape: Vec<u64>,
    /// Type of the elements.
    pub ty: GgmlType,
    /// The number of its type and layout.
    pub id: u32,
    /// The offset of its data, from the start of the data.
    pub offset: u64,
    /// Bytes of data, without padding.
    pub nbytes: u64,
    /// As [`TensorInfo::stride`](super::TensorInfo::stride).
    pub stride: Option<u64>,
}

/// A tensor to be added.
#[derive(Clone, Copy, Debug)]
pub struct New<'a> {
    /// Its name.
    pub name: &'a str,
    /// Type of the elements.
    pub ty: GgmlType,
    /// Set if its data is in tiles or planes.
    pub packed: Option<Packing>,
    /// Extents, innermost first.
    pub shape: &'a [u64],
}

impl Default for Builder {
    fn default() -> Self {
        Builder::new()
    }
}

/// `add(key, value)` for one type of number.
macro_rules! scalars {
    ($($name:ident, $plural:ident, $type:ty, $variant:ident;)*) => {$(
        #[doc = concat!("Adds a value of type `", stringify!($type), "`.")]
        pub fn $name(&mut self, key: &str, value: $type) -> &mut Self {
            self.key(key, ValueType::$variant);
            self.entries.extend(value.to_le_bytes());
            self
        }

        #[doc = concat!("Adds an array of `", stringify!($type), "`.")]
        pub fn $plural(&mut self, key: &str, values: &[$type]) -> &mut Self {
            self.array(key, ValueType::$variant, values.len());
            for value in values {
                self.entries.extend(value.to_le_bytes());
            }
            self
        }
    )*};
}

impl Builder {
    /// Creates an empty builder with the default alignment of 32 bytes.
    pub fn new() -> Self {
        let entries = Vec::new();
        let tensors = Vec::new();
        Builder { version: 3, alignment: DEFAULT_ALIGNMENT, entries, n_entries: 0, tensors, end: 0 }
    }

    /// Writes version 2 instead of 3, which differs only in the number.
    pub fn version_2(&mut self) -> &mut Self {
        self.version = 2;
        self
    }

    /// Creates a builder with `general.alignment` as the first entry. `alignment` should be a power of two from
    /// [`MIN_ALIGNMENT`](super::MIN_ALIGNMENT) to [`MAX_ALIGNMENT`](super::MAX_ALIGNMENT).
    pub fn with_alignment(alignment: u32) -> Self {
        let mut builder = Builder::new();
        builder.alignment(alignment);
        builder
    }

    /// Adds `general.alignment` as the next entry; call it before adding tensors.
    pub fn alignment(&mut self, alignment: u32) -> &mut Self {
        self.alignment = u64::from(alignment).max(1);
        self.u32("general.alignment", alignment)
    }

    scalars! {
        u8, u8s, u8, U8;
        i8, i8s, i8, I8;
        u16, u16s, u16, U16;
        i16, i16s, i16, I16;
        u32, u32s, u32, U32;
        i32, i32s, i32, I32;
        u64, u64s, u64, U64;
        i64, i64s, i64, I64;
        f32, f32s, f32, F32;
        f64, f64s, f64, F64;
    }

    /// Adds a boolean.
    pub fn bool(&mut self, key: &str, value: bool) -> &mut Self {
        self.key(key, ValueType::Bool);
        self.entries.push(u8::from(value));
        self
    }

    /// Adds an array of booleans.
    pub fn bools(&mut self, key: &str, values: &[bool]) -> &mut Self {
        self.array(key, ValueType::Bool, values.len());
        self.entries.extend(values.iter().map(|value| u8::from(*value)));
        self
    }

    /// Adds a string.
    pub fn str(&mut self, key: &str, value: impl AsRef<[u8]>) -> &mut Self {
        self.key(key, ValueType::Str);
        string(&mut self.entries, value.as_ref());
        self
    }

    /// Adds an array of strings.
    pub fn strs(&mut self, key: &str, values: &[impl AsRef<[u8]>]) -> &mut Self {
        self.array(key, ValueType::Str, values.len());
        for value in values {
            string(&mut self.entries, value.as_ref());
        }
        self
    }

    /// Adds a value from another file.
    pub fn value(&mut self, key: &str, value: &Value<'_>) -> &mut Self {
        match *value {
            Value::U8(v) => self.u8(key, v),
            Value::I8(v) => self.i8(key, v),
            Value::U16(v) => self.u16(key, v),
            Value::I16(v) => self.i16(key, v),
            Value::U32(v) => self.u32(key, v),
            Value::I32(v) => self.i32(key, v),
            Value::F32(v) => self.f32(key, v),
            Value::Bool(v) => self.bool(key, v),
            Value::Str(v) => self.str(key, v),
            Value::U64(v) => self.u64(key, v),
            Value::I64(v) => self.i64(key, v),
            Value::F64(v) => self.f64(key, v),
            Value::Array(array) => {
                self.array(key, array.elem_type(), array.len());
                match array.iter_str() {
                    // Version 1 has shorter lengths, so strings are written individually.
                    Some(strings) => strings.for_each(|s| string(&mut self.entries, s)),
                    None => self.entries.extend_from_slice(array.bytes()),
                }
                self
            }
        }
    }

    /// Adds a tensor after the existing ones. `shape` is innermost first.
    ///
    /// # Errors
    /// The shape has none or more than four dimensions, a zero, a partial block, or too many elements.
    pub fn tensor(
        &mut self,
        name: &str,
        ty: GgmlType,
        shape: &[u64],
    ) -> Result<&mut Self, GgufError> {
        self.add(New { name, ty, packed: None, shape })
    }

    /// As [`Builder::tensor`], for a tensor whose data is in tiles. The caller is responsible for the other
    /// requirements of a packed file (alignment, the keys of the layout, whole tiles).
    ///
    /// # Errors
    /// As [`Builder::tensor`], and the type has no packed form.
    pub fn packed_tensor(
        &mut self,
        name: &str,
        ty: GgmlType,
        shape: &[u64],
    ) -> Result<&mut Self, GgufError> {
        self.add(New { name, ty, packed: Some(Packing::Tiles), shape })
    }

    /// Adds a tensor after the existing ones.
    ///
    /// # Errors
    /// As [`Builder::packed_tensor`].
    pub fn add(&mut self, tensor: New<'_>) -> Result<&mut Self, GgufError> {
        self.add_some(&[tensor])
    }

    /// Adds tensors whose experts are stored side by side; the caller writes the
    /// [key](crate::packed::EXPERTS_KEY) for this.
    ///
    /// # Errors
    /// As [`Builder::packed_tensor`], or the tensors do not have three dimensions and the same number of experts.
    pub fn side_by_side(&mut self, tensors: &[New<'_>]) -> Result<&mut Self, GgufError> {
        let Some(experts) = tensors.first().and_then(|first| first.shape.get(2).copied()) else {
            let name = tensors.first().map_or("", |first| first.name);
            return Err(GgufError::Dimensions { place: GgufField::Tensor(name.into()), found: 0 });
        };
        for tensor in tensors {
            if tensor.shape.len() != 3 || tensor.shape[2] != experts || experts < 2 {
                let (place, mut found) = (GgufField::Tensor(tensor.name.into()), Box::new([1; 4]));
                found.iter_mut().zip(tensor.shape).for_each(|(to, from)| *to = *from);
                return Err(GgufError::ExpertsShape { place, found, expected: experts });
            }
        }
        self.add_some(tensors)
    }

    /// Adds a tensor, or several whose experts are stored side by side.
    fn add_some(&mut self, some: &[New<'_>]) -> Result<&mut Self, GgufError> {
        let mut planned = Vec::with_capacity(some.len());
        let mut ne = [1; 4];
        for New { name, ty, packed, shape } in some {
            let place = || GgufField::Tensor((*name).into());
            ne = [1; 4];
            match ne.get_mut(..shape.len()) {
                Some(head) if !shape.is_empty() => head.copy_from_slice(shape),
                _ => {
                    return Err(GgufError::Dimensions {
                        place: place(),
                        found: shape.len() as u32,
                    });
                }
            }
            if let Some(index) = shape.iter().position(|n| *n == 0) {
                return Err(GgufError::Dimension { place: place(), index, found: 0 });
            }
            let id = packed.map_or(Some(ty.id()), |packing| packed_id(*ty, packing));
            let id = id.ok_or_else(|| GgufError::TensorType {
                place: place(),
                reason: TypeError::NotPackable { id: ty.id(), ty: *ty },
            })?;
            let nbytes = nbytes(*ty, &ne, place)?;
            let (name, shape, ty) = ((*name).into(), (*shape).into(), *ty);
            planned.push(Planned { name, shape, ty, id, offset: 0, nbytes, stride: None });
        }
        let too_large = || {
            let name = some.first().map_or("", |first| first.name);
            GgufError::ShapeOverflow { place: GgufField::Tensor(name.into()), ne }
        };
        let begin = self.end.checked_next_multiple_of(self.alignment).ok_or_else(too_large)?;
        let len = if let [one] = &mut planned[..] {
            one.offset = begin;
            one.nbytes
        } else {
            let parts = planned.iter().map(|one| one.nbytes / ne[2]);
            let all = SideBySide::new(ne[2], parts).ok_or_else(too_large)?;
            for (one, start) in planned.iter_mut().zip(all.starts) {
                one.offset = begin.checked_add(start).ok_or_else(too_large)?;
                one.stride = Some(all.stride);
            }
            all.len
        };
        self.end = begin.checked_add(len).ok_or_else(too_large)?;
        self.tensors.append(&mut planned);
        Ok(self)
    }

    /// The tensors and the offsets of their data, relative to [the start of the data](Builder::data_start).
    pub fn layout(&self) -> &[Planned] {
        &self.tensors
    }

    /// The end of the last tensor's data, relative to [the start of the data](Builder::data_start).
    pub fn data_end(&self) -> u64 {
        self.end
    }

    /// The header, padded to the alignment: tensor data begins right after it. For small alignments, since the
    /// padding can be as long as the [largest](super::MAX_ALIGNMENT).
    pub fn header(&self) -> Vec<u8> {
        let mut out = self.unpadded_header();
        out.resize(self.data_start(&out) as usize, 0);
        out
    }

    /// The offset of tensor data after [this](Builder::unpadded_header) header, in bytes from the start of the file.
    pub fn data_start(&self, unpadded: &[u8]) -> u64 {
        (unpadded.len() as u64).next_multiple_of(self.alignment)
    }

    /// The header up to its last significant byte.
    pub fn unpadded_header(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.entries.len() + 64 + 96 * self.tensors.len());
        out.extend(b"GGUF");
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend(self.n_entries.to_le_bytes());
        out.extend(&self.entries);
        for tensor in &self.tensors {
            string(&mut out, tensor.name.as_bytes());
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            for extent in &tensor.shape {
                out.extend(extent.to_le_bytes());
            }
            out.extend(tensor.id.to_le_bytes());
            out.extend(tensor.offset.to_le_bytes());
        }
        out
    }

    /// The whole file in memory, for small ones: header, then each tensor's data as written by `fill(index,
    /// bytes)` (zero before), padded to the alignment at the end too.
    pub fn file(&self, mut fill: impl FnMut(usize, &mut [u8])) -> Vec<u8> {
        let mut out = self.header();
        let start = out.len();
        out.resize(start + self.end as usize, 0);
        let mut data = Vec::new();
        for (index, tensor) in self.tensors.iter().enumerate() {
            let begin = start + tensor.offset as usize;
            let Some(stride) = tensor.stride else {
                fill(index, &mut out[begin..begin + tensor.nbytes as usize]);
                continue;
            };
            data.clear();
            data.resize(tensor.nbytes as usize, 0);
            fill(index, &mut data);
            let one = data.len() / tensor.shape[2] as usize;
            for (expert, from) in data.chunks_exact(one).enumerate() {
                out[begin + expert * stride as usize..][..one].copy_from_slice(from);
            }
        }
        let padded = out.len().next_multiple_of(self.alignment as usize);
        out.resize(padded, 0);
        out
    }

    fn key(&mut self, key: &str, ty: ValueType) {
        string(&mut self.entries, key.as_bytes());
        self.entries.extend(ty.id().to_le_bytes());
        self.n_entries += 1;
    }

    fn array(&mut self, key: &str, elem_type: ValueType, len: usize) {
        self.key(key, ValueType::Array);
        self.entries.extend(elem_type.id().to_le_bytes());
        self.entries.extend((len as u64).to_le_bytes());
    }
}

/// Writes a length and bytes.
fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}
