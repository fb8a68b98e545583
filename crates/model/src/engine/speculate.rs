//! The length of drafts. A draft is a guess at the next tokens, computed together with the pending token. Drafts change no answer: each position is
//! sampled by the ordinary sampler, from logits that are bit-identical to those without drafts, and tokens that the sampler does not agree with are
//! dropped.
//!
//! Two measurements decide if a draft is worth computing: the share of proposed tokens that were accepted, whether computed or not ([`Acceptance`]),
//! and the duration of a step by its number of rows ([`StepPlanner`]).

use std::str::FromStr;
use std::time::Duration;

/// Maximum number of tokens of a draft, and so of additional rows in a step.
pub(crate) const MAX_DRAFT: usize = 7;
/// A draft of a lone sequence is computed if tokens are expected to be faster by this factor: measurements are not exact.
const MIN_GAIN: f64 = 1.15;
/// Draft lengths that are considered.
const LENGTHS: [usize; 3] = [1, 3, MAX_DRAFT];
/// Cost of a further row relative to a step of one row, until it has been measured.
const ROW: f64 = 0.4;
/// Measurements older than this number of steps are repeated: the machine may have been busy, or the model cold.
const STALE: u64 = 256;

/// When to draft.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculate {
    /// Where it pays, according to measurements.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Always, with up to this number of tokens (7 at most).
    Tokens(usize),
}

impl FromStr for Speculate {
    type Err = String;

    /// Parses `auto`, `off` or a number.
    fn from_str(text: &str) -> Result<Speculate, String> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Speculate::Auto),
            ("off", _) => Ok(Speculate::Off),
            (_, Ok(tokens @ 0..=MAX_DRAFT)) => Ok(Speculate::Tokens(tokens)),
            _ => Err(format!("expected auto, off, or a number from 0 to {MAX_DRAFT}")),
        }
    }
}

/// A running mean: of all values at first, then of roughly the last ten.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    value: f64,
    /// The number of values.
    count: u32,
}

impl Mean {
    /// A guess with the weight of `count` values.
    pub(super) fn guess(value: f64, count: u32) -> Mean {
        Mean { value, count }
    }

    pub(super) fn value(&self) -> f64 {
        self.value
    }

    /// The number of values, which may include a guess.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn add(&mut self, value: f64) {
        self.count = (self.count + 1).min(12);
        self.value += (value - self.value) / f64::from(self.count);
    }
}

/// The share of proposed tokens of one sequence that are accepted.
#[derive(Debug)]
pub(super) struct Acceptance {
    /// The number of consecutive accepted tokens.
    run: usize,
    /// The share of proposed tokens accepted recently: after no run, a short run, and a long one.
    by_run: [Mean; 3],
}

impl Acceptance {
    pub(super) fn new() -> Acceptance {
        Acceptance { run: 0, by_run: [0.2, 0.6, 0.9].map(|share| Mean::guess(share, 3)) }
    }

    /// The kind of the current run.
    fn kind(&self) -> usize {
        match self.run {
            0 => 0,
            1..4 => 1,
            _ => 2,
        }
    }

    /// The expected probability that the next proposed token is accepted.
    pub(super) fn expected(&self) -> f64 {
        self.by_run[self.kind()].value()
    }

    /// Records whether a proposed token was accepted, if one was proposed.
    pub(super) fn proposed(&mut self, came: Option<bool>) {
        if let Some(came) = came {
            let kind = self.kind();
            self.by_run[kind].add(f64::from(u8::from(came)));
        }
        self.run = if came == Some(true) { self.run + 1 } else { 0 };
    }
}

/// The duration of steps that only decode, by their number of rows; and the contents of the next step, while drafts are added to it.
#[derive(Debug)]
pub(super) struct StepPlanner {
    /// Seconds of steps with `i + 1` rows, and the step at which they were measured.
    by_rows: Vec<(Mean, u64)>,
    /// Number of measured steps.
    steps: u64,
    /// Rows of the next step.
    rows: usize,
    /// The number of tokens expected from it.
    tokens: f64,
    /// Seconds that draft models need for it.
    drafting: f64,
}

