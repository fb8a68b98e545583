//! A model that is converted: its files, mapped, and their headers.

use std::path::{Path, PathBuf};

use alight_formats::gguf::{self, Gguf, Value};
use alight_formats::packed;
use alight_formats::split::{self, Catalog, Shard};
use alight_formats::{GgmlType, Header};
use alight_kernels::WeightType;
use alight_pages::Map;

use crate::ConvertError;

/// The headers of a model's files, and all tensors.
pub(crate) struct Headers<'m> {
    pub(crate) files: Vec<Gguf<'m>>,
    pub(crate) catalog: Catalog<'m>,
}

impl<'m> Headers<'m> {
    /// The metadata that goes into a new file: without what ties shards together.
    pub(crate) fn metadata(&self) -> Vec<(&'m str, Value<'m>)> {
        let split = self.files.len() > 1;
        let all = self.files.first().map(|gguf| gguf.metadata.iter()).into_iter().flatten();
        all.filter(|(key, _)| !split || !key.starts_with("split.")).copied().collect()
    }
}

/// All shards of the split model that the file of `map` belongs to, in order; `None` if it is a model by
/// itself.
pub(crate) fn shards(map: &Map) -> Result<Option<Vec<PathBuf>>, ConvertError> {
    let path = map.path();
    let header = header(map);
    let names = split::names(&file_name(path), &parse(map, &header)?)
        .map_err(|source| ConvertError::Split { path: path.into(), source })?;
    let paths = || names.iter().map(|name| path.with_file_name(name)).collect();
    Ok((names.len() > 1).then(paths))
}

/// Maps a file of which every byte is going to be read: if it is changed in the meantime,
/// [`Map::check_unchanged`] says so.
pub(crate) fn map(path: &Path) -> Result<Map, ConvertError> {
    let map = Map::open(path)?;
    map.stamp().settle(map.file());
    Ok(map)
}

/// Maps the model at `path`: one file, or all shards of a split model in order.
pub(crate) fn open(path: &Path) -> Result<Vec<Map>, ConvertError> {
    let first = map(path)?;
    match shards(&first)? {
        None => Ok(vec![first]),
        Some(paths) => paths.iter().map(|path| map(path)).collect(),
    }
}

/// What headers of `map` are copied into; see [`Header`].
pub(crate) fn header(map: &Map) -> Header<'_> {
    Header::new(map.len() as u64, map.reader())
}

/// [`header`] of each.
pub(crate) fn copies(maps: &[Map]) -> Vec<Header<'_>> {
    maps.iter().map(header).collect()
}

/// Reads the headers of what [`open`] mapped, by way of their [`copies`].
pub(crate) fn headers<'h>(
    maps: &[Map],
    copies: &'h [Header<'_>],
) -> Result<Headers<'h>, ConvertError> {
    let files = maps.iter().zip(copies);
    let files = files.map(|(map, copy)| parse(map, copy)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = maps.iter().map(|map| file_name(map.path())).collect();
    let shards: Vec<Shard<'_, '_>> =
        names.iter().zip(&files).map(|(name, gguf)| Shard { name, gguf }).collect();
    let catalog = split::merge(&shards).map_err(|source| {
        let path = maps.first().map(|map| map.path().into()).unwrap_or_default();
        ConvertError::Split { path, source }
    })?;
    Ok(Headers { files, catalog })
}

/// As [`headers`], of a model that is not packed.
pub(crate) fn canonical_headers<'h>(
    maps: &[Map],
    copies: &'h [Header<'_>],
) -> Result<Headers<'h>, ConvertError> {
    let headers = headers(maps, copies)?;
    match headers.files.iter().zip(maps).find(|(gguf, _)| gguf.packed) {
        Some((_, map)) => Err(ConvertError::AlreadyPacked { path: map.path().into() }),
        None => Ok(headers),
    }
}

/// The header of one file, copied into `copy`.
pub(crate) fn parse<'h>(map: &Map, copy: &'h Header<'_>) -> Result<Gguf<'h>, ConvertError> {
    let parsed = gguf::parse(copy);
    // If the file shrank meanwhile, that is the reason for whatever else is wrong.
    map.check()?;
    parsed.map_err(|source| ConvertError::Header { path: map.path().into(), source })
}

/// The name of a file without its folder.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The kernels' name for a type that has a packed form and kernels.
pub(crate) fn tiled_type(ty: GgmlType) -> Option<WeightType> {
    WeightType::of(ty).filter(|_| packed::has_tiles(ty))
}
