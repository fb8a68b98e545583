//! Parses bytes into a checked [`Gguf`].
//!
//! Time is linear in the header's length, which [`MAX_HEADER`] bounds; memory is proportional to the entries
//! and tensors that were actually read, each bounded by [`MAX_ENTRIES`].

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use super::cursor::Cursor;
use super::value::{Array, Value, ValueType};
use super::{
    DEFAULT_ALIGNMENT, FromValue, Gguf, GgufError, GgufField, MAX_ALIGNMENT, MAX_ENTRIES,
    MAX_HEADER, MAX_KEY, MAX_NAME, MIN_ALIGNMENT, TensorInfo,
};
use crate::Source;
use crate::packed::{
    EXPERTS_KEY, EXPERTS_VERSION, LAYOUT, LAYOUT_KEY, LAYOUT_VERSION, LAYOUT_VERSION_KEY,
    PACKED_ALIGNMENT, PLANES_VERSION, Packing, SideBySide, TILE_ROWS, type_of,
};
use crate::text::shown;
use alight_types::GgmlType;

/// Reads and checks the header of a GGUF file.
///
/// `file` is the whole file: only the header is read, the rest matters only for its length.
///
/// # Errors
/// [`GgufError`] has a variant for each way in which a header can be wrong. Never panics.
pub fn parse<'a>(file: impl Source<'a>) -> Result<Gguf<'a>, GgufError> {
    read(&file)
}

fn read<'a>(file: &dyn Source<'a>) -> Result<Gguf<'a>, GgufError> {
    let mut cursor = Cursor::new(file, MAX_HEADER as u64);
    let header = |cursor: &Cursor<'_, '_>| cursor.at(|| GgufField::Header);

    let magic = cursor.array::<4>("magic").map_err(header(&cursor))?;
    if magic != *b"GGUF" {
        let mut head = [0; 64];
        let len = file.len().min(head.len() as u64) as usize;
        let is_read = file.read(0, &mut head[..len]);
        return Err(GgufError::of_other(if is_read { &head[..len] } else { &magic }, magic));
    }
    let version = cursor.u32("version").map_err(header(&cursor))?;
    // There is no flag for the byte order. A small number whose low half is empty was written in the other order.
    if version != 0 && version & 0xffff == 0 && version.swap_bytes() <= 0xffff {
        return Err(GgufError::BigEndian { version: version.swap_bytes() });
    }
    if !(1..=3).contains(&version) {
        return Err(GgufError::Version { found: version });
    }
    cursor.wide = version > 1;
    let n_tensors = cursor.size("number of tensors").map_err(header(&cursor))?;
    let n_entries = cursor.size("number of metadata entries").map_err(header(&cursor))?;

    // The shortest entry: a key of one byte and a value of one byte. The shortest tensor: a name of
    // one byte and one dimension.
    let size = if cursor.wide { 8 } else { 4 };
    let least_entry = size + 1 + 4 + 1;
    let least_tensor = size + 1 + 4 + size + 4 + 8;
    let limit = (cursor.left() / least_entry).min(MAX_ENTRIES);
    if n_entries > limit {
        return Err(GgufError::Count { what: "metadata entries", found: n_entries, limit });
    }
    let limit = ((cursor.left() - n_entries * least_entry) / least_tensor).min(MAX_ENTRIES);
    if n_tensors > limit {
        return Err(GgufError::Count { what: "tensors", found: n_tensors, limit });
    }

    let (metadata, keys) = metadata(&mut cursor, n_entries)?;
    let alignment = match keys.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(index) => alignment(&metadata[*index as usize].1)?,
    };

    let entry = |key| keys.get(key).map(|index| &metadata[*index as usize].1);
    let version_of_layout = layout(entry(LAYOUT_KEY), entry(LAYOUT_VERSION_KEY))?;
    let packed = version_of_layout.is_some();

    let (mut tensors, names) = tensors(&mut cursor, n_tensors, version_of_layout)?;
    let experts = entry(EXPERTS_KEY).filter(|_| version_of_layout >= Some(EXPERTS_VERSION));
    let runs = experts.map_or(Ok(Vec::new()), |value| runs_of_experts(value, &tensors))?;
    let header_len = cursor.pos();
    // Both terms are below 2^30, see MAX_HEADER and MAX_ALIGNMENT.
    let data_start = header_len.next_multiple_of(alignment);
    let data_end = place(&mut tensors, &runs, data_start, alignment, file.len())?;

    Ok(Gguf {
        version,
        alignment,
        header_len,
        data_start,
        data_end,
        packed,
        metadata,
        tensors,
        keys,
        names,
    })
}

