//! Hugging Face folders.

use std::collections::HashMap;

use super::dense::{self, Dense};
use super::find::Found;
use super::sentence::SentenceTransformer;
use super::side::SideFiles;
use super::tensor::{Described, Entry, Place, Rule, Tensor};
use super::{Draft, arch, catalog, copies, tokenizer};
use crate::ConvertError;
use crate::files::Files;
use crate::write::{Change, Elements, Item, ItemData, Order, Piece, Scales, Tiles};
use alight_files::file_name;
use alight_formats::GgmlType;
use alight_pages::Map;

/// Reads the headers of the weights and the files next to them.
///
/// # Errors
/// One of them is wrong or missing.
pub(super) fn read(
    found: &Found,
    modules: &[Dense],
    files: &Files,
    side: &SideFiles,
) -> Result<Draft, ConvertError> {
    // The files of modules follow.
    let own = &files.maps()[..found.weights.len()];
    let tensors = catalog::read(found, own, side)?;
    let by_name: ByName<'_> = tensors.iter().map(|tensor| (&*tensor.name, tensor)).collect();
    let described: Vec<Described<'_>> = tensors.iter().map(Tensor::described).collect();
    let network = arch::huggingface(side, &described)?;
    let (mut stacked, mut skipped) = (Stacked::default(), Vec::new());
    let (mut notes, tile) = (network.notes, network.tile);
    let flat = tensors.iter().zip(network.rules).flat_map(|(tensor, rule)| {
        let rules = match rule {
            Rule::Several(rules) => rules,
            rule => vec![rule],
        };
        rules.into_iter().map(move |rule| (tensor, rule))
    });
    for (tensor, rule) in flat {
        let taken = match rule {
            Rule::Beside | Rule::Several(_) => continue,
            Rule::Skip(reason) => Err(reason),
            Rule::Take { name, heads, change, place } => Ok((name, heads, change, place)),
            Rule::Copy { of, name } => {
                let original = by_name.get(&*of).copied();
                let same = original.map(|of| copies::is_copy(files.maps(), tensor, of));
                match (same.transpose()?, name) {
                    (Some(true), _) => Err("is the embedding once more"),
                    (_, Some(name)) => {
                        notes.push(format!(
                            "config.json says that the output is the embedding (tie_word_embeddings), \
                             but \"{}\" is another: it is kept",
                            tensor.name
                        ));
                        Ok((name.into(), None, Change::None, Place::Whole))
                    }
                    (_, None) => Err("is another than the embedding, which config.json says it is"),
                }
            }
        };
        match taken {
            Ok((name, heads, change, place)) => {
                let source = Source { tensor, all: &by_name, maps: files.maps(), tile };
                let item = source.item(name, heads, change, &place)?;
                stacked.push(item, &place).map_err(|problem| ConvertError::Source {
                    path: found.folder.clone(),
                    problem,
                })?;
            }
            Err(reason) => skipped.push((tensor.name.clone(), reason)),
        }
    }
    let mut items = stacked.items;
    items.extend(network.extra.into_iter().map(|(name, values)| computed(name, values)));
    let architecture = network.architecture;
    let mut keys = network.keys;
    let hidden = format!("{architecture}.embedding_length");
    let hidden = keys.iter().find(|(key, _)| *key == hidden);
    let hidden = hidden.and_then(|(_, entry)| entry.first_number());
    let maps = (files.maps(), own.len());
    let projections = dense::items(modules, maps, side, (architecture, hidden))?;
    items.extend(projections.items);
    keys.extend(projections.keys);
    let tokens = tokenizer::read(side, architecture, network.vocab, &network.templates)?
        .ok_or_else(|| no_tokenizer(side))?;
    let lowercase = SentenceTransformer::read(side)?.is_some_and(|sentence| sentence.lowercase);
    let has = |name: &str| tokens.keys.iter().any(|key| *key == (name.into(), Entry::Bool(true)));
    if lowercase && !has("tokenizer.ggml.normalizer.lowercase") {
        let path = side.network.path("sentence_bert_config.json");
        let problem = "do_lower_case is true, and the tokenizer does not lower-case text: GGUF has no form for it";
        return Err(ConvertError::Side { path, problem: problem.into() });
    }
    let kind = match own {
        [map] => file_name(map.path()),
        maps => format!("{} files", maps.len()),
    };
    Ok(Draft {
        recognised: format!("Hugging Face, {kind}"),
        architecture: architecture.into(),
        keys,
        tokens,
        items,
        skipped,
        notes,
    })
}

/// The tensors of a source by name: there may be hundreds of thousands, each with a companion
/// tensor.
pub(super) type ByName<'a> = HashMap<&'a str, &'a Tensor>;

/// The tensors of the new file; expert tensors are each assembled from many.
#[derive(Default)]
struct Stacked {
    items: Vec<Item>,
    indices: HashMap<String, usize>,
}

