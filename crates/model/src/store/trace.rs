//! Which experts were chosen in a run, so that it can be replayed with any memory.
//!
//! As text it is a line that says what it is, a line of how many experts each layer with some has, and a line for each visit of a layer:
//! the layer, counted among those, and the experts that its rows chose.
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

/// More experts than any layer has.
const MAX_EXPERTS: usize = 1 << 16;

/// The experts that were chosen in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpertTrace {
    /// How many experts each layer has that has some.
    layers: Vec<usize>,
    visits: Vec<Visited>,
    /// By visit, how many of its experts were in memory; empty if all experts are.
    found: Vec<Found>,
}

/// A text that is no trace.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: found '{found}', expected {expected}")]
pub struct TraceError {
    /// Which line, from 1 on.
    line: usize,
    found: String,
    expected: String,
}

impl ExpertTrace {
    /// An empty one, of layers with so many experts each.
    pub(crate) fn new(layers: Vec<usize>) -> ExpertTrace {
        ExpertTrace { layers, ..ExpertTrace::default() }
    }

    /// Adds what a visit of a layer has chosen. An expert may be named twice.
    pub(crate) fn add(&mut self, group: usize, experts: impl Iterator<Item = usize>) {
        let mut wanted: Vec<usize> = experts.collect();
        wanted.sort_unstable();
        wanted.dedup();
        self.visits.push(Visited { group, wanted });
    }

    /// By visit, in their order: the layer, counted among those with experts, and how many of the experts that it chose were in
    /// memory. Nothing if all experts are there; a text does not say it.
    pub fn found(&self) -> impl Iterator<Item = (usize, Found)> {
        self.visits.iter().zip(&self.found).map(|(visit, found)| (visit.group, *found))
    }

    /// How many experts all layers have.
    pub fn experts(&self) -> usize {
        self.layers.iter().sum()
    }

    /// How many visits of layers there are.
    pub fn visits(&self) -> usize {
        self.visits.len()
    }

    /// The most experts that a visit has chosen: that many need memory.
    pub fn most_at_once(&self) -> usize {
        self.visits.iter().map(|visit| visit.wanted.len()).max().unwrap_or(0)
    }

    /// Replays the visits with a memory of `capacity` experts and this eviction policy. Visits before `first` fill the memory, and do not
    /// count for the result. `None`: a visit chose more than `capacity` experts.
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

/// Records what is chosen while somebody wants to know.
#[derive(Default)]
pub(crate) struct Recorder {
    on: AtomicBool,
    trace: Mutex<Recording>,
}

#[derive(Default)]
struct Recording {
    trace: ExpertTrace,
    /// By file and first byte of a layer's last matrix of experts: which of the layers with experts it is.
    groups: HashMap<(usize, usize), usize>,
}

impl Recorder {
    /// Records from now on; what was recorded before is forgotten. `layers` are those with experts: how many each has, and its matrices of
    /// experts by file and first byte.
    pub(crate) fn begin(&self, layers: impl Iterator<Item = (usize, Vec<(usize, usize)>)>) {
        let mut recording = Recording::default();
        for (group, (experts, matrices)) in layers.enumerate() {
            recording.groups.extend(matrices.into_iter().map(|matrix| (matrix, group)));
            recording.trace.layers.push(experts);
        }
        *self.trace.lock().unwrap_or_else(PoisonError::into_inner) = recording;
        self.on.store(true, Ordering::Relaxed);
    }

    /// What was recorded. Nothing is from now on.
    pub(crate) fn end(&self) -> ExpertTrace {
        self.on.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.trace.lock().unwrap_or_else(PoisonError::into_inner)).trace
    }

    /// A visit of the layer with the matrix that begins at this byte of this file, and what it found in slots.
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
