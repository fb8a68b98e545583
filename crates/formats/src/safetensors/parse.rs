//! Parses bytes into a checked header.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, Visitor};

use crate::Source;

use super::json::{
    Context, JsonEntries, JsonError, JsonField, Naturals, StringMap, StringSeed, refuse,
};
use super::{
    Dtype, MAX_HEADER, MAX_METADATA, MAX_RANK, MAX_TENSORS, SafeTensors, SafeTensorsError as E,
    Tensor,
};

/// The key that is not a tensor.
const METADATA: &str = "__metadata__";

/// Reads and checks the header of a file.
///
/// # Errors
/// The first error found in it.
pub fn parse<'a>(file: impl Source<'a>) -> Result<SafeTensors<'a>, E> {
    read(&file)
}

fn read<'a>(file: &dyn Source<'a>) -> Result<SafeTensors<'a>, E> {
    let mut len = [0; 8];
    if !file.read(0, &mut len) {
        return Err(E::TooShort { found: file.len() });
    }
    let (found, available) = (u64::from_le_bytes(len), file.len() - 8);
    match found {
        0 => return Err(E::NoHeader),
        1..=MAX_HEADER if found <= available => {}
        1..=MAX_HEADER => return Err(E::HeaderPastEnd { found, available }),
        _ => return Err(E::HeaderTooLong { found }),
    }
    let header = file.get(8..8 + found).ok_or(E::HeaderPastEnd { found, available })?;
    match header.first() {
        Some(b'{') => {}
        other => return Err(E::NotAnObject { found: other.copied().unwrap_or(0) }),
    }
    let (metadata, tensors) = Context::<E>::read(header, |context, json| {
        json.deserialize_any(HeaderVisitor { context })
    })?;
    check(file.len(), 8 + found, metadata, tensors)
}

/// Checks the tensors against each other and against the file.
fn check<'a>(
    file: u64,
    data_start: u64,
    metadata: JsonEntries<'a>,
    mut tensors: Vec<Tensor<'a>>,
) -> Result<SafeTensors<'a>, E> {
    let mut by_name: Vec<u32> = (0..tensors.len() as u32).collect();
    let available = file - data_start;
    for tensor in &tensors {
        check_alone(tensor, available)?;
    }
    // Empty tensors precede the one that begins at the same offset.
    tensors.sort_by_key(|tensor| (tensor.range.start, tensor.range.end));
    let mut expected = 0;
    for tensor in &mut tensors {
        let (found, name) = (tensor.range.start, || Box::from(tensor.name.as_ref()));
        if found > expected {
            return Err(E::Hole { tensor: name(), found, expected });
        }
        if found < expected {
            return Err(E::Overlap { tensor: name(), found, expected });
        }
        expected = tensor.range.end;
        // From here on, relative to the start of the file; it is inside the file, so nothing overflows.
        tensor.range = data_start + found..data_start + expected;
    }
    if expected != available {
        return Err(E::Trailing { found: available, expected });
    }
    let name = |at: u32| tensors[at as usize].name.as_ref();
    by_name.sort_unstable_by(|a, b| name(*a).cmp(name(*b)));
    if let Some(pair) = by_name.windows(2).find(|pair| name(pair[0]) == name(pair[1])) {
        return Err(E::DuplicateTensor { tensor: name(pair[0]).into() });
    }
    Ok(SafeTensors { data_start, data_end: file, metadata, tensors, by_name })
}

/// Checks a single tensor, whose range is relative to the data.
fn check_alone(tensor: &Tensor<'_>, available: u64) -> Result<(), E> {
    let name = || Box::from(tensor.name.as_ref());
    let (begin, end) = (tensor.range.start, tensor.range.end);
    let (dtype, shape) = (tensor.dtype, || tensor.shape.clone());
    let elements = tensor.shape.iter().try_fold(1_u64, |all, n| all.checked_mul(*n));
    let Some(expected) = elements.and_then(|n| n.checked_mul(dtype.bytes())) else {
        return Err(E::ShapeOverflow { tensor: name(), dtype, shape: shape() });
    };
    let Some(found) = end.checked_sub(begin) else {
        return Err(E::Reversed { tensor: name(), begin, end });
    };
    if found != expected {
        return Err(E::Size { tensor: name(), found, expected, dtype, shape: shape() });
    }
    if end > available {
        return Err(E::PastEnd { tensor: name(), end, available });
    }
    Ok(())
}

/// Visitor of the whole header.
struct HeaderVisitor<'c> {
    context: &'c Context<E>,
}

impl HeaderVisitor<'_> {
    fn wrong<T, D: de::Error>(&self, found: &'static str) -> Result<T, D> {
        self.context.wrong(JsonField::Root, found, "an object")
    }
}