impl Stacked {
    /// Adds a tensor, or one expert's share of it.
    fn push(&mut self, item: Item, place: &Place) -> Result<(), String> {
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

/// Order of a tensor's elements in the new one, where it is not by whole rows.
fn order(tensor: &Tensor, place: &Place) -> Order {
    match place {
        Place::Columns(runs) => Order::Columns(runs.clone()),
        Place::Transposed { rows, .. } => {
            Order::Transposed { rows: *rows, columns: tensor.shape.last().copied().unwrap_or(1) }
        }
        _ => Order::Same,
    }
}

/// A tensor of the source, and the context needed to find its parts.
pub(super) struct Source<'a> {
    pub(super) tensor: &'a Tensor,
    pub(super) all: &'a ByName<'a>,
    pub(super) maps: &'a [Map],
    /// Rows and columns of an F8 matrix that share a scale.
    pub(super) tile: Option<(u64, u64)>,
}

impl Source<'_> {
    /// Returns the tensor of the new file that it becomes, or a part of.
    pub(super) fn item(
        &self,
        name: String,
        heads: Option<u64>,
        change: Change,
        place: &Place,
    ) -> Result<Item, ConvertError> {
        let (from, ne, data) = self.placed(place)?;
        let (to, order) = (from.current(), order(self.tensor, place));
        Ok(Item { name, ne, from, to, data, heads, change, order })
    }

    /// Returns the type of the elements, the extents of the new tensor (innermost first), and the source's share
    /// of it.
    fn placed(&self, place: &Place) -> Result<(Elements, Vec<u64>, ItemData), ConvertError> {
        if let Place::Blocks { first, step } = *place {
            return blocks(self.tensor, (first, step), self.all, self.maps);
        }
        let tiles = self.tiles()?;
        let from = match tiles {
            Some(_) => Elements::Fp8,
            None => self.tensor.elements(self.maps)?,
        };
        let (ne, mut pieces) = pieces(self.tensor, from, place);
        pieces.iter_mut().for_each(|piece| piece.tiles = tiles);
        Ok((from, ne, ItemData::Pieces(pieces)))
    }

    /// Returns the scales of an F8 matrix.
    fn tiles(&self) -> Result<Option<Tiles>, ConvertError> {
        let tensor = self.tensor;
        let Some(tile) = self.tile.filter(|_| tensor.dtype == "F8_E4M3") else { return Ok(None) };
        let error = |tensor: &Tensor, problem: String| ConvertError::Source {
            path: self.maps.get(tensor.file).map(|map| map.path().to_owned()).unwrap_or_default(),
            problem: format!("tensor \"{}\" {problem}", tensor.name),
        };
        let name = format!("{}_scale_inv", tensor.name);
        let Some(scales) = self.all.get(&*name) else {
            return Err(error(tensor, format!("is F8_E4M3, and there is no \"{name}\" beside it")));
        };
        let &[rows, columns] = &tensor.shape[..] else {
            let shape = &tensor.shape;
            return Err(error(tensor, format!("is F8_E4M3 of {shape:?}, expected a matrix")));
        };
        let expected = [rows.div_ceil(tile.0), columns.div_ceil(tile.1)];
        if scales.shape != expected {
            let found = &scales.shape;
            let problem = format!("is {found:?}, expected {expected:?}, a scale for each tile");
            return Err(error(scales, problem));
        }
        let ty = scales.ty.filter(|ty| matches!(ty, GgmlType::F32 | GgmlType::BF16));
        let Some(ty) = ty else {
            return Err(error(scales, format!("is {}, expected F32 or BF16", scales.dtype)));
        };
        let (file, offset, start) = (scales.file, scales.offset, tensor.offset);
        Ok(Some(Tiles { file, offset, ty, start, columns, tile }))
    }
}

