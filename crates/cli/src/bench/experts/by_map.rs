//! The same model through the map of its file, for comparison with slots, in the same amount of memory: a separate process, in a
//! control group with that limit. Where no group can be created it runs without one, and the row states that.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use alight_model::{Load, OpenOptions};
use alight_pages::evict;
use anyhow::{Context, anyhow};
use rusage::Usage;
use serde::{Deserialize, Serialize};

use super::group::Group;
use super::{ExpertsArgs, answer};
use crate::outcome::Outcome;
use crate::{output, say, units};

/// The output of the process.
#[derive(Debug, Serialize, Deserialize)]
struct ProcessReport {
    prompt_tokens_per_second: f64,
    tokens_per_second: f64,
    /// `None`: this system does not report it.
    read_bytes_per_token: Option<f64>,
    tokens: Vec<u32>,
}

/// The results for the map. Fields are only ever added.
#[derive(Debug, Serialize)]
pub(super) struct MapRow {
    /// `map`.
    way: &'static str,
    memory: u64,
    /// True if its memory was limited to this size.
    limited: bool,
    /// Bytes read from the disk.
    read_bytes_per_token: Option<f64>,
    prompt_tokens_per_second: f64,
    tokens_per_second: f64,
    /// True if it generated the same tokens as with slots.
    same_answer: bool,
}

impl MapRow {
    /// Returns a line of the table, under the same headings.
    pub(super) fn human(&self) -> String {
        let limit =
            if self.limited { "" } else { " (no control group: with all memory of the machine)" };
        format!(
            "{:>9} {:>13} {:>11} {:>13} {:>11} {:>11} {:>11} {:>11}{limit}\n",
            "",
            "by the map",
            self.read_bytes_per_token.map_or("unknown".into(), |bytes| units::bytes(bytes as u64)),
            "",
            "",
            "",
            units::digits(self.prompt_tokens_per_second),
            units::digits(self.tokens_per_second),
        )
    }
}

/// The process itself: it measures, and prints a line of JSON.
pub(super) fn child(path: &Path, args: &ExpertsArgs) -> Outcome {
    let options = OpenOptions { threads: args.threads, load: Load::Mmap, ..OpenOptions::default() };
    let ran = answer(path, args, &options)?;
    let read = Usage::of_self().read_bytes.zip(ran.disk_before);
    let report = ProcessReport {
        prompt_tokens_per_second: ran.prompt_rate,
        tokens_per_second: ran.rate,
        read_bytes_per_token: read
            .map(|(after, before)| (after - before) as f64 / args.predict as f64),
        tokens: ran.tokens,
    };
    output::json(&report)
}

/// Runs the process in a group with `memory`, from files that are not cached, of which the first is the model; `expected` is the
/// answer.
pub(super) fn beside(
    files: &[PathBuf],
    args: &ExpertsArgs,
    memory: u64,
    expected: &[u32],
) -> anyhow::Result<MapRow> {
    // Cached pages are charged to the group that read them: they would be memory beyond the limit.
    let gone = |path: &PathBuf| {
        File::open(path).and_then(|file| evict(&file)).is_ok_and(|left| left.cached == 0)
    };
    if !files.iter().all(gone) {
        say::note("a part of the file stays in the page cache, beside the memory of the map");
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut words = vec![
        program.into_os_string(),
        "bench".into(),
        "experts".into(),
        files[0].as_os_str().into(),
    ];
    words.extend(["--by-map", "--memory"].map(Into::into));
    words.extend([memory.to_string().into(), "-n".into(), args.predict.to_string().into()]);
    if let Some(threads) = args.threads {
        words.extend(["-t".into(), threads.to_string().into()]);
    }
    let group = Group::make(memory);
    if let Err(reason) = &group {
        say::note(&format!("no control group can be made for the map ({reason})"));
    }
    let mut command = match &group {
        Ok(group) => group.command(&words),
        Err(_) => {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]);
            command
        }
    };
    let done = command.stdin(Stdio::null()).output().context("cannot start this program again")?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(anyhow!("{}: {}", done.status, said.trim()));
    }
    let report: ProcessReport =
        serde_json::from_slice(&done.stdout).context("its line is not JSON")?;
    Ok(MapRow {
        way: "map",
        memory,
        limited: group.is_ok(),
        read_bytes_per_token: report.read_bytes_per_token,
        prompt_tokens_per_second: report.prompt_tokens_per_second,
        tokens_per_second: report.tokens_per_second,
        same_answer: report.tokens == expected,
    })
}
