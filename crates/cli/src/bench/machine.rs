//! The limits of this machine: results are given as shares of them.

use std::hint::black_box;
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::Instant;

use alight_kernels::{Isa, peak};
use serde::Serialize;

use crate::memory;

/// Bytes that all threads together read per pass: well beyond the caches of a desktop.
pub const WANTED: u64 = 512 << 20;
/// Minimum bytes that a thread reads, however little memory is available.
const MIN_BYTES_PER_THREAD: u64 = 1 << 20;
/// Rounds of multiplications per pass: about 10 ms.
const ROUNDS: usize = 5_000_000;
/// Passes; the fastest counts, because the goal is a limit.
const PASSES: usize = 9;

/// Measured limits.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MachineLimits {
    /// Bytes per second that all threads together read from memory.
    pub read_bytes_per_second: f64,
    /// 8-bit multiply-accumulates per second of all threads together.
    pub int8_macs_per_second: f64,
    /// Number of threads that ran: as many as requested, or as many as could be started.
    pub threads: usize,
    /// Bytes that they read in a pass: [`WANTED`], or less if there was not enough memory.
    pub read_bytes: u64,
}

/// Measures with `threads` threads, the kernels `isa`, and at most `spare` bytes of memory, but
/// never less than a measurement needs. Needs about a second.
pub fn measure(threads: usize, isa: Isa, spare: u64) -> MachineLimits {
    let share = WANTED.min(spare) / threads.max(1) as u64;
    let read = best(
        threads,
        PASSES,
        // Written by the thread that reads it, so that it is in the memory local to that thread's core.
        || buffer(share),
        |buffer| {
            black_box(peak::read(isa, buffer));
            buffer.len() as u64
        },
    );
    let multiply = best(
        threads,
        PASSES,
        || ROUNDS,
        |rounds| {
            black_box(peak::int8_products(isa, black_box(*rounds)));
            peak::int8_macs(isa, *rounds)
        },
    );
    MachineLimits {
        read_bytes_per_second: read.per_second,
        int8_macs_per_second: multiply.per_second,
        threads: read.threads.min(multiply.threads),
        read_bytes: read.done,
    }
}

/// Returns whole pages of at least `share` bytes, or fewer if the system cannot provide them.
fn buffer(share: u64) -> Vec<u8> {
    let mut len = share.max(MIN_BYTES_PER_THREAD).next_multiple_of(4096) as usize;
    let mut buffer: Vec<u8> = Vec::new();
    memory::expecting_refusal(|| {
        while buffer.try_reserve_exact(len).is_err() && len > 4096 {
            len = (len / 2).next_multiple_of(4096);
        }
    });
    buffer.resize(len, 1);
    buffer
}

/// The maximum rate of the threads together.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Best {
    per_second: f64,
    /// In one pass.
    done: u64,
    threads: usize,
}

/// Returns the maximum rate of `threads` threads (or as many as the system can start) together:
/// each prepares once, then all work at the same time, `passes` times; `work` returns the amount of
/// its work. The fastest pass counts, from the first thread's start to the last one's end. The
/// threads take the time themselves, and this one is one of them: one more that only watched would
/// have no core to run on.
fn best<T>(
    threads: usize,
    passes: usize,
    prepare: impl Fn() -> T + Sync,
    work: impl Fn(&T) -> u64 + Sync,
) -> Best {
    // Set once the number of threads is known.
    let barrier: OnceLock<Barrier> = OnceLock::new();
    let run = || {
        let barrier = barrier.wait();
        let prepared = prepare();
        let pass = |_| {
            barrier.wait();
            let began = Instant::now();
            let done = work(&prepared);
            (began, Instant::now(), done)
        };
        (0..passes).map(pass).collect::<Vec<_>>()
    };
    let runs: Vec<Vec<(Instant, Instant, u64)>> = thread::scope(|scope| {
        let start = |_| thread::Builder::new().spawn_scoped(scope, run).ok();
        let others: Vec<_> = (1..threads).map_while(start).collect();
        let count = others.len() + 1;
        barrier.get_or_init(|| Barrier::new(count));
        let own = run();
        // A panic there has already ended the process through the hook.
        others.into_iter().filter_map(|other| other.join().ok()).chain([own]).collect()
    });
    let done = |pass: usize| runs.iter().map(|r| r[pass].2).sum::<u64>();
    let rate = |pass: usize| {
        let began = runs.iter().map(|r| r[pass].0).min()?;
        let ended = runs.iter().map(|r| r[pass].1).max()?;
        Some(done(pass) as f64 / (ended - began).as_secs_f64())
    };
    Best {
        per_second: (0..passes).filter_map(rate).fold(0.0, f64::max),
        done: if passes == 0 { 0 } else { done(0) },
        threads: runs.len(),
    }
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
        // 30 per 20 ms or slightly more, not 30 per 40 ms, and never more than 1500 per second.
        assert!((300.0..1501.0).contains(&rate.per_second), "{rate:?}");
        assert_eq!((rate.done, rate.threads), (30, 3));
    }
}
