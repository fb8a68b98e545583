//! The sampling flags and the context, named as llama.cpp names them.

use std::error::Error;
use std::time::{SystemTime, UNIX_EPOCH};

use alight_model::{DEFAULT_CONTEXT, SamplerOptions};
use anyhow::bail;
use clap::builder::Resettable;
use clap::{Arg, Args, Command, FromArgMatches};

/// How tokens are chosen.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Temperature; 0 always takes the most likely token
    #[arg(long, value_name = "T", default_value_t = 0.8, value_parser = not_negative,
          visible_alias = "temperature")]
    temp: f32,

    /// Keep the K most likely tokens; 0 keeps all
    #[arg(long, value_name = "K", default_value_t = 40)]
    top_k: usize,

    /// Keep the most likely tokens that make up this share of the probability; 1 keeps all
    #[arg(long, value_name = "P", default_value_t = 0.95, value_parser = fraction)]
    top_p: f32,

    /// Keep the tokens at least this likely, relative to the most likely; 0 keeps all
    #[arg(long, value_name = "P", default_value_t = 0.05, value_parser = fraction)]
    min_p: f32,

    /// Make tokens seen lately less likely by this factor; 1 does not
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = positive)]
    repeat_penalty: f32,

    /// Make tokens less likely by this much for each time that they were seen lately; 0 does not
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = any_number, allow_negative_numbers = true)]
    frequency_penalty: f32,

    /// Make tokens less likely by this much if they were seen lately; 0 does not
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = any_number, allow_negative_numbers = true)]
    presence_penalty: f32,

    /// How many tokens count as seen lately; 0 none
    #[arg(long, value_name = "N", default_value_t = 64)]
    repeat_last_n: usize,

    /// Seed of the random choices: the same seed gives the same answer [default: random]
    #[arg(short = 's', long, value_name = "N", allow_negative_numbers = true,
          value_parser = clap::value_parser!(i64).range(-1..))]
    seed: Option<i64>,
}

/// Options that only the engine of this program has, by the ids of the arguments.
pub const ONLY_NATIVE: [&str; 6] = [
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "repeat_last_n",
    "speculate",
    "draft",
];

impl SamplingArgs {
    /// Changes the option of this name.
    ///
    /// # Errors
    /// There is none, or the value is none of its values.
    pub fn change(&mut self, name: &str, value: &str) -> anyhow::Result<()> {
        let command =
            SamplingArgs::augment_args_for_update(Command::new("set").no_binary_name(true));
        // What is not named stays as it is.
        let command = command.mut_args(|option| option.default_value(Resettable::Reset));
        if !command.get_arguments().any(|option| option.get_long() == Some(name)) {
            let names: Vec<&str> = command.get_arguments().filter_map(Arg::get_long).collect();
            bail!("there is no option '{name}': there are {}, predict", names.join(", "));
        }
        match command.try_get_matches_from([format!("--{name}={value}")]) {
            Ok(given) => Ok(self.update_from_arg_matches(&given)?),
            Err(error) => match error.source() {
                Some(why) => bail!("'{value}' for {name}: {why}"),
                None => bail!("'{value}' is no value of {name}"),
            },
        }
    }

    /// Whether tokens are drawn, and differently from run to run.
    pub fn are_random(&self) -> bool {
        self.temp > 0.0 && self.seed.is_none_or(|seed| seed < 0)
    }

    /// The sampler's options. A seed of -1, or none, becomes one that differs from run to run.
    pub fn options(&self) -> SamplerOptions {
        self.options_or_seed(any_seed)
    }

    /// The sampler's options, which are the same in every run if no seed is given: it is 0 then.
    pub fn fixed_options(&self) -> SamplerOptions {
        self.options_or_seed(|| if self.seed.is_some() { any_seed() } else { 0 })
    }

    fn options_or_seed(&self, seed: impl Fn() -> u64) -> SamplerOptions {
        SamplerOptions {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            repeat_last_n: self.repeat_last_n,
            seed: self.seed.and_then(|s| u64::try_from(s).ok()).unwrap_or_else(seed),
        }
    }
}

/// 32 bits that differ from run to run. Short enough to be typed again.
fn any_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mixed = (now.as_nanos() as u64 ^ (u64::from(std::process::id()) << 32))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed >> 32
}

/// How many positions a sequence has with `-c` as given, of a model that was trained for so many.
pub fn context(given: Option<usize>, trained: usize) -> usize {
    match given {
        Some(0) => trained,
        Some(context) => context,
        None => DEFAULT_CONTEXT.min(trained),
    }
}

fn number(text: &str, fits: impl Fn(f32) -> bool, what: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(x) if x.is_finite() && fits(x) => Ok(x),
        _ => Err(format!("expected {what}")),
    }
}

fn not_negative(text: &str) -> Result<f32, String> {
    number(text, |x| x >= 0.0, "a number not below 0")
}

fn any_number(text: &str) -> Result<f32, String> {
    number(text, |_| true, "a number")
}

fn positive(text: &str) -> Result<f32, String> {
    number(text, |x| x > 0.0, "a number above 0")
}

fn fraction(text: &str) -> Result<f32, String> {
    number(text, |x| (0.0..=1.0).contains(&x), "a number from 0 to 1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_option_is_changed_and_the_others_stay() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            sampling: SamplingArgs,
        }
        let line = ["x", "--top-k", "7", "--seed", "3", "--temp", "0.5"];
        let mut args = <Line as clap::Parser>::parse_from(line).sampling;
        let before = args.options();
        args.change("temp", "0.25").unwrap();
        args.change("presence-penalty", "-1").unwrap();
        assert_eq!(
            args.options(),
            SamplerOptions { temperature: 0.25, presence_penalty: -1.0, ..before }
        );
        for (name, value, part) in
            [("temp", "hot", "expected a number"), ("heat", "1", "top-k"), ("top-p", "2", "0 to 1")]
        {
            let error = args.change(name, value).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