impl StepPlanner {
    /// Creates a planner for steps of up to `most` rows.
    pub(super) fn new(most: usize) -> StepPlanner {
        let by_rows = vec![(Mean::default(), 0); most];
        StepPlanner { by_rows, steps: 0, rows: 0, tokens: 0.0, drafting: 0.0 }
    }

    /// Records the duration of a step of `rows` rows.
    pub(super) fn took(&mut self, rows: usize, took: Duration) {
        self.steps += 1;
        let steps = self.steps;
        let Some((mean, when)) = self.by_rows.get_mut(rows - 1) else { return };
        if steps - *when > STALE {
            *mean = Mean::default();
        }
        mean.add(took.as_secs_f64());
        *when = steps;
    }

    /// The expected seconds of a step of `rows` rows; `None` if nothing was measured.
    fn seconds(&self, rows: usize) -> Option<f64> {
        let measured = |rows: usize| {
            let (mean, when) = self.by_rows.get(rows - 1)?;
            (mean.count() > 0 && self.steps - when <= STALE).then(|| (rows, mean.value()))
        };
        let below = (1..=rows).rev().find_map(measured);
        let above = (rows..=self.by_rows.len()).find_map(measured);
        let guess = |(known, seconds): (usize, f64)| {
            let of_one = |rows: usize| 1.0 + ROW * (rows - 1) as f64;
            seconds * of_one(rows) / of_one(known)
        };
        match (below, above) {
            (Some((low, _)), Some((high, seconds))) if low == high => Some(seconds),
            (Some((low, from)), Some((high, to))) => {
                Some(from + (to - from) * (rows - low) as f64 / (high - low) as f64)
            }
            (below, above) => below.or(above).map(guess),
        }
    }
    /// Begins a step in which `sequences` sequences decode a token each.
    pub(super) fn begin(&mut self, sequences: usize) {
        (self.rows, self.tokens, self.drafting) = (sequences, sequences as f64, 0.0);
    }

    /// Returns the number of tokens that a draft should have, if each is accepted with a probability of `accepted` and takes `seconds` to find
    /// (`None`: unknown).
    pub(super) fn length(
        &self,
        speculate: Speculate,
        accepted: f64,
        seconds: Option<f64>,
    ) -> usize {
        match speculate {
            Speculate::Off => 0,
            Speculate::Tokens(n) => n.min(MAX_DRAFT),
            Speculate::Auto => {
                let Some(seconds) = seconds else { return LENGTHS[1] };
                let rate = |n: usize| {
                    let took = self.seconds(self.rows + n)?;
                    let tokens = self.tokens + expected(accepted, n);
                    Some(tokens / (took + self.drafting + seconds * n as f64))
                };
                let Some(plain) = rate(0) else { return 0 };
                let gains = LENGTHS.into_iter().filter_map(|n| Some((n, rate(n)? / plain)));
                let best = gains.max_by(|(_, a), (_, b)| a.total_cmp(b));
                // The gain of one of several sequences is only a part of the total.
                let least = 1.0 + (MIN_GAIN - 1.0) / self.tokens;
                best.filter(|(_, gain)| *gain > least).map_or(0, |(n, _)| n)
            }
        }
    }

    /// Adds a draft of `n` tokens, each of which is accepted with a probability of `accepted` and took `seconds` to find.
    pub(super) fn add(&mut self, n: usize, accepted: f64, seconds: f64) {
        self.rows += n;
        self.tokens += expected(accepted, n);
        self.drafting += seconds;
    }
}

