//! The tensors of torch zip files.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use alight_formats::GgmlType;
use alight_formats::torch::{self, TorchDtype};
use alight_pages::Map;

use super::tensor::Tensor;
use crate::ConvertError;
use alight_files::copy;

/// The tensors of all files.
///
/// # Errors
/// A file is wrong, or two have a tensor of the same name.
pub(crate) fn read(maps: &[Map]) -> Result<Vec<Tensor>, ConvertError> {
    let mut all = Vec::new();
    let mut seen: HashMap<String, usize> = HashMap::new();
    for (file, map) in maps.iter().enumerate() {
        for tensor in of_file(map, file)? {
            if let Some(other) = seen.insert(tensor.name.clone(), file) {
                let other = maps[other].path().display();
                let problem = format!("has the tensor \"{}\", as '{other}' has", tensor.name);
                return Err(ConvertError::Source { path: map.path().into(), problem });
            }
            all.push(tensor);
        }
    }
    Ok(all)
}

/// The tensors of one file.
///
/// # Errors
/// The file is wrong.
pub(crate) fn of_file(map: &Map, file: usize) -> Result<Vec<Tensor>, ConvertError> {
    let copy = copy(map);
    let parsed = torch::parse(&copy);
    map.check()?;
    let wrong = |source| ConvertError::Torch { path: map.path().into(), source };
    let tensor = |tensor: torch::TorchTensor| Tensor {
        name: tensor.name.into(),
        ty: gguf_type(tensor.dtype),
        dtype: tensor.dtype.name(),
        shape: tensor.shape.into(),
        file,
        offset: tensor.offset,
    };
    Ok(parsed.map_err(wrong)?.tensors.into_iter().map(tensor).collect())
}

/// Returns the files listed in an index of torch files, each once.
///
/// # Errors
/// It is not such an index, or lists something other than a file next to it.
pub(crate) fn index_files(path: &Path, bytes: &[u8]) -> Result<Vec<String>, ConvertError> {
    /// `{"metadata": {…}, "weight_map": {"tensor": "file", …}}`
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: HashMap<String, String>,
    }
    let wrong = |problem| ConvertError::Side { path: path.into(), problem };
    let index: Index = serde_json::from_slice(bytes)
        .map_err(|error| wrong(format!("is not the index of a model's files: {error}")))?;
    let files: BTreeSet<String> = index.weight_map.into_values().collect();
    let plain = |name: &String| {
        name.ends_with(".bin") && !name.contains(['/', '\\', '\0']) && !name.starts_with('.')
    };
    match files.iter().find(|name| !plain(name)) {
        Some(name) => {
            Err(wrong(format!("names {name:?}, which is not the plain name of a .bin file")))
        }
        None => Ok(files.into_iter().collect()),
    }
}

/// Returns GGUF's name of a torch type that weights have.
fn gguf_type(dtype: TorchDtype) -> Option<GgmlType> {
    Some(match dtype {
        TorchDtype::F16 => GgmlType::F16,
        TorchDtype::BF16 => GgmlType::BF16,
        TorchDtype::F32 => GgmlType::F32,
        TorchDtype::F64 => GgmlType::F64,
        // As in safetensors.
        _ => return None,
    })
}
