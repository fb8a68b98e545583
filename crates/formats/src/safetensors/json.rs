//! JSON parsed as a stream by `serde_json`, without building a tree in memory: each visitor accepts one kind of
//! value and refuses every other with an error that names the place.
//!
//! serde's own errors would repeat the file's text at any length, so a visitor leaves a typed error in a
//! [`Context`] and stops the parser with an empty one.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use thiserror::Error;

use crate::text::shown;

/// The place in the JSON where something was read. Names are escaped and truncated for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonField {
    /// The root.
    Root,
    /// The object under a key of the root.
    Object(&'static str),
    /// A value in such an object.
    Value {
        /// The object.
        of: &'static str,
        /// The key.
        key: Box<str>,
    },
    /// The entry of a tensor.
    Tensor(Box<str>),
    /// A field of such an entry.
    Field {
        /// Name of the tensor.
        tensor: Box<str>,
        /// Name of the field.
        field: &'static str,
    },
}

impl fmt::Display for JsonField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JsonField::Root => write!(f, "the JSON"),
            JsonField::Object(name) => write!(f, "{name:?}"),
            JsonField::Value { of, key } => write!(f, "{of:?}, key {}", shown(key.as_bytes())),
            JsonField::Tensor(name) => write!(f, "tensor {}", shown(name.as_bytes())),
            JsonField::Field { tensor, field } => {
                write!(f, "tensor {}, {field:?}", shown(tensor.as_bytes()))
            }
        }
    }
}

/// The reason why JSON is not as expected.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages explain the fields
pub enum JsonError {
    #[error("the text is not UTF-8 from byte {at} on")]
    NotUtf8 { at: usize },

    #[error("not JSON, at line {line}, column {column}: {reason}")]
    Syntax { line: usize, column: usize, reason: Box<str> },

    #[error("{place}: found {found}, expected {expected}")]
    Kind { place: JsonField, found: &'static str, expected: &'static str },

    #[error("{place}: {found} is not a whole number from 0 to {}", u64::MAX)]
    NotNatural { place: JsonField, found: Box<str> },

    #[error("{place}: key {} is there twice", shown(.key.as_bytes()))]
    DuplicateKey { place: JsonField, key: Box<str> },

    #[error("{place}: field {} is unknown", shown(.field.as_bytes()))]
    UnknownField { place: JsonField, field: Box<str> },

    #[error("{place}: {field:?} is missing")]
    MissingField { place: JsonField, field: &'static str },

    #[error("{place}: {found} numbers, expected {expected}")]
    Length { place: JsonField, found: usize, expected: &'static str },

    #[error("{place}: more than {most} entries")]
    TooMany { place: JsonField, most: usize },
}

/// The first error of a parse.
pub(super) struct Context<E> {
    error: RefCell<Option<E>>,
}

impl<E: From<JsonError>> Context<E> {
    /// Reads all of `bytes` with `read`; nothing may follow.
    pub fn read<'a, T>(
        bytes: &'a [u8],
        read: impl FnOnce(&Context<E>, &mut Json<'a>) -> Result<T, serde_json::Error>,
    ) -> Result<T, E> {
        let text = std::str::from_utf8(bytes)
            .map_err(|error| JsonError::NotUtf8 { at: error.valid_up_to() })?;
        let context = Context { error: RefCell::new(None) };
        let mut json = serde_json::Deserializer::from_str(text);
        let done = read(&context, &mut json).and_then(|done| json.end().map(|()| done));
        done.map_err(|error| match context.error.into_inner() {
            Some(typed) => typed,
            None => {
                let reason = error.to_string();
                let reason = reason.rsplit_once(" at line ").map_or(&*reason, |(reason, _)| reason);
                let (line, column) = (error.line(), error.column());
                // Some of serde's messages repeat the text.
                let reason = reason.chars().take(120).flat_map(char::escape_debug).collect();
                JsonError::Syntax { line, column, reason }.into()
            }
        })
    }

    /// Records the error and stops the parser.
    pub fn fail<T, D: de::Error>(&self, error: impl Into<E>) -> Result<T, D> {
        self.error.borrow_mut().get_or_insert_with(|| error.into());
        Err(D::custom(""))
    }

    /// Reports a value of the wrong kind.
    pub fn wrong<T, D: de::Error>(
        &self,
        place: JsonField,
        found: &'static str,
        expected: &'static str,
    ) -> Result<T, D> {
        self.fail(JsonError::Kind { place, found, expected })
    }
}

/// The parser.
pub(super) type Json<'a> = serde_json::Deserializer<serde_json::de::StrRead<'a>>;

/// The visitor methods that refuse values of the listed kinds.
macro_rules! refuse {
    ($($kind:ident)*) => { $($crate::safetensors::json::refuse!(@ $kind);)* };
    (@ null) => {
        fn visit_unit<D: de::Error>(self) -> Result<Self::Value, D> { self.wrong("null") }
    };
    (@ bool) => {
        fn visit_bool<D: de::Error>(self, _: bool) -> Result<Self::Value, D> { self.wrong("a boolean") }
    };
    (@ number) => {
        fn visit_u64<D: de::Error>(self, _: u64) -> Result<Self::Value, D> { self.wrong("a number") }
        fn visit_i64<D: de::Error>(self, _: i64) -> Result<Self::Value, D> { self.wrong("a number") }
        fn visit_f64<D: de::Error>(self, _: f64) -> Result<Self::Value, D> { self.wrong("a number") }
    };
    (@ string) => {
        fn visit_str<D: de::Error>(self, _: &str) -> Result<Self::Value, D> { self.wrong("a string") }
    };
    (@ array) => {
        fn visit_seq<A: de::SeqAccess<'a>>(self, _: A) -> Result<Self::Value, A::Error> {
            self.wrong("an array")
        }
    };
    (@ object) => {
        fn visit_map<A: de::MapAccess<'a>>(self, _: A) -> Result<Self::Value, A::Error> {
            self.wrong("an object")
        }
    };
}
pub(super) use refuse;

