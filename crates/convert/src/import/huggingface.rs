//! A folder of Hugging Face's.

use std::collections::HashMap;

use super::find::Found;
use super::side::SideFiles;
use super::tensor::{Described, Place, Rule, Tensor};
use super::{Draft, arch, catalog, copies, tokenizer};
use crate::ConvertError;
use crate::files::Files;
use crate::write::{Elements, Item, ItemData, Piece};
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
    let (mut stacked, mut skipped) = (Stacked::default(), Vec::new());
    let mut notes = network.notes;
    for (tensor, rule) in tensors.iter().zip(network.rules) {
        let taken = match rule {
            Rule::Skip(reason) => Err(reason),
            Rule::Take { name, heads, add, place } => Ok((name, heads, add, place)),
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
                        Ok((name.into(), None, 0.0, Place::Whole))
                    }
                    (_, None) => Err("is another than the embedding, which config.json says it is"),
                }
            }
        };
        match taken {
            Ok((name, heads, add, place)) => {
                let from = tensor.elements(files.maps())?;
                let (ne, data) = placed(tensor, place);
                let to = from.current();
                let item = Item { name, ne, from, to, data, heads, add };
                stacked.push(item, place).map_err(|problem| ConvertError::Source {
                    path: found.folder.clone(),
                    problem,
                })?;
            }
            Err(reason) => skipped.push((tensor.name.clone(), reason)),
        }
    }
    let mut items = stacked.items;
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

/// The tensors of the new file, those of experts each one of which is made of many.
#[derive(Default)]
struct Stacked {
    items: Vec<Item>,
    indices: HashMap<String, usize>,
}

impl Stacked {
    /// Adds a tensor, or what is one expert's of it.
    fn push(&mut self, item: Item, place: Place) -> Result<(), String> {
        let Some(&at) = self.indices.get(&item.name) else {
            self.indices.insert(item.name.clone(), self.items.len());
            self.items.push(item);
            return Ok(());
        };
        let known = &mut self.items[at];
        match (&mut known.data, item.data, place) {
            (ItemData::Pieces(pieces), ItemData::Pieces(more), Place::Expert { .. }) => {
                if (&known.ne, known.from) != (&item.ne, item.from) {
                    return Err(format!(
                        "has experts of {} and of {} for \"{}\", expected one type for all",
                        known.from, item.from, item.name
                    ));
                }
                pieces.extend(more);
                Ok(())
            }
            _ => Err(format!("has two tensors that would be \"{}\"", item.name)),
        }
    }
}

/// Extents of the tensor that a source's is or is a part of, innermost first, and the part.
fn placed(tensor: &Tensor, place: Place) -> (Vec<u64>, ItemData) {
    let mut ne = tensor.ne();
    let (file, offset) = (tensor.file, tensor.offset);
    match place {
        Place::Whole => {}
        Place::Row => ne.truncate(1),
        Place::Expert { index, count } => {
            let (columns, rows) = (ne[0], ne.iter().skip(1).product());
            let (first_row, first_column) = (index * rows, 0);
            ne.push(count);
            let piece = Piece { file, offset, rows, columns, first_row, first_column };
            return (ne, ItemData::Pieces(vec![piece]));
        }
    }
    let data = ItemData::whole(file, offset, &ne);
    (ne, data)
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
