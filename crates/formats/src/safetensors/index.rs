//! Models in several safetensors files ("shards").
//!
//! `model.safetensors.index.json` maps each tensor to a file:
//!
//! ```text
//! {"metadata": {"total_size": 123}, "weight_map": {"name": "model-00001-of-00002.safetensors", …}}
//! ```
//!
//! Every shard is a whole safetensors file, and no tensor is split. A shard has a plain file name that ends in
//! `.safetensors` and is in the index's folder, so an index cannot make us open a file elsewhere, another
//! index, or itself.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use serde::de::{self, IgnoredAny, MapAccess, Visitor};
use thiserror::Error;

use super::json::{Context, JsonEntries, JsonError, JsonField, StringMap, StringSeed, refuse};
use super::{MAX_INDEX, MAX_TENSORS, SafeTensors, Tensor};
use crate::Source;
use crate::shards;
use crate::text::shown;

/// Maximum number of shards.
pub const MAX_SHARDS: usize = 65_535;

/// The suffix of a shard's name.
const ENDING: &str = ".safetensors";

/// The reason why an index, or shards, do not form a model. Messages name shards by their file names.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages explain the fields
pub enum IndexError {
    #[error("index: {0}")]
    Json(#[from] JsonError),

    #[error(
        "tensor {}: its file is called {}, expected a plain name that ends in \"{ENDING}\"",
        shown(.tensor.as_bytes()), shown(.file.as_bytes())
    )]
    FileName { tensor: Box<str>, file: Box<str> },

    #[error("the index has {found} bytes, expected at most {MAX_INDEX}")]
    TooLong { found: u64 },

    #[error("the index names no tensor")]
    Empty,

    #[error("the index names {found} files, expected at most {MAX_SHARDS}")]
    TooManyShards { found: usize },

    #[error("{} is one of {count} files of a model, and {} is missing", shown(.present.as_bytes()), shown(.missing.as_bytes()))]
    MissingShard { present: Box<str>, missing: Box<str>, count: u64 },

    #[error("{} and {} are not files of one model", shown(.first.as_bytes()), shown(.second.as_bytes()))]
    Unrelated { first: Box<str>, second: Box<str> },

    #[error("{} is named by the index, but was not given", shown(.shard.as_bytes()))]
    NotGiven { shard: Box<str> },

    #[error("{} is not named by the index", shown(.shard.as_bytes()))]
    NotNamed { shard: Box<str> },

    #[error(
        "tensor {} is not in {}, where the index says it is",
        shown(.tensor.as_bytes()), shown(.shard.as_bytes())
    )]
    MissingTensor { tensor: Box<str>, shard: Box<str> },

    #[error(
        "tensor {} is in {}, but the index does not name it",
        shown(.tensor.as_bytes()), shown(.shard.as_bytes())
    )]
    Orphan { tensor: Box<str>, shard: Box<str> },

    #[error(
        "tensor {} is in two files, {} and {}",
        shown(.tensor.as_bytes()), shown(.first.as_bytes()), shown(.second.as_bytes())
    )]
    DuplicateTensor { tensor: Box<str>, first: Box<str>, second: Box<str> },
}

/// An index that has been checked.
#[derive(Clone, Debug)]
pub struct Index<'a> {
    /// Bytes of all tensors according to the index; `None` if it is not given, or not a whole number. Writers
    /// disagree on what they count, so this is only a hint.
    pub total_size: Option<u64>,
    /// The file names of the shards, sorted, each once.
    pub files: Vec<Cow<'a, str>>,
    /// Tensors and the index of the file that holds them, sorted by name.
    pub weight_map: Vec<(Cow<'a, str>, usize)>,
}