/// Makes a visitor a seed for a value of any kind, with the expected kind for its errors.
macro_rules! seed {
    ($type:ident, $value:ty, $expected:literal) => {
        impl<'a, E: From<JsonError>> DeserializeSeed<'a> for $type<'_, E> {
            type Value = $value;
            fn deserialize<D: Deserializer<'a>>(self, value: D) -> Result<$value, D::Error> {
                value.deserialize_any(self)
            }
        }

        impl<E: From<JsonError>> $type<'_, E> {
            fn wrong<T, D: de::Error>(&self, found: &'static str) -> Result<T, D> {
                self.context.wrong((self.place)(), found, $expected)
            }
        }
    };
}

/// Seed of a string, borrowed if it has no escapes.
pub(super) struct StringSeed<'c, E> {
    pub context: &'c Context<E>,
    pub place: &'c dyn Fn() -> JsonField,
}

seed!(StringSeed, Cow<'a, str>, "a string");

impl<'a, E: From<JsonError>> Visitor<'a> for StringSeed<'_, E> {
    type Value = Cow<'a, str>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }
    fn visit_borrowed_str<D: de::Error>(self, text: &'a str) -> Result<Self::Value, D> {
        Ok(Cow::Borrowed(text))
    }
    fn visit_str<D: de::Error>(self, text: &str) -> Result<Self::Value, D> {
        Ok(Cow::Owned(text.to_owned()))
    }
    refuse! { null bool number array object }
}

/// Seed of a non-negative whole number.
pub(super) struct Natural<'c, E> {
    pub context: &'c Context<E>,
    pub place: &'c dyn Fn() -> JsonField,
}

seed!(Natural, u64, "a whole number");

impl<E: From<JsonError>> Natural<'_, E> {
    fn not_natural<T, D: de::Error>(&self, found: impl fmt::Display) -> Result<T, D> {
        let found = found.to_string().into();
        self.context.fail(JsonError::NotNatural { place: (self.place)(), found })
    }
}

impl<'a, E: From<JsonError>> Visitor<'a> for Natural<'_, E> {
    type Value = u64;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number")
    }
    fn visit_u64<D: de::Error>(self, value: u64) -> Result<u64, D> {
        Ok(value)
    }
    fn visit_i64<D: de::Error>(self, value: i64) -> Result<u64, D> {
        self.not_natural(value)
    }
    fn visit_f64<D: de::Error>(self, value: f64) -> Result<u64, D> {
        self.not_natural(format_args!("{value:?}"))
    }
    refuse! { null bool string array object }
}

/// Seed of an array of at most `most` whole numbers.
pub(super) struct Naturals<'c, E> {
    pub context: &'c Context<E>,
    pub place: &'c dyn Fn() -> JsonField,
    pub most: usize,
    pub expected: &'static str,
}

seed!(Naturals, Vec<u64>, "an array of whole numbers");

impl<'a, E: From<JsonError>> Visitor<'a> for Naturals<'_, E> {
    type Value = Vec<u64>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }
    fn visit_seq<A: SeqAccess<'a>>(self, mut array: A) -> Result<Vec<u64>, A::Error> {
        let natural = || Natural { context: self.context, place: self.place };
        let mut numbers = Vec::new();
        while let Some(number) = array.next_element_seed(natural())? {
            if numbers.len() == self.most {
                let (place, expected) = ((self.place)(), self.expected);
                return self.context.fail(JsonError::Length {
                    place,
                    found: self.most + 1,
                    expected,
                });
            }
            numbers.push(number);
        }
        numbers.shrink_to_fit();
        Ok(numbers)
    }
    refuse! { null bool number string object }
}

/// Seed of an object whose values are all strings: keys and values in order, each key once.
pub(super) struct StringMap<'c, E> {
    pub context: &'c Context<E>,
    pub name: &'static str,
    pub most: usize,
}

impl<E: From<JsonError>> StringMap<'_, E> {
    fn wrong<T, D: de::Error>(&self, found: &'static str) -> Result<T, D> {
        self.context.wrong(JsonField::Object(self.name), found, "an object")
    }
}

/// Keys and values in the order of the file.
pub(super) type JsonEntries<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

impl<'a, E: From<JsonError>> DeserializeSeed<'a> for StringMap<'_, E> {
    type Value = JsonEntries<'a>;
    fn deserialize<D: Deserializer<'a>>(self, value: D) -> Result<Self::Value, D::Error> {
        value.deserialize_any(self)
    }
}

impl<'a, E: From<JsonError>> Visitor<'a> for StringMap<'_, E> {
    type Value = JsonEntries<'a>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let of = self.name;
        let mut entries = Vec::new();
        let object = || JsonField::Object(of);
        while let Some(key) =
            map.next_key_seed(StringSeed { context: self.context, place: &object })?
        {
            if entries.len() == self.most {
                let (place, most) = (object(), self.most);
                return self.context.fail(JsonError::TooMany { place, most });
            }
            let place = || JsonField::Value { of, key: key.as_ref().into() };
            let value = map.next_value_seed(StringSeed { context: self.context, place: &place })?;
            entries.push((key, value));
        }
        if let Some(key) = twice(entries.iter().map(|(key, _)| key.as_ref())) {
            let (place, key) = (object(), key.into());
            return self.context.fail(JsonError::DuplicateKey { place, key });
        }
        Ok(entries)
    }
    refuse! { null bool number string array }
}

/// A duplicate name: the first in alphabetical order, so that the same file always yields the same error.
pub(super) fn twice<'n>(names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}
