//! What a load has to do: pieces of the files, in the order in which the forward pass reads them.

use std::ops::Range;

use super::arrival;
use crate::weights::Weights;

/// Pages of a map that are asked for at a time; between two of them a load can be stopped.
const STEP: usize = 16 << 20;

/// A piece of a file and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Job {
    /// Which file.
    pub(super) shard: usize,
    /// Which bytes of it.
    pub(super) source: Range<usize>,
    /// Who waits for it; `None`: nobody.
    pub(super) section: Option<usize>,
}

/// A load.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// In order of use.
    pub(super) jobs: Vec<Job>,
    /// Pieces of each section that the forward pass has to wait for.
    pub(super) missing: Vec<u32>,
}

impl Plan {
    /// Weights that stay in the map: the layers in order, the output, and at last the embedding,
    /// of which a step reads a row.
    pub(super) fn new(weights: &Weights) -> Plan {
        let mut jobs = Vec::new();
        let layers = weights.layers.iter().map(|layer| layer.matrices().to_vec());
        let sections = layers.chain([vec![&weights.output], vec![&weights.embed]]);
        for matrices in sections {
            let places = matrices.into_iter().map(|matrix| matrix.source());
            for (shard, run) in runs(places) {
                let end = run.end;
                jobs.extend(run.step_by(STEP).map(|at| {
                    let source = at..end.min(at + STEP);
                    Job { shard, source, section: None }
                }));
            }
        }
        jobs.dedup();
        Plan { jobs, missing: vec![0; arrival::output(weights.layers.len()) + 1] }
    }
}

/// Joins what lies side by side.
fn runs(places: impl Iterator<Item = (usize, Range<usize>)>) -> Vec<(usize, Range<usize>)> {
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
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_joined() {
        let far = 10 << 20;
        let places = [(0, 100..200), (0, 232..300), (0, far..far + 5), (1, 0..50)];
        assert_eq!(runs(places.into_iter()), [(0, 100..300), (0, far..far + 5), (1, 0..50)]);
        // Files that list a layer's tensors in another order than they are used.
        let places = [(0, 500..600), (0, 400..500), (0, 300..400)];
        assert_eq!(runs(places.into_iter()), [(0, 300..600)]);
    }
}
