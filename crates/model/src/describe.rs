//! What a model's files say of it, checked as [`Model::open`](crate::Model::open) checks it, for who
//! computes with the weights elsewhere: no pool, no load, and nothing read but the header and the
//! small vectors.

use std::borrow::Borrow;

use alight_formats::Header;
use alight_formats::gguf::{self, Gguf};
use alight_formats::split::{self, Shard};
use alight_pages::Map;

use crate::error::ModelError;
use crate::spec::ModelSpec;
use crate::vocabulary::Vocabulary;
use crate::weights::Weights;

/// The hyper-parameters of the model in `files`, all of its GGUF files in the order of the shards, with
/// the factors of a `rope_freqs` tensor.
///
/// # Errors
/// Whatever the engine would refuse, tensors included. Every message names the file.
pub fn spec<M: Borrow<Map>>(files: &[M]) -> Result<ModelSpec, ModelError> {
    let maps: Vec<&Map> = files.iter().map(Borrow::borrow).collect();
    let checked = read_spec(&maps);
    // A file that was cut short is the reason for whatever is wrong.
    maps.iter().try_for_each(|map| map.check())?;
    checked
}

fn read_spec(maps: &[&Map]) -> Result<ModelSpec, ModelError> {
    let path = || maps.first().map(|map| map.path().to_owned()).unwrap_or_default();
    let copies: Vec<Header<'_>> = maps.iter().map(|map| header(map)).collect();
    let headers = maps.iter().zip(&copies).map(|(map, copy)| parse(map, copy));
    let headers = headers.collect::<Result<Vec<_>, _>>()?;
    let names = maps.iter().map(|map| map.path().file_name().unwrap_or_default());
    let names: Vec<_> = names.map(|name| name.to_string_lossy()).collect();
    let shards: Vec<Shard<'_, '_>> =
        names.iter().zip(&headers).map(|(name, gguf)| Shard { name, gguf }).collect();
    let catalog =
        split::merge(&shards).map_err(|source| ModelError::Split { path: path(), source })?;
    let mut spec = ModelSpec::from_gguf(&headers[0])
        .map_err(|source| ModelError::Spec { path: path(), source })?;
    Weights::load(&mut spec, &catalog, maps)
        .map_err(|source| ModelError::Weights { path: path(), source })?;
    Ok(spec)
}

/// The tokenizer and the chat template in `file`, the first of the model's GGUF files.
///
/// # Errors
/// The header or the vocabulary makes no tokenizer.
pub fn vocabulary(file: &Map) -> Result<Vocabulary, ModelError> {
    let copy = header(file);
    let read = parse(file, &copy).map(|gguf| Vocabulary::from_gguf(&gguf));
    file.check()?;
    read?.map_err(|source| ModelError::Tokenizer { path: file.path().into(), source })
}

/// What the header of `map` is copied into.
pub(crate) fn header(map: &Map) -> Header<'_> {
    Header::new(map.len() as u64, map.reader())
}

/// Parses a map's header, copied into `copy`. A file that shrank meanwhile is reported as that.
pub(crate) fn parse<'h>(map: &Map, copy: &'h Header<'_>) -> Result<Gguf<'h>, ModelError> {
    let parsed = gguf::parse(copy);
    map.check()?;
    parsed.map_err(|source| ModelError::Header { path: map.path().into(), source })
}
