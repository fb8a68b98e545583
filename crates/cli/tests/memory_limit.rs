//! In a control group with less memory than a model has bytes, a copy of its weights is refused with the
//! numbers, before anything is read, and the process is not killed in the middle; a map of the file runs.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use alight_formats::GgmlType;
use alight_pages::evict;

use crate::support::group::Group;
use crate::support::wild::{self, Spec};
use crate::support::{self, alight, done};

const LIMIT: u64 = 96 << 20;

/// A model whose matrices have more bytes than the group may use, all of them zero: of the file, only the
/// header takes room on the disk.
fn model(folder: &Path) -> String {
    let ty = GgmlType::Q8_0;
    let spec = Spec { embd: 512, ff: 32768, key_dim: 128, value_dim: 128, ty, ..Spec::llama() };
    let builder = wild::builder(spec);
    let (header, layout) = (builder.header(), builder.layout());
    let end = layout.last().map(|last| last.offset + last.nbytes).unwrap();
    assert!(end > LIMIT + (32 << 20), "{end}");
    let path = support::write(folder, "large.gguf", &header);
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(header.len() as u64 + end).unwrap();
    path
}

#[test]
fn weights_that_a_control_group_has_no_room_for_are_refused() {
    let group = match Group::make(LIMIT) {
        Ok(group) => group,
        Err(reason) => return eprintln!("skipped: no control group for memory: {reason}"),
    };
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let model = model(folder.path());
    let run = ["run", &model, "--raw", "a", "-n", "1", "-t", "1", "--temp", "0"];
    let within = |more: &[&str]| {
        let args = [&[env!("CARGO_BIN_EXE_alight")][..], &run, more].concat();
        let mut command = group.command(&args);
        done(command.stdin(Stdio::null()).output().unwrap())
    };
    // What would be swapped out is no reason to refuse.
    let swap = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let swap = swap.lines().find_map(|line| line.strip_prefix("SwapFree:")).unwrap_or("0 kB");
    let has_swap = swap.trim() != "0 kB";
    let limit = format!("the limit of cgroup {}", group.0.display());
    for more in [
        &["--load", "read"][..],
        &["--load", "direct"],
        &["--load", "mmap", "--repack", "on"],
        &["--load", "mmap", "--repack", "off", "--lock"],
    ] {
        let lock = more.contains(&"--lock");
        if has_swap && !lock {
            eprintln!("skipped: {more:?}: there is swap");
            continue;
        }
        // What is cached has its memory already, and may be locked.
        let file = File::open(&model).unwrap();
        if lock && !evict(&file).is_ok_and(|left| left.cached == 0) {
            eprintln!("skipped: {more:?}: the file stays in the page cache");
            continue;
        }
        let refused = within(more);
        if lock && refused.stderr.contains("RLIMIT_MEMLOCK") {
            eprintln!("skipped: {more:?}: this user may lock less than that");
            continue;
        }
        refused.fails(1, &["large.gguf", "of memory are needed for its weights", &limit]);
        let megabytes = |before: &str| -> f64 {
            let end = refused.stderr.find(before).unwrap();
            let (number, unit) = {
                let mut words = refused.stderr[..end].rsplit(' ');
                let unit = words.next().unwrap();
                (words.next().unwrap().parse::<f64>().unwrap(), unit)
            };
            number * [("kB", 1e-3), ("MB", 1.0)].iter().find(|one| one.0 == unit).unwrap().1
        };
        let limit = LIMIT as f64 / 1e6;
        let needed = megabytes(" of memory are needed");
        let available = megabytes(" can be had (");
        assert!(needed > limit && available <= limit, "{}", refused.stderr);
        // It is the group that is too small.
        if !lock {
            alight(&[&run[..], more].concat()).succeeds();
        }
    }
    within(&["--load", "mmap", "--repack", "off"]).succeeds();
    within(&[]).succeeds();
}
