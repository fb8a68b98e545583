//! Where memory is short, a copy takes nobody's place in the page cache: in a control group with less
//! memory than the file has bytes, what another file has cached stays, and plain `cp` destroys it.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use alight_pages::{CacheProbe, evict, residency};
use tempfile::TempDir;

use crate::support::group::Group;

const MIB: u64 = 1 << 20;
/// The group's memory, the copied file, and the bystander.
const LIMIT: u64 = 160 * MIB;
const FILE: u64 = 320 * MIB;
const BYSTANDER: u64 = 48 * MIB;

fn make(path: &Path, len: u64) -> File {
    let piece: Vec<u8> =
        (0..MIB as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    let mut file = File::create(path).unwrap();
    (0..len / MIB).for_each(|_| file.write_all(&piece).unwrap());
    // What is left behind a last page goes another way.
    file.write_all(&piece[..1000]).unwrap();
    file.sync_all().unwrap();
    File::open(path).unwrap()
}

fn cached(file: &File) -> u64 {
    residency(file, 0..u64::MAX).unwrap().cached * 4096
}

/// Pages that the system has scanned because the machine is short of memory. What a group's own limit causes is not counted here.
fn scanned_for_the_machine() -> u64 {
    let counters = fs::read_to_string("/proc/vmstat").unwrap();
    let count = |line: &str| {
        let (name, count) = line.split_once(' ')?;
        ["pgscan_kswapd", "pgscan_direct"].contains(&name).then(|| count.parse::<u64>().unwrap())
    };
    counters.lines().filter_map(count).sum()
}

/// Cached bytes: of the bystander before and after a copy; of the source meanwhile, at most; and of source and copy afterwards.
struct Seen {
    before: u64,
    after: u64,
    peak: u64,
    left: u64,
}

#[test]
fn what_a_bystander_has_cached_stays() {
    let group = match Group::make(LIMIT) {
        Ok(group) => group,
        Err(reason) => return eprintln!("skipped: no control group for memory: {reason}"),
    };
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = |name: &str| dir.path().join(name);
    let (source, bystander) = (make(&at("from"), FILE), make(&at("bystander"), BYSTANDER));
    match evict(&source) {
        Ok(left) if left.cached == 0 && left.probe == CacheProbe::Cachestat => {}
        other => return eprintln!("skipped: what is cached here cannot be told: {other:?}"),
    }
    let run = |args: &[&str]| assert!(group.command(args).status().unwrap().success(), "{args:?}");
    let (from, to) = (at("from"), at("to"));
    let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
    let alight = env!("CARGO_BIN_EXE_alight");
    // (plain cp, and what it leaves of the bystander, is the proof that the group is small enough.)
    for (copy, method) in [
        (&[alight, "cp", "--reflink=never"][..], "auto"),
        (&[alight, "cp"], "direct"),
        (&[alight, "cp"], "copy-file-range"),
        (&[alight, "cp"], "read-write"),
        (&["cp", "--reflink=never"], ""),
    ] {
        let way = format!("--method={method}");
        let mut args = copy.to_vec();
        if copy[0] == alight && method != "auto" {
            args.push(&way);
        }
        args.extend([from, to]);
        let copied = || {
            let _ = fs::remove_file(to);
            evict(&source).unwrap();
            evict(&bystander).unwrap();
            // Read within the group, so that it counts as the group's.
            run(&["sh", "-c", "cat \"$0\" > /dev/null", at("bystander").to_str().unwrap()]);
            let before = cached(&bystander);
            let (over, peak) = (AtomicBool::new(false), AtomicU64::new(0));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(Relaxed) {
                        peak.fetch_max(cached(&source), Relaxed);
                        std::thread::sleep(Duration::from_micros(500));
                    }
                });
                run(&args);
                over.store(true, Relaxed);
            });
            let left = cached(&source) + cached(&File::open(to).unwrap());
            Seen { before, after: cached(&bystander), peak: peak.into_inner(), left }
        };
        // Where the machine is short of memory, the system takes pages of every group, and a try shows nothing. It may take some at other times,
        // too; not three times in a row.
        let (start, mut tries) = (Instant::now(), 0);
        let seen = loop {
            let scanned = scanned_for_the_machine();
            let seen = copied();
            let spared = copy[0] != alight || seen.after == seen.before;
            tries += u32::from(scanned == scanned_for_the_machine());
            if (seen.before == BYSTANDER + 4096 && spared) || tries == 3 {
                break seen;
            }
            if start.elapsed() > Duration::from_secs(60) {
                return eprintln!("skipped: other programs take this machine's memory");
            }
        };
        eprintln!(
            "{} {method}: bystander {} of {} MiB, source at most {} MiB, left cached {} MiB",
            Path::new(copy[0]).file_name().unwrap().display(),
            seen.after / MIB,
            seen.before / MIB,
            seen.peak / MIB,
            seen.left / MIB,
        );
        assert_eq!(seen.before, BYSTANDER + 4096, "{method}: the bystander before");
        if copy[0] == alight {
            assert_eq!(seen.after, seen.before, "{method}: the bystander");
            assert_eq!(seen.left, 0, "{method}: left cached");
            assert!(seen.peak <= 64 * MIB, "{method}");
        } else {
            assert!(
                seen.after < seen.before / 2,
                "plain cp spares the bystander: the group is too large"
            );
            assert!(seen.left > 64 * MIB);
        }
    }
}
