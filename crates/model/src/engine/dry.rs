//! DRY ("don't repeat yourself"): a token that would continue a repetition of earlier text becomes less likely, and the more so the longer the
//! repetition already is.
//!
//! A repetition is the longest end of the text that also stands before an earlier occurrence of the token. It begins at the earliest after the last
//! text that breaks sequences. If it has at least the allowed length, the logit of the token is reduced by multiplier · base^(length − allowed). This
//! is what llama.cpp computes.

use std::cmp::Reverse;
use std::sync::Arc;

use alight_text::SequenceBreakers;

use super::history::History;

/// How repetitions are penalised.
#[derive(Clone, Copy, Debug)]
pub(super) struct DryOptions {
    pub(super) multiplier: f32,
    pub(super) base: f32,
    /// The shortest repetition that is penalised.
    pub(super) allowed: usize,
    /// The number of tokens in which repetitions are found.
    pub(super) window: usize,
}

impl DryOptions {
    /// Returns true if nothing is ever penalised.
    pub(super) fn are_off(&self) -> bool {
        // A base below 1 turns it off in llama.cpp, too.
        self.multiplier == 0.0 || self.base < 1.0 || self.window == 0
    }
}

/// Finds the tokens that would continue a repetition. After [`Dry::new`] nothing is allocated.
#[derive(Debug)]
pub(super) struct Dry {
    options: DryOptions,
    /// The greatest exponent whose power is a number.
    max_exponent: usize,
    breakers: Arc<SequenceBreakers>,
    /// For each distance, the length of the repetition at that distance.
    lengths: Vec<u32>,
    /// Tokens that would continue a repetition, with its length; ids ascending.
    repeats: Vec<(u32, u32)>,
}

impl Dry {
    /// Its window is at most `MAX_REMEMBERED` tokens, and none if the options are off.
    pub(super) fn new(options: DryOptions) -> Dry {
        let window = if options.are_off() { 0 } else { options.window };
        // Nearer to 1, no length that a text can have is too great.
        let max_exponent = if options.base > 1.000_001 {
            (libm::log(f64::from(f32::MAX)) / libm::log(f64::from(options.base))) as usize
        } else {
            usize::MAX
        };
        Dry {
            options,
            max_exponent,
            breakers: Arc::default(),
            lengths: Vec::with_capacity(window),
            repeats: Vec::with_capacity(window),
        }
    }

    pub(super) fn break_at(&mut self, breakers: Arc<SequenceBreakers>) {
        self.breakers = breakers;
    }

    /// Finds the tokens that would continue a repetition of the end of `history`.
    pub(super) fn find(&mut self, history: &History) {
        self.repeats.clear();
        let allowed = self.options.allowed;
        let n = history.len().min(self.options.window);
        if self.options.are_off() || n <= allowed {
            return;
        }
        let longest = self.breakers.since(n, |i| history.back(i));
        if longest < allowed {
            return;
        }
        self.measure(history, n);
        for distance in 1..n {
            let length = (self.lengths[distance] as usize).min(longest);
            if length >= allowed {
                self.repeats.push((history.back(distance - 1), length as u32));
            }
        }
        self.repeats.sort_unstable_by_key(|&(id, length)| (id, Reverse(length)));
        self.repeats.dedup_by_key(|repeat| repeat.0);
        let breakers = &self.breakers;
        self.repeats.retain(|repeat| !breakers.has(repeat.0));
    }

    /// Sets the lengths for all distances below `n`: how many of the last tokens are the same as the tokens this far before them. This is the
    /// Z-function of the tokens backwards, in time proportional to `n`.
    fn measure(&mut self, history: &History, n: usize) {
        self.lengths.clear();
        self.lengths.push(0);
        // Positions from `start` to `end` are known to equal those from 0 on.
        let (mut start, mut end) = (0, 0);
        for at in 1..n {
            let known =
                if at < end { (self.lengths[at - start] as usize).min(end - at) } else { 0 };
            let mut length = known;
            if at + known >= end {
                while at + length < n && history.back(length) == history.back(at + length) {
                    length += 1;
                }
                (start, end) = (at, at + length);
            }
            self.lengths.push(length as u32);
        }
    }

