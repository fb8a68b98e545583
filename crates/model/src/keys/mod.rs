//! The metadata under an architecture's prefix, with the checks that all of them need.

mod error;
mod unread;

use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::RangeInclusive;

use alight_formats::gguf::{Array, FromValue, Gguf, GgufError, Value};

pub use self::error::SpecError;

/// Limits far above any model, which keep products of two dimensions far below overflow.
pub(crate) const MAX_LAYERS: usize = 4096;
pub(crate) const MAX_WIDTH: usize = 1 << 20;
pub(crate) const MAX_CONTEXT: usize = 1 << 30;

/// The metadata under an architecture's prefix. It remembers which keys were read: what a file says beyond them is reported
/// ([`Keys::unread`]), so that nothing that another program computes with is left out in silence.
pub(crate) struct Keys<'g, 'a> {
    pub(crate) gguf: &'g Gguf<'a>,
    pub(crate) prefix: &'static str,
    /// The keys that were read, by their full names, whether the file has them or not.
    read: RefCell<HashSet<String>>,
}

impl<'g, 'a> Keys<'g, 'a> {
    /// The metadata of the architecture called `prefix`, of which nothing has been read.
    pub(crate) fn new(gguf: &'g Gguf<'a>, prefix: &'static str) -> Keys<'g, 'a> {
        Keys { gguf, prefix, read: RefCell::default() }
    }

    /// Returns the value of a key, of any type, if it is present. Every other function reads through this one.
    pub(crate) fn find(&self, key: &str) -> Option<&'g Value<'a>> {
        let name = self.name(key);
        let found = self.gguf.get(&name);
        self.read.borrow_mut().insert(name);
        found
    }

    /// Counts these keys as read: another key says that their values apply to nothing here.
    pub(crate) fn do_not_apply(&self, keys: &[&str]) {
        self.read.borrow_mut().extend(keys.iter().map(|key| self.name(key)));
    }

    /// The same for all keys of the file that begin so.
    pub(crate) fn do_not_apply_under(&self, start: &str) {
        let start = self.name(start);
        let names = self.gguf.metadata.iter().map(|(name, _)| *name);
        let under = names.filter(|name| name.starts_with(&start));
        self.read.borrow_mut().extend(under.map(str::to_owned));
    }

    /// Reads a factor, which is 1 unless the file states otherwise; some files have 0 for that.
    pub(crate) fn factor(&self, key: &str) -> Result<f32, SpecError> {
        let found = self.float(key, 0.0..1e9, "a number that is not negative")?;
        Ok(found.filter(|factor| *factor != 0.0).unwrap_or(1.0))
    }

