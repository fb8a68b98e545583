//! The report as comma-separated values (RFC 4180): a row for each run. Columns are only ever added, at
//! the end.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use rusage::tree::TreePeak;
use rusage::{IoBytes, Status, Usage, counters};

use super::args::Args;
use super::output::printable;
use super::report;
use super::runs::{Measured, Run};

/// Columns before those of the hardware counters. Times are in seconds, sizes in bytes.
const COLUMNS: &str = "command,run,exit_code,signal,wall_s,user_s,system_s,max_rss_bytes,max_rss_floor_bytes,\
                       minor_faults,major_faults,voluntary_switches,involuntary_switches,read_bytes,\
                       written_bytes,read_call_bytes,write_call_bytes,tree_peak_bytes";

/// Returns the header line, without its end.
fn names() -> String {
    let mut names = COLUMNS.to_owned();
    for counter in counters::NAMES {
        names.push(',');
        names.push_str(&counter.replace(' ', "_"));
    }
    names
}

/// Checks that rows can be added to a file that is not empty.
///
/// # Errors
/// A message, if its first line is not the header of these columns.
pub fn fits(path: &Path) -> Result<(), String> {
    let names = names();
    let mut line = String::new();
    let read = File::open(path)
        .and_then(|file| BufReader::new(file.take(names.len() as u64 + 2)).read_line(&mut line));
    match read {
        Ok(_) if line.trim_end_matches(['\r', '\n']) == names => Ok(()),
        Ok(_) => Err(format!(
            "{}: its first line does not have the columns of this program, so no rows are added to it: \
             give another file, or leave --append out to replace it",
            path.display()
        )),
        Err(why) => {
            Err(format!("{}: cannot read its first line, to add rows: {why}", path.display()))
        }
    }
}

/// Returns a row for each run, after a header line, unless it `continues` other rows.
pub fn rows(args: &Args, measured: &Measured, continues: bool) -> String {
    let mut text = String::new();
    if !continues {
        text.push_str(&names());
        text.push('\n');
    }
    for (command, runs) in args.commands.iter().zip(&measured.runs) {
        let command = quoted(&printable(&report::command_line(&command.words())));
        for (i, run) in runs.iter().enumerate() {
            text.push_str(&command);
            for cell in std::iter::once((i + 1).to_string()).chain(cells(run)) {
                text.push(',');
                text.push_str(&cell);
            }
            text.push('\n');
        }
    }
    text
}

/// Returns the cells after the number of a run. Values that the system does not report, or that were
/// not requested, are empty.
fn cells(run: &Run) -> Vec<String> {
    let (code, signal) = match run.ended.status {
        Status::Exited(code) => (Some(code), None),
        Status::Killed { signal, .. } => (None, Some(signal)),
    };
    let seconds = |time: std::time::Duration| format!("{:.6}", time.as_secs_f64());
    let number = |n: u64| n.to_string();
    let cell = |n: Option<u64>| n.map(number).unwrap_or_default();
    let status = |n: Option<i32>| n.map(|n| n.to_string()).unwrap_or_default();
    let io = |of: fn(&IoBytes) -> u64| cell(run.ended.io.as_ref().map(of));
    let Usage { wall, user, system, .. } = run.ended.usage;
    let usage = &run.ended.usage;
    let mut cells = vec![
        status(code),
        status(signal),
        seconds(wall),
        seconds(user),
        seconds(system),
        number(usage.max_rss_bytes),
        number(run.ended.floor),
        number(usage.minor_faults),
        number(usage.major_faults),
        number(usage.voluntary_switches),
        number(usage.involuntary_switches),
        cell(usage.read_bytes),
        cell(usage.written_bytes),
        io(|io| io.rchar),
        io(|io| io.wchar),
        cell(run.ended.tree_peak.map(|TreePeak { bytes, .. }| bytes)),
    ];
    let counted = |name| run.ended.counters.iter().find(|counter| counter.name == name);
    cells.extend(counters::NAMES.map(|name| cell(counted(name).map(|counter| counter.count))));
    cells
}

/// Quotes a text that may contain commas and quotes.
fn quoted(text: &str) -> String {
    if text.contains([',', '"']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_where_they_must_be() {
        for (text, quote) in
            [("ls -l", "ls -l"), ("a,b", "\"a,b\""), ("sh -c \"x\"", "\"sh -c \"\"x\"\"\"")]
        {
            assert_eq!(quoted(text), quote);
        }
        assert_eq!(names().split(',').count(), 22);
    }
}
