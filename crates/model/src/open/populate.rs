//! A thread that brings the weights into the page tables ahead of the forward pass.
//!
//! For a file in the page cache this takes milliseconds per gigabyte, several times less than
//! faulting page by page. For one that is not, it is the read-ahead, in the order of use.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use alight_pages::Map;

use crate::weights::Weights;

/// What is asked of the system at a time; between two of them the thread can be stopped.
const STEP: usize = 16 << 20;

/// The thread, which dies with this.
pub(super) struct Populate {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    took: Mutex<Option<Duration>>,
}

impl Populate {
    /// Starts on the weights, layer by layer, the output last.
    pub(super) fn start(maps: &[Arc<Map>], weights: &Weights) -> Populate {
        let matrices = weights.layers.iter().flat_map(|layer| layer.matrices());
        let places = matrices.chain([&weights.output]).map(|matrix| matrix.place());
        let steps = steps(places);
        let maps = maps.to_vec();
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("alight-populate".into()).spawn(move || {
            let began = Instant::now();
            for (shard, bytes) in steps {
                // A file that has shrunk is noticed by the next check of the map.
                if theirs.stop.load(Ordering::Relaxed) || maps[shard].populate(bytes).is_err() {
                    break;
                }
            }
            let mut took = theirs.took.lock().unwrap_or_else(PoisonError::into_inner);
            *took = Some(began.elapsed());
        });
        // Without it, pages come when touched.
        Populate { shared, thread: thread.ok() }
    }

    /// How long it took, if it is over.
    pub(super) fn took(&self) -> Option<Duration> {
        *self.shared.took.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Populate {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Joins what lies side by side and cuts what is long.
fn steps(places: impl Iterator<Item = (usize, Range<usize>)>) -> Vec<(usize, Range<usize>)> {
    /// Tensors with less than this between them (padding, norms) count as side by side.
    const NEAR: usize = 64 << 10;
    let mut runs: Vec<(usize, Range<usize>)> = Vec::new();
    for (shard, bytes) in places {
        match runs.last_mut() {
            Some((s, run))
                if *s == shard
                    && bytes.start + NEAR >= run.start
                    && bytes.start <= run.end + NEAR =>
            {
                run.start = run.start.min(bytes.start);
                run.end = run.end.max(bytes.end);
            }
            _ => runs.push((shard, bytes)),
        }
    }
    let cut = |(shard, run): (usize, Range<usize>)| {
        let end = run.end;
        run.step_by(STEP).map(move |at| (shard, at..end.min(at + STEP)))
    };
    runs.into_iter().flat_map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_joined_and_long_runs_are_cut() {
        let far = 10 << 20;
        let places = [(0, 100..200), (0, 232..300), (0, far..far + STEP + 5), (1, 0..50)];
        assert_eq!(
            steps(places.into_iter()),
            [(0, 100..300), (0, far..far + STEP), (0, far + STEP..far + STEP + 5), (1, 0..50)]
        );
        // Files that list a layer's tensors in another order than they are used.
        let places = [(0, 500..600), (0, 400..500), (0, 300..400)];
        assert_eq!(steps(places.into_iter()), [(0, 300..600)]);
    }
}
