//! The report for people.

use rusage::{IoBytes, Status, Summary, Usage, thousands};

use super::args::Args;
use super::output::printable;
use super::runs::{Measured, Run};

/// Returns all lines, each with its prefix.
pub fn text(args: &Args, measured: &Measured, bold: bool) -> String {
    let mut lines = Vec::new();
    let compared = args.commands.len() > 1;
    for (command, runs) in args.commands.iter().zip(&measured.runs) {
        if runs.is_empty() {
            continue;
        }
        if compared || args.runs > 1 {
            let plural = if runs.len() == 1 { "" } else { "s" };
            let medians = if runs.len() > 1 { ": medians (smallest to largest)" } else { "" };
            let name = name(&command.words());
            lines.push(format!("{} run{plural} of {name}{medians}", thousands(runs.len() as u64)));
        }
        lines.extend(account(runs));
    }
    for (command, other) in args.commands.iter().zip(&measured.runs).skip(1) {
        lines.extend(comparison(
            &args.commands[0].words(),
            &measured.runs[0],
            &command.words(),
            other,
        ));
    }
    if let Some((round, all)) = measured.stopped_after {
        lines.push(format!(
            "stopped after round {round} of {all}, warm-ups among them, because a run failed; --ignore-failure continues"
        ));
    }
    let prefix = if bold { "\x1b[1mrusage\x1b[0m: " } else { "rusage: " };
    let mut text = String::new();
    for line in lines {
        text.push_str(prefix);
        text.push_str(&printable(&line));
        text.push('\n');
    }
    text
}

/// The lines of one command.
fn account(runs: &[Run]) -> Vec<String> {
    let usages: Vec<Usage> = runs.iter().map(|run| run.ended.usage).collect();
    let floor = runs.iter().map(|run| run.ended.floor).max().unwrap_or(0);
    let mut lines = rusage::lines(&usages, floor);
    lines.extend(transferred(runs));
    lines.extend(beyond(runs));
    lines.extend(disturbed(&usages));
    let failed: Vec<Status> =
        runs.iter().map(|run| run.ended.status).filter(|status| !status.is_success()).collect();
    if let Some(last) = failed.last() {
        let of = match runs.len() {
            1 => String::new(),
            all => format!(" in {} of {all} runs, in the last of them", failed.len()),
        };
        lines.push(format!("failed{of}: {}", last));
    }
    lines
}

/// Minimum number of runs among which one can be unusual.
const MIN_RUNS: usize = 5;

/// The runs whose wall time is far from that of the others: beyond three times the width of the middle half. A command that is measured on a quiet
/// machine has none.
fn disturbed(usages: &[Usage]) -> Option<String> {
    let times: Vec<f64> = usages.iter().map(|usage| usage.wall.as_secs_f64()).collect();
    let summary = Summary::of(&times).filter(|_| times.len() >= MIN_RUNS)?;
    // Times within a hundredth of each other are alike, however narrow their middle half is.
    let far = 3.0 * (summary.q3 - summary.q1).max(summary.median / 100.0);
    let outliers = times.iter().filter(|&&time| time > summary.q3 + far || time < summary.q1 - far);
    match outliers.count() {
        0 => None,
        1 => Some(format!(
            "1 of {} runs is far from the others: was the machine quiet?",
            times.len()
        )),
        n => Some(format!(
            "{n} of {} runs are far from the others: was the machine quiet?",
            times.len()
        )),
    }
}

/// Bytes that went through reads and writes of any kind, where the system reports nothing about storage
/// (Windows).
fn transferred(runs: &[Run]) -> Option<String> {
    let of = |get: fn(&IoBytes) -> u64| {
        let bytes: Option<Vec<f64>> = runs
            .iter()
            .map(|run| run.ended.io.filter(|io| io.read_bytes.is_none()).map(|io| get(&io) as f64))
            .collect();
        Some(thousands(Summary::of(&bytes?)?.median.round() as u64))
    };
    let (read, written) = (of(|io| io.rchar)?, of(|io| io.wchar)?);
    let all = "files, pipes and devices together";
    Some(format!("got {read} bytes by reads and gave {written} to writes ({all})"))
}