/// Reads an index.
///
/// # Errors
/// It is not JSON of that form, or names a file that is not a plain name of a safetensors file.
pub fn parse_index<'a>(file: impl Source<'a>) -> Result<Index<'a>, IndexError> {
    let found = file.len();
    if found > MAX_INDEX {
        return Err(IndexError::TooLong { found });
    }
    // A file that cannot be read counts as empty; its owner knows the reason.
    let bytes = file.get(0..found).unwrap_or_default();
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let (total_size, map) = Context::<IndexError>::read(bytes, |context, json| {
        de::Deserializer::deserialize_any(json, Root { context })
    })?;
    if let Some((tensor, file)) = map.iter().find(|(_, file)| !is_plain(file)) {
        let (tensor, file) = (tensor.as_ref().into(), file.as_ref().into());
        return Err(IndexError::FileName { tensor, file });
    }
    let mut files: Vec<Cow<'_, str>> = map.iter().map(|(_, file)| file.clone()).collect();
    files.sort_unstable();
    files.dedup();
    match files.len() {
        0 => return Err(IndexError::Empty),
        1..=MAX_SHARDS => {}
        found => return Err(IndexError::TooManyShards { found }),
    }
    let number = |file: &Cow<'_, str>| files.binary_search(file).unwrap_or(0);
    let mut weight_map: Vec<(Cow<'_, str>, usize)> =
        map.into_iter().map(|(tensor, file)| (tensor, number(&file))).collect();
    weight_map.sort_unstable();
    Ok(Index { total_size, files, weight_map })
}

/// Returns true if a shard may have this name: one that every system treats as a plain file name.
fn is_plain(name: &str) -> bool {
    name.len() > ENDING.len()
        && name.ends_with(ENDING)
        && !name.contains(|c: char| matches!(c, '/' | '\\' | ':') || c.is_control())
}

/// Visitor of the whole index.
struct Root<'c> {
    context: &'c Context<IndexError>,
}

impl Root<'_> {
    fn wrong<T, D: de::Error>(&self, found: &'static str) -> Result<T, D> {
        self.context.wrong(JsonField::Root, found, "an object")
    }
}

impl<'a> Visitor<'a> for Root<'_> {
    type Value = (Option<u64>, JsonEntries<'a>);
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let context = self.context;
        let (mut total_size, mut weight_map) = (None, None);
        let root = || JsonField::Root;
        while let Some(key) = map.next_key_seed(StringSeed { context, place: &root })? {
            let again = match key.as_ref() {
                "weight_map" => {
                    let (name, most) = ("weight_map", MAX_TENSORS);
                    let entries = map.next_value_seed(StringMap { context, name, most })?;
                    weight_map.replace(entries).is_some()
                }
                "metadata" => total_size.replace(map.next_value::<Metadata>()?.0).is_some(),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    false
                }
            };
            if again {
                let (place, key) = (JsonField::Root, key.as_ref().into());
                return context.fail(JsonError::DuplicateKey { place, key });
            }
        }
        match weight_map {
            Some(weight_map) => Ok((total_size.flatten(), weight_map)),
            None => {
                let (place, field) = (JsonField::Root, "weight_map");
                context.fail(JsonError::MissingField { place, field })
            }
        }
    }
    refuse! { null bool number string array }
}

/// Only the total of the metadata, and only if it is valid: nothing depends on it.
struct Metadata(Option<u64>);

impl<'a> de::Deserialize<'a> for Metadata {
    fn deserialize<D: de::Deserializer<'a>>(value: D) -> Result<Metadata, D::Error> {
        struct Object;
        impl<'a> Visitor<'a> for Object {
            type Value = Metadata;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Metadata, A::Error> {
                let mut total = None;
                while let Some(key) = map.next_key::<Cow<'a, str>>()? {
                    if key == "total_size" {
                        total = map.next_value::<serde_json::Number>()?.as_u64();
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Metadata(total))
            }
        }
        value.deserialize_map(Object)
    }
}

/// The name of a shard of a model without an index: `<prefix>-00001-of-00003.safetensors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SafeTensorsShardName<'a> {
    /// The part before the numbers.
    pub prefix: &'a str,
    /// The number of the shard, from 0 (the name counts from 1).
    pub no: u64,
    /// The number of shards.
    pub count: u64,
}

