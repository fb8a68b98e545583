//! A folder of Hugging Face's.

use std::collections::HashSet;

use super::find::Found;
use super::side::SideFiles;
use super::tensor::{Described, Rule, Tensor};
use super::{Draft, arch, catalog, copies, tokenizer};
use crate::ConvertError;
use crate::files::Files;
use crate::write::{Elements, Item, ItemData};
use alight_files::file_name;
use alight_formats::GgmlType;

/// Reads the headers of the weights and the files beside them.
///
/// # Errors
/// Something is wrong in one of them, or missing.
pub(super) fn read(found: &Found, files: &Files, side: &SideFiles) -> Result<Draft, ConvertError> {
    let tensors = catalog::read(found, files.maps())?;
    let described: Vec<Described<'_>> = tensors.iter().map(Tensor::described).collect();
    let network = arch::huggingface(side, &described)?;
    let (mut items, mut skipped) = (Vec::new(), Vec::new());
    let mut names = HashSet::new();
    let mut notes = network.notes;
    for (tensor, rule) in tensors.iter().zip(network.rules) {
        let taken = match rule {
            Rule::Skip(reason) => Err(reason),
            Rule::Take { name, heads, add } => Ok((name, heads, add)),
            Rule::Copy { of, name } => {
                let original = tensors.iter().find(|tensor| tensor.name == of);
                let same = original.map(|of| copies::is_copy(files.maps(), tensor, of));
                match (same.transpose()?, name) {
                    (Some(true), _) => Err("is the embedding once more"),
                    (_, Some(name)) => {
                        notes.push(format!(
                            "config.json says that the output is the embedding (tie_word_embeddings), \
                             but \"{}\" is another: it is kept",
                            tensor.name
                        ));
                        Ok((name.into(), None, 0.0))
                    }
                    (_, None) => Err("is another than the embedding, which config.json says it is"),
                }
            }
        };
        let (name, heads, add) = match taken {
            Ok(taken) => taken,
            Err(reason) => {
                skipped.push((tensor.name.clone(), reason));
                continue;
            }
        };
        if !names.insert(name.clone()) {
            let problem = format!("has two tensors that would be \"{name}\"");
            return Err(ConvertError::Source { path: found.folder.clone(), problem });
        }
        let from = tensor.elements(files.maps())?;
        let ne = tensor.ne();
        let data = ItemData::whole(tensor.file, tensor.offset, &ne);
        items.push(Item { name, ne, from, to: from.current(), data, heads, add });
    }
    items.extend(network.extra.into_iter().map(|(name, values)| computed(name, values)));
    let tokens = tokenizer::read(side, network.architecture, network.vocab)?
        .ok_or_else(|| no_tokenizer(side))?;
    let kind = match files.maps() {
        [map] => file_name(map.path()),
        maps => format!("{} files", maps.len()),
    };
    Ok(Draft {
        recognised: format!("Hugging Face, {kind}"),
        architecture: network.architecture.into(),
        keys: network.keys,
        tokens,
        items,
        skipped,
        notes,
    })
}

/// A vector that is not read but known.
pub(super) fn computed(name: String, values: Vec<f32>) -> Item {
    Item {
        name,
        ne: vec![values.len() as u64],
        from: Elements::Gguf(GgmlType::F32),
        to: GgmlType::F32,
        data: ItemData::Values(values),
        heads: None,
        add: 0.0,
    }
}

/// What is said where a tokenizer is needed and there is none.
pub(super) fn no_tokenizer(side: &SideFiles) -> ConvertError {
    ConvertError::Source {
        path: side.tokenizer.path("tokenizer.json"),
        problem:
            "does not exist, and neither does tokenizer.model beside it: without a tokenizer the \
                  model cannot read; say where there is one with --tokenizer"
                .into(),
    }
}
