//! The kernel and its host's side without a GPU: the source is compiled as C++ with threads for blocks, after a stand-in for the
//! driver, and everything that a GPU must show is checked on it. Skipped where there is no C++ compiler.
#![cfg(target_os = "linux")]

use std::process::Command;

use alight_xla::cuda::blocks::{Sizes, TYPES};

use crate::cuda_checks::{Checked, Extent, adversaries, agreement, blocks, controls};
use crate::emulator::{self, compile, emulated};

const EXTENT: Extent = Extent { ranks: 8, calls: 400, replays: 300, large: false };

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

#[test]
fn products_with_blocks_are_right_and_the_same_bits_in_any_company() {
    run(|_| TYPES.into_iter().try_for_each(|ty| blocks::products(ty, false)));
}

#[test]
fn pairs_have_the_bits_of_products() {
    run(|_| TYPES.into_iter().try_for_each(|ty| blocks::pairs(ty, false)));
    run(|_| blocks::far_away());
}

#[test]
fn rows_of_blocks_are_those_of_the_cpu() {
    run(|_| TYPES.into_iter().try_for_each(|ty| blocks::rows(ty, false)));
}

#[test]
fn products_are_captured() {
    run(|_| blocks::captured());
}

#[test]
fn mistakes_in_products_are_found() {
    run(|_| blocks::broken(&blocks::MISTAKES).and_then(|()| blocks::broken(&[blocks::NO_WAIT])));
    run(|_| blocks::broken_pairs());
}

/// The host asks for as much shared memory as the kernels use.
#[test]
fn host_and_kernels_have_the_same_sizes() {
    run(|_| {
        let path = std::env::var("ALIGHT_LIBCUDA").unwrap();
        for (at, ty) in TYPES.into_iter().enumerate() {
            let sizes = Sizes::of(ty);
            let here = [sizes.place, sizes.run, sizes.stages];
            assert_eq!(emulator::sizes_of_blocks(&path, at as i32), here, "{ty}");
        }
        Ok(())
    });
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
