//! Drafts: tokens that may come next, computed together with the token that does. A draft changes no answer: each position is sampled by the
//! ordinary sampler, from logits that have the bits that they have without drafts, and what it does not agree with is forgotten.
//!
//! A draft is what followed the last three tokens where they stood before, in the prompt or in the answer. Whether it is worth computing
//! follows from two things that are measured: how often what was proposed has come, computed or not, and what a further row of a step
//! costs. Where nothing followed, a draft model may propose something ([`draft`](super::draft)).

use std::time::Duration;

/// Most tokens of a draft, so that a step has one row more.
pub(crate) const MOST_DRAFT: usize = 7;
/// Tokens by which an earlier place is found.
const GRAM: usize = 3;
/// A draft is computed if tokens are expected so much faster: what was measured is not exact.
const LEAST_GAIN: f64 = 1.15;
/// Lengths of drafts that are tried.
const LENGTHS: [usize; 3] = [1, 3, MOST_DRAFT];

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

/// What may come next, by what has come.
pub(crate) struct Lookup {
    tokens: Vec<u32>,
    /// By a hash of [`GRAM`] tokens: the number of tokens up to the end of the latest place that has it; 0: none. Places with another
    /// hash are lost, and those of another gram are noticed.
    places: Vec<u32>,
    /// Where the place before the end was found.
    found: usize,
}

impl Lookup {
    /// For up to `most` tokens. Memory is taken as it is used.
    pub(crate) fn new(most: usize) -> Lookup {
        let places = vec![0; (2 * most).next_power_of_two().max(64)];
        Lookup { tokens: Vec::with_capacity(most), places, found: 0 }
    }

