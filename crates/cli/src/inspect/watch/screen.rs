//! The picture of a sample, for a terminal of any size.

use unicode_width::UnicodeWidthStr;

use super::Look;
use super::parts::{PartKind, Watched};
use crate::inspect::cached::{Canvas, bar, picture};
use crate::inspect::parts::name;
use crate::terminal_text;
use crate::{layout, units};

/// Columns and rows.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub columns: usize,
    pub rows: usize,
}

impl Size {
    /// Returns the size of the terminal on standard output.
    pub fn of_stdout() -> Size {
        let (columns, rows) = layout::size(std::io::stdout()).unwrap_or((80, 24));
        Size { columns, rows }
    }
}

/// Lines above and below the parts.
const AROUND: usize = 6;
/// Width between two columns of parts.
const GAP: usize = 3;
/// Width of a percentage.
const PERCENT: usize = 5;
/// Widths of a part's bar, the best first.
const BARS: [usize; 4] = [10, 6, 4, 0];

/// One part, or several consecutive ones, with its share.
struct ScreenCell {
    label: String,
    bytes: u64,
    cached: u64,
}

/// Returns the whole output for a sample, which replaces the previous one.
pub fn frame(watched: &Watched, look: &Look, size: Size, canvas: Canvas) -> String {
    let mut lines: Vec<String> = Vec::new();
    let first = terminal_text::path(watched.maps[0].path()).to_string();
    let more = match watched.maps.len() {
        1 => String::new(),
        files => format!(" and {} more", files - 1),
    };
    lines.push(cut_front(&format!("{first}{more}"), size.columns));
    let told = format!("{}, {}", look.told(), units::duration(look.elapsed.as_secs_f64()));
    lines.push(cut(&told, size.columns));
    let shares: Vec<f64> =
        watched.parts.iter().zip(&look.parts).map(|(p, c)| p.share(*c)).collect();
    if size.columns > 4 {
        let all = look.cached as f64 / look.bytes.max(1) as f64;
        lines.push(format!("[{}]", canvas.paint(&picture(&shares, size.columns - 2), all)));
    }
    lines.push(String::new());
    let room = size.rows.saturating_sub(AROUND).max(1);
    lines.extend(table(watched, look, size.columns, room, canvas));
    lines.push(String::new());
    lines.push(cut("q or Ctrl-C leaves", size.columns));
    // At most as many as the terminal has: one line too many would scroll all of them.
    lines.truncate(size.rows);
    let text = lines.join("\x1b[K\r\n");
    format!("\x1b[H{text}\x1b[K\x1b[J")
}

/// Returns the parts in columns, with at most `room` rows. If there are too many for small bars,
/// consecutive layers are combined.
fn table(watched: &Watched, look: &Look, width: usize, room: usize, canvas: Canvas) -> Vec<String> {
    let most = watched.parts.len().max(1);
    for together in 1..=most {
        let cells = cells(watched, look, together);
        let label = cells.iter().map(|cell| cell.label.width()).max().unwrap_or(0);
        for bar in BARS {
            let one = label + 1 + PERCENT + if bar > 0 { bar + 1 } else { 0 };
            if one > width {
                continue;
            }
            let columns = (width + GAP) / (one + GAP);
            let rows = cells.len().div_ceil(columns);
            if rows <= room {
                return drawn(&cells, rows, label, bar, canvas);
            }
        }
    }
    Vec::new()
}

fn drawn(
    cells: &[ScreenCell],
    rows: usize,
    label: usize,
    width: usize,
    canvas: Canvas,
) -> Vec<String> {
    let mut lines = vec![String::new(); rows];
    for (i, cell) in cells.iter().enumerate() {
        let line = &mut lines[i % rows];
        if i >= rows {
            line.push_str(&" ".repeat(GAP));
        }
        let share = cell.cached as f64 / cell.bytes.max(1) as f64;
        let pad = " ".repeat(label - cell.label.width());
        let mut shown = format!("{}{pad} ", cell.label);
        if width > 0 {
            shown += &format!("{} ", canvas.paint(&bar(share, width), share));
        }
        *line += &format!("{shown}{:>PERCENT$}", units::percent(cell.cached, cell.bytes));
    }
    lines
}

