//! A name for what a model computes with, the same for all of its files: whole or in shards, packed or not.
//!
//! Prompts that are kept and records of answers belong to a model, of which a file and its packed copy are one. So this hash covers the values, in an
//! order that no layout changes:
//!
//! - the architecture's keys and the tokenizer's, without the chat template, which only decides the tokens of a prompt;
//! - of each tensor, by name: its type, its extents, and the first blocks of the 16 rows in the middle of it, as a canonical file has them.

use std::collections::BTreeMap;
use std::sync::Arc;

use alight_formats::gguf::{Gguf, TensorInfo, Value};
use alight_formats::packed::TILE_ROWS;
use alight_kernels::{Layout, WeightType, planes};
use alight_pages::Map;
use sha2::{Digest, Sha256};

use crate::error::ModelError;

/// Of this many bytes of a row at most the hash has the blocks; at least one.
const ROW_SAMPLE: u64 = 256;

/// Begins the keys of the tokenizer.
const TOKENIZER: &str = "tokenizer.";
/// Begins the keys of chat templates, of which a file may have several.
const TEMPLATES: &str = "tokenizer.chat_template";
/// The key of the architecture.
const ARCHITECTURE: &str = "general.architecture";

/// The content of a model's files, whatever their layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelContent {
    /// The hash of the hyper-parameters, the tokenizer and parts of all tensors.
    pub hash: [u8; 32],
    /// The architecture, as the file calls it.
    pub architecture: String,
    /// The type of most of its bytes.
    pub main_type: &'static str,
    /// True if a matrix is in tiles or planes in the file.
    pub packed: bool,
}

/// Reads the content of these files, of which little is read.
pub(crate) fn read(maps: &[Arc<Map>]) -> Result<ModelContent, ModelError> {
    let copies = alight_files::copies(maps);
    let headers = alight_files::headers(maps, &copies)?;
    let mut hash = Sha256::new();
    let architecture = architecture(&headers.files[0]);
    hash_keys(&headers.files[0], &architecture, &mut hash);
    let mut tensors: Vec<_> = headers.catalog.tensors.iter().collect();
    tensors.sort_by_key(|tensor| tensor.info.name);
    let mut bytes = BTreeMap::new();
    for tensor in &tensors {
        let info = &tensor.info;
        *bytes.entry(info.ty.name()).or_insert(0_u64) += info.nbytes;
        put_text(info.name.as_bytes(), &mut hash);
        hash.update(info.ty.id().to_le_bytes());
        info.ne.iter().for_each(|extent| hash.update(extent.to_le_bytes()));
        hash.update(sample(info, &maps[tensor.shard])?);
    }
    let main_type = bytes.into_iter().max_by_key(|(_, bytes)| *bytes).map_or("", |most| most.0);
    let packed = tensors.iter().any(|tensor| tensor.info.packed.is_some());
    Ok(ModelContent { hash: hash.finalize().into(), architecture, main_type, packed })
}

/// Returns the name of the architecture.
fn architecture(gguf: &Gguf<'_>) -> String {
    gguf.get(ARCHITECTURE).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Hashes the keys that a token depends on, by name.
fn hash_keys(gguf: &Gguf<'_>, architecture: &str, hash: &mut Sha256) {
    let own = format!("{architecture}.");
    let counts = |key: &str| {
        key == ARCHITECTURE
            || key.starts_with(&own)
            || key.starts_with(TOKENIZER) && !key.starts_with(TEMPLATES)
    };
    let mut keys: Vec<_> = gguf.metadata.iter().filter(|(key, _)| counts(key)).collect();
    keys.sort_by_key(|(key, _)| *key);
    for (key, value) in keys {
        put_text(key.as_bytes(), hash);
        put_value(value, hash);
    }
}

fn put_text(text: &[u8], hash: &mut Sha256) {
    hash.update((text.len() as u64).to_le_bytes());
    hash.update(text);
}

fn put_value(value: &Value<'_>, hash: &mut Sha256) {
    hash.update(value.value_type().id().to_le_bytes());
    match value {
        Value::U8(x) => hash.update(x.to_le_bytes()),
        Value::I8(x) => hash.update(x.to_le_bytes()),
        Value::U16(x) => hash.update(x.to_le_bytes()),
        Value::I16(x) => hash.update(x.to_le_bytes()),
        Value::U32(x) => hash.update(x.to_le_bytes()),
        Value::I32(x) => hash.update(x.to_le_bytes()),
        Value::U64(x) => hash.update(x.to_le_bytes()),
        Value::I64(x) => hash.update(x.to_le_bytes()),
        Value::F32(x) => hash.update(x.to_le_bytes()),
        Value::F64(x) => hash.update(x.to_le_bytes()),
        Value::Bool(x) => hash.update([u8::from(*x)]),
        Value::Str(text) => put_text(text, hash),
        Value::Array(array) => {
            hash.update(array.elem_type().id().to_le_bytes());
            hash.update((array.len() as u64).to_le_bytes());
            match array.iter_str() {
                // Old files have shorter lengths before their texts.
                Some(texts) if array.length_bytes() != 8 => {
                    texts.for_each(|text| put_text(text, hash));
                }
                _ => hash.update(array.bytes()),
            }
        }
    }
}

/// Returns the first blocks of the rows in the middle of a tensor, row by row.
fn sample(info: &TensorInfo<'_>, map: &Map) -> Result<Vec<u8>, ModelError> {
    let [cols, rows, ..] = info.ne;
    let (len, size) = (info.ty.block_len(), info.ty.block_bytes());
    let blocks = (ROW_SAMPLE / size).clamp(1, (cols / len).max(1));
    let (tile, row) = (TILE_ROWS, info.row_bytes());
    let first = rows / tile / 2 * tile;
    let start = info.expert(info.ne[2] / 2).start + first * row;
    let (height, width) = (tile.min(rows - first), blocks * size);
    let mut canonical = vec![0; (height * width) as usize];
    let layout = Layout::from(info.packed);
    let Some(ty) = WeightType::of(info.ty).filter(|_| layout != Layout::Rows) else {
        for (index, part) in canonical.chunks_exact_mut(width as usize).enumerate() {
            map.read(part, start + index as u64 * row)?;
        }
        return Ok(canonical);
    };
    let mut packed = vec![0; canonical.len()];
    match layout {
        // A tile has the blocks of 16 rows, and begins with the first of each.
        Layout::Rows | Layout::Tiles => map.read(&mut packed, start)?,
        Layout::Planes => {
            let sizes = [rows, cols, blocks].map(|n| n as usize);
            let mut rest = &mut packed[..];
            for place in planes::places(ty, sizes, first as usize) {
                let (part, after) = rest.split_at_mut(place.len());
                map.read(part, info.offset + place.start as u64)?;
                rest = after;
            }
        }
    }
    layout.unpack(ty, (blocks * len) as usize, &packed, &mut canonical);
    Ok(canonical)
}
