//! Counters of an engine, for `/metrics`, and the current state of each of its places, for `/slots`.
//!
//! Invariant: reading them holds up the engine only for the time of a copy.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use alight_model::DraftCounts;

/// Upper bounds of the histogram's buckets, in seconds.
pub const BOUNDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];

/// A histogram of durations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    /// The count of each bucket, and of durations above the last bound.
    pub classes: [u64; BOUNDS.len() + 1],
    /// The sum of the durations.
    pub all: Duration,
}

impl Times {
    fn add(&mut self, time: Duration) {
        let class = BOUNDS.partition_point(|bound| *bound < time.as_secs_f64());
        self.classes[class] += 1;
        self.all += time;
    }
}

/// A request that has a place, or waits for one.
#[derive(Clone, Debug)]
pub struct Task {
    /// The key of the request.
    pub key: u64,
    /// Number of prompt tokens.
    pub prompt: usize,
    /// Number of prompt tokens that were read.
    pub read: usize,
    /// Number of those that were reused.
    pub reused: usize,
    /// Number of generated tokens.
    pub generated: usize,
    /// Maximum number of tokens to generate.
    pub most: usize,
    /// The place that it waits for; `None`: any.
    wanted: Option<usize>,
    asked: Instant,
    /// The times when it got its place, and its last token.
    began: Instant,
    last: Option<Instant>,
}

/// The work since the server started.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Prompt tokens that were computed.
    pub prompt: u64,
    /// Prompt tokens that were reused.
    pub reused: u64,
    /// Time spent on prompts.
    pub prompt_time: Duration,
    /// Generated tokens.
    pub generated: u64,
    /// Time spent on tokens after the first.
    pub generated_time: Duration,
    /// Steps of the engine.
    pub steps: u64,
    /// The number of occupied places, summed over the steps.
    pub busy: u64,
    /// True if there is no engine: it was not needed yet, or was idle for long and its memory was released.
    pub resting: bool,
    /// Bytes of memory used for kept prompts.
    pub kept: usize,
    /// Drafts, and their tokens.
    pub drafts: DraftCounts,
    /// The largest number of tokens of a sequence.
    pub longest: usize,
    /// Requests that have ended.
    pub ended: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Requests whose client has disconnected.
    pub left: u64,
    /// Time from a request to its first token.
    pub first_token: Times,
    /// Time from each token to the next.
    pub next_token: Times,
    /// The request at each place.
    pub places: Vec<Option<Task>>,
    /// Requests that wait for a place.
    pub waiting: VecDeque<Task>,
}

impl Totals {
    /// Adds a request that waits for a place, or for any. Places are assigned as the engine does: the lowest free one, to the request
    /// that came first.
    pub fn came(
        &mut self,
        key: u64,
        [prompt, most]: [usize; 2],
        place: Option<usize>,
        asked: Instant,
    ) {
        let began = Instant::now();
        let (read, reused, generated, last) = (0, 0, 0, None);
        let wanted = place.filter(|place| *place < self.places.len());
        let task = Task { key, prompt, read, reused, generated, most, wanted, asked, began, last };
        self.waiting.push_back(task);
        self.seat();
    }

    fn seat(&mut self) {
        for (index, place) in self.places.iter_mut().enumerate() {
            let fits = |task: &Task| task.wanted.is_none_or(|wanted| wanted == index);
            if place.is_none()
                && let Some(at) = self.waiting.iter().position(fits)
            {
                let task = self.waiting.remove(at);
                *place = task.map(|task| Task { began: Instant::now(), ..task });
            }
        }
    }

    fn task(&mut self, key: u64) -> Option<&mut Task> {
        self.places.iter_mut().flatten().find(|task| task.key == key)
    }

    /// Records that `read` tokens of the prompt were read, of which `reused` were reused.
    pub fn reading(&mut self, key: u64, read: usize, reused: usize) {
        if let Some(task) = self.task(key) {
            (task.read, task.reused) = (read, reused);
        }
    }

    /// Records that the engine computes a request at this place. Where requests end between two of its steps, it may be another one
    /// than is recorded.
    pub fn placed(&mut self, key: u64, place: usize) {
        let own = |place: &Option<Task>| place.as_ref().is_some_and(|task| task.key == key);
        if let Some(recorded) = self.places.iter().position(own)
            && place < self.places.len()
        {
            self.places.swap(recorded, place);
        }
    }

    /// Records that the whole prompt was read, and that `reused` of its tokens were reused.
    pub fn read(&mut self, key: u64, reused: usize) {
        let Some(task) = self.task(key) else { return };
        (task.read, task.reused) = (task.prompt, reused);
        let (computed, time) = (task.prompt - reused, task.began.elapsed());
        self.prompt += computed as u64;
        self.reused += reused as u64;
        self.prompt_time += time;
        self.longest = self.longest.max(computed + reused);
    }