    /// Returns the full name of a key.
    pub(crate) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    /// Returns the value of a key, if it is present.
    pub(crate) fn get<T: FromValue<'a>>(&self, key: &str) -> Result<Option<T>, SpecError> {
        let found = self.find(key);
        Ok(found.map(|value| T::from_value(&self.name(key), value)).transpose()?)
    }

    /// Reads a required whole number from 1 to `most`.
    pub(crate) fn dimension(&self, key: &str, most: usize) -> Result<usize, SpecError> {
        self.optional_dimension(key, most)?.ok_or_else(|| self.missing(key))
    }

    /// Reads a whole number from 1 to `most`. Some writers store an array with one value per layer;
    /// it is accepted if all are equal.
    pub(crate) fn optional_dimension(
        &self,
        key: &str,
        most: usize,
    ) -> Result<Option<usize>, SpecError> {
        let found = match self.find(key) {
            None => return Ok(None),
            Some(Value::Array(array)) => {
                let mut values = array.iter_int().into_iter().flatten();
                let Some(first) = values.next() else {
                    return Err(self.value(key, "an array without integers", bounds(most)));
                };
                if values.any(|value| value != first) {
                    let what = "a value that differs between layers";
                    return Err(self.unsupported(key, "an array", what));
                }
                first
            }
            Some(_) => i128::from(self.get::<i64>(key)?.unwrap_or(0)),
        };
        match usize::try_from(found) {
            Ok(value) if (1..=most).contains(&value) => Ok(Some(value)),
            _ => Err(self.value(key, found, bounds(most))),
        }
    }

    /// Reads a whole number from 1 to `most` for each layer: the file's list, or one for all.
    pub(crate) fn per_layer(
        &self,
        key: &str,
        layers: usize,
        most: usize,
    ) -> Result<Option<Vec<usize>>, SpecError> {
        self.per_layer_in(key, layers, 1..=most)
    }

    /// Reads a whole number in `range` for each layer: the file's list, or one for all.
    pub(crate) fn per_layer_in(
        &self,
        key: &str,
        layers: usize,
        range: RangeInclusive<usize>,
    ) -> Result<Option<Vec<usize>>, SpecError> {
        let expected = || format!("{} to {}", range.start(), range.end());
        let checked = |value: i128| match usize::try_from(value) {
            Ok(checked) if range.contains(&checked) => Ok(checked),
            _ => Err(self.value(key, value, expected())),
        };
        let array = match self.find(key) {
            None => return Ok(None),
            Some(Value::Array(array)) => array,
            Some(_) => {
                let value = checked(i128::from(self.get::<i64>(key)?.unwrap_or(0)))?;
                return Ok(Some(vec![value; layers]));
            }
        };
        let values: Vec<i128> = array.iter_int().into_iter().flatten().take(layers).collect();
        if values.len() < layers {
            let found = format!("an array of {} integers", values.len());
            return Err(self.value(key, found, format!("{layers}, one per layer")));
        }
        values.into_iter().map(checked).collect::<Result<Vec<_>, _>>().map(Some)
    }

    /// Reads a number in `range` (the start included) for each layer: the file's list, or one for all.
    pub(crate) fn floats_per_layer(
        &self,
        key: &str,
        layers: usize,
        range: std::ops::Range<f32>,
    ) -> Result<Option<Vec<f32>>, SpecError> {
        let expected = format!("{} to below {}", range.start, range.end);
        let values: Vec<f32> = match self.find(key) {
            None => return Ok(None),
            Some(Value::Array(array)) => {
                array.iter_f32().into_iter().flatten().take(layers).collect()
            }
            Some(_) => vec![self.get::<f32>(key)?.unwrap_or(0.0); layers],
        };
        if values.len() < layers {
            let found = format!("an array of {} numbers", values.len());
            return Err(self.value(key, found, format!("{layers}, one per layer")));
        }
        match values.iter().find(|value| !range.contains(value)) {
            Some(found) => Err(self.value(key, found, expected)),
            None => Ok(Some(values)),
        }
    }

    /// Returns the flags of the layers from the array of `key`.
    pub(crate) fn flags(
        &self,
        key: &str,
        array: &Array<'_>,
        layers: usize,
    ) -> Result<Vec<bool>, SpecError> {
        let mut flags: Vec<bool> = match (array.iter_bool(), array.iter_int()) {
            (Some(flags), _) => flags.take(layers).collect(),
            (_, Some(numbers)) => numbers.take(layers).map(|number| number != 0).collect(),
            _ => Vec::new(),
        };
        if flags.len() < layers {
            let found = format!("an array of {} flags", flags.len());
            return Err(self.value(key, found, format!("{layers}, one per layer")));
        }
        flags.truncate(layers);
        Ok(flags)
    }

    /// Reads a width; 0 or no value means that there is no such part.
    pub(crate) fn width_or_none(&self, key: &str) -> Result<Option<usize>, SpecError> {
        match self.get::<u64>(key)? {
            None | Some(0) => Ok(None),
            Some(_) => self.optional_dimension(key, MAX_WIDTH),
        }
    }

    /// Reads a finite float in `range` (the start included), if the key is present.
    pub(crate) fn float(
        &self,
        key: &str,
        range: std::ops::Range<f32>,
        expected: &str,
    ) -> Result<Option<f32>, SpecError> {
        match self.get::<f32>(key)? {
            Some(value) if !range.contains(&value) => Err(self.value(key, value, expected.into())),
            value => Ok(value),
        }
    }

    pub(crate) fn missing(&self, key: &str) -> SpecError {
        let key = self.name(key).into();
        SpecError::Header(GgufError::MissingKey { key })
    }

    pub(crate) fn value(&self, key: &str, found: impl ToString, expected: String) -> SpecError {
        SpecError::Value { key: self.name(key), found: found.to_string(), expected }
    }

    pub(crate) fn unsupported(
        &self,
        key: &str,
        found: impl ToString,
        what: &'static str,
    ) -> SpecError {
        let found = found.to_string().escape_debug().to_string();
        SpecError::Unsupported { key: self.name(key), found, what }
    }
}

fn bounds(most: usize) -> String {
    format!("1 to {most}")
}
