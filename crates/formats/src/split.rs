//! Models in several GGUF files ("shards").
//!
//! Shard `i` of `n` is called `<prefix>-<i>-of-<n>.gguf`, both numbers counted from 1, with five digits; each
//! is a whole GGUF file with its own data. Three keys tie them together: `split.no` (from 0), `split.count`,
//! `split.tensors.count` (of all shards). Other metadata is in the first shard.
//!
//! [`names`] returns the files that belong to a model, [`merge`] checks the headers against each other and
//! merges them into one catalog. Names come from the opened file's own name and the count, never from text
//! inside a file, so a file cannot make us open another one elsewhere.

use thiserror::Error;

use crate::gguf::{Gguf, GgufError, TensorInfo};
use crate::shards;
use crate::text::shown;

/// Maximum number of shards: `split.count` is 16 bits wide.
pub const MAX_SHARDS: u64 = 65_535;

/// The parts of a shard's file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardName<'a> {
    /// The part before `-00001-of-00003.gguf`.
    pub prefix: &'a str,
    /// The number of the shard, from 0 (the name counts from 1).
    pub no: u64,
    /// The number of shards.
    pub count: u64,
}

impl<'a> ShardName<'a> {
    /// Parses a file name (without its folder). `None` if it is not the name of a shard, exactly as
    /// [`ShardName::file_name`] would write it.
    pub fn parse(file_name: &'a str) -> Option<ShardName<'a>> {
        let (prefix, no, count) = numbered(file_name.strip_suffix(".gguf")?)?;
        Some(ShardName { prefix, no, count })
    }

    /// The file name of shard `no` (from 0).
    pub fn file_name(&self, no: u64) -> String {
        format!("{}-{:05}-of-{:05}.gguf", self.prefix, no + 1, self.count)
    }
}

/// Returns true if all of these files are shards of one model, by their names.
pub fn one_model(file_names: &[String]) -> bool {
    let mut models = file_names
        .iter()
        .map(|name| ShardName::parse(name).map(|shard| (shard.prefix, shard.count)));
    let first = models.next().flatten();
    first.is_some() && models.all(|model| model == first)
}

/// Prefix, number (from 0) and count in a shard's name without its extension, as all formats write it.
pub(crate) fn numbered(stem: &str) -> Option<(&str, u64, u64)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (prefix, no) = rest.rsplit_once('-')?;
    let (no, count) = (number(no)?, number(count)?);
    if prefix.is_empty() || no == 0 || no > count || count > MAX_SHARDS {
        return None;
    }
    Some((prefix, no - 1, count))
}

/// Parses five digits.
fn number(digits: &str) -> Option<u64> {
    if digits.len() != 5 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

/// The reason why shards do not form a model. Messages name shards by their file names.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages explain the fields
pub enum SplitError {
    #[error("{}: {source}", shown(.shard.as_bytes()))]
    Metadata { shard: Box<str>, source: GgufError },

    #[error(
        "{} is one of {count} shards, so its name has to end in \"-00001-of-{count:05}.gguf\" \
         (or another shard's number): the other files are found by it",
        shown(.shard.as_bytes())
    )]
    Name { shard: Box<str>, count: u64 },

    #[error("{} is not a plain file name", shown(.shard.as_bytes()))]
    NotAFileName { shard: Box<str> },

    #[error("{}: split.count is {found}, expected 0 to {limit}", shown(.shard.as_bytes()))]
    TooMany { shard: Box<str>, found: u64, limit: u64 },

    #[error("{}: split.count is {found}, expected {expected}", shown(.shard.as_bytes()))]
    Count { shard: Box<str>, found: u64, expected: u64 },

    #[error("{}: split.no is {found}, expected {expected}", shown(.shard.as_bytes()))]
    Number { shard: Box<str>, found: u64, expected: u64 },

    #[error("{given} shards given, but split.count is {count}")]
    Shards { given: u64, count: u64 },

    #[error("{}: split.tensors.count is {found}, expected {expected}", shown(.shard.as_bytes()))]
    TensorsCount { shard: Box<str>, found: i64, expected: i64 },

    #[error("the shards hold {found} tensors, but split.tensors.count is {expected}")]
    Tensors { found: u64, expected: i64 },

    #[error(
        "tensor {} is in two shards, {} and {}",
        shown(.tensor.as_bytes()), shown(.first.as_bytes()), shown(.second.as_bytes())
    )]
    DuplicateTensor { tensor: Box<str>, first: Box<str>, second: Box<str> },

    #[error(
        "{}: general.architecture is {}, expected {} as in the first shard",
        shown(.shard.as_bytes()), shown(.found), shown(.expected)
    )]
    Architecture { shard: Box<str>, found: Box<[u8]>, expected: Box<[u8]> },
}

