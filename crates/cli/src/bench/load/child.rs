//! One run of this program, observed from outside.
//!
//! Its reads from the disk and its faults are the kernel's accounting of the whole process, taken
//! at its end; its memory is its own report from before that, since by then the kernel has freed
//! it.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, anyhow};
use rusage::{Status, Usage};
use serde::Serialize;
use serde_json::Value;

use super::cells::{Cell, State};
use super::state::Proof;

/// Number of prompts that a resident process answers; the first of them is not counted.
const PROMPTS: usize = 4;

/// The parameters common to all runs.
#[derive(Debug)]
pub struct Child<'a> {
    /// The text.
    pub prompt: &'a str,
    /// `-t`.
    pub threads: Option<usize>,
}

/// The measurements of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Milliseconds to the first token, by its own clock.
    pub first_token_ms: f64,
    /// Milliseconds from before its start until after its exit.
    pub process_ms: f64,
    /// Bytes that the process read from a disk; `None` where the system does not report it.
    pub read_bytes: Option<u64>,
    /// Faults of the process.
    pub minor_faults: Option<u64>,
    /// Faults that needed a read; of a resident process, after its first answer.
    pub major_faults: Option<u64>,
    /// Resident bytes: anonymous, of files, proportional, and the peak.
    pub rss_anon: Option<u64>,
    #[allow(missing_docs)]
    pub rss_file: Option<u64>,
    #[allow(missing_docs)]
    pub pss: Option<u64>,
    #[allow(missing_docs)]
    pub peak_rss: Option<u64>,
    /// The first token, which must be the same in all cells.
    pub token: Option<u64>,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u64>,
    /// Its report about loading.
    pub load: Value,
    /// The page cache before the run.
    pub before: Proof,
}

impl Child<'_> {
    /// Runs it as `cell` specifies.
    pub fn run(&self, cell: &Cell, model: &Path, before: Proof) -> anyhow::Result<Sample> {
        let mut command =
            Command::new(std::env::current_exe().context("cannot find this program")?);
        match cell.state {
            State::Cold | State::Warm => {
                command.arg("run").arg(model).args(["--raw", "-n", "1", "--temp", "0", "--json"]);
                // After `-p`, because a prompt may begin with a dash.
                command.arg("-p").arg(self.prompt);
            }
            State::Resident => {
                command.args(["bench", "resident"]).arg(model);
                command.arg("-p").arg(self.prompt).args(["-r", &PROMPTS.to_string()]);
            }
        }
        command.args(["--load", cell.load.name(), "--repack", cell.variant.flag()]);
        if let Some(threads) = self.threads {
            command.arg("-t").arg(threads.to_string());
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let began = Instant::now();
        let mut process = command.spawn().context("cannot start this program again")?;
        let mut said = Vec::new();
        if let Some(mut stdout) = process.stdout.take() {
            stdout.read_to_end(&mut said).context("cannot read what it writes")?;
        }
        let mut errors = Vec::new();
        if let Some(mut stderr) = process.stderr.take() {
            let _ = stderr.read_to_end(&mut errors);
        }
        let ended = rusage::wait(process, began).context("cannot wait for it")?;
        match ended.status {
            Status::Exited(0) => {}
            Status::Exited(code) => {
                return Err(anyhow!("exit status {code}: {}", complaint(&errors)));
            }
            Status::Killed { signal, .. } => {
                return Err(anyhow!("killed by signal {signal}: {}", complaint(&errors)));
            }
        }
        let told: Value = serde_json::from_slice(&said).context("its line is not JSON")?;
        sample(&told, &ended.usage, before)
    }
}

/// Returns the sample from a process's output and its resource usage.
fn sample(told: &Value, used: &Usage, before: Proof) -> anyhow::Result<Sample> {
    let number = |pointer: &str| told.pointer(pointer).and_then(Value::as_u64);
    let first_token_ms = told
        .pointer("/timings/first_token_ms")
        .and_then(Value::as_f64)
        .ok_or_else(|| anyhow!("it made no token"))?;
    Ok(Sample {
        first_token_ms,
        process_ms: used.wall.as_secs_f64() * 1e3,
        read_bytes: used.read_bytes,
        minor_faults: number("/faults/minor").or(Some(used.minor_faults)),
        major_faults: number("/faults/major").or(Some(used.major_faults)),
        rss_anon: number("/memory/rss_anon"),
        rss_file: number("/memory/rss_file"),
        pss: number("/memory/pss"),
        peak_rss: number("/memory/peak_rss"),
        token: number("/tokens/0"),
        prompt_tokens: number("/prompt_tokens"),
        load: told.get("load").cloned().unwrap_or(Value::Null),
        before,
    })
}

/// Returns the reason that a failed program printed: its error line, or its last line.
pub fn complaint(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    if let Some((_, why)) = text.lines().find_map(|line| line.split_once("error: ")) {
        return why.to_owned();
    }
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    #[test]
    fn what_it_says_of_itself_is_taken() {
        let before = Proof { pages: 1, cached: 0, counted: true };
        let used = Usage {
            wall: Duration::from_millis(20),
            read_bytes: Some(5),
            minor_faults: 6,
            major_faults: 7,
            ..Usage::default()
        };
        let told = json!({"timings": {"first_token_ms": 12.5}, "tokens": [42], "prompt_tokens": 5,
            "memory": {"rss_anon": 1, "rss_file": 2, "pss": 3, "peak_rss": 4},
            "faults": {"minor": 60, "major": 0}, "load": {"how": "mmap"}});
        let got = sample(&told, &used, before).unwrap();
        assert_eq!((got.first_token_ms, got.read_bytes, got.token), (12.5, Some(5), Some(42)));
        assert_eq!((got.rss_anon, got.pss, got.peak_rss), (Some(1), Some(3), Some(4)));
        assert_eq!((got.minor_faults, got.major_faults), (Some(60), Some(0)));
        let little = sample(&json!({"timings": {"first_token_ms": 1.0}}), &used, before);
        let little = little.unwrap();
        assert_eq!((little.major_faults, little.rss_anon), (Some(7), None));
        assert!(sample(&json!({"timings": {"first_token_ms": null}}), &used, before).is_err());
        assert_eq!(complaint(b"a\nb\n\n"), "b");
        assert_eq!(complaint(b"note: a\nalight: error: no\n\nUsage: x\n"), "no");
    }
}
