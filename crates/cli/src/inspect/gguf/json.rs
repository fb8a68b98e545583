//! The JSON of `alight inspect --json` for GGUF: complete and stable. Fields are only ever added.
//!
//! ```text
//! { format, shape_order, architecture, name, tool_format?, warnings?, parameters, tensor_bytes, bits_per_weight,
//!   types: [{type, tensors, …}],
//!   adapter?: {architecture, base_model, alpha, ranks: {rank: matrices}, low_rank, magnitudes, biases, deltas, overrides,
//!              task_name?, prompt_prefix?, invocation_tokens?, misfits?: […]},
//!   experts?: {count, used, bytes, cached_bytes: […]},
//!   session?: {kv_bytes_per_position, kv_layers, window_bytes_per_position, window_layers, window_positions,
//!              state_bytes, state_layers, sink_layers,
//!              needed: {positions, mapped, keys_and_values}, available_bytes?},
//!   files: [{path, bytes, version, alignment, header_bytes, data_start, data_end, tensors,
//!            cached_bytes, cached_source}],
//!   metadata: [{key, type, elem_type?, len?, value}],
//!   tensors: [{name, type, layout, shape, elements, bytes, file, offset, stride?, alignment, cached_bytes}] }
//! ```
//! `stride` is present if experts of several tensors are stored side by side: bytes from each expert to the next. `cached_bytes`
//! are in the page cache now, null if the system does not report it, as for tensors in another user's file; `cached_source` is
//! cachestat, mincore or sampled. Invalid UTF-8 in text becomes U+FFFD; floats that are not finite are null.

use std::borrow::Cow;
use std::io::{self, Write};

use alight_formats::gguf::{Array, Gguf, Value, ValueType};
use alight_formats::packed::{LAYOUT, Packing};
use alight_formats::split::Placed;
use serde::ser::{SerializeSeq, SerializeStruct};
use serde::{Serialize, Serializer};

use super::adapter::Adapter;
use super::experts::Experts;
use super::session::SessionMemory;
use super::{Opened, OpenedFile};
use crate::inspect::cached::FileCached;
use crate::inspect::parts::alignment_of;
use crate::inspect::summary::Summary;
use crate::terminal_text::escape_json;

/// Writes the line.
pub fn write(model: &Opened<'_>, out: &mut dyn Write) -> io::Result<()> {
    let gguf = model.files[0].gguf;
    let text = |key: &str| match gguf.get(key) {
        Some(Value::Str(bytes)) => Some(String::from_utf8_lossy(bytes)),
        _ => None,
    };
    let report = GgufJson {
        format: "gguf",
        shape_order: "innermost first",
        architecture: text("general.architecture"),
        name: text("general.name"),
        tool_format: model.tool_format,
        warnings: &model.warnings,
        summary: &model.summary,
        adapter: model.adapter.as_ref(),
        experts: model.experts.as_ref(),
        session: model.session.as_ref(),
        files: model.files.iter().zip(&model.cached.files).map(GgufFileJson::of).collect(),
        metadata: Metadata(gguf),
        tensors: model
            .catalog
            .tensors
            .iter()
            .zip(&model.cached.tensors)
            .map(GgufTensorJson::of)
            .collect(),
    };
    escape_json(&report, &mut *out)?;
    out.write_all(b"\n")
}

#[derive(Serialize)]
struct GgufJson<'a> {
    format: &'static str,
    shape_order: &'static str,
    architecture: Option<Cow<'a, str>>,
    name: Option<Cow<'a, str>>,
    /// Only with a chat template.
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_format: Option<&'static str>,
    /// Reasons to doubt answers.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    warnings: &'a [String],
    #[serde(flatten)]
    summary: &'a Summary,
    /// Only for an adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    adapter: Option<&'a Adapter>,
    /// Only for a mixture of experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    experts: Option<&'a Experts>,
    /// Only for an architecture that alight runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a SessionMemory>,
    files: Vec<GgufFileJson<'a>>,
    metadata: Metadata<'a>,
    tensors: Vec<GgufTensorJson<'a>>,
}

#[derive(Serialize)]
struct GgufFileJson<'a> {
    path: Cow<'a, str>,
    bytes: u64,
    version: u32,
    alignment: u64,
    header_bytes: u64,
    data_start: u64,
    data_end: u64,
    tensors: usize,
    cached_bytes: Option<u64>,
    cached_source: Option<&'static str>,
}

