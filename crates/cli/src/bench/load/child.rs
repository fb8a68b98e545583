//! One run of this program, watched from outside.
//!
//! What it read from the disk and its faults are the kernel's account of the whole process
//! (/proc/PID/io and /proc/PID/stat), taken when it has ended and before it is buried; its memory is
//! what it says of itself at the end, since then the kernel has taken it away.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use serde::Serialize;
use serde_json::Value;

use super::cells::{Cell, State};
use super::state::Proof;
use crate::account;

/// Prompts that a resident process answers; the first of them is not counted.
const PROMPTS: usize = 4;

/// What all runs have in common.
#[derive(Debug)]
pub struct Child<'a> {
    /// The text.
    pub prompt: &'a str,
    /// `-t`.
    pub threads: Option<usize>,
}

/// What one run showed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Milliseconds to the first token, by its own clock.
    pub first_token_ms: f64,
    /// Milliseconds from before it was made until it was gone.
    pub process_ms: f64,
    /// Bytes that the process had read from a disk; `None` where the system does not say.
    pub read_bytes: Option<u64>,
    /// Faults of the process.
    pub minor_faults: Option<u64>,
    /// Faults for which something had to be read; of a resident process, after its first answer.
    pub major_faults: Option<u64>,
    /// Bytes of its own, of files, shared ones by parts, and the most of all kinds.
    pub rss_anon: Option<u64>,
    #[allow(missing_docs)]
    pub rss_file: Option<u64>,
    #[allow(missing_docs)]
    pub pss: Option<u64>,
    #[allow(missing_docs)]
    pub peak_rss: Option<u64>,
    /// The first token, which has to be the same in all cells.
    pub token: Option<u64>,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u64>,
    /// What it says about loading.
    pub load: Value,
    /// What was in the page cache before.
    pub before: Proof,
}

impl Child<'_> {
    /// Runs it in the way of `cell`.
    pub fn run(&self, cell: &Cell, model: &Path, before: Proof) -> anyhow::Result<Sample> {
        let mut command =
            Command::new(std::env::current_exe().context("cannot find this program")?);
        match cell.state {
            State::Cold | State::Warm => {
                command.arg("run").arg(model).args(["--raw", "-n", "1", "--temp", "0", "--json"]);
                // Behind `-p`, because a prompt may begin with a dash.
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
        let account = Account::of_ended(process.id());
        let process_ms = began.elapsed().as_secs_f64() * 1e3;
        let mut errors = Vec::new();
        if let Some(mut stderr) = process.stderr.take() {
            let _ = stderr.read_to_end(&mut errors);
        }
        let status = process.wait().context("cannot wait for it")?;
        if !status.success() {
            return Err(anyhow!("{status}: {}", complaint(&errors)));
        }
        let told: Value = serde_json::from_slice(&said).context("its line is not JSON")?;
        sample(&told, process_ms, account, before)
    }
}

/// What a process told, and what is known of it.
fn sample(
    told: &Value,
    process_ms: f64,
    account: Account,
    before: Proof,
) -> anyhow::Result<Sample> {
    let number = |pointer: &str| told.pointer(pointer).and_then(Value::as_u64);
    let first_token_ms = told
        .pointer("/timings/first_token_ms")
        .and_then(Value::as_f64)
        .ok_or_else(|| anyhow!("it made no token"))?;
    Ok(Sample {
        first_token_ms,
        process_ms,
        read_bytes: account.read_bytes,
        minor_faults: number("/faults/minor").or(account.minor_faults),
        major_faults: number("/faults/major").or(account.major_faults),
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

/// Why a program says that it failed: its line of an error, or its last.
pub fn complaint(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    if let Some((_, why)) = text.lines().find_map(|line| line.split_once("error: ")) {
        return why.to_owned();
    }
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing").to_owned()
}

/// The kernel's account of a process that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Account {
    read_bytes: Option<u64>,
    minor_faults: Option<u64>,
    major_faults: Option<u64>,
}

impl Account {
    /// Waits until the process has ended, which it is about to: its output is closed.
    fn of_ended(pid: u32) -> Account {
        let process = pid.to_string();
        let patience = Instant::now() + Duration::from_secs(60);
        let stat = loop {
            match account::stat(&process) {
                Some(stat) if stat.ended || Instant::now() > patience => break stat,
                Some(_) => std::thread::sleep(Duration::from_micros(200)),
                // Not Linux.
                None => return Account::default(),
            }
        };
        Account {
            read_bytes: account::bytes_read_by(&process),
            minor_faults: Some(stat.faults.minor),
            major_faults: Some(stat.faults.major),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_process_that_has_ended_still_has_an_account() {
        if !cfg!(target_os = "linux") {
            return;
        }
        let mut process = Command::new("true").spawn().unwrap();
        let account = Account::of_ended(process.id());
        process.wait().unwrap();
        assert!(account.minor_faults.unwrap() > 10, "{account:?}");
        assert!(account.major_faults.is_some() && account.read_bytes.is_some(), "{account:?}");
    }

    #[test]
    fn what_it_says_of_itself_is_taken() {
        let before = Proof { pages: 1, cached: 0, counted: true };
        let account = Account { read_bytes: Some(5), minor_faults: Some(6), major_faults: Some(7) };
        let told = json!({"timings": {"first_token_ms": 12.5}, "tokens": [42], "prompt_tokens": 5,
            "memory": {"rss_anon": 1, "rss_file": 2, "pss": 3, "peak_rss": 4},
            "faults": {"minor": 60, "major": 0}, "load": {"how": "mmap"}});
        let got = sample(&told, 20.0, account, before).unwrap();
        assert_eq!((got.first_token_ms, got.read_bytes, got.token), (12.5, Some(5), Some(42)));
        assert_eq!((got.rss_anon, got.pss, got.peak_rss), (Some(1), Some(3), Some(4)));
        assert_eq!((got.minor_faults, got.major_faults), (Some(60), Some(0)));
        let little = sample(&json!({"timings": {"first_token_ms": 1.0}}), 2.0, account, before);
        let little = little.unwrap();
        assert_eq!((little.major_faults, little.rss_anon), (Some(7), None));
        assert!(
            sample(&json!({"timings": {"first_token_ms": null}}), 2.0, account, before).is_err()
        );
        assert_eq!(complaint(b"a\nb\n\n"), "b");
        assert_eq!(complaint(b"note: a\nalight: error: no\n\nUsage: x\n"), "no");
    }
}