/// The expected number of accepted tokens of a draft of `n`.
fn expected(accepted: f64, n: usize) -> f64 {
    (1..=n).map(|i| accepted.powi(i as i32)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn length(planner: &mut StepPlanner, sequences: usize, acceptance: &Acceptance) -> usize {
        planner.begin(sequences);
        planner.length(Speculate::Auto, acceptance.expected(), Some(0.0))
    }

    #[test]
    fn drafts_are_computed_where_they_pay() {
        let (mut planner, mut sequence) = (StepPlanner::new(40), Acceptance::new());
        (0..4).for_each(|_| sequence.proposed(Some(true)));
        assert_eq!(length(&mut planner, 1, &sequence), 0, "no step is known");
        (0..40).for_each(|_| planner.took(1, MS(100)));
        assert!(length(&mut planner, 1, &sequence) >= 3, "a run");
        sequence.proposed(None);
        assert!(length(&mut planner, 1, &sequence) < 3, "the run has ended");
        (0..20).for_each(|_| sequence.proposed(Some(false)));
        assert_eq!(length(&mut planner, 1, &sequence), 0);
        // Runs that always end after four.
        for _ in 0..60 {
            (0..4).for_each(|_| sequence.proposed(Some(true)));
            sequence.proposed(Some(false));
        }
        (0..4).for_each(|_| sequence.proposed(Some(true)));
        assert_eq!(length(&mut planner, 1, &sequence), 0);
        // Where each row costs what a step costs, nothing is gained.
        (0..60).for_each(|_| sequence.proposed(Some(true)));
        assert_eq!(length(&mut planner, 1, &sequence), MAX_DRAFT);
        (0..40).for_each(|_| planner.took(8, MS(790)));
        assert_eq!(length(&mut planner, 1, &sequence), 0);
        planner.begin(1);
        assert_eq!(planner.length(Speculate::Tokens(100), 0.0, Some(0.0)), MAX_DRAFT);
        assert_eq!(planner.length(Speculate::Off, 1.0, Some(0.0)), 0);
        assert_eq!(planner.length(Speculate::Auto, 0.0, None), 3, "to find out what a draft takes");
    }

    #[test]
    fn what_is_beside_a_sequence_counts() {
        let mut sequence = Acceptance::new();
        (0..60).for_each(|_| sequence.proposed(Some(true)));
        let mut planner = StepPlanner::new(40);
        // Rows are cheap up to the eighth, and expensive from there on.
        for rows in 1..=40 {
            planner
                .took(rows, MS(100 + 5 * rows.min(8) as u64 + 60 * rows.saturating_sub(8) as u64));
        }
        assert_eq!(length(&mut planner, 1, &sequence), MAX_DRAFT);
        assert_eq!(length(&mut planner, 4, &sequence), 3, "up to eight rows");
        assert_eq!(length(&mut planner, 12, &sequence), 0);
        // The draft of one of two sequences leaves no capacity for another.
        planner.begin(2);
        planner.add(6, sequence.expected(), 0.0);
        assert_eq!(planner.length(Speculate::Auto, 0.5, Some(0.0)), 0);
    }

    #[test]
    fn what_is_not_known_of_steps_follows_from_what_is() {
        let mut planner = StepPlanner::new(16);
        assert!(planner.seconds(3).is_none());
        planner.took(2, MS(140));
        let near = |rows, expected: f64| {
            let found = planner.seconds(rows).unwrap();
            assert!((found - expected).abs() < 1e-9, "{rows} rows: {found}, not {expected}");
        };
        near(1, 0.1);
        near(4, 0.22);
        planner.took(6, MS(300));
        let near = |planner: &StepPlanner, rows, expected: f64| {
            let found = planner.seconds(rows).unwrap();
            assert!((found - expected).abs() < 1e-9, "{rows} rows: {found}, not {expected}");
        };
        near(&planner, 4, 0.22);
        near(&planner, 3, 0.18);
        // The measurement of a step that was slow because the machine was busy expires eventually.
        planner.took(8, MS(5000));
        near(&planner, 8, 5.0);
        (0..STALE).for_each(|_| planner.took(1, MS(100)));
        near(&planner, 8, 5.0);
        planner.took(1, MS(100));
        near(&planner, 8, 0.38);
        planner.took(8, MS(400));
        near(&planner, 8, 0.4);
    }
}
