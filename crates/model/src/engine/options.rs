//! User options that are the same for every program: the accepted numbers, a seed where none is given, and the length of the context.

use std::time::{SystemTime, UNIX_EPOCH};

use thiserror::Error;

use super::sampler::SamplerOptions;
use crate::open::DEFAULT_CONTEXT;

/// The numbers that an option accepts. All of them are finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// All numbers.
    Any,
    /// At least 0.
    NotBelowZero,
    /// Above 0.
    AboveZero,
    /// At least 1.
    NotBelowOne,
    /// From 0 to 1.
    Fraction,
}

impl Numbers {
    /// Returns true if `x` is one of them.
    pub fn hold(self, x: f32) -> bool {
        x.is_finite()
            && match self {
                Numbers::Any => true,
                Numbers::NotBelowZero => x >= 0.0,
                Numbers::AboveZero => x > 0.0,
                Numbers::NotBelowOne => x >= 1.0,
                Numbers::Fraction => (0.0..=1.0).contains(&x),
            }
    }

    /// The expectation, as text for the user.
    pub fn expected(self) -> &'static str {
        match self {
            Numbers::Any => "a number",
            Numbers::NotBelowZero => "a number not below 0",
            Numbers::AboveZero => "a number above 0",
            Numbers::NotBelowOne => "a number not below 1",
            Numbers::Fraction => "a number from 0 to 1",
        }
    }
}

/// An option has a number that it does not accept.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("{name} is {found}, expected {}", numbers.expected())]
pub struct OptionError {
    /// The name of the option's field.
    pub name: &'static str,
    /// The number given.
    pub found: f32,
    /// The accepted numbers.
    pub numbers: Numbers,
}

/// A numeric sampling option.
#[derive(Clone, Copy, Debug)]
pub struct SamplerNumber {
    /// The name of its field, which is also its name in requests and in Python.
    pub name: &'static str,
    /// Alternative names in requests.
    pub also: &'static [&'static str],
    /// The numbers that it accepts.
    pub numbers: Numbers,
    /// Reads it.
    pub get: fn(&SamplerOptions) -> f32,
    /// Changes it.
    pub set: fn(&mut SamplerOptions, f32),
}

/// A sampling option that is a whole number.
#[derive(Clone, Copy, Debug)]
pub struct SamplerCount {
    /// The name of its field, which is also its name in requests and in Python.
    pub name: &'static str,
    /// The greatest number that it accepts.
    pub most: usize,
    /// The meaning of −1, if it accepts that.
    pub all: Option<usize>,
    /// Reads it.
    pub get: fn(&SamplerOptions) -> usize,
    /// Changes it.
    pub set: fn(&mut SamplerOptions, usize),
}

impl SamplerCount {
    /// Returns the number that `n` stands for, if the option accepts it.
    pub fn read(&self, n: i128) -> Option<usize> {
        match n {
            -1 => self.all,
            n => usize::try_from(n).ok().filter(|n| *n <= self.most),
        }
    }

    /// The expectation, as text for the user.
    pub fn expected(&self) -> String {
        let minus_one = if self.all.is_some() { ", or -1" } else { "" };
        match self.most {
            usize::MAX => format!("a whole number, not below 0{minus_one}"),
            most => format!("a whole number from 0 to {most}{minus_one}"),
        }
    }
}