/// The file names of all shards, in order, of the model that contains `file_name` with the header `gguf`; only
/// `file_name` itself for a model in one file. They are in the same folder. Any shard suffices to find the
/// others, not only the first.
///
/// # Errors
/// The header states that there are several, but the others cannot be derived from the name, or the two disagree.
pub fn names(file_name: &str, gguf: &Gguf<'_>) -> Result<Vec<String>, SplitError> {
    let count = integer(gguf, file_name, "split.count")?.unwrap_or(0);
    // ggml's tools write `split.count` only if there are several; a single file may have 0 or 1.
    if count <= 1 {
        return Ok(vec![file_name.to_owned()]);
    }
    let shard = || Box::from(file_name);
    if count > MAX_SHARDS {
        return Err(SplitError::TooMany { shard: shard(), found: count, limit: MAX_SHARDS });
    }
    if file_name.contains(['/', '\\', '\0']) {
        return Err(SplitError::NotAFileName { shard: shard() });
    }
    let name =
        ShardName::parse(file_name).ok_or_else(|| SplitError::Name { shard: shard(), count })?;
    if name.count != count {
        return Err(SplitError::Count { shard: shard(), found: count, expected: name.count });
    }
    let no = required(gguf, file_name, "split.no")?;
    if no != name.no {
        return Err(SplitError::Number { shard: shard(), found: no, expected: name.no });
    }
    Ok((0..count).map(|no| name.file_name(no)).collect())
}

/// One shard: its file name, for messages, and its header.
#[derive(Clone, Copy, Debug)]
pub struct Shard<'s, 'a> {
    /// File name, as returned by [`names`].
    pub name: &'s str,
    /// Header.
    pub gguf: &'s Gguf<'a>,
}

/// The tensors of all shards, each shard in file order.
pub type Catalog<'a> = shards::ShardedCatalog<'a, TensorInfo<'a>>;

/// A tensor and the shard that holds it; its offset is in that shard's file.
pub type Placed<'a> = shards::ShardedTensor<TensorInfo<'a>>;

/// Merges a model's shards, in the order of [`names`], into one catalog. A model in one file is one shard.
/// Metadata is read from the first.
///
/// # Errors
/// The shards do not belong together: a count, number or architecture differs, a tensor is in two of them, or
/// tensors are missing.
pub fn merge<'a>(shards: &[Shard<'_, 'a>]) -> Result<Catalog<'a>, SplitError> {
    let given = shards.len() as u64;
    let Some(first) = shards.first() else {
        return Err(SplitError::Shards { given, count: 1 });
    };
    let count = integer(first.gguf, first.name, "split.count")?.unwrap_or(0).max(1);
    if count != given {
        return Err(SplitError::Shards { given, count });
    }
    if count > 1 {
        agree(shards, first)?;
    }

    let total = shards.iter().map(|shard| shard.gguf.tensors.len()).sum();
    let mut catalog = Catalog::with_capacity(total);
    for (position, shard) in shards.iter().enumerate() {
        for info in &shard.gguf.tensors {
            catalog.add(info.name, position, *info).map_err(|earlier| {
                SplitError::DuplicateTensor {
                    tensor: info.name.into(),
                    first: shards[earlier].name.into(),
                    second: shard.name.into(),
                }
            })?;
        }
    }
    if count > 1 {
        let expected = tensors_count(first)?;
        if i64::try_from(total) != Ok(expected) {
            return Err(SplitError::Tensors { found: total as u64, expected });
        }
    }
    Ok(catalog)
}

/// Checks the keys that each of several shards has.
fn agree(shards: &[Shard<'_, '_>], first: &Shard<'_, '_>) -> Result<(), SplitError> {
    let count = shards.len() as u64;
    let tensors = tensors_count(first)?;
    let architecture = architecture(first)?;
    for (position, shard) in shards.iter().enumerate() {
        let name = || Box::from(shard.name);
        let found = required(shard.gguf, shard.name, "split.count")?;
        if found != count {
            return Err(SplitError::Count { shard: name(), found, expected: count });
        }
        let found = required(shard.gguf, shard.name, "split.no")?;
        if found != position as u64 {
            return Err(SplitError::Number { shard: name(), found, expected: position as u64 });
        }
        let found = tensors_count(shard)?;
        if found != tensors {
            return Err(SplitError::TensorsCount { shard: name(), found, expected: tensors });
        }
        // Writers omit the architecture from later shards; if it is present, it must be the same.
        if let Some(found) = self::architecture(shard)?
            && architecture != Some(found)
        {
            return Err(SplitError::Architecture {
                shard: name(),
                found: found.into(),
                expected: architecture.unwrap_or_default().into(),
            });
        }
    }
    Ok(())
}

fn integer(gguf: &Gguf<'_>, shard: &str, key: &str) -> Result<Option<u64>, SplitError> {
    gguf.get_u64(key).map_err(|source| SplitError::Metadata { shard: shard.into(), source })
}

fn required(gguf: &Gguf<'_>, shard: &str, key: &str) -> Result<u64, SplitError> {
    gguf.require(key).map_err(|source| SplitError::Metadata { shard: shard.into(), source })
}

fn tensors_count(shard: &Shard<'_, '_>) -> Result<i64, SplitError> {
    shard
        .gguf
        .require("split.tensors.count")
        .map_err(|source| SplitError::Metadata { shard: shard.name.into(), source })
}

fn architecture<'a>(shard: &Shard<'_, 'a>) -> Result<Option<&'a [u8]>, SplitError> {
    shard
        .gguf
        .value("general.architecture")
        .map_err(|source| SplitError::Metadata { shard: shard.name.into(), source })
}