    /// The tokens found, ascending.
    pub(super) fn tokens(&self) -> impl Iterator<Item = u32> {
        self.repeats.iter().map(|repeat| repeat.0)
    }

    /// By how much the logit of a token is reduced.
    pub(super) fn penalty(&self, id: u32) -> f32 {
        let Ok(at) = self.repeats.binary_search_by_key(&id, |repeat| repeat.0) else { return 0.0 };
        let exponent = (self.repeats[at].1 as usize - self.options.allowed).min(self.max_exponent);
        let power = libm::pow(f64::from(self.options.base), exponent as f64);
        (f64::from(self.options.multiplier) * power) as f32
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> [usize; 2] {
        [self.lengths.capacity(), self.repeats.capacity()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: DryOptions = DryOptions { multiplier: 0.5, base: 2.0, allowed: 2, window: 64 };

    fn found(options: DryOptions, tokens: &[u32]) -> Vec<(u32, u32)> {
        let mut history = History::new(options.window);
        tokens.iter().for_each(|&id| history.push(id));
        let mut dry = Dry::new(options);
        dry.find(&history);
        dry.repeats
    }

    #[test]
    fn a_token_that_continues_a_repetition_is_found_with_its_length() {
        // a b c c b c y a b c
        let tokens = [1, 2, 3, 3, 2, 3, 9, 1, 2, 3];
        assert_eq!(found(OPTIONS, &tokens), [(3, 3), (9, 2)]);
        assert_eq!(found(DryOptions { allowed: 1, ..OPTIONS }, &tokens), [(2, 1), (3, 3), (9, 2)]);
        assert_eq!(found(DryOptions { allowed: 3, ..OPTIONS }, &tokens), [(3, 3)]);
        assert_eq!(found(DryOptions { allowed: 4, ..OPTIONS }, &tokens), []);
        // In fewer tokens there is less to repeat.
        assert_eq!(found(DryOptions { window: 6, ..OPTIONS }, &tokens), [(9, 2)]);
        let off = [
            DryOptions { multiplier: 0.0, ..OPTIONS },
            DryOptions { base: 0.5, ..OPTIONS },
            DryOptions { window: 0, ..OPTIONS },
        ];
        assert!(off.into_iter().all(|options| found(options, &tokens).is_empty()));
    }

    #[test]
    fn lengths_are_those_of_a_plain_search() {
        let mut state = 1u64;
        for (n, kinds) in [(1, 1), (2, 1), (40, 1), (50, 2), (200, 2), (300, 3), (100, 40)] {
            let tokens: Vec<u32> = (0..n)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 40) as u32 % kinds
                })
                .collect();
            let mut history = History::new(n);
            tokens.iter().for_each(|&id| history.push(id));
            let mut dry = Dry::new(DryOptions { window: n, ..OPTIONS });
            dry.measure(&history, n);
            for at in 1..n {
                let ends = tokens.iter().rev().zip(tokens[..n - at].iter().rev());
                let length = ends.take_while(|(a, b)| a == b).count();
                assert_eq!(dry.lengths[at] as usize, length, "{at} of {n}");
            }
        }
    }

    #[test]
    fn the_penalty_grows_with_the_length_and_stays_a_number() {
        let of = |base, tokens: &[u32]| {
            let options = DryOptions { base, window: 1000, ..OPTIONS };
            let mut history = History::new(options.window);
            tokens.iter().for_each(|&id| history.push(id));
            let mut dry = Dry::new(options);
            dry.find(&history);
            (dry.penalty(7), dry.penalty(3))
        };
        assert_eq!(of(2.0, &[1, 2, 7, 1, 2]), (0.5, 0.0));
        assert_eq!(of(2.0, &[5, 1, 2, 7, 5, 1, 2]), (1.0, 0.0));
        assert_eq!(of(1.0, &[5, 1, 2, 7, 5, 1, 2]), (0.5, 0.0));
        assert!(of(2.0, &[7; 900]).0.is_finite());
    }
}