impl SamplerOptions {
    /// Every option that is a whole number, except for the seed; like [`NUMBERS`](Self::NUMBERS), a new one needs a field, its use in the sampler,
    /// and an entry here.
    pub const COUNTS: [SamplerCount; 6] = [
        SamplerCount {
            name: "top_k",
            most: usize::MAX,
            all: Some(0),
            get: |options| options.top_k,
            set: |options, n| options.top_k = n,
        },
        SamplerCount {
            name: "min_keep",
            most: usize::MAX,
            all: None,
            get: |options| options.min_keep,
            set: |options, n| options.min_keep = n,
        },
        SamplerCount {
            name: "repeat_last_n",
            most: usize::MAX,
            all: Some(usize::MAX),
            get: |options| options.repeat_last_n,
            set: |options, n| options.repeat_last_n = n,
        },
        SamplerCount {
            name: "dry_allowed_length",
            most: usize::MAX,
            all: None,
            get: |options| options.dry_allowed_length,
            set: |options, n| options.dry_allowed_length = n,
        },
        SamplerCount {
            name: "dry_penalty_last_n",
            most: usize::MAX,
            all: Some(usize::MAX),
            get: |options| options.dry_penalty_last_n,
            set: |options, n| options.dry_penalty_last_n = n,
        },
        SamplerCount {
            name: "mirostat",
            most: 2,
            all: None,
            get: |options| options.mirostat,
            set: |options, n| options.mirostat = n,
        },
    ];

    /// The whole number of this name.
    ///
    /// # Panics
    /// If there is no option of that name.
    pub fn count(name: &str) -> &'static SamplerCount {
        const COUNTS: &[SamplerCount] = &SamplerOptions::COUNTS;
        COUNTS.iter().find(|count| count.name == name).expect("an option of that name")
    }

    /// Checks that the option values are accepted.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check(&self) -> Result<(), OptionError> {
        for SamplerNumber { name, numbers, get, .. } in &SamplerOptions::NUMBERS {
            let found = get(self);
            if !numbers.hold(found) {
                return Err(OptionError { name, found, numbers: *numbers });
            }
        }
        Ok(())
    }

    /// Every numeric option, in the order of the documentation. A new one needs a field, its use in the sampler, and an entry here: the fields of
    /// requests, Python's arguments, checks and lists follow.
    pub const NUMBERS: [SamplerNumber; 13] = [
        SamplerNumber {
            name: "temperature",
            also: &[],
            numbers: Numbers::NotBelowZero,
            get: |options| options.temperature,
            set: |options, x| options.temperature = x,
        },
        SamplerNumber {
            name: "top_p",
            also: &[],
            numbers: Numbers::Fraction,
            get: |options| options.top_p,
            set: |options, x| options.top_p = x,
        },
        SamplerNumber {
            name: "min_p",
            also: &[],
            numbers: Numbers::Fraction,
            get: |options| options.min_p,
            set: |options, x| options.min_p = x,
        },
        SamplerNumber {
            name: "repeat_penalty",
            also: &["repetition_penalty"],
            numbers: Numbers::AboveZero,
            get: |options| options.repeat_penalty,
            set: |options, x| options.repeat_penalty = x,
        },
        SamplerNumber {
            name: "frequency_penalty",
            also: &[],
            numbers: Numbers::Any,
            get: |options| options.frequency_penalty,
            set: |options, x| options.frequency_penalty = x,
        },
        SamplerNumber {
            name: "presence_penalty",
            also: &[],
            numbers: Numbers::Any,
            get: |options| options.presence_penalty,
            set: |options, x| options.presence_penalty = x,
        },
        SamplerNumber {
            name: "dry_multiplier",
            also: &[],
            numbers: Numbers::NotBelowZero,
            get: |options| options.dry_multiplier,
            set: |options, x| options.dry_multiplier = x,
        },
        SamplerNumber {
            name: "dry_base",
            also: &[],
            numbers: Numbers::NotBelowOne,
            get: |options| options.dry_base,
            set: |options, x| options.dry_base = x,
        },
        SamplerNumber {
            name: "xtc_probability",
            also: &[],
            numbers: Numbers::Fraction,
            get: |options| options.xtc_probability,
            set: |options, x| options.xtc_probability = x,
        },
        SamplerNumber {
            name: "xtc_threshold",
            also: &[],
            numbers: Numbers::Fraction,
            get: |options| options.xtc_threshold,
            set: |options, x| options.xtc_threshold = x,
        },
        SamplerNumber {
            name: "top_n_sigma",
            also: &[],
            numbers: Numbers::Any,
            get: |options| options.top_n_sigma,
            set: |options, x| options.top_n_sigma = x,
        },
        SamplerNumber {
            name: "mirostat_tau",
            also: &[],
            numbers: Numbers::NotBelowZero,
            get: |options| options.mirostat_tau,
            set: |options, x| options.mirostat_tau = x,
        },
        SamplerNumber {
            name: "mirostat_eta",
            also: &[],
            numbers: Numbers::NotBelowZero,
            get: |options| options.mirostat_eta,
            set: |options, x| options.mirostat_eta = x,
        },
    ];

    /// The numbers that the option `name` accepts.
    ///
    /// # Panics
    /// If there is no option of that name.
    pub fn numbers(name: &str) -> Numbers {
        let named = SamplerOptions::NUMBERS.iter().find(|number| number.name == name);
        named.expect("an option of that name").numbers
    }

    /// Returns a seed for when none is given: 32 bits that differ from run to run, and from call to call. Short enough to be typed again.
    pub fn any_seed() -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mixed = (now.as_nanos() as u64 ^ (u64::from(std::process::id()) << 32))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed >> 32
    }
}

