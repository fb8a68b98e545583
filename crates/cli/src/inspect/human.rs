//! The text of `alight inspect`. Values from the file are escaped and cut to a line.

use std::fmt::Write as _;
use std::io::{self, Write};

use alight_formats::gguf::{Array, Gguf, TensorInfo, Value};
use alight_formats::packed::LAYOUT;

use super::Opened;
use super::cached::{Canvas, bar, percent, picture};
use crate::say::printable;
use crate::units;

/// Characters of a value that are shown.
const SHOWN: usize = 64;

/// Characters of a tensor's bar.
const BAR: usize = 10;

/// Writes the whole text.
pub fn write(model: &Opened<'_>, canvas: Canvas, out: &mut dyn Write) -> io::Result<()> {
    heading(model, canvas, out)?;
    metadata(model.files[0].gguf, out)?;
    types(model, out)?;
    tensors(model, canvas, out)
}

/// The largest power of two that divides an offset.
pub fn alignment_of(offset: u64) -> u64 {
    match offset {
        0 => 1 << 63,
        n => 1 << n.trailing_zeros(),
    }
}

/// The type, with a mark if the tensor is packed.
fn type_of(info: &TensorInfo<'_>) -> String {
    let mark = if info.packed { "x16" } else { "" };
    format!("{}{mark}", info.ty)
}

