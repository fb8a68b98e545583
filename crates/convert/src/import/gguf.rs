//! GGUF itself: shards into one file, tensors onto pages and into the order of use, other types.

use std::path::Path;

use alight_formats::gguf::Value;
use alight_formats::gguf::write::Builder;
use alight_formats::packed::PACKED_ALIGNMENT;
use alight_formats::split::Placed;

use super::{About, Conversion};
use crate::ConvertError;
use crate::files::Files;
use crate::order::execution_order;
use crate::quantize::{QuantizationMix, Shape, Told};
use alight_files::Headers;

use crate::source;
use crate::write::{Change, Elements, Item, ItemData, Order, Plan};

/// Metadata that is written anew.
const FILE_TYPE: &str = "general.file_type";
const VERSION: &str = "general.quantization_version";
const ALIGNMENT: &str = "general.alignment";

/// Plans a file with the source's metadata and tensors.
pub(super) fn plan(
    path: &Path,
    files: Files,
    mix: Option<QuantizationMix>,
) -> Result<Conversion, ConvertError> {
    let (plan, architecture) = plan_of(path, &files, mix)?;
    let recognised = match files.maps().len() {
        1 => "GGUF".into(),
        n => format!("GGUF, {n} shards"),
    };
    let about = About::new(&plan, recognised, architecture);
    Ok(Conversion { files, plan, about, folders: Vec::new() })
}

fn plan_of(
    path: &Path,
    files: &Files,
    mix: Option<QuantizationMix>,
) -> Result<(Plan, String), ConvertError> {
    let copies = alight_files::copies(files.maps());
    let headers = source::canonical_headers(files.maps(), &copies)?;
    let first = headers.files.first();
    let alignment = first.map_or(0, |gguf| gguf.alignment).max(PACKED_ALIGNMENT);
    let mut builder = Builder::with_alignment(alignment as u32);
    for (key, value) in headers.metadata() {
        if key != ALIGNMENT && (mix.is_none() || !matches!(key, FILE_TYPE | VERSION)) {
            builder.value(key, &value);
        }
    }
    if let Some(mix) = mix {
        builder.u32(FILE_TYPE, mix.file_type()).u32(VERSION, 2);
    }
    let plan = Plan::new(path, builder, items(&headers, mix), alignment)?;
    let architecture = first.and_then(|gguf| gguf.get_str("general.architecture").ok().flatten());
    Ok((plan, architecture.unwrap_or("unknown").into()))
}

/// What of the metadata decides about types; it is the first file's.
fn told(headers: &Headers<'_>) -> Told {
    let Some(first) = headers.files.first() else { return Told::default() };
    let number = |key: &str| {
        let found = match first.get(key)? {
            Value::Array(array) => array.iter_int()?.next(),
            value => value.as_int(),
        };
        found.and_then(|found| found.try_into().ok())
    };
    let architecture = first.get_str("general.architecture").ok().flatten();
    Told::read(architecture.unwrap_or_default(), number)
}

/// The tensors in the order of use, and what becomes of them.
fn items(headers: &Headers<'_>, mix: Option<QuantizationMix>) -> Vec<Item> {
    let tensors = &headers.catalog.tensors;
    let names: Vec<&str> = tensors.iter().map(|placed| placed.info.name).collect();
    let model = Shape::of(names.iter().copied(), &told(headers));
    let item = |index: usize| {
        let Placed { shard, info } = tensors[index];
        let chosen = mix.and_then(|mix| mix.of(info.name, info.shape(), &model));
        Item {
            name: info.name.into(),
            ne: info.shape().into(),
            from: Elements::Gguf(info.ty),
            to: chosen.unwrap_or(info.ty),
            data: ItemData::whole(shard, info.offset, info.shape()),
            heads: None,
            change: Change::None,
            order: Order::Same,
        }
    };
    execution_order(&names).into_iter().map(item).collect()
}
