//! A listing as one line of JSON, with the applicable fields of the GGUF report
//! (`inspect/gguf/json.rs`): complete and stable, and fields are only ever added.
//!
//! ```text
//! { format, shape_order, parameters, tensor_bytes, bits_per_weight, types: [{type, tensors, …}],
//!   notes: [text],
//!   files: [{path, about, bytes, header_bytes, data_start, data_end, tensors, cached_bytes,
//!            cached_source}],
//!   metadata: [{key, value}],
//!   tensors: [{name, type, shape, elements, bytes, file, offset, alignment, cached_bytes}] }
//! ```

use std::borrow::Cow;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;

use super::Listing;
use crate::inspect::cached::AsFound;
use crate::inspect::parts::alignment_of;
use crate::inspect::summary::Summary;
use crate::terminal_text::escape_json;

/// Writes the line.
pub fn write(listing: &Listing, found: &AsFound, out: &mut dyn Write) -> io::Result<()> {
    let cached = listing.cached(found);
    let files = listing.files.iter().zip(&cached.files).enumerate();
    let tensors = listing.tensors.iter().zip(&cached.tensors);
    let report = ListingJson {
        format: listing.format,
        shape_order: listing.order.name(),
        summary: listing.summary(),
        notes: &listing.notes,
        files: files
            .map(|(index, (file, cached))| FileJson {
                path: file.map.path().to_string_lossy(),
                about: &file.about,
                bytes: file.map.len() as u64,
                header_bytes: file.header_bytes,
                data_start: file.data.start,
                data_end: file.data.end,
                tensors: listing.tensors.iter().filter(|t| t.file == index).count(),
                cached_bytes: cached.as_ref().map(|c| c.bytes),
                cached_source: cached.as_ref().map(|c| c.source),
            })
            .collect(),
        metadata: listing.metadata.iter().map(|(key, value)| EntryJson { key, value }).collect(),
        tensors: tensors
            .map(|(t, cached)| TensorJson {
                name: &t.name,
                ty: t.ty,
                shape: &t.shape,
                elements: t.elements(),
                bytes: t.bytes(),
                file: t.file,
                offset: t.range.start,
                alignment: alignment_of(t.range.start),
                cached_bytes: *cached,
            })
            .collect(),
    };
    escape_json(&report, &mut *out)?;
    out.write_all(b"\n")
}

#[derive(Serialize)]
struct ListingJson<'a> {
    format: &'static str,
    shape_order: &'static str,
    #[serde(flatten)]
    summary: Summary,
    notes: &'a [String],
    files: Vec<FileJson<'a>>,
    metadata: Vec<EntryJson<'a>>,
    tensors: Vec<TensorJson<'a>>,
}

#[derive(Serialize)]
struct FileJson<'a> {
    path: Cow<'a, str>,
    about: &'a str,
    bytes: u64,
    header_bytes: u64,
    data_start: u64,
    data_end: u64,
    tensors: usize,
    cached_bytes: Option<u64>,
    cached_source: Option<&'static str>,
}

#[derive(Serialize)]
struct EntryJson<'a> {
    key: &'a str,
    value: &'a Value,
}

#[derive(Serialize)]
struct TensorJson<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    ty: &'static str,
    shape: &'a [u64],
    elements: u64,
    bytes: u64,
    /// Index into `files`.
    file: usize,
    offset: u64,
    alignment: u64,
    cached_bytes: Option<u64>,
}
