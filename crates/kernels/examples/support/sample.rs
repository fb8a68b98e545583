//! What all examples that measure do in the same way: repeat, and tell what the repetitions were.
#![allow(dead_code)] // every example uses its own part

use std::hint::black_box;
use std::time::Instant;

/// Fewest repetitions.
const FEWEST: usize = 5;

/// Figures of several repetitions, the least first.
pub struct Sample(Vec<f64>);

impl Sample {
    /// Seconds of each call of `f`: as many as go into so many seconds, and at least a few.
    pub fn for_seconds<T>(seconds: f64, mut f: impl FnMut() -> T) -> Sample {
        let begin = Instant::now();
        let mut times = Vec::new();
        while times.len() < FEWEST || begin.elapsed().as_secs_f64() < seconds {
            times.push(time(&mut f));
        }
        Sample::of(times)
    }

    /// Seconds of each of `runs` calls of `f`.
    pub fn of_runs<T>(runs: usize, mut f: impl FnMut() -> T) -> Sample {
        Sample::of((0..runs).map(|_| time(&mut f)).collect())
    }

    /// Figures that have been taken already; there is one at least.
    pub fn of(mut figures: Vec<f64>) -> Sample {
        assert!(!figures.is_empty(), "nothing was measured");
        figures.sort_by(f64::total_cmp);
        Sample(figures)
    }

    /// The least: on a machine that others use too, the time that is nearest to the work itself.
    pub fn least(&self) -> f64 {
        self.0[0]
    }

    /// The most: of speeds what [`least`](Sample::least) is of times.
    pub fn most(&self) -> f64 {
        self.0[self.0.len() - 1]
    }

    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The figure below which this share of them are.
    pub fn quantile(&self, share: f64) -> f64 {
        self.0[((self.0.len() as f64 * share) as usize).min(self.0.len() - 1)]
    }
}

/// Seconds of one call. What it returns counts as used.
pub fn time<T>(f: impl FnOnce() -> T) -> f64 {
    let start = Instant::now();
    black_box(f());
    start.elapsed().as_secs_f64()
}