impl<'a> Visitor<'a> for HeaderVisitor<'_> {
    type Value = (JsonEntries<'a>, Vec<Tensor<'a>>);
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let context = self.context;
        let (mut metadata, mut tensors) = (None, Vec::new());
        while let Some(name) =
            map.next_key_seed(StringSeed { context, place: &|| JsonField::Root })?
        {
            if name != METADATA {
                if tensors.len() == MAX_TENSORS {
                    let (place, most) = (JsonField::Root, MAX_TENSORS);
                    return context.fail(JsonError::TooMany { place, most });
                }
                tensors.push(map.next_value_seed(TensorEntry { context, name })?);
                continue;
            }
            let (name, most) = (METADATA, MAX_METADATA);
            let entries = map.next_value_seed(StringMap { context, name, most })?;
            if metadata.replace(entries).is_some() {
                let (place, key) = (JsonField::Root, METADATA.into());
                return context.fail(JsonError::DuplicateKey { place, key });
            }
        }
        Ok((metadata.unwrap_or_default(), tensors))
    }
    refuse! { null bool number string array }
}

/// Seed of a tensor's entry. Its range is relative to the data.
struct TensorEntry<'c, 'a> {
    context: &'c Context<E>,
    name: Cow<'a, str>,
}

impl TensorEntry<'_, '_> {
    fn place(&self) -> JsonField {
        JsonField::Tensor(self.name.as_ref().into())
    }

    fn wrong<T, D: de::Error>(&self, found: &'static str) -> Result<T, D> {
        let (place, expected) = (self.place(), "an object");
        self.context.fail(JsonError::Kind { place, found, expected })
    }

    fn dtype<D: de::Error>(&self, found: &str) -> Result<Dtype, D> {
        match Dtype::from_name(found) {
            Some(dtype) => Ok(dtype),
            None => self
                .context
                .fail(E::UnknownDtype { tensor: self.name.as_ref().into(), found: found.into() }),
        }
    }

    /// Returns the value of a field, or an error if it is duplicated or missing.
    fn once<T, D: de::Error>(
        &self,
        slot: &mut Option<T>,
        field: &'static str,
        value: T,
    ) -> Result<(), D> {
        match slot.replace(value) {
            None => Ok(()),
            Some(_) => self
                .context
                .fail(JsonError::DuplicateKey { place: self.place(), key: field.into() }),
        }
    }

    fn present<T, D: de::Error>(&self, slot: Option<T>, field: &'static str) -> Result<T, D> {
        match slot {
            Some(value) => Ok(value),
            None => self.context.fail(JsonError::MissingField { place: self.place(), field }),
        }
    }
}

impl<'a> DeserializeSeed<'a> for TensorEntry<'_, 'a> {
    type Value = Tensor<'a>;
    fn deserialize<D: Deserializer<'a>>(self, value: D) -> Result<Tensor<'a>, D::Error> {
        value.deserialize_any(self)
    }
}

impl<'a> Visitor<'a> for TensorEntry<'_, 'a> {
    type Value = Tensor<'a>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Tensor<'a>, A::Error> {
        let context = self.context;
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        let whole = || self.place();
        while let Some(key) = map.next_key_seed(StringSeed { context, place: &whole })? {
            let field = ["dtype", "shape", "data_offsets"].into_iter().find(|field| key == *field);
            let Some(field) = field else {
                let error = JsonError::UnknownField { place: whole(), field: key.as_ref().into() };
                return context.fail(error);
            };
            let place = || JsonField::Field { tensor: self.name.as_ref().into(), field };
            match field {
                "dtype" => {
                    let found = map.next_value_seed(StringSeed { context, place: &place })?;
                    self.once(&mut dtype, field, self.dtype(&found)?)?;
                }
                "shape" => {
                    let found = map.next_value_seed(Naturals {
                        context,
                        place: &place,
                        most: MAX_RANK,
                        expected: "at most 64",
                    })?;
                    self.once(&mut shape, field, found)?;
                }
                _ => {
                    let (most, expected) = (2, "2");
                    let seed = Naturals { context, place: &place, most, expected };
                    let found = map.next_value_seed(seed)?;
                    let &[begin, end] = found.as_slice() else {
                        let (place, found) = (place(), found.len());
                        return context.fail(JsonError::Length { place, found, expected });
                    };
                    self.once(&mut offsets, field, (begin, end))?;
                }
            }
        }
        let dtype = self.present(dtype, "dtype")?;
        let shape = self.present(shape, "shape")?;
        let (begin, end) = self.present(offsets, "data_offsets")?;
        Ok(Tensor { name: self.name, dtype, shape, range: begin..end })
    }
    refuse! { null bool number string array }
}