    /// Counts a generated token.
    pub fn token(&mut self, key: u64) {
        let now = Instant::now();
        let Some(task) = self.task(key) else { return };
        task.generated += 1;
        let (asked, last) = (task.asked, task.last.replace(now));
        let length = task.prompt + task.generated;
        self.generated += 1;
        self.longest = self.longest.max(length);
        match last {
            None => self.first_token.add(now - asked),
            Some(last) => {
                self.generated_time += now - last;
                self.next_token.add(now - last);
            }
        }
    }

    /// Removes a request.
    pub fn gone(&mut self, key: u64) {
        self.waiting.retain(|task| task.key != key);
        for place in &mut self.places {
            if place.as_ref().is_some_and(|task| task.key == key) {
                *place = None;
            }
        }
        self.seat();
    }

    /// Removes all requests, and counts them as failed.
    pub fn clear(&mut self) {
        self.failed += (self.processing() + self.waiting.len()) as u64;
        self.waiting.clear();
        self.places.iter_mut().for_each(|place| *place = None);
    }

    /// Counts draft tokens.
    pub fn drafted(&mut self, drafts: DraftCounts) {
        self.drafts.drafts += drafts.drafts;
        self.drafts.proposed += drafts.proposed;
        self.drafts.accepted += drafts.accepted;
    }

    /// Counts a step of the engine.
    pub fn step(&mut self) {
        self.steps += 1;
        self.busy += self.processing() as u64;
    }

    /// The number of requests that have a place.
    pub fn processing(&self) -> usize {
        self.places.iter().flatten().count()
    }
}

/// The counters of an engine, written by one thread and read by others.
pub struct Counts(Mutex<Totals>);

impl Counts {
    /// Creates the counters of an engine with `places` places.
    pub fn new(places: usize) -> Counts {
        Counts(Mutex::new(Totals { places: vec![None; places], ..Totals::default() }))
    }

    /// Updates the counters.
    pub fn count(&self, count: impl FnOnce(&mut Totals)) {
        // The numbers stay valid, even if another thread panicked while it held the lock.
        count(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns a copy of the current counters.
    pub fn now(&self) -> Totals {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_in_turn_and_given_back() {
        let counts = Counts::new(2);
        let keys = |totals: &Totals| -> Vec<Option<u64>> {
            totals.places.iter().map(|place| place.as_ref().map(|task| task.key)).collect()
        };
        counts
            .count(|totals| (0..4).for_each(|key| totals.came(key, [10, 5], None, Instant::now())));
        assert_eq!(keys(&counts.now()), [Some(0), Some(1)]);
        counts.count(|totals| {
            totals.reading(0, 4, 2);
            totals.read(1, 3);
            totals.token(1);
            totals.token(1);
            totals.step();
            totals.gone(2);
            totals.gone(0);
        });
        let totals = counts.now();
        assert_eq!(keys(&totals), [Some(3), Some(1)]);
        let task = totals.places[1].as_ref().unwrap();
        assert_eq!((task.read, task.reused, task.generated), (10, 3, 2));
        assert_eq!((totals.prompt, totals.reused, totals.generated), (7, 3, 2));
        assert_eq!((totals.steps, totals.busy, totals.longest), (1, 2, 12));
        let times = |times: &Times| times.classes.iter().sum::<u64>();
        assert_eq!((times(&totals.first_token), times(&totals.next_token)), (1, 1));
        counts.count(Totals::clear);
        assert_eq!((counts.now().processing(), counts.now().failed), (0, 2));
    }

    #[test]
    fn a_request_waits_for_its_place_and_is_where_the_engine_has_it() {
        let counts = Counts::new(2);
        let keys = |counts: &Counts| -> Vec<Option<u64>> {
            let totals = counts.now();
            totals.places.iter().map(|place| place.as_ref().map(|task| task.key)).collect()
        };
        let came = |key: u64, place| {
            counts.count(|totals| totals.came(key, [10, 5], place, Instant::now()));
        };
        came(0, Some(1));
        assert_eq!(keys(&counts), [None, Some(0)]);
        came(1, Some(1));
        came(2, None);
        came(3, Some(9));
        assert_eq!(keys(&counts), [Some(2), Some(0)]);
        counts.count(|totals| totals.gone(0));
        assert_eq!(keys(&counts), [Some(2), Some(1)]);
        counts.count(|totals| totals.gone(2));
        assert_eq!(keys(&counts), [Some(3), Some(1)]);
        counts.count(|totals| totals.placed(3, 1));
        assert_eq!(keys(&counts), [Some(1), Some(3)]);
    }

    #[test]
    fn a_bound_belongs_to_its_class() {
        let mut times = Times::default();
        for seconds in [0.0, 0.001, 0.0011, 60.0, 61.0] {
            times.add(Duration::from_secs_f64(seconds));
        }
        let at = |i: usize| times.classes[i];
        assert_eq!((at(0), at(1), at(13), at(14)), (2, 1, 1, 1));
    }
}