type PlaceOfName<'a> = HashMap<&'a str, u32>;
type MetadataEntries<'a> = Vec<(&'a str, Value<'a>)>;

/// Reads the metadata entries, and builds the index of their keys.
fn metadata<'a>(
    cursor: &mut Cursor<'_, 'a>,
    count: u64,
) -> Result<(MetadataEntries<'a>, PlaceOfName<'a>), GgufError> {
    // `count` is at most MAX_ENTRIES and the file could hold that many. Still, memory for many is only
    // allocated when they are found.
    let mut entries = Vec::with_capacity(count.min(256) as usize);
    let mut keys = PlaceOfName::with_capacity(count.min(256) as usize);
    for index in 0..count {
        let place = || GgufField::Key(index);
        let key = cursor.string("key").map_err(cursor.at(place))?;
        let key = name(key, MAX_KEY, place)?;
        match keys.entry(key) {
            Entry::Vacant(free) => free.insert(index as u32),
            Entry::Occupied(first) => {
                let first = u64::from(*first.get());
                return Err(GgufError::DuplicateKey { key: key.into(), first, second: index });
            }
        };
        entries.push((key, value(cursor, key)?));
    }
    Ok((entries, keys))
}

/// Reads the value of `key`.
fn value<'a>(cursor: &mut Cursor<'_, 'a>, key: &'a str) -> Result<Value<'a>, GgufError> {
    let place = || GgufField::Value(key.into());
    let ty = value_type(cursor, place)?;
    /// Reads a number of this type.
    macro_rules! number {
        ($variant:ident, $type:ty) => {
            cursor
                .array("value")
                .map(|bytes| Value::$variant(<$type>::from_le_bytes(bytes)))
                .map_err(cursor.at(place))
        };
    }
    match ty {
        ValueType::U8 => number!(U8, u8),
        ValueType::I8 => number!(I8, i8),
        ValueType::U16 => number!(U16, u16),
        ValueType::I16 => number!(I16, i16),
        ValueType::U32 => number!(U32, u32),
        ValueType::I32 => number!(I32, i32),
        ValueType::F32 => number!(F32, f32),
        ValueType::U64 => number!(U64, u64),
        ValueType::I64 => number!(I64, i64),
        ValueType::F64 => number!(F64, f64),
        ValueType::Bool => {
            let at = cursor.pos();
            let byte = cursor.array::<1>("value").map_err(cursor.at(place))?;
            check_bools(&byte, at, place)?;
            Ok(Value::Bool(byte[0] != 0))
        }
        ValueType::Str => cursor.string("string").map(Value::Str).map_err(cursor.at(place)),
        ValueType::Array => array(cursor, place).map(Value::Array),
    }
}

/// Reads an array: element type, count, elements.
fn array<'a>(
    cursor: &mut Cursor<'_, 'a>,
    place: impl Fn() -> GgufField + Copy,
) -> Result<Array<'a>, GgufError> {
    let elem_type = value_type(cursor, place)?;
    if elem_type == ValueType::Array {
        return Err(GgufError::NestedArray { place: place() });
    }
    let count = cursor.size("array length").map_err(cursor.at(place))?;
    let wide = cursor.wide;
    // Saturating: a product that does not fit is longer than any file.
    let bytes = match elem_type.size() {
        Some(size) => cursor.take(count.saturating_mul(size as u64), "array"),
        None => {
            let least = count.saturating_mul(if wide { 8 } else { 4 });
            if least > cursor.left() {
                cursor.take(least, "array of strings")
            } else {
                cursor.strings(count, "string in an array")
            }
        }
    }
    .map_err(cursor.at(place))?;
    if elem_type == ValueType::Bool {
        check_bools(bytes, cursor.pos() - bytes.len() as u64, place)?;
    }
    // There is at least one byte per element, so the count fits.
    Ok(Array { elem_type, len: count as usize, bytes, wide })
}

