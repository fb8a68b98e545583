//! The experts that were chosen in a run, so that it can be replayed with memory of any size.
//!
//! As text, it is a header line, a line with the number of experts of each layer that has any, and a line for each visit of a
//! layer: the index of the layer among those with experts, and the experts that its rows chose.
//! ```text
//! alight experts 1
//! 128 128 128
//! 0 3 17 90 101
//! ```

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use alight_pages::slots::Found;
use alight_pages::slots::replay::{Replayed, Rule, Visited, replay};
use thiserror::Error;

/// The first line.
const HEADER: &str = "alight experts 1";

/// Above the number of experts of any layer.
const MAX_EXPERTS: usize = 1 << 16;

/// The experts that were chosen in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpertTrace {
    /// The number of experts of each layer that has any.
    layers: Vec<usize>,
    visits: Vec<Visited>,
    /// By visit, the number of its experts that were in memory; empty if all experts are.
    found: Vec<Found>,
}

/// The error for text that is not a trace.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: found '{found}', expected {expected}")]
pub struct TraceError {
    /// The number of the line, starting with 1.
    line: usize,
    found: String,
    expected: String,
}

impl ExpertTrace {
    /// Creates an empty trace, for layers with these numbers of experts.
    pub(crate) fn new(layers: Vec<usize>) -> ExpertTrace {
        ExpertTrace { layers, ..ExpertTrace::default() }
    }

    /// Adds the experts chosen in a visit of a layer. An expert may appear twice.
    pub(crate) fn add(&mut self, group: usize, experts: impl Iterator<Item = usize>) {
        let mut wanted: Vec<usize> = experts.collect();
        wanted.sort_unstable();
        wanted.dedup();
        self.visits.push(Visited { group, wanted });
    }

    /// For each visit, in order: the index of the layer among those with experts, and the number of its chosen experts that were
    /// in memory. Empty if all experts are in memory; the text form does not contain it.
    pub fn found(&self) -> impl Iterator<Item = (usize, Found)> {
        self.visits.iter().zip(&self.found).map(|(visit, found)| (visit.group, *found))
    }

    /// The total number of experts of all layers.
    pub fn experts(&self) -> usize {
        self.layers.iter().sum()
    }

    /// The number of visits.
    pub fn visits(&self) -> usize {
        self.visits.len()
    }

    /// The largest number of experts that a visit has chosen: they must fit into memory at the same time.
    pub fn most_at_once(&self) -> usize {
        self.visits.iter().map(|visit| visit.wanted.len()).max().unwrap_or(0)
    }

    /// Replays the visits with memory for `capacity` experts and this eviction policy. Visits before `first` fill the memory, and
    /// do not count in the result. `None`: a visit chose more than `capacity` experts.
    pub fn replay(&self, capacity: usize, rule: Rule, first: usize) -> Option<Replayed> {
        let enough = self.most_at_once() <= capacity;
        enough.then(|| replay(&self.layers, &self.visits, capacity, rule, first))
    }
}

impl fmt::Display for ExpertTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, numbers: &mut dyn Iterator<Item = usize>| {
            for (i, number) in numbers.enumerate() {
                write!(f, "{}{number}", if i > 0 { " " } else { "" })?;
            }
            writeln!(f)
        };
        writeln!(f, "{HEADER}")?;
        line(f, &mut self.layers.iter().copied())?;
        for visit in &self.visits {
            line(f, &mut [visit.group].into_iter().chain(visit.wanted.iter().copied()))?;
        }
        Ok(())
    }
}

impl FromStr for ExpertTrace {
    type Err = TraceError;