/// Returns the parts, with up to `together` layers of a stack combined.
fn cells(watched: &Watched, look: &Look, together: usize) -> Vec<ScreenCell> {
    let mut cells: Vec<(ScreenCell, Option<(&str, usize)>)> = Vec::new();
    for (part, cached) in watched.parts.iter().zip(&look.parts) {
        let stack = match part.kind {
            // Everything before the number.
            PartKind::Layer(_) => part.label.rfind([' ', '.']).map(|at| &part.label[..=at]),
            _ => None,
        };
        if let (Some(stack), Some((cell, Some((same, count))))) = (stack, cells.last_mut())
            && stack == *same
            && *count < together
        {
            let first = cell.label.split('–').next().unwrap_or_default().to_owned();
            cell.label = format!("{first}–{}", &part.label[stack.len()..]);
            cell.bytes += part.bytes;
            cell.cached += cached;
            *count += 1;
            continue;
        }
        let cell = ScreenCell { label: name(&part.label), bytes: part.bytes, cached: *cached };
        cells.push((cell, stack.map(|stack| (stack, 1))));
    }
    cells.into_iter().map(|(cell, _)| cell).collect()
}

/// Returns the beginning of a line that is too long.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut text: String = text.chars().take(width.saturating_sub(1)).collect();
    while text.width() >= width && text.pop().is_some() {}
    text + if width > 0 { "…" } else { "" }
}

/// Returns the end of a path that is too long.
fn cut_front(text: &str, width: usize) -> String {
    if text.width() <= width || width == 0 {
        return cut(text, width);
    }
    let mut rest = text;
    while rest.width() >= width {
        let mut chars = rest.chars();
        chars.next();
        rest = chars.as_str();
    }
    format!("…{rest}")
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::time::Duration;

    use alight_pages::Map;

    use super::super::parts::Placed;
    use super::*;

    fn watched(layers: u64) -> (tempfile::TempDir, Watched) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let range = |i: u64| -> Range<u64> { 4096 * i..4096 * i + 4096 };
        let placed = |name: String, i| Placed { name, file: 0, range: range(i) };
        let mut tensors = vec![placed("token_embd.weight".into(), 1)];
        tensors.extend((0..layers).map(|i| placed(format!("blk.{i}.up.weight"), 2 + i)));
        tensors.push(placed("output.weight".into(), 2 + layers));
        (folder, Watched::of(vec![Map::open(&path).unwrap()], tensors).unwrap())
    }

    fn look(watched: &Watched) -> Look {
        Look {
            elapsed: Duration::from_secs(3),
            bytes: 1 << 20,
            cached: 1 << 19,
            parts: watched.parts.iter().map(|part| part.bytes / 2).collect(),
            source: "cachestat",
            change: 1.5e6,
        }
    }

    #[test]
    fn a_picture_fits_whatever_the_terminal_is() {
        let plain = Canvas { width: Some(80), colour: false };
        for layers in [0, 1, 30, 130] {
            let (_folder, watched) = watched(layers);
            let look = look(&watched);
            for columns in [1, 3, 12, 17, 24, 40, 80, 200] {
                for rows in [1, 2, 7, 10, 24, 60] {
                    let frame = frame(&watched, &look, Size { columns, rows }, plain);
                    let text =
                        frame.replace("\x1b[H", "").replace("\x1b[J", "").replace("\x1b[K", "");
                    let lines: Vec<&str> = text.split("\r\n").collect();
                    assert!(lines.len() <= rows, "{columns} × {rows}: {text}");
                    let widest = lines.iter().map(|line| line.width()).max().unwrap();
                    assert!(widest <= columns, "{columns} × {rows}, {widest}: {text}");
                }
            }
            let text = frame(&watched, &look, Size { columns: 80, rows: 60 }, plain);
            assert!(text.contains("524 kB of 1.05 MB cached (50 %), +1.50 MB/s, 3 s"), "{text}");
            assert!(text.contains("embedding") && text.contains("output"), "{text}");
            assert_eq!(
                text.contains(&format!("layer {} ", layers.max(1) - 1)),
                layers > 0,
                "{text}"
            );
        }
    }

    #[test]
    fn layers_are_put_together_where_there_is_no_room() {
        let (_folder, watched) = watched(130);
        let plain = Canvas { width: Some(40), colour: false };
        let text = frame(&watched, &look(&watched), Size { columns: 40, rows: 12 }, plain);
        assert!(text.contains("layer 0–") && text.contains("–129 "), "{text}");
    }
}
