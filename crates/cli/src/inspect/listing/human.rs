//! A listing as text. Values from the file are escaped and cut to one line.

use std::io::{self, Write};

use serde_json::Value;

use super::Listing;
use crate::inspect::cached::AsFound;
use crate::inspect::parts::{TensorRow, View, cached_line, name, quoted, tensors, totals, types};
use crate::terminal_text::{self, one_line};
use crate::units;

/// Writes the whole text.
pub fn write(
    listing: &Listing,
    found: &AsFound,
    view: View,
    out: &mut dyn Write,
) -> io::Result<()> {
    let cached = listing.cached(found);
    let summary = listing.summary();
    writeln!(out, "{}", view.fit(&format!("format        {}", one_line(&listing.described))))?;
    totals(&summary, listing.tensors.len(), out)?;
    for note in &listing.notes {
        writeln!(out, "note          {}", one_line(note))?;
    }
    for (file, cached) in listing.files.iter().zip(&cached.files) {
        let bytes = file.map.len() as u64;
        writeln!(
            out,
            "file          {}\n              {} ({bytes} bytes){}{}\n              {} of header, data from {:#x} to {:#x}",
            terminal_text::path(file.map.path()),
            units::bytes(bytes),
            if file.about.is_empty() { "" } else { ", " },
            one_line(&file.about),
            units::bytes(file.header_bytes),
            file.data.start,
            file.data.end,
        )?;
        cached_line(cached.as_ref(), bytes, view.canvas, out)?;
    }
    metadata(listing, view, out)?;
    types(&summary, out)?;
    let rows: Vec<TensorRow> = listing
        .tensors
        .iter()
        .zip(&cached.tensors)
        .map(|(t, cached)| TensorRow {
            name: &t.name,
            ty: t.ty.to_owned(),
            shape: &t.shape,
            range: t.range.clone(),
            cached: *cached,
            file: t.file,
        })
        .collect();
    tensors(&rows, listing.files.len() > 1, view, out)
}

fn metadata(listing: &Listing, view: View, out: &mut dyn Write) -> io::Result<()> {
    let entries = &listing.metadata;
    writeln!(out, "\nmetadata ({})", entries.len())?;
    let width = entries.iter().map(|(key, _)| key.chars().count()).max().unwrap_or(0).min(48);
    for (key, value) in entries {
        let text = match value {
            Value::String(text) => quoted(text.as_bytes()),
            // Numbers and short lists are shown as in JSON.
            other => quoted(other.to_string().as_bytes()).trim_matches('"').to_owned(),
        };
        writeln!(out, "{}", view.entry(&name(key), width, &text))?;
    }
    Ok(())
}