    fn from_str(text: &str) -> Result<ExpertTrace, TraceError> {
        let error = |line: usize, found: &str, expected: String| {
            let found = found.chars().take(80).collect();
            Err(TraceError { line: line + 1, found, expected })
        };
        let mut lines = text.lines().enumerate();
        match lines.next() {
            Some((_, HEADER)) => {}
            other => return error(0, other.map_or("", |(_, line)| line), format!("'{HEADER}'")),
        }
        let numbers = |line: &str| -> Option<Vec<usize>> {
            line.split_ascii_whitespace().map(|word| word.parse().ok()).collect()
        };
        let (at, second) = lines.next().unwrap_or((1, ""));
        let layers = numbers(second).filter(|layers| {
            !layers.is_empty() && layers.iter().all(|experts| (1..MAX_EXPERTS).contains(experts))
        });
        let Some(layers) = layers else {
            return error(at, second, "how many experts each layer has".into());
        };
        let mut trace = ExpertTrace::new(layers);
        for (at, line) in lines {
            let numbers = numbers(line).unwrap_or_default();
            let Some((layer, experts)) = numbers.split_first() else {
                return error(at, line, "a layer and its experts, as numbers".into());
            };
            let Some(&all) = trace.layers.get(*layer) else {
                return error(at, line, format!("a layer below {}", trace.layers.len()));
            };
            if experts.iter().any(|expert| *expert >= all) {
                return error(at, line, format!("experts below {all}"));
            }
            trace.add(*layer, experts.iter().copied());
        }
        Ok(trace)
    }
}

/// Records chosen experts while it is on.
#[derive(Default)]
pub(crate) struct Recorder {
    on: AtomicBool,
    trace: Mutex<Recording>,
}

#[derive(Default)]
struct Recording {
    trace: ExpertTrace,
    /// The index of a layer among those with experts, by file and first byte of each of its matrices of experts.
    groups: HashMap<(usize, usize), usize>,
}

impl Recorder {
    /// Starts a recording, and discards the previous one. `layers` are those with experts: the number of experts, and the file
    /// and first byte of each matrix of experts.
    pub(crate) fn begin(&self, layers: impl Iterator<Item = (usize, Vec<(usize, usize)>)>) {
        let mut recording = Recording::default();
        for (group, (experts, matrices)) in layers.enumerate() {
            recording.groups.extend(matrices.into_iter().map(|matrix| (matrix, group)));
            recording.trace.layers.push(experts);
        }
        *self.trace.lock().unwrap_or_else(PoisonError::into_inner) = recording;
        self.on.store(true, Ordering::Relaxed);
    }

    /// Stops the recording and returns it.
    pub(crate) fn end(&self) -> ExpertTrace {
        self.on.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.trace.lock().unwrap_or_else(PoisonError::into_inner)).trace
    }

    /// Records a visit of the layer that has the matrix at this first byte of this file, with the experts found in slots.
    pub(crate) fn add(
        &self,
        matrix: (usize, usize),
        experts: impl Iterator<Item = usize>,
        found: Option<Found>,
    ) {
        if self.on.load(Ordering::Relaxed) {
            let mut recording = self.trace.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(group) = recording.groups.get(&matrix).copied() {
                recording.trace.add(group, experts);
                recording.trace.found.extend(found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_the_trace_that_it_was_made_of() {
        let mut trace = ExpertTrace::new(vec![8, 4]);
        trace.add(0, [3, 1, 3].into_iter());
        trace.add(1, [0].into_iter());
        trace.add(0, [1, 2].into_iter());
        let text = trace.to_string();
        assert_eq!(text, "alight experts 1\n8 4\n0 1 3\n1 0\n0 1 2\n");
        assert_eq!(text.parse(), Ok(trace.clone()));
        assert_eq!((trace.experts(), trace.visits(), trace.most_at_once()), (12, 3, 2));
        let hits =
            |capacity| trace.replay(capacity, Rule::Expected, 0).map(|replayed| replayed.hits);
        assert_eq!((hits(1), hits(12)), (None, Some(1)));
    }

    #[test]
    fn what_is_no_trace_is_told_by_line() {
        for (text, line, part) in [
            ("", 1, "alight experts 1"),
            ("alight experts 2\n8\n", 1, "experts 2"),
            ("alight experts 1\n", 2, "how many"),
            ("alight experts 1\n8 -4\n", 2, "-4"),
            ("alight experts 1\n8 70000\n", 2, "70000"),
            ("alight experts 1\n8 4\n0 1\n2 1\n", 4, "a layer below 2"),
            ("alight experts 1\n8 4\n1 4\n", 3, "experts below 4"),
            ("alight experts 1\n8 4\n1 x\n", 3, "as numbers"),
            ("alight experts 1\n8 4\n\n", 3, "as numbers"),
        ] {
            let error = text.parse::<ExpertTrace>().unwrap_err().to_string();
            assert!(error.contains(&format!("line {line}:")) && error.contains(part), "{error}");
        }
    }
}
