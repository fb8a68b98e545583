//! What people give as options, the same for every program: which numbers there are, a seed for those who give none, and how
//! long the context is.

use std::time::{SystemTime, UNIX_EPOCH};

use thiserror::Error;

use super::sampler::SamplerOptions;
use crate::open::DEFAULT_CONTEXT;

/// Which numbers an option takes. All of them are finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// All.
    Any,
    /// From 0 on.
    NotBelowZero,
    /// Above 0.
    AboveZero,
    /// From 0 to 1.
    Fraction,
}

impl Numbers {
    /// True if `x` is one of them.
    pub fn hold(self, x: f32) -> bool {
        x.is_finite()
            && match self {
                Numbers::Any => true,
                Numbers::NotBelowZero => x >= 0.0,
                Numbers::AboveZero => x > 0.0,
                Numbers::Fraction => (0.0..=1.0).contains(&x),
            }
    }

    /// What is expected, for people.
    pub fn expected(self) -> &'static str {
        match self {
            Numbers::Any => "a number",
            Numbers::NotBelowZero => "a number not below 0",
            Numbers::AboveZero => "a number above 0",
            Numbers::Fraction => "a number from 0 to 1",
        }
    }
}

/// An option has a number that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("{name} is {found}, expected {}", numbers.expected())]
pub struct OptionError {
    /// The option, by the name of its field.
    pub name: &'static str,
    /// What it is.
    pub found: f32,
    /// What it may be.
    pub numbers: Numbers,
}

impl SamplerOptions {
    /// Checks that the numbers make sense.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self) -> Result<(), OptionError> {
        for (name, found, numbers) in [
            ("temperature", self.temperature, SamplerOptions::TEMPERATURE),
            ("top_p", self.top_p, SamplerOptions::TOP_P),
            ("min_p", self.min_p, SamplerOptions::MIN_P),
            ("repeat_penalty", self.repeat_penalty, SamplerOptions::REPEAT_PENALTY),
            ("frequency_penalty", self.frequency_penalty, SamplerOptions::FREQUENCY_PENALTY),
            ("presence_penalty", self.presence_penalty, SamplerOptions::PRESENCE_PENALTY),
        ] {
            if !numbers.hold(found) {
                return Err(OptionError { name, found, numbers });
            }
        }
        Ok(())
    }

    /// What temperatures there are.
    pub const TEMPERATURE: Numbers = Numbers::NotBelowZero;
    /// What top-p there are.
    pub const TOP_P: Numbers = Numbers::Fraction;
    /// What min-p there are.
    pub const MIN_P: Numbers = Numbers::Fraction;
    /// What repeat penalties there are.
    pub const REPEAT_PENALTY: Numbers = Numbers::AboveZero;
    /// What frequency penalties there are.
    pub const FREQUENCY_PENALTY: Numbers = Numbers::Any;
    /// What presence penalties there are.
    pub const PRESENCE_PENALTY: Numbers = Numbers::Any;

    /// A seed for those who give none: 32 bits that differ from run to run, and from call to call. Short enough to be typed again.
    pub fn any_seed() -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mixed = (now.as_nanos() as u64 ^ (u64::from(std::process::id()) << 32))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed >> 32
    }
}

/// How many positions a sequence has if so many are asked for, of a model that was trained for `trained`: 0 are those, and without
/// a wish they are [`DEFAULT_CONTEXT`] at most.
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
        for (options, said) in [
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
        ] {
            assert_eq!(options.check().map_err(|e| e.to_string()), Err(said.to_owned()));
        }
    }

    #[test]
    fn a_context_of_0_is_what_the_model_was_trained_for() {
        assert_eq!([context(None, 100), context(None, 1 << 20)], [100, DEFAULT_CONTEXT]);
        assert_eq!([context(Some(0), 1 << 20), context(Some(7), 100)], [1 << 20, 7]);
    }
}