/// Reads the id of a type that this version of the format has.
fn value_type(
    cursor: &mut Cursor<'_, '_>,
    place: impl Fn() -> GgufField + Copy,
) -> Result<ValueType, GgufError> {
    let found = cursor.u32("value type").map_err(cursor.at(place))?;
    // The 64-bit types came with version 2.
    let limit = if cursor.wide { 12 } else { 9 };
    ValueType::from_id(found).filter(|_| found <= limit).ok_or_else(|| GgufError::ValueTypeId {
        place: place(),
        found,
        limit,
    })
}

/// Checks that booleans are 0 or 1; `at` is the offset of `bytes` in the file.
fn check_bools(bytes: &[u8], at: u64, place: impl Fn() -> GgufField) -> Result<(), GgufError> {
    match bytes.iter().position(|byte| *byte > 1) {
        None => Ok(()),
        Some(index) => {
            Err(GgufError::Bool { place: place(), found: bytes[index], at: at + index as u64 })
        }
    }
}

/// Checks a key or a tensor's name: not empty, not too long, UTF-8, no zero byte.
fn name(bytes: &[u8], limit: u64, place: impl Fn() -> GgufField) -> Result<&str, GgufError> {
    if bytes.is_empty() {
        return Err(GgufError::EmptyName { place: place() });
    }
    if bytes.len() as u64 > limit {
        return Err(GgufError::NameTooLong { place: place(), found: bytes.len() as u64, limit });
    }
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        return Err(GgufError::NulInName { place: place(), text: shown(bytes).into(), at });
    }
    std::str::from_utf8(bytes).map_err(|error| GgufError::NotUtf8 {
        place: place(),
        text: shown(bytes).into(),
        at: error.valid_up_to(),
    })
}

/// Reads the value of `general.alignment`.
fn alignment(value: &Value<'_>) -> Result<u64, GgufError> {
    match *value {
        Value::U32(found) => {
            if found.is_power_of_two() && (MIN_ALIGNMENT..=MAX_ALIGNMENT).contains(&found) {
                Ok(u64::from(found))
            } else {
                Err(GgufError::Alignment { found, min: MIN_ALIGNMENT, max: MAX_ALIGNMENT })
            }
        }
        ref other => Err(GgufError::AlignmentType { found: other.value_type() }),
    }
}

/// Returns the version of the layout that the file names, if it names one; it has to be a layout known here.
/// The version is checked first: a newer alight may have changed the rest.
fn layout(
    layout: Option<&Value<'_>>,
    version: Option<&Value<'_>>,
) -> Result<Option<u64>, GgufError> {
    let version = version.map(|version| {
        let found = u64::from_value(LAYOUT_VERSION_KEY, version)?;
        if found > LAYOUT_VERSION {
            return Err(GgufError::NewerLayout { found, known: LAYOUT_VERSION });
        }
        if found == 0 {
            let (key, found) = (LAYOUT_VERSION_KEY.into(), i128::from(found));
            return Err(GgufError::OutOfRange { key, found, expected: "a layout's version" });
        }
        Ok(found)
    });
    let version = version.transpose()?;
    let Some(layout) = layout else { return Ok(None) };
    let found = <&[u8]>::from_value(LAYOUT_KEY, layout)?;
    if found != LAYOUT.as_bytes() {
        return Err(GgufError::UnknownLayout { found: found.into() });
    }
    match version {
        Some(version) => Ok(Some(version)),
        None => Err(GgufError::MissingKey { key: LAYOUT_VERSION_KEY.into() }),
    }
}

