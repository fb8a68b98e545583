//! GGUF sources: merges shards into one file, puts tensors on pages and into the order of use,
//! changes types.

use std::collections::HashMap;
use std::path::Path;

use alight_formats::gguf::Value;
use alight_formats::gguf::write::Builder;
use alight_formats::packed::PACKED_ALIGNMENT;
use alight_formats::split::Placed;

use super::{About, Conversion};
use crate::ConvertError;
use crate::adapters::{Changes, ScaledAdapter};
use crate::files::Files;
use crate::imatrix::{Imatrix, PREFIX};
use crate::mix::{ModelFacts, QuantizationMix, Shape};
use crate::order::execution_order;
use crate::tensor_types::{self, TensorTypes};
use alight_files::Headers;
use alight_pages::Map;

use crate::source;
use crate::write::{Change, Elements, Importance, Item, ItemData, Order, Plan};

/// Metadata that is rewritten.
const FILE_TYPE: &str = "general.file_type";
const VERSION: &str = "general.quantization_version";
const ALIGNMENT: &str = "general.alignment";

/// The mix, if types change, and the types that it does not decide.
type Types<'t> = (Option<QuantizationMix>, &'t TensorTypes);

/// Plans a file with the source's metadata and tensors.
pub(super) fn plan(
    path: &Path,
    mut files: Files,
    types: Types<'_>,
    imatrix: Option<Imatrix>,
    scaled: &[ScaledAdapter<'_>],
) -> Result<Conversion, ConvertError> {
    let maps = scaled.iter().map(|adapter| source::map(adapter.path));
    let maps = maps.collect::<Result<Vec<Map>, _>>()?;
    let with: Vec<_> = maps.iter().zip(scaled).map(|(map, adapter)| (map, adapter.scale)).collect();
    let (plan, architecture, notes) = plan_of(path, &files, types, imatrix.as_ref(), &with)?;
    let recognised = match files.maps().len() {
        1 => "GGUF".into(),
        n => format!("GGUF, {n} shards"),
    };
    let mut about = About::new(&plan, recognised, architecture);
    about.notes.extend(notes);
    if let Some(imatrix) = imatrix {
        files.add(imatrix.map);
    }
    maps.into_iter().for_each(|map| files.add(map));
    Ok(Conversion { files, plan, about, small: Vec::new(), folders: Vec::new() })
}

fn plan_of(
    path: &Path,
    files: &Files,
    types: Types<'_>,
    imatrix: Option<&Imatrix>,
    adapters: &[(&Map, f32)],
) -> Result<(Plan, String, Vec<String>), ConvertError> {
    let mix = types.0;
    let copies = alight_files::copies(files.maps());
    let headers = source::canonical_headers(files.maps(), &copies)?;
    let first = headers.files.first();
    // The source's value does not apply to the new file, and may be half a GiB.
    let mut builder = Builder::with_alignment(PACKED_ALIGNMENT as u32);
    for (key, value) in headers.metadata() {
        let is_old = matches!(key, FILE_TYPE | VERSION) || key.starts_with(PREFIX);
        if key != ALIGNMENT && (mix.is_none() || !is_old) {
            builder.value(key, &value);
        }
    }
    let architecture = first.and_then(|gguf| gguf.get_str("general.architecture").ok().flatten());
    let architecture = architecture.unwrap_or("unknown");
    let (mut items, note) = items(&headers, types, imatrix.is_some());
    let (mut importance, mut notes) = (HashMap::new(), Vec::from_iter(note));
    let mut changes = Changes::default();
    if !adapters.is_empty() {
        let extents = items.iter().map(|item| (item.name.clone(), item.ne.clone())).collect();
        for (i, (map, scale)) in adapters.iter().enumerate() {
            changes.add(map, files.maps().len() + i, *scale, architecture, &extents)?;
        }
        notes.extend(changes.apply(&mut items, mix));
    }
    if let Some(imatrix) = imatrix {
        // Its map follows those of the model.
        let without;
        (importance, without) = weights(&items, imatrix, files.maps().len())?;
        notes.extend(without);
        imatrix.keys(importance.len(), &mut builder);
    }
    if let Some(mix) = mix {
        builder.u32(FILE_TYPE, mix.file_type()).u32(VERSION, 2);
    }
    let plan = Plan::new(path, builder, items)?.weighted(importance).merged(changes.merges);
    Ok((plan, architecture.into(), notes))
}

/// Returns the importance of columns by tensor name, for tensors that become blocks, and notes about tensors
/// without any.
fn weights(
    items: &[Item],
    imatrix: &Imatrix,
    file: usize,
) -> Result<(HashMap<String, Importance>, Vec<String>), ConvertError> {
    let (mut found, mut without) = (HashMap::new(), Vec::new());
    for item in items.iter().filter(|item| item.to.is_quantised()) {
        match imatrix.of(file, &item.name, &item.ne)? {
            Some(importance) => {
                found.insert(item.name.clone(), importance);
            }
            // An embedding is never multiplied with, and the output is seldom measured.
            None if matches!(&*item.name, "output.weight")
                || item.name.ends_with("token_embd.weight") => {}
            None => without.push(&item.name),
        }
    }
    let mut notes = Vec::new();
    if let Some(first) = without.first() {
        notes.push(format!(
            "the importance matrix has nothing for {} matrices, the first of them \"{first}\": their columns count alike",
            without.len()
        ));
    }
    Ok((found, notes))
}

/// Metadata that determines the types; it is the first file's.
fn facts(headers: &Headers<'_>) -> ModelFacts {
    let Some(first) = headers.files.first() else { return ModelFacts::default() };
    let number = |key: &str| {
        let found = match first.get(key)? {
            Value::Array(array) => array.iter_int()?.next(),
            value => value.as_int(),
        };
        found.and_then(|found| found.try_into().ok())
    };
    let architecture = first.get_str("general.architecture").ok().flatten();
    ModelFacts::read(architecture.unwrap_or_default(), number)
}

/// Returns the tensors in the order of use, with their new types, and a note about those whose rows cannot have the wanted one.
fn items(
    headers: &Headers<'_>,
    (mix, types): Types<'_>,
    weighted: bool,
) -> (Vec<Item>, Option<String>) {
    let tensors = &headers.catalog.tensors;
    let names: Vec<&str> = tensors.iter().map(|placed| placed.info.name).collect();
    let model = Shape::of(names.iter().copied(), &facts(headers).weighted(weighted));
    let chosen = |index: usize| {
        let info = &tensors[index].info;
        mix.and_then(|mix| types.choose(mix, info.name, info.shape(), &model))
    };
    let of = |index: usize| Some((names[index], tensors[index].info.ne[0], chosen(index)?));
    let note = tensor_types::note((0..tensors.len()).filter_map(of));
    let item = |index: usize| {
        let Placed { shard, info } = tensors[index];
        Item {
            name: info.name.into(),
            ne: info.shape().into(),
            from: Elements::Gguf(info.ty),
            to: chosen(index).map_or(info.ty, |chosen| chosen.to),
            data: ItemData::whole(shard, info.offset, info.shape()),
            heads: None,
            change: Change::None,
            order: Order::Same,
        }
    };
    (execution_order(&names).into_iter().map(item).collect(), note)
}
