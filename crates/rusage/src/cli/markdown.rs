//! The report as a table in Markdown: a row for each command, medians of its runs.

use std::time::Duration;

use rusage::{Summary, TimeUnit, Usage, thousands};

use super::args::Args;
use super::output::printable;
use super::report;
use super::runs::{Measured, Run};

/// A column: its name, and its cell for each command.
type Column = (String, Vec<String>);

/// Returns the table; after an empty line if it `continues` a file.
pub fn table(args: &Args, measured: &Measured, continues: bool) -> String {
    let measured: Vec<_> =
        args.commands.iter().zip(&measured.runs).filter(|(_, runs)| !runs.is_empty()).collect();
    let names = measured.iter().map(|(command, _)| code(&report::command_line(&command.words())));
    let names = ("Command".to_owned(), names.collect());
    let runs: Vec<&[Run]> = measured.iter().map(|(_, runs)| &***runs).collect();
    let mut text = if continues { "\n".to_owned() } else { String::new() };
    let columns: Vec<Column> = std::iter::once(names).chain(numbers(&runs)).collect();
    row(&mut text, columns.iter().map(|(name, _)| name.as_str()));
    row(&mut text, (0..columns.len()).map(|i| if i == 0 { ":--" } else { "--:" }));
    for i in 0..measured.len() {
        row(&mut text, columns.iter().map(|(_, cells)| cells[i].as_str()));
    }
    text
}

fn row<'a>(text: &mut String, cells: impl Iterator<Item = &'a str>) {
    for cell in cells {
        text.push_str("| ");
        text.push_str(cell);
        text.push(' ');
    }
    text.push_str("|\n");
}