/// Returns the runs of tensors whose experts are stored side by side.
fn runs_of_experts(
    value: &Value<'_>,
    tensors: &[TensorInfo<'_>],
) -> Result<Vec<Range<usize>>, GgufError> {
    let array = Array::from_value(EXPERTS_KEY, value)?;
    let numbers = array.iter_u32().ok_or_else(|| GgufError::WrongElementType {
        key: EXPERTS_KEY.into(),
        found: array.elem_type(),
        expected: "u32",
    })?;
    let numbers: Vec<u32> = numbers.collect();
    let (pairs, rest) = numbers.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(GgufError::ExpertsPairs { found: numbers.len() });
    }
    let (mut runs, mut after) = (Vec::new(), 0);
    for [first, count] in pairs {
        // Both are far below usize::MAX.
        let run = *first as usize..*first as usize + *count as usize;
        let some = tensors.get(run.clone()).filter(|_| run.start >= after && *count > 1);
        let Some(some) = some else {
            let tensors = tensors.len();
            return Err(GgufError::ExpertsRun { first: *first, count: *count, tensors });
        };
        for tensor in some {
            if tensor.ne[2] != some[0].ne[2] || tensor.ne[2] < 2 || tensor.ne[3] != 1 {
                let (place, found) = (GgufField::Tensor(tensor.name.into()), tensor.ne.into());
                return Err(GgufError::ExpertsShape { place, found, expected: some[0].ne[2] });
            }
        }
        after = run.end;
        runs.push(run);
    }
    Ok(runs)
}

/// Reads the tensors, with offsets still relative to the data, and builds the index of their names.
fn tensors<'a>(
    cursor: &mut Cursor<'_, 'a>,
    count: u64,
    version_of_layout: Option<u64>,
) -> Result<(Vec<TensorInfo<'a>>, PlaceOfName<'a>), GgufError> {
    let mut tensors = Vec::with_capacity(count.min(4096) as usize);
    let mut names = PlaceOfName::with_capacity(count.min(4096) as usize);
    for index in 0..count {
        let place = || GgufField::TensorName(index);
        let bytes = cursor.string("name").map_err(cursor.at(place))?;
        let name = name(bytes, MAX_NAME, place)?;
        match names.entry(name) {
            Entry::Vacant(free) => free.insert(index as u32),
            Entry::Occupied(first) => {
                let first = u64::from(*first.get());
                return Err(GgufError::DuplicateTensor { name: name.into(), first, second: index });
            }
        };
        let tensor = tensor(cursor, name)?;
        let needed = tensor.packed.map(|packing| match packing {
            Packing::Tiles => 1,
            Packing::Planes => PLANES_VERSION,
        });
        if needed > version_of_layout {
            return Err(GgufError::PackedWithoutLayout { place: GgufField::Tensor(name.into()) });
        }
        tensors.push(tensor);
    }
    Ok((tensors, names))
}

/// Reads one tensor's description, after its name.
fn tensor<'a>(cursor: &mut Cursor<'_, 'a>, name: &'a str) -> Result<TensorInfo<'a>, GgufError> {
    let place = || GgufField::Tensor(name.into());
    let n_dims = cursor.u32("number of dimensions").map_err(cursor.at(place))?;
    if !(1..=4).contains(&n_dims) {
        return Err(GgufError::Dimensions { place: place(), found: n_dims });
    }
    let mut ne = [1; 4];
    for (index, extent) in ne.iter_mut().enumerate().take(n_dims as usize) {
        *extent = cursor.size("dimension").map_err(cursor.at(place))?;
        // Writers use signed numbers, so the upper half of the range means negative.
        if *extent == 0 || i64::try_from(*extent).is_err() {
            return Err(GgufError::Dimension { place: place(), index, found: *extent });
        }
    }
    let id = cursor.u32("type").map_err(cursor.at(place))?;
    let (ty, packed) =
        type_of(id).map_err(|reason| GgufError::TensorType { place: place(), reason })?;
    let nbytes = nbytes(ty, &ne, place)?;
    if packed == Some(Packing::Planes) && ne[2] * ne[3] != 1 {
        let reason = crate::TypeError::NotPackable { id, ty };
        return Err(GgufError::TensorType { place: place(), reason });
    }
    if packed.is_some() && !ne[1].is_multiple_of(TILE_ROWS) {
        return Err(GgufError::PackedRows { place: place(), found: ne[1], tile: TILE_ROWS });
    }
    let offset = cursor.u64("data offset").map_err(cursor.at(place))?;
    Ok(TensorInfo { name, n_dims, ne, ty, packed, offset, nbytes, stride: None })
}

