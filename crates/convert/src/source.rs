//! A model to be converted: its mapped files and their headers.

use std::path::Path;

use alight_files::Headers;
use alight_formats::packed;
use alight_formats::{GgmlType, Header};
use alight_kernels::WeightType;
use alight_pages::Map;

use crate::ConvertError;

/// Maps a file of which every byte will be read: if it changes in the meantime,
/// [`Map::check_unchanged`] reports it.
pub(crate) fn map(path: &Path) -> Result<Map, ConvertError> {
    let map = Map::open(path)?;
    map.stamp().settle(map.file());
    Ok(map)
}

/// Maps the model at `path`: one file, or all shards of a split model in order.
pub(crate) fn open(path: &Path) -> Result<Vec<Map>, ConvertError> {
    alight_files::open_with(path, map)
}

/// The headers of a model that is not packed.
pub(crate) fn canonical_headers<'h>(
    maps: &[Map],
    copies: &'h [Header<'_>],
) -> Result<Headers<'h>, ConvertError> {
    let headers = alight_files::headers(maps, copies)?;
    match headers.files.iter().zip(maps).find(|(gguf, _)| gguf.packed) {
        Some((_, map)) => Err(ConvertError::AlreadyPacked { path: map.path().into() }),
        None => Ok(headers),
    }
}

/// The kernels' name for a type that has a packed form and kernels.
pub(crate) fn tiled_type(ty: GgmlType) -> Option<WeightType> {
    WeightType::of(ty).filter(|_| packed::has_tiles(ty))
}
