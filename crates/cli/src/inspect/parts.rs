//! Pieces of text common to all formats. Values from the file are escaped and cut to one line.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::ops::Range;

use super::cached::{Canvas, FileCached, bar, picture};
use super::summary::Summary;
use crate::layout;
use crate::terminal_text::one_line;
use crate::units::{self, percent};

/// Columns of a summary if standard output is not a terminal.
const COLUMNS: usize = 80;

/// The contents and the layout of the output.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// The drawing capabilities.
    pub canvas: Canvas,
    /// True if tensors are listed, in lines of any length; otherwise all lines fit the terminal, or 80 columns.
    pub tensors: bool,
}

impl View {
    /// Cuts a line to the width of the terminal. A file's path is not cut, so that you can copy it.
    pub fn fit(self, line: &str) -> String {
        let line = line.trim_end();
        match self.tensors {
            true => line.to_owned(),
            false => layout::cut(line, self.columns()),
        }
    }

    fn columns(self) -> usize {
        self.canvas.width.unwrap_or(COLUMNS)
    }

    /// Returns an entry of the metadata, whose `key` is in a column of this width: the value is below it where the terminal has no
    /// space for it in the same line.
    pub fn entry(self, key: &str, width: usize, value: &str) -> String {
        let line = format!("  {key:width$}  {value}");
        match self.tensors || self.columns() >= width + 4 + VALUE {
            true => self.fit(&line),
            false => {
                format!("{}\n{}", self.fit(&format!("  {key}")), self.fit(&format!("    {value}")))
            }
        }
    }
}

/// Number of characters of a value that are shown.
pub const SHOWN: usize = 64;

/// The characters of a value, with its type, for which a line has to have space next to the key.
const VALUE: usize = 28;

/// Maximum characters shown of a name, a key or a shape. Columns are as wide as their contents, so
/// this limits the text as well.
const NAME: usize = 100;

/// Width of a tensor's bar, in characters.
const BAR: usize = 10;

/// Returns the largest power of two that divides an offset.
pub fn alignment_of(offset: u64) -> u64 {
    match offset {
        0 => 1 << 63,
        n => 1 << n.trailing_zeros(),
    }
}

/// Writes the totals.
pub fn totals(summary: &Summary, tensors: usize, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "parameters    {} in {tensors} tensors{}",
        units::count(summary.parameters),
        summary.bits_per_weight.map_or(String::new(), |b| format!(", {b:.2} bits per weight")),
    )
}

/// Writes the cached share of a file, with a picture of it if there is space for one.
pub fn cached_line(
    cached: Option<&FileCached>,
    bytes: u64,
    canvas: Canvas,
    out: &mut dyn Write,
) -> io::Result<()> {
    let Some(cached) = cached else { return Ok(()) };
    let share = cached.bytes as f64 / bytes as f64;
    let mut line = format!(
        "cached        {} of {} ({}{})",
        percent(cached.bytes, bytes),
        units::bytes(bytes),
        if cached.source == "sampled" { "about, " } else { "" },
        cached.source,
    );
    // The picture is put on the next line if it does not fit on this one.
    if let Some(width) = canvas.width {
        let beside = width.saturating_sub(line.chars().count() + 4);
        let (gap, room) = if beside >= 24 {
            (" ".to_owned(), beside)
        } else {
            (format!("\n{:14}", ""), width.saturating_sub(17))
        };
        if room >= 8 {
            let _ = write!(line, "{gap}[{}]", canvas.paint(&picture(&cached.parts, room), share));
        }
    }
    writeln!(out, "{line}")
}