    fn place(&self, end: usize) -> usize {
        let gram = &self.tokens[end - GRAM..end];
        let hash = gram.iter().fold(0u64, |hash, token| {
            (hash ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        (hash >> 20) as usize & (self.places.len() - 1)
    }

    /// Adds a token that has come.
    pub(crate) fn push(&mut self, token: u32) {
        if self.tokens.len() == self.tokens.capacity() {
            // Nothing allocates in the loop; what is beyond has no drafts.
            self.found = 0;
            return;
        }
        self.tokens.push(token);
        let end = self.tokens.len();
        self.found = 0;
        if end < GRAM {
            return;
        }
        let place = self.place(end);
        let before = std::mem::replace(&mut self.places[place], end as u32) as usize;
        if before >= GRAM && self.tokens[before - GRAM..before] == self.tokens[end - GRAM..] {
            self.found = before;
        }
    }

    /// What followed where the last tokens stood before, `most` tokens at most; it may be nothing.
    pub(crate) fn propose(&self, most: usize) -> &[u32] {
        match self.found {
            0 => &[],
            found => &self.tokens[found..(found + most).min(self.tokens.len())],
        }
    }
}

/// Decides how long drafts are, by what was measured.
#[derive(Debug)]
pub(crate) struct Judge {
    speculate: Speculate,
    /// How many proposed tokens have come, one after the other.
    run: usize,
    /// How often a proposed token has come lately, after none, a short run, and a long one.
    accepted: [Mean; 3],
    /// What a step of one row takes, and what each further row adds to it, as a part of it.
    step: Mean,
    row: Mean,
}

/// A mean of what was lately: of everything at first, then of some ten values.
#[derive(Clone, Copy, Debug)]
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

impl Judge {
    pub(crate) fn new(speculate: Speculate) -> Judge {
        let accepted = [0.2, 0.6, 0.9].map(|share| Mean::guess(share, 3));
        let (step, row) = (Mean::guess(0.0, 0), Mean::guess(0.4, 0));
        Judge { speculate, run: 0, accepted, step, row }
    }

    /// Most tokens that the next draft may have that costs nothing to find.
    pub(crate) fn most(&self) -> usize {
        self.length(self.accepted[self.kind()].value, Some(0.0))
    }

    /// Whether drafts are computed where they pay, and not always or never.
    pub(super) fn measures(&self) -> bool {
        self.speculate == Speculate::Auto
    }

    /// How many tokens a draft should have of which each comes with a probability of `accepted` and takes `seconds` to find; not known: `None`.
    pub(super) fn length(&self, accepted: f64, seconds: Option<f64>) -> usize {
        match self.speculate {
            Speculate::Off => 0,
            Speculate::Tokens(n) => n.min(MOST_DRAFT),
            Speculate::Auto => {
                let Some(seconds) = seconds else { return LENGTHS[1] };
                let find = if seconds > 0.0 { seconds / self.step.value } else { 0.0 };
                // How many tokens a step with a draft of `n` brings.
                let tokens = |n: usize| (0..=n).map(|i| accepted.powi(i as i32)).sum::<f64>();
                let gain = |n: &usize| tokens(*n) / (1.0 + (self.row.value + find) * *n as f64);
                let best = LENGTHS.into_iter().max_by(|a, b| gain(a).total_cmp(&gain(b)));
                best.filter(|n| gain(n) > LEAST_GAIN).unwrap_or(0)
            }
        }
    }

    /// Which kind of run it is.
    fn kind(&self) -> usize {
        match self.run {
            0 => 0,
            1..4 => 1,
            _ => 2,
        }
    }

    /// A token has come: compares it with what was proposed, and adds it to what has come.
    pub(crate) fn came(&mut self, lookup: &mut Lookup, token: u32) {
        self.proposed(lookup.propose(1).first().map(|proposed| *proposed == token));
        lookup.push(token);
    }

    /// Remembers whether a proposed token has come, if one was proposed.
    fn proposed(&mut self, came: Option<bool>) {
        if let Some(came) = came {
            let kind = self.kind();
            self.accepted[kind].add(f64::from(u8::from(came)));
        }
        self.run = if came == Some(true) { self.run + 1 } else { 0 };
    }

    /// Remembers what a step with a draft of `n` tokens has taken.
    pub(crate) fn took(&mut self, n: usize, took: Duration) {
        let took = took.as_secs_f64();
        if n == 0 {
            self.step.add(took);
        } else if self.step.count > 0 {
            self.row.add((took / self.step.value - 1.0).max(0.0) / n as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(tokens: &[u32], most: usize) -> Lookup {
        let mut lookup = Lookup::new(most);
        tokens.iter().for_each(|token| lookup.push(*token));
        lookup
    }

    #[test]
    fn what_followed_the_latest_place_is_proposed() {
        assert_eq!(lookup(&[1, 2, 3], 100).propose(5), [0; 0]);
        assert_eq!(lookup(&[1, 2, 3, 4, 5, 1, 2, 3], 100).propose(3), [4, 5, 1]);
        assert_eq!(lookup(&[1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 100).propose(9), [5, 1, 2, 3]);
        assert_eq!(lookup(&[1, 2, 3, 4, 5, 9, 2, 3], 100).propose(3), [0; 0], "two are not enough");
        assert_eq!(lookup(&[7; 6], 100).propose(7), [7], "what overlaps its place");
        assert_eq!(lookup(&[1, 2, 3, 4, 1, 2, 3], 6).propose(3), [0; 0], "no room");
    }

    #[test]
    fn every_gram_is_compared_and_not_only_its_hash() {
        // A small table, in which most grams have lost their place to another.
        let tokens: Vec<u32> = (0..5000u32).map(|i| i.wrapping_mul(2_654_435_761) >> 20).collect();
        let mut lookup = Lookup::new(5000);
        lookup.places.truncate(64);
        for (i, &token) in tokens.iter().enumerate() {
            lookup.push(token);
            if let Some(next) = lookup.propose(1).first() {
                let at = tokens[..i].windows(4).filter(|w| w[..3] == tokens[i - 2..=i]);
                assert!(at.into_iter().any(|w| w[3] == *next));
            }
        }
    }

    #[test]
    fn drafts_are_computed_where_they_pay() {
        let mut judge = Judge::new(Speculate::Auto);
        assert_eq!(judge.most(), 0, "nothing has come yet");
        let ms = Duration::from_millis;
        (0..40).for_each(|_| judge.took(0, ms(100)));
        (0..4).for_each(|_| judge.proposed(Some(true)));
        assert!(judge.most() >= 3, "a run");
        judge.proposed(None);
        assert!(judge.most() < 3, "the run has ended");
        (0..20).for_each(|_| judge.proposed(Some(false)));
        assert_eq!(judge.most(), 0);
        // Runs that always end after four.
        for _ in 0..60 {
            (0..4).for_each(|_| judge.proposed(Some(true)));
            judge.proposed(Some(false));
        }
        (0..4).for_each(|_| judge.proposed(Some(true)));
        assert_eq!(judge.most(), 0);
        // Where each row costs what a step costs, nothing is gained.
        (0..60).for_each(|_| judge.proposed(Some(true)));
        assert_eq!(judge.most(), MOST_DRAFT);
        (0..40).for_each(|_| judge.took(7, ms(790)));
        assert_eq!(judge.most(), 0);
        assert_eq!(Judge::new(Speculate::Tokens(100)).most(), MOST_DRAFT);
        assert_eq!(Judge::new(Speculate::Off).most(), 0);
    }
}