/// The tree's peak and the hardware counters, where they were requested and are known.
fn beyond(runs: &[Run]) -> Vec<String> {
    use rusage::tree::PeakMethod;

    let mut lines = Vec::new();
    let peaks: Vec<_> = runs.iter().filter_map(|run| run.ended.tree_peak).collect();
    let bytes: Vec<f64> = peaks.iter().map(|peak| peak.bytes as f64).collect();
    if let (Some(summary), Some(peak)) = (Summary::of(&bytes), peaks.first()) {
        let samples: u64 = peaks.iter().map(|peak| peak.samples).sum();
        let how = match peak.how {
            PeakMethod::Cgroup => "its control group's peak, page cache included".to_owned(),
            PeakMethod::Pss => {
                format!("largest sum of proportional sizes, looked at {samples} times")
            }
        };
        let kb = thousands((summary.median / 1024.0).round() as u64);
        lines.push(format!("whole tree peaked at {kb}kb ({how})"));
        if let Some(left @ 1..) = peaks.iter().map(|peak| peak.left).max() {
            let plural = if left == 1 { "" } else { "es" };
            let until = "counted up to the command's end";
            lines.push(format!("left {left} process{plural} running ({until})"));
        }
    }
    for (i, first) in runs[0].ended.counters.iter().enumerate() {
        let counts = runs.iter().filter_map(|run| run.ended.counters.get(i));
        let counts: Vec<f64> = counts.map(|counter| counter.count as f64).collect();
        let Some(summary) = Summary::of(&counts) else { continue };
        let mut notes = Vec::new();
        if first.user_only {
            notes.push("without the kernel's".to_owned());
        }
        if first.share < 100 {
            notes.push(format!("counted {}% of the time", first.share));
        }
        let notes =
            if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) };
        lines.push(format!("took {} {}{notes}", thousands(summary.median as u64), first.name));
    }
    lines
}

/// Compares the wall times of two commands, pair by pair.
fn comparison(first: &[String], runs: &[Run], other: &[String], others: &[Run]) -> Option<String> {
    let (ratio, faster) = ratio(runs, others)?;
    let [one, two] = told_apart(first, other);
    Some(format!(
        "{one} took {:.3}× the wall time of {two} (median of {}; middle half {:.3} to {:.3}), and was \
         faster in {faster}",
        ratio.median,
        match ratio.runs {
            1 => "1 pair".to_owned(),
            n => format!("{n} pairs"),
        },
        ratio.q1,
        ratio.q3,
    ))
}

/// Returns the ratio of the wall times of pairs of runs, and the number of pairs in which the first was
/// faster.
pub fn ratio(runs: &[Run], others: &[Run]) -> Option<(Summary, usize)> {
    let wall = |run: &Run| run.ended.usage.wall.as_secs_f64();
    let ratios: Vec<f64> =
        runs.iter().zip(others).map(|(run, other)| wall(run) / wall(other).max(1e-9)).collect();
    Some((Summary::of(&ratios)?, ratios.iter().filter(|ratio| **ratio < 1.0).count()))
}

/// A command line as it can be typed again.
pub fn command_line(words: &[String]) -> String {
    // Only a zero byte cannot be quoted, and no argument contains one.
    shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" "))
}

/// Maximum number of characters of a command line in a report.
const MAX_CHARS: usize = 60;

/// A command line, shortened.
fn name(words: &[String]) -> String {
    shortened(&words.join(" "), 0)
}

/// Two command lines, shortened to where they differ if their beginnings are the same.
fn told_apart(first: &[String], other: &[String]) -> [String; 2] {
    let lines = [first.join(" "), other.join(" ")];
    let same = lines[0].chars().zip(lines[1].chars()).take_while(|(a, b)| a == b).count();
    // Some of what is before shows what it belongs to.
    let from = if same < MAX_CHARS / 2 { 0 } else { same - MAX_CHARS / 4 };
    lines.map(|line| shortened(&line, from))
}

/// At most [`MAX_CHARS`] characters of a line, from one of them on.
fn shortened(line: &str, from: usize) -> String {
    let kept: String = line.chars().skip(from).take(MAX_CHARS).collect();
    let before = if from > 0 { "…" } else { "" };
    let after = if line.chars().nth(from + MAX_CHARS).is_some() { "…" } else { "" };
    format!("'{before}{kept}{after}'")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn commands_are_told_apart_by_where_they_differ() {
        let words = |last: &str| ["run".to_owned(), "x".repeat(80), last.to_owned()];
        assert_eq!(
            told_apart(&words("first"), &words("other")),
            ["xxxxxxxxxxxxxx first", "xxxxxxxxxxxxxx other"].map(|part| format!("'…{part}'"))
        );
        let short = |word: &str| ["echo".to_owned(), word.to_owned()];
        assert_eq!(told_apart(&short("a"), &short("b")), ["'echo a'", "'echo b'"]);
        assert_eq!(name(&words("é")), format!("'run {}…'", "x".repeat(56)));
    }

    #[test]
    fn a_run_far_from_the_others_is_noticed() {
        let usages = |times: &[u64]| -> Vec<Usage> {
            let of = |&ms: &u64| Usage { wall: Duration::from_millis(ms), ..Usage::default() };
            times.iter().map(of).collect()
        };
        assert_eq!(disturbed(&usages(&[100, 101, 99, 100, 102])), None);
        assert!(
            disturbed(&usages(&[100, 101, 99, 100, 300])).unwrap().starts_with("1 of 5 runs is")
        );
        assert!(
            disturbed(&usages(&[100, 101, 99, 100, 300, 290, 100, 101, 99, 100]))
                .unwrap()
                .starts_with("2 of 10")
        );
        assert_eq!(disturbed(&usages(&[1, 300])), None, "two of them say nothing");
    }
}
