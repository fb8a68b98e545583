//! A mixture of experts in less memory than it takes, as a process whose memory, faults and reads the kernel counts, in a control group
//! that the model does not fit into: it answers as in all of the memory, and what another process has cached stays.
#![cfg(target_os = "linux")]

#[path = "../src/bench/experts/group.rs"]
mod group;
mod support;
#[path = "support/wild.rs"]
mod wild;

use std::fs::{self, File};
use std::process::Stdio;

use alight_pages::{CacheProbe, evict, residency};
use group::Group;
use serde_json::Value;
use support::{alight, done, write};
use wild::{Moe, Spec};

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
