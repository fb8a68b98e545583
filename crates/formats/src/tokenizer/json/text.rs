//! JSON strings that are borrowed from the file if they have no escapes, and the large parts of
//! `tokenizer.json`: vocabularies and merges, parsed as a stream.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// A string. (serde borrows a `Cow` only if it is not nested.)
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Text<'a>(pub Cow<'a, str>);

impl Text<'_> {
    /// The string.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }
    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Borrowed(text)))
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Owned(text.to_owned())))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Text<'a>, D::Error> {
        from.deserialize_str(TextVisitor)
    }
}

/// The vocabulary of a model.
#[derive(Clone, Debug, PartialEq)]
pub enum Entries<'a> {
    /// For BPE: tokens and their ids.
    Ids(Vec<(Text<'a>, u32)>),
    /// For Unigram: tokens by id, and their scores.
    Scores(Vec<(Text<'a>, f64)>),
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries<'de>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a vocabulary: tokens with ids, or an array of tokens and scores")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<'de>, A::Error> {
        let mut ids = Vec::new();
        while let Some(entry) = map.next_entry()? {
            ids.push(entry);
        }
        Ok(Entries::Ids(ids))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Entries<'de>, A::Error> {
        let mut scores = Vec::new();
        while let Some(entry) = array.next_element()? {
            scores.push(entry);
        }
        Ok(Entries::Scores(scores))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Entries<'a>, D::Error> {
        from.deserialize_any(EntriesVisitor)
    }
}

/// One merge, written `"left right"` or `["left", "right"]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Merge<'a> {
    /// One string; the space is not checked yet.
    Joined(Text<'a>),
    /// Two strings, which may contain spaces.
    Pair(Text<'a>, Text<'a>),
}

struct MergeVisitor<'a>(PhantomData<&'a ()>);

impl<'de> Visitor<'de> for MergeVisitor<'de> {
    type Value = Merge<'de>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a merge: a string, or an array of two")
    }
    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Merge<'de>, E> {
        Ok(Merge::Joined(Text(Cow::Borrowed(text))))
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Merge<'de>, E> {
        Ok(Merge::Joined(Text(Cow::Owned(text.to_owned()))))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Merge<'de>, A::Error> {
        match (array.next_element()?, array.next_element()?, array.next_element::<Text<'_>>()?) {
            (Some(left), Some(right), None) => Ok(Merge::Pair(left, right)),
            _ => Err(A::Error::custom("a merge that is not of two tokens")),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Merge<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Merge<'a>, D::Error> {
        from.deserialize_any(MergeVisitor(PhantomData))
    }
}