/// Returns the extents (innermost first) of the new tensor, and the pieces that the source's tensor
/// contributes.
fn pieces(tensor: &Tensor, from: Elements, place: &Place) -> (Vec<u64>, Vec<Piece>) {
    let mut ne = tensor.ne();
    let (file, offset) = (tensor.file, tensor.offset);
    let (columns, rows) = (ne[0], ne.iter().skip(1).product::<u64>());
    let whole = |rows| vec![Piece::new(file, offset, (rows, columns), 0)];
    let row = from.bytes(columns).unwrap_or(0);
    match place {
        Place::Whole | Place::Blocks { .. } | Place::Columns(_) => (ne, whole(rows)),
        Place::Row => {
            ne.truncate(1);
            (ne, whole(1))
        }
        Place::OfRows(rows) => {
            let columns = columns / rows.max(&1);
            (vec![columns, *rows], vec![Piece::new(file, offset, (*rows, columns), 0)])
        }
        Place::Expert { index, count } => {
            ne.push(*count);
            (ne, vec![Piece::new(file, offset, (rows, columns), index * rows)])
        }
        Place::Half(half) => {
            let matrices: u64 = ne.iter().skip(2).product();
            ne[1] /= 2;
            let rows = ne[1];
            let piece = |matrix: u64| {
                let offset = offset + (2 * matrix + half) * rows * row;
                Piece::new(file, offset, (rows, columns), matrix * rows)
            };
            (ne, (0..matrices).map(piece).collect())
        }
        Place::Turned { part, of } => {
            let (inner, size) = (ne.get(1).copied().unwrap_or(1), from.bytes(1).unwrap_or(0));
            (ne[0], ne[1]) = (inner, columns / of);
            let taken = ne[1];
            let piece = |matrix: u64| {
                let offset = offset + matrix * inner * row + part * taken * size;
                Piece {
                    across: Some(row),
                    ..Piece::new(file, offset, (taken, inner), matrix * taken)
                }
            };
            let matrices: u64 = ne.iter().skip(2).product();
            (ne, (0..matrices).map(piece).collect())
        }
        Place::Numbers { first, step } => {
            ne[0] /= step;
            let size = from.bytes(1).unwrap_or(0);
            let piece = Piece::new(file, offset + first * size, (ne.iter().product(), 1), 0);
            (ne, vec![Piece { stride: Some(step * size), ..piece }])
        }
        Place::Rows(runs) => {
            let is_vector = tensor.shape.len() < 2;
            let (columns, row) =
                if is_vector { (1, from.bytes(1).unwrap_or(0)) } else { (columns, row) };
            let (taken, pieces) = gathered(runs, |first, count, at| {
                Piece::new(file, offset + first * row, (count, columns), at)
            });
            (if is_vector { vec![taken] } else { vec![columns, taken] }, pieces)
        }
        Place::Heads(runs) => {
            let (taken, pieces) = gathered(runs, |first, count, at| {
                Piece::new(file, offset + first * row, (count, columns), at)
            });
            let heads = runs.len().max(1) as u64;
            (vec![columns, taken / heads, heads], pieces)
        }
        Place::Transposed { rows: taken, of } => {
            let heads = rows / of;
            let piece = Piece::new(file, offset, (heads, taken * columns), 0);
            (vec![*taken, columns, heads], vec![Piece { stride: Some(of * row), ..piece }])
        }
    }
}

/// Returns the pieces for runs of rows (first, count), and the total number of rows.
fn gathered(runs: &[(u64, u64)], piece: impl Fn(u64, u64, u64) -> Piece) -> (u64, Vec<Piece>) {
    let mut taken = 0;
    let pieces = runs.iter().map(|&(first, count)| {
        let piece = piece(first, count, taken);
        taken += count;
        piece
    });
    let pieces = pieces.collect();
    (taken, pieces)
}

/// Rows of MXFP4 blocks whose scales are in another tensor: [`Place::Blocks`].
fn blocks(
    tensor: &Tensor,
    (first, step): (u64, u64),
    all: &ByName<'_>,
    maps: &[Map],
) -> Result<(Elements, Vec<u64>, ItemData), ConvertError> {
    let name = tensor.name.strip_suffix("_blocks").map(|name| format!("{name}_scales"));
    // Its presence has been checked.
    let scales = name.and_then(|name| all.get(&*name).copied()).unwrap_or(tensor);
    if let Some(other) = [tensor, scales].into_iter().find(|tensor| tensor.dtype != "U8") {
        return Err(ConvertError::Dtype {
            path: maps.get(other.file).map(|map| map.path().to_owned()).unwrap_or_default(),
            tensor: other.name.clone(),
            dtype: other.dtype,
        });
    }
    let &[experts, rows, blocks, _] = &tensor.shape[..] else {
        return Ok((Elements::Mxfp4Apart, tensor.ne(), ItemData::Pieces(Vec::new())));
    };
    let taken = rows / step;
    let piece = |expert| {
        let before = expert * rows + first;
        let offset = tensor.offset + before * blocks * 16;
        let piece = Piece::new(tensor.file, offset, (taken, blocks * 32), expert * taken);
        let offset = scales.offset + before * blocks;
        let scales = Scales { file: scales.file, offset, stride: step * blocks };
        Piece { stride: Some(step * blocks * 16), scales: Some(scales), ..piece }
    };
    let pieces = (0..experts).map(piece).collect();
    Ok((Elements::Mxfp4Apart, vec![blocks * 32, taken, experts], ItemData::Pieces(pieces)))
}

/// A tensor of the source as it is, under another name.
pub(super) fn whole(name: String, tensor: &Tensor, from: Elements) -> Item {
    let ne = tensor.ne();
    let data = ItemData::whole(tensor.file, tensor.offset, &ne);
    let (to, heads, change, order) = (from.current(), None, Change::None, Order::Same);
    Item { name, ne, from, to, data, heads, change, order }
}

/// A vector that is computed and not read.
pub(super) fn computed(name: String, values: Vec<f32>) -> Item {
    Item {
        name,
        ne: vec![values.len() as u64],
        from: Elements::Gguf(GgmlType::F32),
        to: GgmlType::F32,
        data: ItemData::of_floats(&values),
        heads: None,
        change: Change::None,
        order: Order::Same,
    }
}

/// The error for a missing tokenizer.
pub(super) fn no_tokenizer(side: &SideFiles) -> ConvertError {
    ConvertError::Source {
        path: side.tokenizer.path("tokenizer.json"),
        problem:
            "does not exist, and neither does tokenizer.model beside it (nor vocab.txt of BERT, nor sentencepiece.bpe.model of \
             XLM-RoBERTa): without a tokenizer the model cannot read; say where there is one with --tokenizer"
                .into(),
    }
}