/// Writes the totals by type.
pub fn types(summary: &Summary, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\ntypes ({})", summary.types.len())?;
    for t in &summary.types {
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

/// A tensor as shown.
#[derive(Debug)]
pub struct TensorRow<'a> {
    /// Name, as stored in the file.
    pub name: &'a str,
    /// Name of the type, with any marks.
    pub ty: String,
    /// Dimensions.
    pub shape: &'a [u64],
    /// The range of its data in its file.
    pub range: Range<u64>,
    /// Bytes that are cached.
    pub cached: Option<u64>,
    /// Index of its file.
    pub file: usize,
}

/// Writes the table of tensors, if requested; `many`: there are several files, and each row names one.
pub fn tensors(
    tensors: &[TensorRow<'_>],
    many: bool,
    view: View,
    out: &mut dyn Write,
) -> io::Result<()> {
    let View { canvas, tensors: wanted } = view;
    if !wanted {
        return writeln!(out, "\n{} tensors: --tensors lists them", tensors.len());
    }
    writeln!(out, "\ntensors ({})", tensors.len())?;
    let names: Vec<_> = tensors.iter().map(|t| name(t.name)).collect();
    let shapes: Vec<String> = tensors
        .iter()
        .map(|t| name(&t.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(" × ")))
        .collect();
    let width =
        |texts: &mut dyn Iterator<Item = usize>, least: usize| texts.fold(least, usize::max);
    let name_width = width(&mut names.iter().map(|n| n.chars().count()), 4);
    let shape_width = width(&mut shapes.iter().map(|s| s.chars().count()), 5);
    let told = tensors.iter().any(|t| t.cached.is_some());
    // The width to the left of the bar, and to the right of it.
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
    for ((tensor, name), shape) in tensors.iter().zip(&names).zip(&shapes) {
        let bytes = tensor.range.end - tensor.range.start;
        let mut line = format!(
            "  {name:name_width$}  {:7}  {shape:shape_width$}  {:>8}  {:>#13x}  {:>7}",
            tensor.ty,
            units::bytes(bytes),
            tensor.range.start,
            alignment_of(tensor.range.start),
        );
        if told {
            let text =
                tensor.cached.map_or_else(|| "?".to_owned(), |cached| percent(cached, bytes));
            let _ = write!(line, "  {text:>6}");
            if bars {
                let share = tensor.cached.unwrap_or(0) as f64 / bytes.max(1) as f64;
                let _ = write!(line, " {}", canvas.paint(&bar(share, BAR), share));
            }
        }
        if many {
            // Writing to a String cannot fail.
            let _ = write!(line, "  {:>4}", tensor.file + 1);
        }
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Returns a name or a key from the file, for one line and one column: characters that drive a terminal are made visible, and so
/// are those that break lines and columns. The middle of a long one is left out.
pub fn name(text: &str) -> String {
    // Only the part that is shown is examined, whatever the length.
    let end = |count: usize| text.char_indices().nth(count).map_or(text.len(), |(at, _)| at);
    let head = one_line(&text[..end(NAME)]).into_owned();
    if end(NAME) == text.len() && head.chars().count() <= NAME {
        return head;
    }
    let begin = text.char_indices().rev().nth(NAME - 1).map_or(0, |(at, _)| at);
    let tail: Vec<char> = one_line(&text[begin..]).chars().collect();
    // More of its beginning; with the ellipsis, exactly the maximum.
    let (front, back) = (2 * NAME / 3, NAME - 1 - 2 * NAME / 3);
    let back = &tail[tail.len().saturating_sub(back)..];
    head.chars().take(front).chain(['…']).chain(back.iter().copied()).collect()
}

/// Returns a string from the file, quoted, with control characters escaped, cut to one line.
pub fn quoted(bytes: &[u8]) -> String {
    // Enough bytes for the line even if all characters have four.
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
    fn long_names_lose_their_middle() {
        assert_eq!(name("blk.0.attn_q.weight"), "blk.0.attn_q.weight");
        assert_eq!(name("a\tb\n\u{202e}"), "a\\tb\\n\\u{202e}");
        let exact = "é".repeat(NAME);
        assert_eq!(name(&exact), exact);
        for long in ["é".repeat(NAME + 1), "x".repeat(1 << 20), "\u{1b}".repeat(NAME / 2)] {
            let shown = name(&format!("begin.{long}.end"));
            assert_eq!(shown.chars().count(), NAME, "{shown}");
            assert!(shown.starts_with("begin.") && shown.ends_with(".end"), "{shown}");
            assert_eq!(shown.matches('…').count(), 1);
        }
    }

    #[test]
    fn alignments() {
        assert_eq!(alignment_of(0x1234_5000), 4096);
        assert_eq!(alignment_of(96), 32);
    }
}
