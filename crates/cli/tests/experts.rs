//! A mixture of experts in less memory than it takes, as a process whose memory, faults and reads the kernel counts, in a control group
//! that the model does not fit into: it answers as in all of the memory, and what another process has cached stays.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::Read;
use std::process::{Child, Stdio};

use alight_pages::{CacheProbe, evict, residency};
use serde_json::Value;

use crate::support::group::Group;
use crate::support::wild::{self, Moe, Spec};
use crate::support::{alight, command, done, ended, kill, write};

const MIB: u64 = 1 << 20;
/// What the process may take, of which 96 MiB are for what a program has anyway.
const MEMORY: u64 = 160 * MIB;
const BYSTANDER: u64 = 32 * MIB;
/// More than that, so that what the process takes is its own choice.
const MORE: u64 = 16 * MIB;

#[test]
fn a_bystander_keeps_its_pages_and_no_step_faults() {
    let group = match Group::make(MEMORY + BYSTANDER + MORE) {
        Ok(group) => group,
        Err(reason) => return eprintln!("skipped: no control group for memory: {reason}"),
    };
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // 12 layers of 64 experts of 393 KB, in F32: 302 MB.
    let moe = Moe { experts: 64, used: 3, width: 128, ..Moe::default() };
    let spec = Spec { embd: 256, layers: 12, moe: Some(moe), ..Spec::qwen3moe() };
    let model = wild::model_of(folder.path(), spec);
    let file = File::open(&model).unwrap();
    let len = file.metadata().unwrap().len();
    assert!(len > MEMORY + BYSTANDER + MORE, "{len}");
    let run = [
        "run",
        &model,
        "--raw",
        "--prompt=a",
        "-n",
        "32",
        "--ignore-eos",
        "--temp",
        "1",
        "--seed",
        "5",
        "--json",
        "-t",
        "2",
    ];
    let told =
        |stdout: &str| -> Value { serde_json::from_str(stdout.lines().last().unwrap()).unwrap() };
    let whole = told(&alight(&[&run[..], &["--load", "mmap"]].concat()).succeeds().stdout);
    match evict(&file) {
        Ok(left) if left.cached == 0 && left.probe == CacheProbe::Cachestat => {}
        other => return eprintln!("skipped: what is cached here cannot be told: {other:?}"),
    }
    let bystander = write(folder.path(), "bystander", vec![7u8; BYSTANDER as usize]);
    let bystander_file = File::open(&bystander).unwrap();
    bystander_file.sync_all().unwrap();
    evict(&bystander_file).unwrap();
    let cached = |file: &File| residency(file, 0..u64::MAX).unwrap().cached * 4096;
    // The group pays for what it was the first to read.
    assert!(group.command(&["cat", &bystander]).stdout(Stdio::null()).status().unwrap().success());
    assert_eq!(cached(&bystander_file), BYSTANDER);
    let memory = MEMORY.to_string();
    let more = ["--memory", &memory, "--explain-load"];
    let args = [&[env!("CARGO_BIN_EXE_alight")][..], &run, &more].concat();
    let answered = done(group.command(&args).stdin(Stdio::null()).output().unwrap()).succeeds();
    let found = told(&answered.stdout);
    assert_eq!(found["tokens"], whole["tokens"]);
    assert!(answered.stderr.contains("fit into memory"), "{}", answered.stderr);
    // (Some systems give back a few pages that nobody has used for a while.)
    assert!(cached(&bystander_file) >= BYSTANDER / 100 * 98, "the bystander's pages are gone");
    if !answered.stderr.contains("direct: ") {
        return eprintln!("skipped: there are no direct reads here");
    }
    // Nothing of the experts went through the page cache, so no step has to wait for a page of the file. (A page of the program itself
    // may be brought at any time.)
    assert!(cached(&file) < len / 8, "{} of {len}", cached(&file));
    let faults = found["faults"]["major_after_first_token"].as_u64().unwrap();
    assert!(faults <= 2, "{faults} major faults");
    // By the group's own account, of version 1 or 2, all that it held at any time.
    let peak = ["memory.max_usage_in_bytes", "memory.peak"];
    let peak = peak.iter().find_map(|name| fs::read_to_string(group.0.join(name)).ok());
    let peak: u64 = peak.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    eprintln!(
        "peak of the group: {peak} bytes, {BYSTANDER} of them the bystander's, {MEMORY} for the model"
    );
    assert!(peak <= MEMORY / 100 * 102 + BYSTANDER, "{peak}");
}

/// One of two processes that share a model's experts is killed in the middle of its answer: the other's answer is what it would have
/// been, and who comes next is alone.
#[test]
fn who_is_killed_does_no_harm_to_another_process_of_the_model() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let moe = Moe { experts: 64, used: 3, width: 128, ..Moe::default() };
    let model = wild::model_of(
        folder.path(),
        Spec { embd: 256, layers: 4, moe: Some(moe), ..Spec::qwen3moe() },
    );
    File::open(&model).unwrap().sync_all().unwrap();
    let words = [
        "run",
        &model,
        "--raw",
        "--prompt=a",
        "--ignore-eos",
        "--temp",
        "1",
        "--seed",
        "5",
        "-t",
        "1",
    ];
    let run = |tokens: &str, more: &[&str]| -> Vec<String> {
        let all = [&words[..], &["-n", tokens], more].concat();
        all.into_iter().map(str::to_owned).collect()
    };
    let whole = alight(&run("300", &[])).succeeds().stdout;
    // As much as a half of the experts take, and what a program has anyway.
    let memory = ["--memory", "170M", "--explain-load"];
    let start = |tokens: &str| -> Child {
        let mut process = command(&run(tokens, &memory));
        process.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut first = start("100000");
    // It answers.
    first.stdout.as_mut().unwrap().read_exact(&mut [0; 8]).unwrap();
    let mut second = start("300");
    let mut output = second.stdout.take().unwrap();
    let mut answer = vec![0; 8];
    output.read_exact(&mut answer).unwrap();
    kill(&first, libc::SIGKILL);
    ended(&mut first);
    output.read_to_end(&mut answer).unwrap();
    let second = done(second.wait_with_output().unwrap()).succeeds();
    assert!(second.stderr.contains("fit into memory"), "{}", second.stderr);
    assert!(answer == whole.as_bytes(), "{} bytes, {} expected", answer.len(), whole.len());
    if !second.stderr.contains("another process of this model shares") {
        eprintln!("nothing was shared: {}", second.stderr);
    }
    let third = alight(&run("300", &memory)).succeeds();
    assert_eq!(third.stdout, whole);
    assert!(!third.stderr.contains("another process"), "{}", third.stderr);
    // The account of a run says what was read, too.
    let told = alight(&run("8", &["--memory", "170M", "--stats"])).succeeds().stderr;
    assert!(
        told.lines().any(|line| line.starts_with("experts ") && line.contains("waited")),
        "{told}"
    );
    let told = alight(&run("8", &["--memory", "170M", "--json"])).succeeds().stdout;
    let told: Value = serde_json::from_str(told.trim()).unwrap();
    let number = |name: &str| told["experts"][name].as_u64().unwrap_or_else(|| panic!("{told}"));
    assert_eq!(number("all"), 256);
    assert!(number("slots") < 256 && number("hits") <= number("wanted"));
    assert!(number("unwanted_bytes") <= number("read_bytes") && number("missed_bytes") > 0);
}