/// Returns the columns of numbers. Values that apply to no command have none.
fn numbers(commands: &[&[Run]]) -> Vec<Column> {
    let all = |cell: &dyn Fn(&[Run]) -> String| commands.iter().map(|runs| cell(runs)).collect();
    let any = |of: &dyn Fn(&Run) -> bool| commands.iter().any(|runs| runs.iter().any(of));
    let mut columns: Vec<Column> = Vec::new();
    let mut add = |name: &str, cells: Vec<String>| columns.push((name.to_owned(), cells));
    let repeated = commands.iter().any(|runs| runs.len() > 1);
    if repeated {
        add("Runs", all(&|runs| thousands(runs.len() as u64)));
    }
    let walls: Vec<Summary> = commands.iter().filter_map(|runs| summary(runs, wall)).collect();
    // One unit for the column: that of its largest number.
    let unit =
        |medians: &mut dyn Iterator<Item = f64>| TimeUnit::of(medians.fold(0.0, f64::max) as u64);
    let wall_unit = unit(&mut walls.iter().map(|s| s.median));
    let time = |unit: TimeUnit, micros: f64| unit.number(micros.round() as u64);
    let named = |what: &str, unit: TimeUnit| format!("{what} [{}]", unit.name());
    add(&named("Wall", wall_unit), walls.iter().map(|s| time(wall_unit, s.median)).collect());
    if repeated {
        let range = |s: &Summary| format!("{}–{}", time(wall_unit, s.min), time(wall_unit, s.max));
        add("Smallest–largest", walls.iter().map(range).collect());
    }
    if commands.len() > 1 {
        // Pair by pair, as they were run in turns.
        let ratio = |runs: &&[Run]| report::ratio(runs, commands[0]).map(|(ratio, _)| ratio.median);
        let ratios =
            commands.iter().map(|runs| ratio(runs).map_or(String::new(), |r| format!("{r:.3}")));
        add("Relative", ratios.collect());
    }
    let cpus: Vec<f64> = commands.iter().map(|runs| median(runs, |u| micros(u.cpu()))).collect();
    let cpu_unit = unit(&mut cpus.iter().copied());
    add(&named("CPU", cpu_unit), cpus.iter().map(|cpu| time(cpu_unit, *cpu)).collect());
    add("of it kernel", all(&kernel));
    if any(&|run| run.ended.usage.max_rss_bytes > 0) {
        add("Peak [MiB]", all(&peak));
    }
    if any(&|run| run.ended.tree_peak.is_some()) {
        let bytes = |runs: &[Run]| {
            let peaks = runs.iter().filter_map(|run| Some(run.ended.tree_peak?.bytes as f64));
            Summary::of(&peaks.collect::<Vec<_>>()).map_or(String::new(), |peak| mib(peak.median))
        };
        add("Tree's peak [MiB]", all(&bytes));
    }
    let mut counts = |name: &str, of: fn(&Usage) -> u64| {
        if any(&|run| of(&run.ended.usage) > 0) {
            add(name, all(&|runs| thousands(median(runs, |u| of(u) as f64).round() as u64)));
        }
    };
    counts("Minor faults", |u| u.minor_faults);
    counts("Major faults", |u| u.major_faults);
    counts("Switches", |u| u.voluntary_switches + u.involuntary_switches);
    let mut sizes = |name: &str, of: fn(&Usage) -> Option<u64>| {
        if any(&|run| of(&run.ended.usage).is_some_and(|n| n > 0)) {
            add(name, all(&|runs| mib(median(runs, |u| of(u).unwrap_or(0) as f64))));
        }
    };
    sizes("Read [MiB]", |u| u.read_bytes);
    sizes("Written [MiB]", |u| u.written_bytes);
    let failed = |run: &Run| !run.ended.status.is_success();
    if any(&failed) {
        add("Failed", all(&|runs| runs.iter().filter(|run| failed(run)).count().to_string()));
    }
    columns
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn wall(usage: &Usage) -> f64 {
    micros(usage.wall)
}

fn summary(runs: &[Run], of: impl Fn(&Usage) -> f64) -> Option<Summary> {
    Summary::of(&runs.iter().map(|run| of(&run.ended.usage)).collect::<Vec<_>>())
}

fn median(runs: &[Run], of: impl Fn(&Usage) -> f64) -> f64 {
    summary(runs, of).map_or(0.0, |summary| summary.median)
}

/// The kernel's share of the processor time of all runs, unless that time is too short.
fn kernel(runs: &[Run]) -> String {
    let cpu: Duration = runs.iter().map(|run| run.ended.usage.cpu()).sum();
    let system: Duration = runs.iter().map(|run| run.ended.usage.system).sum();
    if cpu < rusage::SPLIT_RELIABLE {
        return "too short".to_owned();
    }
    format!("{:.0} %", 100.0 * system.as_secs_f64() / cpu.as_secs_f64())
}

/// The peak size; an upper bound, if it is no larger than the size that every program
/// begins with.
fn peak(runs: &[Run]) -> String {
    let bytes = mib(median(runs, |u| u.max_rss_bytes as f64));
    let is_measured = runs.iter().any(|run| run.ended.usage.max_rss_bytes > run.ended.floor);
    if is_measured { bytes } else { format!("≤ {bytes}") }
}

fn mib(bytes: f64) -> String {
    let tenths = (bytes / f64::from(1 << 20) * 10.0).round() as u64;
    format!("{}.{}", thousands(tenths / 10), tenths % 10)
}

/// Formats text as code, in a cell of a table.
fn code(text: &str) -> String {
    let text = printable(text).replace('|', "\\|");
    // A run of backticks that is longer than any in the text.
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let mark = "`".repeat(longest + 1);
    let space = if text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    format!("{mark}{space}{text}{space}{mark}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_code_in_a_cell() {
        for (text, cell) in [
            ("ls -l", "`ls -l`"),
            ("a | b", "`a \\| b`"),
            ("echo `x`", "`` echo `x` ``"),
            ("a\nb", "`a\\nb`"),
        ] {
            assert_eq!(code(text), cell);
        }
    }

    #[test]
    fn sizes_have_one_decimal() {
        for (bytes, text) in
            [(0.0, "0.0"), (1048576.0, "1.0"), (1.5e9, "1,430.5"), (104857.6, "0.1")]
        {
            assert_eq!(mib(bytes), text);
        }
    }
}
