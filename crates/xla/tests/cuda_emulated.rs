//! The kernel and its host's side without a GPU: the source is compiled as C++ with threads for blocks, behind a stand-in for the
//! driver, and everything that a GPU must show is checked on it. Skipped where there is no C++ compiler.
#![cfg(target_os = "linux")]

mod cuda_checks;

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use cuda_checks::{Checked, Extent, adversaries, agreement, controls};

const EXTENT: Extent = Extent { ranks: 8, calls: 400, replays: 300, large: false };

fn source(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("cuda/emulated").join(name)
}

/// Compiles unless it has been: the name has a hash of everything that goes into it. None without a compiler.
fn compile(name: &str, output: &str, options: &[&str]) -> Option<PathBuf> {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hash = DefaultHasher::new();
    for file in ["../allreduce_norm.cu", "shim.h", "kernels.h", name] {
        std::fs::read(source(file)).unwrap().hash(&mut hash);
    }
    options.hash(&mut hash);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("{output}-{:016x}", hash.finish()));
    if path.exists() {
        return Some(path);
    }
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".into());
    let temporary = folder.join(format!("{output}-{}", std::process::id()));
    let done = Command::new(&compiler)
        .args(["-std=c++17", "-O1", "-pthread", "-ffp-contract=off", "-U_FORTIFY_SOURCE", "-w"])
        .args(options)
        .arg("-o")
        .args([&temporary, &source(name)])
        .output();
    match done {
        Err(error) => {
            println!("skipped: no C++ compiler, {compiler}: {error}");
            None
        }
        Ok(output) if !output.status.success() => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(said.contains("tsan"), "{said}");
            println!("skipped: {compiler} has no thread sanitizer");
            None
        }
        Ok(_) => {
            std::fs::rename(&temporary, &path).unwrap();
            Some(path)
        }
    }
}

/// Takes the emulated driver instead of CUDA's. False where there is none.
fn emulated() -> bool {
    static READY: OnceLock<bool> = OnceLock::new();
    *READY.get_or_init(|| {
        let Some(path) = compile("driver.cpp", "libcuda_emulated.so", &["-fPIC", "-shared"]) else {
            return false;
        };
        for name in ["ALIGHT_LIBCUDA", "ALIGHT_LIBNVRTC"] {
            // SAFETY: nobody reads the environment before: every test begins here.
            unsafe { std::env::set_var(name, &path) };
        }
        true
    })
}

fn run(check: impl Fn(Extent) -> Checked) {
    if emulated() {
        check(EXTENT).unwrap();
    }
}

#[test]
fn results_are_right_and_the_same_bits() {
    run(agreement::everything);
}

#[test]
fn what_is_not_finite_stays_so() {
    run(agreement::not_finite);
}

#[test]
fn late_ranks() {
    run(adversaries::delays);
}

#[test]
fn changing_shapes() {
    run(adversaries::alternating);
}

#[test]
fn numbers_of_calls_wrap() {
    run(adversaries::wrapping);
}

#[test]
fn a_rank_that_never_comes() {
    run(adversaries::missing);
}

#[test]
fn two_calls_at_the_same_time() {
    run(adversaries::in_flight);
}

#[test]
fn many_calls() {
    run(adversaries::chained);
}

#[test]
fn many_replays() {
    run(adversaries::replays);
}

#[test]
fn broken_variants_fail() {
    run(controls::all_fail);
}

/// Every access of the protocol, by a thread sanitizer: nothing races; without release, or with one buffer, it must find that.
#[test]
fn no_accesses_race() {
    for (broken, races) in [("RIGHT", false), ("NO_RELEASE", true), ("ONE_BUFFER", true)] {
        let option = format!("-DALIGHT_{broken}");
        let Some(path) = compile("race.cpp", "race", &["-fsanitize=thread", "-g", &option]) else {
            return;
        };
        for (ranks, calls) in [("2", "20000"), ("4", "4000")] {
            let mut command = Command::new(&path);
            let output = command
                .args([ranks, calls])
                .env("TSAN_OPTIONS", "halt_on_error=1")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            if said.contains("FATAL: ThreadSanitizer") {
                return println!("skipped: the thread sanitizer does not run here: {said}");
            }
            assert_eq!(output.status.success(), !races, "{broken}, {ranks} ranks: {said}");
            // With one buffer results may be wrong before the sanitizer has looked.
            let must_say = broken == "NO_RELEASE";
            assert!(!must_say || said.contains("data race"), "{broken}, {ranks} ranks: {said}");
        }
    }
}