/// Bytes of data of a tensor; both its elements and its bytes fit into 63 bits.
pub(super) fn nbytes(
    ty: GgmlType,
    ne: &[u64; 4],
    place: impl Fn() -> GgufField,
) -> Result<u64, GgufError> {
    if !ne[0].is_multiple_of(ty.block_len()) {
        let (found, block) = (ne[0], ty.block_len());
        return Err(GgufError::PartialBlock { place: place(), found, block, ty });
    }
    let count = |first: u64| {
        ne[1..]
            .iter()
            .try_fold(first, |product, n| product.checked_mul(*n))
            .filter(|product| i64::try_from(*product).is_ok())
    };
    let elements = count(ne[0]);
    let bytes = ty.row_bytes(ne[0]).and_then(count);
    match (elements, bytes) {
        (Some(_), Some(bytes)) => Ok(bytes),
        _ => Err(GgufError::ShapeOverflow { place: place(), ne: *ne }),
    }
}

/// Checks the locations of the tensors and makes their offsets absolute; `runs` are those whose experts are
/// stored side by side. Returns the end of the last one.
fn place(
    tensors: &mut [TensorInfo<'_>],
    runs: &[Range<usize>],
    data_start: u64,
    alignment: u64,
    file: u64,
) -> Result<u64, GgufError> {
    // The required offset of the next tensor, from `data_start`. No sum overflows: `data_start` is below 2^31,
    // the size of a tensor or a run below 2^63, and `expected` grows only by sizes that were found in the file.
    let mut expected = 0_u64;
    let mut end = data_start;
    let mut runs = runs.iter();
    let mut next_run = runs.next();
    let mut first = 0;
    while first < tensors.len() {
        let run = next_run.filter(|run| run.start == first);
        next_run = if run.is_some() { runs.next() } else { next_run };
        let some = &mut tensors[first..run.map_or(first + 1, |run| run.end)];
        let experts = some[0].ne[2];
        let side_by_side = run.map(|_| {
            let parts = some.iter().map(|tensor| tensor.nbytes / experts);
            SideBySide::new(experts, parts).ok_or_else(|| {
                let place = GgufField::Tensor(some[0].name.into());
                GgufError::ShapeOverflow { place, ne: some[0].ne }
            })
        });
        let side_by_side = side_by_side.transpose()?;
        let len = side_by_side.as_ref().map_or(some[0].nbytes, |all| all.len);
        let begin = expected;
        for (index, tensor) in some.iter_mut().enumerate() {
            let place = || GgufField::Tensor(tensor.name.into());
            let (found, start) = (tensor.offset, data_start.saturating_add(tensor.offset));
            if index == 0 && !found.is_multiple_of(alignment) {
                return Err(GgufError::Misaligned { place: place(), found, alignment });
            }
            let expected = begin + side_by_side.as_ref().map_or(0, |all| all.starts[index]);
            if found > expected {
                return Err(GgufError::Gap { place: place(), found, expected });
            }
            if found < expected {
                return Err(GgufError::Overlap { place: place(), found, expected });
            }
            let on_page = tensor.packed.is_some() || side_by_side.is_some();
            if index == 0 && on_page && !start.is_multiple_of(PACKED_ALIGNMENT) {
                let alignment = PACKED_ALIGNMENT;
                return Err(GgufError::PackedMisaligned {
                    place: place(),
                    found: start,
                    alignment,
                });
            }
            // For experts side by side, the size of the whole run.
            let left = file.saturating_sub(data_start + begin);
            if len > left {
                return Err(GgufError::PastEnd { place: place(), start, nbytes: len, file });
            }
            tensor.offset = start;
            tensor.stride = side_by_side.as_ref().map(|all| all.stride);
        }
        end = data_start + begin + len;
        expected = (begin + len).next_multiple_of(alignment);
        first += some.len();
    }
    Ok(end)
}
