//! How long drafts are. Drafts are tokens that may come next, computed together with the token that does. They change no answer: each
//! position is sampled by the ordinary sampler, from logits that have the bits that they have without drafts, and what it does not
//! agree with is forgotten.
//!
//! Whether a draft is worth computing follows from two things that are measured: how often what was proposed has come, computed or
//! not ([`Acceptance`]), and what a step takes by the number of its rows ([`StepPlanner`]).

use std::str::FromStr;
use std::time::Duration;

/// Most tokens of a draft, so that a step has as many rows more.
pub(crate) const MAX_DRAFT: usize = 7;
/// A draft of a sequence that is alone is computed if tokens are expected so much faster: what was measured is not exact.
const MIN_GAIN: f64 = 1.15;
/// Lengths of drafts that are tried.
const LENGTHS: [usize; 3] = [1, 3, MAX_DRAFT];
/// What a further row adds to a step of one row, as a part of it, while nothing was measured.
const ROW: f64 = 0.4;
/// What was measured so many steps ago is measured again: the machine may have been busy, or the model cold.
const STALE: u64 = 256;

/// Whether to draft.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculate {
    /// Where it pays, by what was measured.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Always, up to so many tokens (7 at most).
    Tokens(usize),
}

impl FromStr for Speculate {
    type Err = String;

    /// `auto`, `off` or a number.
    fn from_str(text: &str) -> Result<Speculate, String> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Speculate::Auto),
            ("off", _) => Ok(Speculate::Off),
            (_, Ok(tokens @ 0..=MAX_DRAFT)) => Ok(Speculate::Tokens(tokens)),
            _ => Err(format!("expected auto, off, or a number from 0 to {MAX_DRAFT}")),
        }
    }
}

/// A mean of what was lately: of everything at first, then of some ten values.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    value: f64,
    /// How many values it is of.
    count: u32,
}

impl Mean {
    /// A guess, which counts as so many values.
    pub(super) fn guess(value: f64, count: u32) -> Mean {
        Mean { value, count }
    }

    pub(super) fn value(&self) -> f64 {
        self.value
    }

    /// How many values it is of, some of which may be a guess.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn add(&mut self, value: f64) {
        self.count = (self.count + 1).min(12);
        self.value += (value - self.value) / f64::from(self.count);
    }
}

/// How often proposed tokens of one sequence come.
#[derive(Debug)]
pub(super) struct Acceptance {
    /// How many proposed tokens have come, one after the other.
    run: usize,
    /// How often a proposed token has come lately, after none, a short run, and a long one.
    by_run: [Mean; 3],
}

impl Acceptance {
    pub(super) fn new() -> Acceptance {
        Acceptance { run: 0, by_run: [0.2, 0.6, 0.9].map(|share| Mean::guess(share, 3)) }
    }

    /// Which kind of run it is.
    fn kind(&self) -> usize {
        match self.run {
            0 => 0,
            1..4 => 1,
            _ => 2,
        }
    }

    /// How often the next proposed token is expected to come.
    pub(super) fn expected(&self) -> f64 {
        self.by_run[self.kind()].value()
    }

    /// Remembers whether a proposed token has come, if one was proposed.
    pub(super) fn proposed(&mut self, came: Option<bool>) {
        if let Some(came) = came {
            let kind = self.kind();
            self.by_run[kind].add(f64::from(u8::from(came)));
        }
        self.run = if came == Some(true) { self.run + 1 } else { 0 };
    }
}

/// What steps take in which nothing but decoding is done, by the number of their rows; and what the next one will compute, while drafts
/// are added to it.
#[derive(Debug)]
pub(super) struct StepPlanner {
    /// Seconds of steps with `i + 1` rows, and when they were measured.
    by_rows: Vec<(Mean, u64)>,
    /// Steps that were measured.
    steps: u64,
    /// Rows of the next step.
    rows: usize,
    /// How many tokens are expected of it.
    tokens: f64,
    /// Seconds that draft models take for it.
    drafting: f64,
}

impl StepPlanner {
    /// Of steps of up to `most` rows.
    pub(super) fn new(most: usize) -> StepPlanner {
        let by_rows = vec![(Mean::default(), 0); most];
        StepPlanner { by_rows, steps: 0, rows: 0, tokens: 0.0, drafting: 0.0 }
    }

    /// Remembers what a step of `rows` rows has taken.
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

    /// Seconds that a step of `rows` rows takes; `None` if nothing is known of any.
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

    /// How many tokens a draft should have of which each comes with a probability of `accepted` and takes `seconds` to find; not known:
    /// `None`.
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
                // The gain of one of several sequences is a part of that of all.
                let least = 1.0 + (MIN_GAIN - 1.0) / self.tokens;
                best.filter(|(_, gain)| *gain > least).map_or(0, |(n, _)| n)
            }
        }
    }

    /// Adds a draft of `n` tokens of which each comes with a probability of `accepted`, and took `seconds` to find.
    pub(super) fn add(&mut self, n: usize, accepted: f64, seconds: f64) {
        self.rows += n;
        self.tokens += expected(accepted, n);
        self.drafting += seconds;
    }
}

/// How many of the `n` tokens of a draft come.
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
        // Rows are cheap up to eight of them, and dear from there on.
        for rows in 1..=40 {
            planner
                .took(rows, MS(100 + 5 * rows.min(8) as u64 + 60 * rows.saturating_sub(8) as u64));
        }
        assert_eq!(length(&mut planner, 1, &sequence), MAX_DRAFT);
        assert_eq!(length(&mut planner, 4, &sequence), 3, "up to eight rows");
        assert_eq!(length(&mut planner, 12, &sequence), 0);
        // The draft of one of two leaves no room for another.
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
        // A step that took long while the machine was busy is forgotten at last.
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
