//! The tensors of a model, whichever files they are in.

use std::path::PathBuf;

use alight_formats::recognise::{HEAD, recognise};
use alight_formats::safetensors::{self, MAX_INDEX, SafeTensorsShard, merge, parse_index};
use alight_formats::{Format, GgmlType};
use alight_pages::Map;

use super::find::Found;
use super::side::SideFiles;
use super::tensor::Tensor;
use super::torch;
use crate::ConvertError;
use alight_files::{copies, file_name};

/// The tensors of a Hugging Face model, in safetensors or torch files.
///
/// # Errors
/// A header is wrong, or the files do not belong together.
pub(crate) fn read(
    found: &Found,
    maps: &[Map],
    side: &SideFiles,
) -> Result<Vec<Tensor>, ConvertError> {
    if maps.iter().all(|map| recognise(&map.head(HEAD)) == Some(Format::TorchZip)) {
        return torch::read(maps);
    }
    let mut headers = Vec::new();
    let copies = copies(maps);
    for (map, copy) in maps.iter().zip(&copies) {
        let parsed = safetensors::parse(copy);
        map.check()?;
        let wrong = |source| ConvertError::SafeTensors { path: map.path().into(), source };
        headers.push(parsed.map_err(wrong)?);
    }
    let names: Vec<String> = maps.iter().map(|map| file_name(map.path())).collect();
    let shards: Vec<SafeTensorsShard<'_, '_>> =
        names.iter().zip(&headers).map(|(name, file)| SafeTensorsShard { name, file }).collect();
    let named: PathBuf = match &found.index {
        Some(index) => index.clone(),
        None => found.folder.clone(),
    };
    let wrong = |source| ConvertError::Index { path: named.clone(), source };
    let bytes = match &found.index {
        Some(index) => side.small.read(index, MAX_INDEX)?,
        None => None,
    };
    let index = bytes.as_deref().map(parse_index).transpose().map_err(wrong)?;
    let catalog = merge(index.as_ref(), &shards).map_err(wrong)?;
    Ok(catalog
        .tensors
        .iter()
        .map(|placed| Tensor {
            name: placed.info.name.clone().into_owned(),
            ty: gguf_type(placed.info.dtype),
            dtype: placed.info.dtype.name(),
            shape: placed.info.shape.clone(),
            file: placed.shard,
            offset: placed.info.range.start,
        })
        .collect())
}

/// Returns GGUF's name of a safetensors type that weights have.
fn gguf_type(dtype: safetensors::Dtype) -> Option<GgmlType> {
    use safetensors::Dtype;
    Some(match dtype {
        Dtype::F16 => GgmlType::F16,
        Dtype::BF16 => GgmlType::BF16,
        Dtype::F32 => GgmlType::F32,
        Dtype::F64 => GgmlType::F64,
        // Integers are the codes of another quantisation, whose scales are elsewhere.
        _ => return None,
    })
}
