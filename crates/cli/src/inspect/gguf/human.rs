//! The text of `alight inspect` for GGUF. Values from the file are escaped and cut to one line.

use std::io::{self, Write};

use alight_formats::gguf::{Array, Gguf, TensorInfo, Value};
use alight_formats::packed::{LAYOUT, Packing};

use super::Opened;
use crate::inspect::parts::{
    SHOWN, TensorRow, View, cached_line, name, quoted, tensors, totals, types,
};
use crate::terminal_text;
use crate::units;

/// Writes the whole text.
pub fn write(model: &Opened<'_>, view: View, out: &mut dyn Write) -> io::Result<()> {
    heading(model, view, out)?;
    metadata(model.files[0].gguf, view, out)?;
    types(&model.summary, out)?;
    let rows: Vec<TensorRow> = model
        .catalog
        .tensors
        .iter()
        .zip(&model.cached.tensors)
        .map(|(t, cached)| TensorRow {
            name: t.info.name,
            ty: type_of(&t.info),
            shape: t.info.shape(),
            range: t.info.offset..t.info.offset + t.info.nbytes,
            cached: *cached,
            file: t.shard,
        })
        .collect();
    tensors(&rows, model.files.len() > 1, view, out)
}

/// Returns the type, with a mark if the tensor is packed.
fn type_of(info: &TensorInfo<'_>) -> String {
    let mark = match info.packed {
        None => "",
        Some(Packing::Tiles) => "x16",
        Some(Packing::Planes) => "x16+4",
    };
    format!("{}{mark}", info.ty)
}

fn heading(model: &Opened<'_>, view: View, out: &mut dyn Write) -> io::Result<()> {
    let canvas = view.canvas;
    let gguf = model.files[0].gguf;
    let text = |key: &str| match gguf.get(key) {
        Some(Value::Str(bytes)) => quoted(bytes).trim_matches('"').to_owned(),
        _ => "unknown".to_owned(),
    };
    let line = |what: &str, key: &str| view.fit(&format!("{what:12}  {}", text(key)));
    writeln!(out, "{}", line("name", "general.name"))?;
    writeln!(out, "{}", line("architecture", "general.architecture"))?;
    totals(&model.summary, model.catalog.tensors.len(), out)?;
    if let Some(adapter) = &model.adapter {
        adapter.write(view, out)?;
    }
    if let Some(name) = model.tool_format {
        writeln!(out, "tool format   {name}")?;
    }
    if gguf.packed {
        let count = |packing| {
            model.catalog.tensors.iter().filter(|t| t.info.packed == Some(packing)).count()
        };
        let (packed, planes) = (count(Packing::Tiles), count(Packing::Planes));
        let planes = match planes {
            0 => String::new(),
            _ => "; the output matrix in planes, its high four bits in such tiles (x16+4)".into(),
        };
        let beside = model.catalog.tensors.iter().filter(|t| t.info.stride.is_some()).count();
        let experts = match beside {
            0 => String::new(),
            _ => format!("; experts of {beside} tensors side by side"),
        };
        writeln!(
            out,
            "layout        {LAYOUT}: {packed} tensors in tiles of 16 rows (x16){planes}{experts}"
        )?;
    }
    for (file, cached) in model.files.iter().zip(&model.cached.files) {
        writeln!(
            out,
            "file          {}\n              {} ({} bytes), GGUF version {}, alignment {}\n              \
             {} of header, data from {:#x} to {:#x}",
            terminal_text::path(file.path),
            units::bytes(file.bytes),
            file.bytes,
            file.gguf.version,
            file.gguf.alignment,
            units::bytes(file.gguf.header_len),
            file.gguf.data_start,
            file.gguf.data_end,
        )?;
        cached_line(cached.as_ref(), file.bytes, canvas, out)?;
    }
    if let Some(experts) = &model.experts {
        experts.write(canvas, out)?;
    }
    model.session.as_ref().map_or(Ok(()), |session| session.write(out))
}

fn metadata(gguf: &Gguf<'_>, view: View, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nmetadata ({})", gguf.metadata.len())?;
    let width = gguf.metadata.iter().map(|(key, _)| key.chars().count()).max().unwrap_or(0).min(48);
    for (key, value) in &gguf.metadata {
        let (ty, text) = match value {
            Value::Array(array) => (format!("{}[{}]", array.elem_type(), array.len()), some(array)),
            Value::Str(bytes) => ("str".to_owned(), quoted(bytes)),
            other => (other.value_type().to_string(), other.to_string()),
        };
        writeln!(out, "{}", view.entry(&name(key), width, &format!("{ty:12}  {text}")))?;
    }
    Ok(())
}

/// Returns the first elements of an array, as many as fit on a line.
fn some(array: &Array<'_>) -> String {
    let mut out = String::new();
    let mut add = |text: String| {
        if out.chars().count() + text.chars().count() > SHOWN {
            out.push('…');
            return false;
        }
        out.push_str(&text);
        out.push_str(", ");
        true
    };
    let whole = if let Some(mut strings) = array.iter_str() {
        strings.all(|s| add(quoted(s)))
    } else if let Some(mut ints) = array.iter_int() {
        ints.all(|v| add(v.to_string()))
    } else if let Some(mut floats) = array.iter_f32() {
        floats.all(|v| add(v.to_string()))
    } else if let Some(mut floats) = array.iter_f64() {
        floats.all(|v| add(v.to_string()))
    } else {
        array.iter_bool().into_iter().flatten().all(|v| add(v.to_string()))
    };
    if whole {
        out.truncate(out.trim_end_matches(", ").len());
    }
    out
}
