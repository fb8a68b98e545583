//! The times to the first token as a picture: a bar for each cell, readable on light and dark pages.

use super::cells::{State, Variant};
use super::report::{CellReport, DiskReport, LoadReport};
use crate::bench::svg::text;
use crate::units;

const WIDTH: f64 = 760.0;
/// The left end of bars: names are to the left of it.
const LEFT: f64 = 190.0;
/// The right end of the longest bar: its number is to the right of it.
const RIGHT: f64 = 640.0;
const ROW: f64 = 18.0;

/// Bar colours have enough contrast with white and with black.
const STYLE: &str = "\
text { font: 12px system-ui, sans-serif; fill: #222 }
.title { font-weight: 600; font-size: 14px }
.state { font-weight: 600 }
.small { fill: #666 }
.repack-off { fill: #3b82c4 } .repack-on { fill: #b5651d } .repack-auto { fill: #777 }
.packed { fill: #2e8b57 }
.spread { stroke: #222; stroke-width: 1 }
.disk { stroke: #c0392b; stroke-width: 1; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd } .small { fill: #aaa } .spread { stroke: #ddd } .disk { stroke: #ff7f6e }
}
";

/// Draws the report.
pub fn draw(report: &LoadReport) -> String {
    let mut body = String::new();
    let mut y = 24.0;
    let name = report.model.file_name().unwrap_or_default().to_string_lossy();
    text(&mut body, 12.0, y, "title", "start", &format!("Time to the first token: {name}"));
    y += 18.0;
    let about = format!(
        "{}, a prompt of {} tokens, medians of {} with the range",
        units::bytes(report.bytes),
        report.prompt_tokens.map_or("?".to_owned(), |n| n.to_string()),
        report.repetitions
    );
    text(&mut body, 12.0, y, "small", "start", &about);
    for state in [State::Cold, State::Warm, State::Resident] {
        let cells: Vec<&CellReport> = report.of_state(state).collect();
        if cells.is_empty() {
            continue;
        }
        y += 28.0;
        let disk_ms =
            report.disk.as_ref().and_then(DiskReport::median_ms).filter(|_| state == State::Cold);
        // Each state has its own scale: they are orders of magnitude apart.
        let longest = cells
            .iter()
            .filter_map(|c| c.first_token_ms.map(|s| s.max))
            .chain(disk_ms)
            .fold(1e-9, f64::max);
        let x = |ms: f64| LEFT + (RIGHT - LEFT) * ms / longest;
        let proven = cells.iter().all(|cell| cell.state_proven);
        let said = format!("{state}{}", if proven { "" } else { ", not proven" });
        text(&mut body, 12.0, y, "state", "start", &said);
        let top = y + 6.0;
        let mut last = None;
        for cell in cells {
            // A gap between files.
            y += if last.is_some_and(|v| v != cell.cell.variant) { ROW + 6.0 } else { ROW };
            last = Some(cell.cell.variant);
            row(&mut body, y, cell, &x);
        }
        if let Some(ms) = disk_ms {
            let at = x(ms);
            body += &format!(
                "<line class=\"disk\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top:.1}\" y2=\"{:.1}\"/>\n",
                y + 6.0
            );
            y += ROW;
            let label = format!("the disk alone: {}", units::ms(ms));
            text(&mut body, at, y, "small", "middle", &label);
        }
    }
    let height = y + 20.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
         width=\"{WIDTH}\" height=\"{height:.0}\" role=\"img\">\n\
         <title>Time to the first token</title>\n<style>\n{STYLE}</style>\n{body}</svg>\n"
    )
}

fn row(body: &mut String, y: f64, cell: &CellReport, x: &dyn Fn(f64) -> f64) {
    let class = match cell.cell.variant {
        Variant::RepackOff => "repack-off",
        Variant::RepackOn => "repack-on",
        Variant::RepackAuto => "repack-auto",
        Variant::Packed => "packed",
    };
    let name = format!("{}, {}", cell.cell.variant.name(), cell.cell.load);
    text(body, LEFT - 8.0, y, "", "end", &name);
    let Some(times) = cell.first_token_ms else { return };
    *body += &format!(
        "<rect class=\"{class}\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"12\"/>\n",
        y - 10.0,
        (x(times.median) - LEFT).max(1.0)
    );
    *body += &format!(
        "<line class=\"spread\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{2:.1}\" y2=\"{2:.1}\"/>\n",
        x(times.min),
        x(times.max),
        y - 4.0,
    );
    text(body, x(times.max) + 6.0, y, "", "start", &units::ms(times.median));
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::some_report;
    use super::*;

    #[test]
    fn every_cell_has_a_bar_within_the_picture() {
        let report = some_report();
        let svg = draw(&report);
        assert_eq!(svg.matches("<rect ").count(), report.cells.len());
        assert_eq!(svg.matches("<line class=\"spread\"").count(), report.cells.len());
        assert_eq!(svg.matches("<line class=\"disk\"").count(), 1);
        assert!(svg.contains("a&lt;b&gt;&amp;c.gguf") && !svg.contains("a<b>"), "{svg}");
        assert!(svg.contains("prefers-color-scheme: dark"));
        let number = |tag: &str, attribute: &str| -> f64 {
            let rest = tag.split_once(&format!(" {attribute}=\"")).unwrap().1;
            rest.split_once('"').unwrap().0.parse().unwrap()
        };
        for tag in svg.lines().filter(|l| l.starts_with("<rect ")) {
            let (from, width) = (number(tag, "x"), number(tag, "width"));
            assert!(width >= 1.0 && from + width <= RIGHT + 0.1, "{tag}");
        }
        // The longest bar of each state reaches the end.
        let full = |tag: &&str| (number(tag, "width") - (RIGHT - LEFT)).abs() < 0.1;
        assert_eq!(svg.lines().filter(|l| l.starts_with("<rect ")).filter(full).count(), 3);
        for tag in svg.lines().filter(|l| l.starts_with("<line class=\"spread\"")) {
            assert!(number(tag, "x1") <= number(tag, "x2"), "{tag}");
        }
    }
}
