//! Descriptions from a model's files, checked as [`Model::open`](crate::Model::open) checks them, for callers that compute with the weights
//! themselves: no pool, no load, and nothing is read except the header and the small vectors.

use std::borrow::Borrow;
use std::path::Path;

use alight_formats::split::ShardName;
use alight_pages::Map;
use alight_text::{Tokenizer, Vocabulary};

use crate::error::ModelError;
use crate::spec::ModelSpec;
use crate::weights::Weights;

/// Returns the hyper-parameters of the model in `files`, all of its GGUF files in the order of the shards, with the factors of a `rope_freqs` tensor.
///
/// # Errors
/// Everything that the engine would reject, tensors included. Every message names the file.
pub fn spec<M: Borrow<Map>>(files: &[M]) -> Result<ModelSpec, ModelError> {
    let maps: Vec<&Map> = files.iter().map(Borrow::borrow).collect();
    let checked = read_spec(&maps);
    // A truncated file is the cause of any other error.
    maps.iter().try_for_each(|map| map.check())?;
    checked
}

fn read_spec(maps: &[&Map]) -> Result<ModelSpec, ModelError> {
    let path = || maps.first().map(|map| map.path().to_owned()).unwrap_or_default();
    let copies = alight_files::copies(maps);
    let headers = alight_files::headers(maps, &copies)?;
    let mut spec = ModelSpec::from_gguf(&headers.files[0])
        .map_err(|source| ModelError::Spec { path: path(), source })?;
    Weights::load(&mut spec, &headers.catalog, maps)
        .map_err(|source| ModelError::Weights { path: path(), source })?;
    Ok(spec)
}

/// Returns what in a model's metadata makes its answers doubtful, a sentence each: keys that are not read and may change what other
/// programs compute, and a pre-tokeniser that does not fit the vocabulary.
pub fn warnings(spec: &ModelSpec, tokenizer: &Tokenizer) -> Vec<String> {
    unread_keys(spec)
        .into_iter()
        .chain(tokenizer.misfit().map(|misfit| misfit.to_string()))
        .collect()
}

/// The first of the [`warnings`], which does not need the tokenizer.
pub fn unread_keys(spec: &ModelSpec) -> Option<String> {
    let quoted = |key: &String| format!("\"{}\"", key.escape_debug());
    let names = spec.unread_keys.iter().map(quoted).collect::<Vec<_>>().join(", ");
    (!names.is_empty()).then(|| {
        format!("metadata {names} is not read: programs that read it may compute other answers")
    })
}

/// Returns the tokenizer and the chat template in `file`, the first of the model's GGUF files.
///
/// # Errors
/// The header or the vocabulary does not describe a tokenizer.
pub fn vocabulary(file: &Map) -> Result<Vocabulary, ModelError> {
    let copy = alight_files::copy(file);
    let read = alight_files::parse(file, &copy);
    let read = read.map(|gguf| Vocabulary::from_header(&gguf, &copy.pieces()));
    file.check()?;
    read?.map_err(|source| ModelError::Tokenizer { path: file.path().into(), source })
}

/// The name of a model: that of its file, without the extension and the number of a shard; a packed file has the name of what it was
/// packed from. (The name that a file states in
/// `general.name` is often that of a training run, and the same for all quantizations.)
pub fn name(path: &Path) -> String {
    let file = alight_files::file_name(path);
    match ShardName::parse(&file) {
        Some(shard) => shard.prefix.to_owned(),
        None => {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            stem.strip_suffix(".packed").unwrap_or(&stem).to_owned()
        }
    }
}