/// Returns the context of a sequence for the `given` number of positions and a model that was trained for `trained`: 0 means `trained`, and `None`
/// means `trained`, but at most [`DEFAULT_CONTEXT`].
pub fn context(given: Option<usize>, trained: usize) -> usize {
    match given {
        Some(0) => trained,
        Some(context) => context,
        None => DEFAULT_CONTEXT.min(trained),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_make_no_sense_are_told_by_name() {
        assert_eq!(SamplerOptions::default().check(), Ok(()));
        assert_eq!(SamplerOptions::greedy().check(), Ok(()));
        for (options, message) in [
            (
                SamplerOptions { temperature: -0.5, ..SamplerOptions::default() },
                "temperature is -0.5, expected a number not below 0",
            ),
            (
                SamplerOptions { top_p: f32::NAN, ..SamplerOptions::default() },
                "top_p is NaN, expected a number from 0 to 1",
            ),
            (
                SamplerOptions { min_p: 1.5, ..SamplerOptions::default() },
                "min_p is 1.5, expected a number from 0 to 1",
            ),
            (
                SamplerOptions { repeat_penalty: 0.0, ..SamplerOptions::default() },
                "repeat_penalty is 0, expected a number above 0",
            ),
            (
                SamplerOptions { presence_penalty: f32::INFINITY, ..SamplerOptions::default() },
                "presence_penalty is inf, expected a number",
            ),
            (
                SamplerOptions { dry_base: 0.5, ..SamplerOptions::default() },
                "dry_base is 0.5, expected a number not below 1",
            ),
        ] {
            assert_eq!(options.check().map_err(|e| e.to_string()), Err(message.to_owned()));
        }
    }

    #[test]
    fn whole_numbers_have_a_greatest_and_some_have_minus_one() {
        let read = |name, n| SamplerOptions::count(name).read(n);
        assert_eq!(
            (read("mirostat", 2), read("mirostat", 3), read("mirostat", -1)),
            (Some(2), None, None)
        );
        assert_eq!((read("top_k", -1), read("repeat_last_n", -1)), (Some(0), Some(usize::MAX)));
        assert_eq!((read("dry_penalty_last_n", -2), read("min_keep", 1 << 100)), (None, None));
        assert_eq!(SamplerOptions::count("mirostat").expected(), "a whole number from 0 to 2");
        for count in &SamplerOptions::COUNTS {
            let mut options = SamplerOptions::default();
            (count.set)(&mut options, 2);
            assert_eq!((count.get)(&options), 2, "{}", count.name);
        }
    }

    #[test]
    fn a_context_of_0_is_what_the_model_was_trained_for() {
        assert_eq!([context(None, 100), context(None, 1 << 20)], [100, DEFAULT_CONTEXT]);
        assert_eq!([context(Some(0), 1 << 20), context(Some(7), 100)], [1 << 20, 7]);
    }
}