impl<'a> SafeTensorsShardName<'a> {
    /// Parses a file name (without its folder). `None` if it is not the name of a shard.
    pub fn parse(file_name: &'a str) -> Option<SafeTensorsShardName<'a>> {
        let (prefix, no, count) = crate::split::numbered(file_name.strip_suffix(ENDING)?)?;
        Some(SafeTensorsShardName { prefix, no, count })
    }

    /// The file name of shard `no` (from 0).
    pub fn file_name(&self, no: u64) -> String {
        format!("{}-{:05}-of-{:05}{ENDING}", self.prefix, no + 1, self.count)
    }
}

/// Checks that these files, all those in a folder, are one model by their names: one file, or every shard of one.
///
/// # Errors
/// A shard of a model is missing, or the files do not belong together.
pub fn whole(names: &[&str]) -> Result<(), IndexError> {
    let Some((first, others)) = names.split_first() else { return Err(IndexError::Empty) };
    let name = SafeTensorsShardName::parse(first);
    for other in others {
        let related = name.zip(SafeTensorsShardName::parse(other));
        if related.is_none_or(|(a, b)| (a.prefix, a.count) != (b.prefix, b.count)) {
            let (first, second) = (Box::from(*first), Box::from(*other));
            return Err(IndexError::Unrelated { first, second });
        }
    }
    let Some(name) = name else { return Ok(()) };
    let missing = (0..name.count).map(|no| name.file_name(no)).find(|n| !names.contains(&&**n));
    match missing {
        None => Ok(()),
        Some(missing) => Err(IndexError::MissingShard {
            present: Box::from(*first),
            missing: missing.into(),
            count: name.count,
        }),
    }
}

/// One shard: its file name and its header.
#[derive(Clone, Copy, Debug)]
pub struct SafeTensorsShard<'s, 'a> {
    /// File name, without folder.
    pub name: &'s str,
    /// Header.
    pub file: &'s SafeTensors<'a>,
}

/// The tensors of all shards, each shard in the order of its data.
pub type SafeTensorsCatalog<'s, 'a> = shards::ShardedCatalog<'s, &'s Tensor<'a>>;

/// A tensor and the shard that holds it; its range is in that shard's file.
pub type SafeTensorsPlaced<'s, 'a> = shards::ShardedTensor<&'s Tensor<'a>>;

/// Merges a model's files into one catalog: checked against each other and, if there is one, against the index;
/// `shards` must then be all its files, in any order.
///
/// # Errors
/// A file is missing or unexpected; a tensor is in two of them, is not in the file that the index names, or is
/// not in the index.
pub fn merge<'s, 'a>(
    index: Option<&Index<'_>>,
    shards: &[SafeTensorsShard<'s, 'a>],
) -> Result<SafeTensorsCatalog<'s, 'a>, IndexError> {
    let mut catalog = SafeTensorsCatalog::default();
    for (shard, SafeTensorsShard { name, file }) in shards.iter().enumerate() {
        for tensor in &file.tensors {
            catalog.add(tensor.name.as_ref(), shard, tensor).map_err(|earlier| {
                IndexError::DuplicateTensor {
                    tensor: tensor.name.as_ref().into(),
                    first: shards[earlier].name.into(),
                    second: (*name).into(),
                }
            })?;
        }
    }
    let Some(index) = index else { return Ok(catalog) };
    let by_name: HashMap<&str, usize> =
        shards.iter().enumerate().map(|(at, shard)| (shard.name, at)).collect();
    if let Some(shard) = index.files.iter().find(|file| !by_name.contains_key(file.as_ref())) {
        return Err(IndexError::NotGiven { shard: shard.as_ref().into() });
    }
    let named = |name: &str| index.files.iter().any(|file| file == name);
    if let Some(shard) = shards.iter().find(|shard| !named(shard.name)) {
        return Err(IndexError::NotNamed { shard: shard.name.into() });
    }
    for (tensor, file) in &index.weight_map {
        let file = index.files[*file].as_ref();
        let placed = catalog.get(tensor).filter(|placed| shards[placed.shard].name == file);
        if placed.is_none() {
            let (tensor, shard) = (tensor.as_ref().into(), file.into());
            return Err(IndexError::MissingTensor { tensor, shard });
        }
    }
    // Each tensor of the index is in the catalog, so there are more only if one is not in the index.
    let known =
        |name: &str| index.weight_map.binary_search_by(|(n, _)| n.as_ref().cmp(name)).is_ok();
    match catalog.tensors.iter().find(|placed| !known(&placed.info.name)) {
        None => Ok(catalog),
        Some(orphan) => Err(IndexError::Orphan {
            tensor: orphan.info.name.as_ref().into(),
            shard: shards[orphan.shard].name.into(),
        }),
    }
}
