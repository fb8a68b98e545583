//! The tensors of a model, whatever files they are in.

use std::path::PathBuf;

use alight_formats::recognise::{HEAD, recognise};
use alight_formats::safetensors::{self, MAX_INDEX, Shard, merge, parse_index};
use alight_formats::{Format, GgmlType};
use alight_pages::Map;

use super::find::Found;
use super::tensor::Described;
use super::{side, torch};
use crate::ConvertError;
use crate::write::Elements;
use alight_files::{copies, file_name};

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    /// Its name.
    pub(crate) name: String,
    /// Its type as GGUF calls it; `None` if GGUF has none such.
    pub(crate) ty: Option<GgmlType>,
    /// Its type as its file calls it.
    pub(crate) dtype: &'static str,
    /// Extents, outermost first.
    pub(crate) shape: Vec<u64>,
    /// Number of its file.
    pub(crate) file: usize,
    /// Where in the file it begins, in bytes.
    pub(crate) offset: u64,
}

impl Tensor {
    /// As an architecture looks at it.
    pub(crate) fn described(&self) -> Described<'_> {
        Described { name: &self.name, shape: &self.shape }
    }

    /// Its extents as GGUF has them, innermost first; one of 1 for a single number.
    pub(crate) fn ne(&self) -> Vec<u64> {
        if self.shape.is_empty() { vec![1] } else { self.shape.iter().rev().copied().collect() }
    }

    /// What its elements are.
    ///
    /// # Errors
    /// GGUF has no such type.
    pub(crate) fn elements(&self, maps: &[Map]) -> Result<Elements, ConvertError> {
        self.ty.map(Elements::Gguf).ok_or_else(|| ConvertError::Dtype {
            path: maps.get(self.file).map(|map| map.path().to_owned()).unwrap_or_default(),
            tensor: self.name.clone(),
            dtype: self.dtype,
        })
    }
}

/// The tensors of a model of Hugging Face's, in safetensors or torch's files.
///
/// # Errors
/// A header is wrong, or the files do not belong together.
pub(crate) fn read(found: &Found, maps: &[Map]) -> Result<Vec<Tensor>, ConvertError> {
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
    let shards: Vec<Shard<'_, '_>> =
        names.iter().zip(&headers).map(|(name, file)| Shard { name, file }).collect();
    let named: PathBuf = match &found.index {
        Some(index) => index.clone(),
        None => found.folder.clone(),
    };
    let wrong = |source| ConvertError::Index { path: named.clone(), source };
    let bytes = match &found.index {
        Some(index) => side::read(index, MAX_INDEX)?,
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

/// What GGUF calls a type of safetensors.
fn gguf_type(dtype: safetensors::Dtype) -> Option<GgmlType> {
    use safetensors::Dtype;
    Some(match dtype {
        Dtype::F16 => GgmlType::F16,
        Dtype::BF16 => GgmlType::BF16,
        Dtype::F32 => GgmlType::F32,
        Dtype::F64 => GgmlType::F64,
        Dtype::I8 => GgmlType::I8,
        Dtype::I16 => GgmlType::I16,
        Dtype::I32 => GgmlType::I32,
        Dtype::I64 => GgmlType::I64,
        _ => return None,
    })
}
