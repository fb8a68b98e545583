//! Whether the account is true: programs that use a known amount of something.

#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::support;

const MIB: u64 = 1 << 20;

fn rusage(arguments: &[&str]) -> Output {
    support::rusage().args(arguments).output().unwrap()
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// The account of one run.
fn one(arguments: &[&str]) -> Value {
    let report = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = report.path().to_str().unwrap();
    let output = rusage(&[&["--json", "-o", path], arguments].concat());
    assert!(output.status.success(), "{output:?}");
    let told: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    told["runs"][0].clone()
}

fn number(run: &Value, name: &str) -> u64 {
    run[name].as_u64().unwrap_or_else(|| panic!("{name} in {run}"))
}

/// A file of random bytes on the build's disk, written out.
fn file(folder: &Path, name: &str, bytes: u64) -> String {
    let path = folder.join(name);
    let mut data = vec![0u8; bytes as usize];
    let mut x = 88_172_645_463_325_252_u64;
    for chunk in data.chunks_exact_mut(8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        chunk.copy_from_slice(&x.to_le_bytes());
    }
    fs::write(&path, data).unwrap();
    fs::File::open(&path).unwrap().sync_all().unwrap();
    path.to_str().unwrap().to_owned()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// True if this disk's reads are accounted for at all (not those of tmpfs, nor of some containers).
fn storage_counts(path: &str) -> bool {
    let run = one(&["--cold", path, "cat", path]);
    let counts = number(&run, "read_bytes") > 0;
    if !counts {
        eprintln!("skipped: reads of this file system are not counted");
    }
    counts
}

#[test]
fn wall_time_is_what_passed() {
    let run = one(&["sleep", "0.2"]);
    let wall = number(&run, "wall_us");
    assert!((200_000..2_000_000).contains(&wall), "{wall}");
    assert!(number(&run, "user_us") + number(&run, "system_us") < 100_000);
    assert_eq!(run["cpu_split_reliable"], false);
    assert!(number(&run, "voluntary_switches") >= 1);
}

#[test]
fn processor_time_and_its_kernels_share() {
    // Reads of zeroes are the kernel's work; a loop of the shell is not.
    let kernel = one(&["dd", "if=/dev/zero", "of=/dev/null", "bs=4M", "count=500"]);
    let user = one(&["sh", "-c", "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done"]);
    for (run, of_kernel) in [(&kernel, true), (&user, false)] {
        let (user, system) = (number(run, "user_us"), number(run, "system_us"));
        assert!(user + system <= number(run, "wall_us") + 10_000, "one thread: {run}");
        if run["cpu_split_reliable"] == true {
            assert_eq!(system > user, of_kernel, "{run}");
        }
    }
}

#[test]
fn the_peak_size_is_the_programs() {
    let small = number(&one(&["true"]), "max_rss_bytes");
    // dd has one buffer of this size and touches all of it.
    let large =
        number(&one(&["dd", "if=/dev/zero", "of=/dev/null", "bs=64M", "count=1"]), "max_rss_bytes");
    assert!((64 * MIB..72 * MIB).contains(&large), "{large}");
    assert!(small < 8 * MIB, "{small}");
    // The largest of its processes, not their sum.
    let line = "for i in 1 2 3; do dd if=/dev/zero of=/dev/null bs=32M count=1 2>/dev/null; done";
    let many = number(&one(&["sh", "-c", line]), "max_rss_bytes");
    assert!((32 * MIB..40 * MIB).contains(&many), "{many}");
}

/// The size of the wrapper, and of whoever started that, must not show in the command's.
#[test]
fn a_small_command_is_small_whoever_asks() {
    // 300 MiB in this process, which is the wrapper's parent.
    let ballast = vec![1u8; 300 * MIB as usize];
    let run = one(&["true"]);
    assert!(std::hint::black_box(&ballast).iter().all(|&b| b == 1));
    assert!(number(&run, "max_rss_bytes") < 8 * MIB, "{run}");
    assert!(number(&run, "max_rss_floor_bytes") < 8 * MIB, "{run}");
    assert!(number(&run, "max_rss_floor_bytes") > 0, "{run}");
}

#[test]
fn page_faults_and_bytes_from_storage() {
    let folder = folder();
    let path = file(folder.path(), "data", 16 * MIB);
    if !storage_counts(&path) {
        return;
    }
    let cold = one(&["--cold", &path, "cat", &path]);
    let read = number(&cold, "read_bytes");
    assert!((16 * MIB..18 * MIB).contains(&read), "bytes, not blocks: {read}");
    assert_eq!(number(&cold["io"], "read_bytes"), read);
    assert!(number(&cold["io"], "rchar") >= 16 * MIB);
    let evicted = &cold["evicted"][0];
    assert_eq!(evicted["file"], path.as_str());
    assert_eq!(number(evicted, "cached_after_bytes"), 0);
    // The system may have taken a page back by itself meanwhile.
    let before = number(evicted, "cached_before_bytes");
    assert!((15 * MIB..=16 * MIB).contains(&before), "{before}");
    // Now it is cached.
    let warm = one(&["cat", &path]);
    assert!(number(&warm, "read_bytes") < MIB, "{warm}");
    // What is written is what the disk has to take.
    let copy = format!("{path}.copy");
    let run = one(&["sh", "-c", &format!("cat {path} > {copy}")]);
    let written = number(&run, "written_bytes");
    assert!((16 * MIB..17 * MIB).contains(&written), "{written}");
    // The lines say so too.
    let lines = String::from_utf8(rusage(&["--cold", &path, "cat", &path]).stderr).unwrap();
    let line = lines.lines().find(|line| line.contains("i/o")).unwrap();
    let bytes: String =
        line.split(" bytes of read").next().unwrap().chars().filter(char::is_ascii_digit).collect();
    assert!((16 * MIB..18 * MIB).contains(&bytes.parse().unwrap()), "{line}");
}

#[test]
fn files_that_cannot_be_made_cold_are_not_run_upon() {
    let folder = folder();
    let path = file(folder.path(), "data", 4 * MIB);
    // A page that is mapped and touched stays.
    let held = std::fs::File::open(&path).unwrap();
    // SAFETY: a new map of a file that nobody changes.
    let byte = unsafe {
        let map = libc::mmap(
            std::ptr::null_mut(),
            MIB as usize,
            libc::PROT_READ,
            libc::MAP_SHARED,
            std::os::fd::AsRawFd::as_raw_fd(&held),
            0,
        );
        assert_ne!(map, libc::MAP_FAILED);
        libc::mlock(map, MIB as usize);
        *map.cast::<u8>()
    };
    std::hint::black_box(byte);
    let marker = folder.path().join("ran");
    let run = rusage(&["--cold", &path, "touch", marker.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(125), "{said}");
    assert!(said.contains(&path) && said.contains("stay in the page cache"), "{said}");
    assert!(!marker.exists());
    let run = rusage(&["--cold", "/no/such/file", "true"]);
    assert_eq!(run.status.code(), Some(125));
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let run = rusage(&["--cold", empty.to_str().unwrap(), "true"]);
    assert!(String::from_utf8_lossy(&run.stderr).contains("no file is there"));
}

#[test]
fn runs_are_counted_warmed_up_and_summarised() {
    let folder = folder();
    let log = folder.path().join("log");
    let line = format!("echo x >> {}", log.display());
    let output = rusage(&["--json", "-n", "5", "-w", "2", "sh", "-c", &line]);
    let told = json(&output);
    assert_eq!(told["runs"].as_array().unwrap().len(), 5);
    assert_eq!(fs::read_to_string(&log).unwrap().lines().count(), 7);
    let walls: Vec<u64> =
        told["runs"].as_array().unwrap().iter().map(|r| number(r, "wall_us")).collect();
    let wall = &told["summary"]["wall_us"];
    assert_eq!(wall["min"].as_f64().unwrap().floor() as u64, *walls.iter().min().unwrap());
    assert_eq!(wall["max"].as_f64().unwrap().floor() as u64, *walls.iter().max().unwrap());
    let mut sorted = walls.clone();
    sorted.sort_unstable();
    assert_eq!(wall["median"].as_f64().unwrap().floor() as u64, sorted[2]);
}

#[test]
fn the_first_failing_run_is_the_last_unless_told_otherwise() {
    let folder = folder();
    let log = folder.path().join("log");
    let line = format!("echo x >> {0}; [ $(wc -l < {0}) -ne 3 ]", log.display());
    let output = rusage(&["-n", "5", "-w", "0", "sh", "-c", &line]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("3 runs of"));
    assert_eq!(fs::read_to_string(&log).unwrap().lines().count(), 3);
    fs::remove_file(&log).unwrap();
    let output = rusage(&["--ignore-failure", "-n", "5", "-w", "0", "sh", "-c", &line]);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("failed in 1 of 5 runs"));
}

#[test]
fn two_commands_are_compared_in_turns() {
    let folder = folder();
    let log = folder.path().join("log");
    let say = |what: &str, pause: &str| format!("echo {what} >> {}; sleep {pause}", log.display());
    let other = format!("sh -c '{}'", say("b", "0.4"));
    let output =
        rusage(&["--json", "-n", "4", "-w", "0", "--vs", &other, "sh", "-c", &say("a", "0.01")]);
    let told = json(&output);
    let order: String = fs::read_to_string(&log).unwrap().lines().collect();
    assert_eq!(order, "abbaabba");
    let ratio = &told["versus"][0]["wall_ratio"];
    assert_eq!((number(ratio, "pairs"), number(ratio, "first_faster")), (4, 4));
    // Pair by pair: the median of the ratios, not the ratio of medians.
    let wall = |runs: &Value| -> Vec<f64> {
        runs.as_array().unwrap().iter().map(|r| number(r, "wall_us") as f64).collect()
    };
    let mut ratios: Vec<f64> = wall(&told["runs"])
        .iter()
        .zip(wall(&told["versus"][0]["runs"]))
        .map(|(a, b)| a / b)
        .collect();
    ratios.sort_by(f64::total_cmp);
    let expected = (ratios[1] + ratios[2]) / 2.0;
    assert!(
        (ratio["median"].as_f64().unwrap() / expected - 1.0).abs() < 0.01,
        "{ratio} {ratios:?}"
    );
    let lines = rusage(&["-n", "2", "-w", "0", "--vs", "sleep 0.4", "sleep", "0.01"]).stderr;
    let lines = String::from_utf8(lines).unwrap();
    assert!(lines.contains("'sleep 0.01' took 0.") && lines.contains("faster in 2"), "{lines}");
}

/// Three processes at once with 32 MiB each: the plain account has one of them.
#[test]
fn the_whole_tree_is_more_than_its_largest_process() {
    let hold =
        "dd if=/dev/zero bs=32M count=1 iflag=fullblock 2>/dev/null | (sleep 2; cat >/dev/null)";
    let line = format!("({hold}) & ({hold}) & ({hold}); wait");
    let run = one(&["--tree", "sh", "-c", &line]);
    assert!((32 * MIB..48 * MIB).contains(&number(&run, "max_rss_bytes")), "{run}");
    let peak = &run["tree_peak"];
    if peak.is_null() {
        eprintln!("skipped: neither control groups nor PSS here");
        return;
    }
    let bytes = number(peak, "bytes");
    assert!((96 * MIB..128 * MIB).contains(&bytes), "{peak}");
    match peak["how"].as_str().unwrap() {
        "pss" => assert!(number(peak, "samples") >= 2, "{peak}"),
        how => assert_eq!(how, "cgroup"),
    }
    let lines = String::from_utf8(rusage(&["--tree", "sh", "-c", &line]).stderr).unwrap();
    assert!(lines.contains("whole tree peaked at"), "{lines}");
}

/// Daemons detach themselves: their parent ends, and they have no part in the command's processes.
#[test]
fn daemons_are_of_the_tree_and_what_is_left_running_is_told() {
    let folder = folder();
    let done = folder.path().join("done");
    let hold = format!(
        "dd if=/dev/zero bs=48M count=1 iflag=fullblock 2>/dev/null | \
         (sleep 0.8; : > {0}; cat >/dev/null)",
        done.display()
    );
    let line = format!(
        "((setsid sh -c '{hold}' >/dev/null 2>&1 &) &); while ! [ -e {0} ]; do sleep 0.02; done",
        done.display()
    );
    let peak = one(&["--tree", "sh", "-c", &line])["tree_peak"].clone();
    if peak.is_null() {
        eprintln!("skipped: neither control groups nor PSS here");
        return;
    }
    let bytes = number(&peak, "bytes");
    assert!((48 * MIB..64 * MIB).contains(&bytes), "{peak}");
    // One that ends is waited for as soon as it is with any other parent.
    let line = "pid=$(sh -c 'sleep 0.1 >/dev/null & echo $!'); i=0; \
                while kill -0 $pid 2>/dev/null; do sleep 0.02; i=$((i+1)); [ $i -lt 900 ] || exit 9; done";
    let run = one(&["--tree", "sh", "-c", line]);
    assert_eq!(number(&run["tree_peak"], "left"), 0, "{run}");
    let line = "(setsid sleep 20 >/dev/null 2>&1 &) ; sleep 20 >/dev/null 2>&1 & sleep 0.2";
    let lines = String::from_utf8(rusage(&["--tree", "sh", "-c", line]).stderr).unwrap();
    assert!(
        lines.contains("left 2 processes running (counted up to the command's end)"),
        "{lines}"
    );
}

#[test]
fn counters_are_there_or_silently_absent() {
    let output = rusage(&["--counters", "true"]);
    let lines = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && !lines.contains("counters"), "{lines}");
    let run = one(&["--counters", "true"]);
    for counter in run["counters"].as_array().unwrap() {
        assert!(number(counter, "count") > 0, "{run}");
    }
    assert_eq!(lines.contains("instructions"), !run["counters"].as_array().unwrap().is_empty());
    assert!(one(&["true"])["counters"].is_null());
}

#[test]
fn dropping_all_caches_needs_root_and_says_so() {
    // SAFETY: takes nothing.
    if unsafe { libc::geteuid() } == 0 {
        // It works, but would disturb the tests beside this one: as nobody, then.
        let nobody = "setpriv --reuid 65534 --clear-groups";
        if Command::new("setpriv").args(["--version"]).output().is_err() {
            eprintln!("skipped: no setpriv to be somebody else with");
            return;
        }
        let line = format!("{nobody} {} --drop-caches true", env!("CARGO_BIN_EXE_rusage"));
        let output = Command::new("sh").args(["-c", &line]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if said.contains("setpriv") {
            eprintln!("skipped: {said}");
            return;
        }
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains("root") && said.contains("--cold"), "{said}");
        return;
    }
    let output = rusage(&["--drop-caches", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&output.stderr).contains("root"));
}
