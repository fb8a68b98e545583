//! The report for machines: one line of JSON. Fields are only ever added.

use std::collections::BTreeMap;

use rusage::counters::Counter;
use rusage::tree::TreePeak;
use rusage::{Command, IoBytes, Status, Summary, Usage};
use serde::Serialize;

use super::args::Args;
use super::cold::Evicted;
use super::report;
use super::runs::{Measured, Run};

#[derive(Serialize)]
struct Line<'a> {
    /// The version of this format.
    rusage: u32,
    #[serde(flatten)]
    measured: Series<'a>,
    versus: Vec<Versus<'a>>,
}

/// The runs of one command.
#[derive(Serialize)]
struct Series<'a> {
    command: Vec<String>,
    runs: Vec<Account<'a>>,
    /// The median and spread of each number over the runs.
    summary: BTreeMap<&'static str, Summary>,
}

#[derive(Serialize)]
struct Versus<'a> {
    #[serde(flatten)]
    measured: Series<'a>,
    /// Wall time of the first command divided by this one's, pair by pair; null without a pair.
    wall_ratio: Option<Ratio>,
}

#[derive(Serialize)]
struct Ratio {
    pairs: usize,
    median: f64,
    min: f64,
    max: f64,
    q1: f64,
    q3: f64,
    /// Number of pairs in which the first command took less time.
    first_faster: usize,
}

/// One run.
#[derive(Serialize)]
struct Account<'a> {
    exit_code: Option<i32>,
    signal: Option<i32>,
    core_dumped: bool,
    #[serde(flatten)]
    usage: Usage,
    /// True if there is enough processor time for its split to be meaningful.
    cpu_split_reliable: bool,
    /// The size at which `max_rss_bytes` begins, whatever the command does.
    max_rss_floor_bytes: u64,
    /// Bytes through system calls, where the system reports them.
    io: Option<IoBytes>,
    tree_peak: Option<TreePeak>,
    counters: Option<&'a [Counter]>,
    evicted: &'a [Evicted],
}

/// Returns the line, with its end.
pub fn line(args: &Args, measured: &Measured) -> String {
    let mut series =
        args.commands.iter().zip(&measured.runs).map(|(command, runs)| of(args, command, runs));
    let first = series.next();
    let versus = series.zip(&measured.runs[1..]).map(|(series, others)| Versus {
        measured: series,
        wall_ratio: report::ratio(&measured.runs[0], others).map(|(s, first_faster)| Ratio {
            pairs: s.runs,
            median: s.median,
            min: s.min,
            max: s.max,
            q1: s.q1,
            q3: s.q3,
            first_faster,
        }),
    });
    let line = first.map(|measured| Line { rusage: 1, measured, versus: versus.collect() });
    // Numbers, and text that is UTF-8 by now, so this cannot fail.
    let mut text = serde_json::to_string(&line).unwrap_or_default();
    text.push('\n');
    text
}

fn of<'a>(args: &Args, command: &Command, runs: &'a [Run]) -> Series<'a> {
    let account = |run: &'a Run| Account {
        exit_code: match run.ended.status {
            Status::Exited(code) => Some(code),
            Status::Killed { .. } => None,
        },
        signal: match run.ended.status {
            Status::Exited(_) => None,
            Status::Killed { signal, .. } => Some(signal),
        },
        core_dumped: matches!(run.ended.status, Status::Killed { core_dumped: true, .. }),
        usage: run.ended.usage,
        cpu_split_reliable: run.ended.usage.split_is_reliable(),
        max_rss_floor_bytes: run.ended.floor,
        io: run.ended.io,
        tree_peak: run.ended.tree_peak,
        counters: args.counters.then_some(&run.ended.counters),
        evicted: &run.evicted,
    };
    Series {
        command: command.words(),
        runs: runs.iter().map(account).collect(),
        summary: summary(runs),
    }
}

/// Summarises every number of the account that the system reports.
fn summary(runs: &[Run]) -> BTreeMap<&'static str, Summary> {
    type Field = (&'static str, fn(&Usage) -> Option<f64>);
    let fields: [Field; 12] = [
        ("wall_us", |u| Some(u.wall.as_secs_f64() * 1e6)),
        ("user_us", |u| Some(u.user.as_secs_f64() * 1e6)),
        ("system_us", |u| Some(u.system.as_secs_f64() * 1e6)),
        ("cpu_us", |u| Some(u.cpu().as_secs_f64() * 1e6)),
        ("max_rss_bytes", |u| Some(u.max_rss_bytes as f64)),
        ("minor_faults", |u| Some(u.minor_faults as f64)),
        ("major_faults", |u| Some(u.major_faults as f64)),
        ("voluntary_switches", |u| Some(u.voluntary_switches as f64)),
        ("involuntary_switches", |u| Some(u.involuntary_switches as f64)),
        ("read_bytes", |u| u.read_bytes.map(|n| n as f64)),
        ("written_bytes", |u| u.written_bytes.map(|n| n as f64)),
        ("signals", |u| Some(u.signals as f64)),
    ];
    let mut all: BTreeMap<_, _> = fields
        .iter()
        .filter_map(|(name, of)| {
            let values: Option<Vec<f64>> = runs.iter().map(|run| of(&run.ended.usage)).collect();
            Some((*name, Summary::of(&values?)?))
        })
        .collect();
    let peaks: Option<Vec<f64>> =
        runs.iter().map(|run| Some(run.ended.tree_peak?.bytes as f64)).collect();
    all.extend(peaks.and_then(|peaks| Some(("tree_peak_bytes", Summary::of(&peaks)?))));
    all
}
