//! What this machine can do: the limits that results are shares of.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use alight_kernels::{Isa, peak};
use serde::Serialize;

/// Bytes that are read per pass by all threads together: well beyond the caches of a desktop.
const BUFFER: usize = 512 << 20;
/// Rounds of multiplications per pass: some 10 ms.
const ROUNDS: usize = 5_000_000;
/// Passes; the fastest counts, as it is a limit that is sought.
const PASSES: usize = 9;

/// Measured limits.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Limits {
    /// Bytes per second that all threads together read from memory.
    pub read_bytes_per_second: f64,
    /// 8-bit multiply-accumulates per second of all threads together.
    pub int8_macs_per_second: f64,
}

/// Measures with `threads` threads and the kernels `isa`. Takes about a second.
pub fn measure(threads: usize, isa: Isa) -> Limits {
    let share = (BUFFER / threads.max(1)).next_multiple_of(4096);
    Limits {
        read_bytes_per_second: best(
            threads,
            PASSES,
            // Written by the thread that reads it, so that it lies where that thread runs.
            || vec![1u8; share],
            |buffer| {
                black_box(peak::read(isa, buffer));
                share as u64
            },
        ),
        int8_macs_per_second: best(
            threads,
            PASSES,
            || ROUNDS,
            |rounds| {
                black_box(peak::int8_products(isa, black_box(*rounds)));
                peak::int8_macs(isa, *rounds)
            },
        ),
    }
}

/// The most that `threads` threads together do per second: each prepares once, then all work at
/// the same time, `passes` times; `work` returns how much it did. The fastest pass counts, from
/// the first thread's start to the last one's end. The threads take the time themselves: one more
/// that only watched would have no core to run on.
fn best<T>(
    threads: usize,
    passes: usize,
    prepare: impl Fn() -> T + Sync,
    work: impl Fn(&T) -> u64 + Sync,
) -> f64 {
    let threads = threads.max(1);
    let barrier = Barrier::new(threads);
    let runs: Vec<Vec<(Instant, Instant, u64)>> = thread::scope(|scope| {
        let run = || {
            let prepared = prepare();
            let pass = |_| {
                barrier.wait();
                let began = Instant::now();
                let done = work(&prepared);
                (began, Instant::now(), done)
            };
            (0..passes).map(pass).collect()
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        // A panic there has already ended the process through the hook.
        workers.into_iter().filter_map(|w| w.join().ok()).collect()
    });
    let rate = |pass: usize| {
        let began = runs.iter().map(|r| r[pass].0).min()?;
        let ended = runs.iter().map(|r| r[pass].1).max()?;
        let done: u64 = runs.iter().map(|r| r[pass].2).sum();
        Some(done as f64 / (ended - began).as_secs_f64())
    };
    (0..passes).filter_map(rate).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_rate_counts_what_all_threads_do_in_the_time_of_one_pass() {
        let rate = best(
            3,
            2,
            || Duration::from_millis(20),
            |d| {
                thread::sleep(*d);
                10
            },
        );
        // 30 per 20 ms or a little more, not 30 per 40 ms, and never more than 1500 per second.
        assert!((300.0..1501.0).contains(&rate), "{rate}");
    }
}