impl<'a> GgufFileJson<'a> {
    fn of((file, cached): (&OpenedFile<'a>, &Option<FileCached>)) -> GgufFileJson<'a> {
        GgufFileJson {
            path: file.path.to_string_lossy(),
            bytes: file.bytes,
            version: file.gguf.version,
            alignment: file.gguf.alignment,
            header_bytes: file.gguf.header_len,
            data_start: file.gguf.data_start,
            data_end: file.gguf.data_end,
            tensors: file.gguf.tensors.len(),
            cached_bytes: cached.as_ref().map(|c| c.bytes),
            cached_source: cached.as_ref().map(|c| c.source),
        }
    }
}

#[derive(Serialize)]
struct GgufTensorJson<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    ty: &'static str,
    /// "rows" for GGUF's own layout, or the name of the packed layout.
    layout: &'static str,
    shape: &'a [u64],
    elements: u64,
    bytes: u64,
    /// Index into `files`.
    file: usize,
    offset: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    stride: Option<u64>,
    alignment: u64,
    cached_bytes: Option<u64>,
}

impl<'a> GgufTensorJson<'a> {
    fn of((placed, cached): (&'a Placed<'a>, &Option<u64>)) -> GgufTensorJson<'a> {
        let info = &placed.info;
        GgufTensorJson {
            name: info.name,
            ty: info.ty.name(),
            layout: layout(info.packed),
            shape: info.shape(),
            elements: info.elements(),
            bytes: info.nbytes,
            file: placed.shard,
            offset: info.offset,
            stride: info.stride,
            alignment: alignment_of(info.offset),
            cached_bytes: *cached,
        }
    }
}

fn layout(packed: Option<Packing>) -> &'static str {
    match packed {
        None => "rows",
        Some(Packing::Tiles) => LAYOUT,
        Some(Packing::Planes) => "planes",
    }
}

struct Metadata<'a>(&'a Gguf<'a>);

impl Serialize for Metadata<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.0.metadata.iter().map(|(key, value)| GgufEntryJson { key, value }))
    }
}

struct GgufEntryJson<'a> {
    key: &'a str,
    value: &'a Value<'a>,
}

impl Serialize for GgufEntryJson<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let array = match self.value {
            Value::Array(array) => Some(array),
            _ => None,
        };
        let mut out = s.serialize_struct("Entry", if array.is_some() { 5 } else { 3 })?;
        out.serialize_field("key", self.key)?;
        out.serialize_field("type", self.value.value_type().name())?;
        match array {
            Some(array) => {
                out.serialize_field("elem_type", array.elem_type().name())?;
                out.serialize_field("len", &array.len())?;
                out.serialize_field("value", &Elements(array))?;
            }
            None => out.serialize_field("value", &Scalar(self.value))?,
        }
        out.end()
    }
}

struct Scalar<'a>(&'a Value<'a>);

impl Serialize for Scalar<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match *self.0 {
            Value::Bool(v) => s.serialize_bool(v),
            Value::Str(v) => s.serialize_str(&String::from_utf8_lossy(v)),
            // Not through f64, which would show digits that are not in the file.
            Value::F32(v) => s.serialize_f32(v),
            Value::F64(v) => s.serialize_f64(v),
            Value::U64(v) => s.serialize_u64(v),
            Value::Array(array) => Elements(&array).serialize(s),
            ref other => s.serialize_i64(other.as_int().unwrap_or(0) as i64),
        }
    }
}

struct Elements<'a>(&'a Array<'a>);

impl Serialize for Elements<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let array = self.0;
        fn all<S: Serializer, T: Serialize>(
            s: S,
            values: Option<impl Iterator<Item = T>>,
        ) -> Result<S::Ok, S::Error> {
            s.collect_seq(values.into_iter().flatten())
        }
        match array.elem_type() {
            ValueType::Str => {
                let mut seq = s.serialize_seq(Some(array.len()))?;
                for text in array.iter_str().into_iter().flatten() {
                    seq.serialize_element(&String::from_utf8_lossy(text))?;
                }
                seq.end()
            }
            ValueType::F32 => all(s, array.iter_f32()),
            ValueType::F64 => all(s, array.iter_f64()),
            ValueType::Bool => all(s, array.iter_bool()),
            ValueType::U64 => all(s, array.iter_u64()),
            _ => all(s, array.iter_int().map(|ints| ints.map(|v| v as i64))),
        }
    }
}