fn heading(model: &Opened<'_>, canvas: Canvas, out: &mut dyn Write) -> io::Result<()> {
    let gguf = model.files[0].gguf;
    let text = |key: &str| match gguf.get(key) {
        Some(Value::Str(bytes)) => quoted(bytes).trim_matches('"').to_owned(),
        _ => "unknown".to_owned(),
    };
    writeln!(out, "name          {}", text("general.name"))?;
    writeln!(out, "architecture  {}", text("general.architecture"))?;
    let summary = &model.summary;
    writeln!(
        out,
        "parameters    {} in {} tensors{}",
        units::count(summary.parameters),
        model.catalog.tensors.len(),
        summary.bits_per_weight.map_or(String::new(), |b| format!(", {b:.2} bits per weight")),
    )?;
    if gguf.packed {
        let packed = model.catalog.tensors.iter().filter(|t| t.info.packed).count();
        writeln!(out, "layout        {LAYOUT}: {packed} tensors in tiles of 16 rows (x16)")?;
    }
    for (file, cached) in model.files.iter().zip(&model.cached.files) {
        writeln!(
            out,
            "file          {}\n              {} ({} bytes), GGUF version {}, alignment {}, \
             {} of header, data from {:#x} to {:#x}",
            printable(&file.path.to_string_lossy()),
            units::bytes(file.bytes),
            file.bytes,
            file.gguf.version,
            file.gguf.alignment,
            units::bytes(file.gguf.header_len),
            file.gguf.data_start,
            file.gguf.data_end,
        )?;
        let Some(cached) = cached else { continue };
        let share = cached.bytes as f64 / file.bytes as f64;
        let mut line = format!(
            "cached        {} of {} ({}{})",
            percent(cached.bytes, file.bytes),
            units::bytes(file.bytes),
            if cached.source == "sampled" { "about, " } else { "" },
            cached.source,
        );
        // The picture goes below if it does not fit beside.
        if let Some(width) = canvas.width {
            let beside = width.saturating_sub(line.chars().count() + 4);
            let (gap, room) = if beside >= 24 {
                (" ".to_owned(), beside)
            } else {
                (format!("\n{:14}", ""), width.saturating_sub(17))
            };
            if room >= 8 {
                let _ =
                    write!(line, "{gap}[{}]", canvas.paint(&picture(&cached.parts, room), share));
            }
        }
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn metadata(gguf: &Gguf<'_>, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nmetadata ({})", gguf.metadata.len())?;
    let width = gguf.metadata.iter().map(|(key, _)| key.chars().count()).max().unwrap_or(0).min(48);
    for (key, value) in &gguf.metadata {
        let (ty, text) = match value {
            Value::Array(array) => (format!("{}[{}]", array.elem_type(), array.len()), some(array)),
            Value::Str(bytes) => ("str".to_owned(), quoted(bytes)),
            other => (other.value_type().to_string(), other.to_string()),
        };
        let line = format!("  {:width$}  {ty:12}  {text}", printable(key));
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

fn types(model: &Opened<'_>, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\ntypes ({})", model.summary.types.len())?;
    for t in &model.summary.types {
        writeln!(
            out,
            "  {:8} {:>6} tensors {:>9} weights {:>10} {:>7.3} bits per weight",
            t.ty,
            t.tensors,
            units::count(t.parameters),
            units::bytes(t.bytes),
            t.bits_per_weight,
        )?;
    }
    Ok(())
}

fn tensors(model: &Opened<'_>, canvas: Canvas, out: &mut dyn Write) -> io::Result<()> {
    let tensors = &model.catalog.tensors;
    writeln!(out, "\ntensors ({})", tensors.len())?;
    let names: Vec<_> = tensors.iter().map(|t| printable(t.info.name)).collect();
    let shapes: Vec<String> = tensors
        .iter()
        .map(|t| t.info.shape().iter().map(u64::to_string).collect::<Vec<_>>().join(" × "))
        .collect();
    let width =
        |texts: &mut dyn Iterator<Item = usize>, least: usize| texts.fold(least, usize::max);
    let name_width = width(&mut names.iter().map(|n| n.chars().count()), 4);
    let shape_width = width(&mut shapes.iter().map(|s| s.chars().count()), 5);
    let many = model.files.len() > 1;
    let told = model.cached.tensors.iter().any(Option::is_some);
    // What stands before the bar, and behind it.
    let taken = name_width + shape_width + 53 + if many { 6 } else { 0 };
    let bars = told && canvas.width.is_some_and(|width| taken + BAR < width);
    if !tensors.is_empty() {
        writeln!(
            out,
            "  {:name_width$}  type     {:shape_width$}  {:>8}  {:>13}  {:>7}{}{}",
            "name",
            "shape",
            "size",
            "offset",
            "align",
            match (told, bars && many) {
                (true, true) => format!("  {:1$}", "cached", 7 + BAR),
                (true, false) => "  cached".to_owned(),
                (false, _) => String::new(),
            },
            if many { "  file" } else { "" }
        )?;
    }
    let rows = tensors.iter().zip(&model.cached.tensors).zip(&names).zip(&shapes);
    for (((tensor, cached), name), shape) in rows {
        let mut line = format!(
            "  {name:name_width$}  {:7}  {shape:shape_width$}  {:>8}  {:>#13x}  {:>7}",
            type_of(&tensor.info),
            units::bytes(tensor.info.nbytes),
            tensor.info.offset,
            alignment_of(tensor.info.offset),
        );
        if told {
            let of = tensor.info.nbytes;
            let text = cached.map_or_else(|| "?".to_owned(), |bytes| percent(bytes, of));
            let _ = write!(line, "  {text:>6}");
            if bars {
                let share = cached.unwrap_or(0) as f64 / of.max(1) as f64;
                let _ = write!(line, " {}", canvas.paint(&bar(share, BAR), share));
            }
        }
        if many {
            // Writing to a String cannot fail.
            let _ = write!(line, "  {:>4}", tensor.shard + 1);
        }
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// The first elements of an array, as many as fit a line.
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

/// A string of the file, quoted, with control characters escaped, cut to a line.
fn quoted(bytes: &[u8]) -> String {
    // Enough bytes for the line even if all are of four.
    let head = &bytes[..bytes.len().min(4 * SHOWN + 4)];
    let text = String::from_utf8_lossy(head);
    let mut out = String::from('"');
    let mut shown = 0;
    for c in text.chars() {
        if shown == SHOWN {
            break;
        }
        shown += 1;
        match c {
            '"' | '\\' | '\'' => out.push(c),
            c => out.extend(c.escape_debug()),
        }
    }
    out.push('"');
    if shown == SHOWN && bytes.len() > out.len() {
        let _ = write!(out, "… {} bytes", bytes.len());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped_and_cut() {
        assert_eq!(quoted(b"Llama 3.2"), "\"Llama 3.2\"");
        assert_eq!(quoted(b"a\x1b[2J\nb"), "\"a\\u{1b}[2J\\nb\"");
        let long = quoted("é".repeat(500).as_bytes());
        assert_eq!(long.chars().count(), 66 + "… 1000 bytes".chars().count());
        assert!(quoted(b"\xff\xfe").contains('\u{fffd}'));
    }

    #[test]
    fn alignments() {
        assert_eq!(alignment_of(0x1234_5000), 4096);
        assert_eq!(alignment_of(96), 32);
    }
}
