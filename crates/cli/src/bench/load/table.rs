//! The result as a table for the user.

use super::cells::State;
use super::report::{CellReport, LoadReport, heading};
use crate::layout::table::{Style, Table};
use crate::terminal_text;
use crate::units;
use rusage::Summary;

/// Writes the table.
pub fn write(report: &LoadReport, columns: Option<usize>) -> String {
    let mut text = format!(
        "{}, {}, a prompt of {} tokens; medians of {}\n",
        terminal_text::path(&report.model),
        units::bytes(report.bytes),
        report.prompt_tokens.map_or("?".to_owned(), |n| n.to_string()),
        report.repetitions,
    );
    if let Some(disk) = &report.disk {
        let rate = |s: Summary| {
            let speed = report.bytes as f64 / (s.median * 1e6);
            format!(
                "{} ({} to {}), {} GB/s",
                units::ms(s.median),
                units::ms(s.min),
                units::ms(s.max),
                units::digits(speed)
            )
        };
        if let Some(alight) = disk.alight_ms {
            text += &format!("disk    {} by alight ({})\n", rate(alight), disk.alight_how);
        }
        text += &match disk.fio_ms {
            Some(fio) => format!("disk    {} by fio\n", rate(fio)),
            None => "disk    fio is not installed\n".to_owned(),
        };
    }
    if !report.same_token {
        text += "The first token was NOT the same in all cells.\n";
    }
    for state in [State::Cold, State::Warm, State::Resident] {
        let cells: Vec<&CellReport> = report.of_state(state).collect();
        if !cells.is_empty() {
            text.push('\n');
            text += &of_state(state, &cells, columns);
        }
    }
    text
}

const HEAD: [&str; 12] = [
    "file",
    "load",
    "first token",
    "min to max",
    "of disk",
    "of best",
    "read",
    "anonymous",
    "file",
    "PSS",
    "peak",
    "faults",
];

fn of_state(state: State, cells: &[&CellReport], columns: Option<usize>) -> String {
    let mut table = Table::new(HEAD, 2, Style::Plain);
    for cell in cells {
        let ratio = |r: Option<f64>| r.map_or(String::new(), |r| format!("{r:.2}"));
        let bytes =
            |s: Option<Summary>| s.map_or("?".to_owned(), |s| units::bytes(s.median as u64));
        let count = |s: Option<Summary>| s.map_or("?".to_owned(), |s| format!("{:.0}", s.median));
        let load = match &cell.method {
            Some(method) => format!("auto: {method}"),
            None => cell.cell.load.to_string(),
        };
        let time = |f: &dyn Fn(&Summary) -> f64| {
            cell.first_token_ms.as_ref().map_or("?".to_owned(), |s| units::ms(f(s)))
        };
        table.row([
            cell.cell.variant.name().to_owned(),
            load,
            time(&|s| s.median),
            format!("{} to {}", time(&|s| s.min), time(&|s| s.max)),
            ratio(cell.of_disk),
            ratio(cell.of_best),
            bytes(cell.read_bytes),
            bytes(cell.rss_anon),
            bytes(cell.rss_file),
            bytes(cell.pss),
            bytes(cell.peak_rss),
            format!("{} + {}", count(cell.minor_faults), count(cell.major_faults)),
        ]);
    }
    let mut text = format!("{}\n{}", heading(state, cells), table.text(columns));
    for cell in cells.iter().filter(|c| !c.state_proven) {
        text += &format!(
            "{}: not proven {state}: {} of {} pages were cached before a run\n",
            cell.cell.name(),
            cell.cached_pages_before,
            cell.pages
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::some_report;

    #[test]
    fn every_cell_has_a_row_and_what_failed_is_said() {
        let mut report = some_report();
        let text = super::write(&report, None);
        assert_eq!(text.lines().filter(|l| l.starts_with("repack ")).count(), report.cells.len());
        assert!(text.contains("fio is not installed"), "{text}");
        assert!(!text.contains("not proven") && !text.contains("NOT"), "{text}");
        let auto = text.lines().find(|l| l.contains("auto: mmap")).unwrap();
        let words: Vec<&str> = auto.split_whitespace().collect();
        assert_eq!(words[4..6], ["400", "ms"], "{auto}");
        assert!(words.windows(3).any(|w| w == ["8.00", "4.00", "1.00"]), "{auto}");
        assert!(text.lines().all(|l| l.trim_end() == l && l.chars().count() < 160), "{text}");
        report.same_token = false;
        report.cells[0].state_proven = false;
        let text = super::write(&report, None);
        assert!(
            text.contains("NOT the same") && text.contains("mmap: not proven cold: 0 of 9"),
            "{text}"
        );
    }
}
