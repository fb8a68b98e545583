//! Modules `Dense` of sentence-transformers: projections of the pooled vector, each in a folder of its own with a configuration and weights.
//!
//! GGUF has places for two of them, `dense_2` and `dense_3`, without an activation. A bias has a name of our own.

use std::path::PathBuf;

use alight_pages::Map;
use serde_json::Value;

use super::arch::config::shown;
use super::find::{self, Found};
use super::sentence::{SentenceTransformer, count};
use super::side::SideFiles;
use super::tensor::{Entry, Tensor};
use super::{catalog, huggingface};
use crate::ConvertError;
use crate::write::Item;

/// Their names in GGUF.
const NAMES: [&str; 2] = ["dense_2", "dense_3"];

/// A projection of the pooled vector.
pub(super) struct Dense {
    /// Its name in GGUF.
    name: &'static str,
    found: Found,
    columns: u64,
    rows: u64,
    has_bias: bool,
}

/// The tensors and keys of modules.
#[derive(Default)]
pub(super) struct DenseTensors {
    pub(super) items: Vec<Item>,
    pub(super) keys: Vec<(String, Entry)>,
}

/// Finds the modules of a folder, in their order.
///
/// # Errors
/// One of them is missing, or does something that GGUF cannot express.
pub(super) fn find(side: &SideFiles) -> Result<Vec<Dense>, ConvertError> {
    let folders = SentenceTransformer::read(side)?.unwrap_or_default().dense;
    if folders.len() > NAMES.len() {
        let (path, found) = (side.network.path("modules.json"), folders.len());
        let problem = format!("has {found} modules Dense, expected at most 2: GGUF has no more");
        return Err(ConvertError::Side { path, problem });
    }
    let modules = folders.iter().zip(NAMES).map(|(folder, name)| Dense::read(side, folder, name));
    let modules: Vec<Dense> = modules.collect::<Result<_, _>>()?;
    if let [first, second] = &modules[..]
        && first.rows != second.columns
    {
        let problem = format!(
            "in_features is {}, expected {}, the out_features of the module before",
            second.columns, first.rows
        );
        return Err(ConvertError::Side { path: second.found.folder.join("config.json"), problem });
    }
    Ok(modules)
}

impl Dense {
    fn read(side: &SideFiles, folder: &str, name: &'static str) -> Result<Dense, ConvertError> {
        let file = format!("{folder}/config.json");
        let path = side.network.path(&file);
        let wrong = |problem: String| ConvertError::Side { path: path.clone(), problem };
        let Some(config) = side.network.json(&file)? else {
            return Err(wrong("is missing: modules.json names it".into()));
        };
        let size = |key: &str| {
            count(&config, key, &path)?.map(u64::from).ok_or_else(|| wrong(format!("has no {key}")))
        };
        let (columns, rows) = (size("in_features")?, size("out_features")?);
        let activation = match config.get("activation_function") {
            // The default of sentence-transformers.
            None => "Tanh".into(),
            Some(Value::String(name)) => name.clone(),
            Some(other) => shown(other),
        };
        if activation.rsplit('.').next() != Some("Identity") {
            let activation: String = activation.chars().take(80).collect();
            return Err(wrong(format!(
                "activation_function is {activation}, expected Identity: GGUF has no form for another after a projection"
            )));
        }
        for key in ["module_input_name", "module_output_name"] {
            if let Some(value) = config.get(key).filter(|value| *value != "sentence_embedding") {
                let found = shown(value);
                return Err(wrong(format!("{key} is {found}, expected \"sentence_embedding\"")));
            }
        }
        let has_bias = match config.get("bias") {
            None => true,
            Some(Value::Bool(bias)) => *bias,
            Some(other) => return Err(wrong(format!("bias is {}", shown(other)))),
        };
        let found = find::find(&side.network.path(folder), &side.small)?;
        Ok(Dense { name, found, columns, rows, has_bias })
    }

    /// Returns the files of its weights.
    pub(super) fn weights(&self) -> &[PathBuf] {
        &self.found.weights
    }

    /// True if the headers of a file are all at its beginning.
    pub(super) fn headers_first(&self) -> bool {
        self.found.headers_first()
    }

    /// Returns its tensors, whose files are `maps`; the first of them has the number `first` among all files.
    fn items(
        &self,
        maps: &[Map],
        first: usize,
        side: &SideFiles,
    ) -> Result<Vec<Item>, ConvertError> {
        let wrong = |problem| ConvertError::Source { path: self.found.folder.clone(), problem };
        let tensors = catalog::read(&self.found, maps, side)?;
        let mut expected = vec![("linear.weight", "weight", vec![self.rows, self.columns])];
        if self.has_bias {
            expected.push(("linear.bias", "bias", vec![self.rows]));
        }
        let is_known = |tensor: &&Tensor| expected.iter().any(|(name, ..)| *name == tensor.name);
        if let Some(other) = tensors.iter().find(|tensor| !is_known(tensor)) {
            return Err(wrong(format!("has a tensor \"{}\" that has no place", other.name)));
        }
        let item = |(name, part, shape): (&str, &str, Vec<u64>)| {
            let tensor = tensors.iter().find(|tensor| tensor.name == name);
            let tensor = tensor.ok_or_else(|| wrong(format!("has no tensor \"{name}\"")))?;
            if tensor.shape != shape {
                let found = &tensor.shape;
                return Err(wrong(format!("has {name:?} of {found:?}, expected {shape:?}")));
            }
            let elements = tensor.elements(maps)?;
            let tensor = Tensor { file: first + tensor.file, ..tensor.clone() };
            Ok(huggingface::whole(format!("{}.{part}", self.name), &tensor, elements))
        };
        expected.into_iter().map(item).collect()
    }
}

/// Returns the tensors of all modules, whose files follow those of the network, of which there are `first`; and their keys. The pooled vector
/// has `hidden` elements.
///
/// # Errors
/// The weights are not those that the configurations describe.
pub(super) fn items(
    modules: &[Dense],
    (maps, mut first): (&[Map], usize),
    side: &SideFiles,
    (architecture, hidden): (&str, Option<u64>),
) -> Result<DenseTensors, ConvertError> {
    let mut all = DenseTensors::default();
    if let Some(module) = modules.first()
        && hidden.is_some_and(|hidden| hidden != module.columns)
    {
        let problem = format!(
            "in_features is {}, expected {}, the hidden size of the network",
            module.columns,
            hidden.unwrap_or(0)
        );
        return Err(ConvertError::Side { path: module.found.folder.join("config.json"), problem });
    }
    for module in modules {
        let end = first + module.weights().len();
        all.items.extend(module.items(&maps[first..end], first, side)?);
        first = end;
        for (what, size) in [("in", module.columns), ("out", module.rows)] {
            let key = format!("{architecture}.{}_feat_{what}", module.name);
            all.keys.push((key, Entry::U32(size as u32)));
        }
    }
    Ok(all)
}
