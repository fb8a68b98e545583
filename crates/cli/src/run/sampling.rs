//! The sampling flags, with llama.cpp's names.

use std::error::Error;
use std::num::ParseIntError;

use alight_model::SamplerOptions;
use anyhow::bail;
use clap::builder::Resettable;
use clap::{Arg, Args, Command, FromArgMatches};

use crate::plain;

/// The defaults.
const DEFAULTS: SamplerOptions = SamplerOptions::DEFAULT;

/// The sampling options.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Temperature; 0 always takes the most likely token
    #[arg(long, value_name = "T", default_value_t = DEFAULTS.temperature, value_parser = number("temperature"),
          visible_alias = "temperature")]
    temp: f32,

    /// Keep the K most likely tokens; 0 or less keeps all
    #[arg(long, value_name = "K", default_value_t = DEFAULTS.top_k, value_parser = top_k)]
    top_k: usize,

    /// Keep the most likely tokens that make up this share of the probability; 1 keeps all
    #[arg(long, value_name = "P", default_value_t = DEFAULTS.top_p, value_parser = number("top_p"))]
    top_p: f32,

    /// Keep the tokens at least this likely, relative to the most likely; 0 keeps all
    #[arg(long, value_name = "P", default_value_t = DEFAULTS.min_p, value_parser = number("min_p"))]
    min_p: f32,

    /// Make tokens seen lately less likely by this factor; 1 does not
    #[arg(long, value_name = "X", default_value_t = DEFAULTS.repeat_penalty, value_parser = number("repeat_penalty"))]
    repeat_penalty: f32,

    /// Make tokens less likely by this much for each time that they were seen lately; 0 does not
    #[arg(long, value_name = "X", default_value_t = DEFAULTS.frequency_penalty, value_parser = number("frequency_penalty"))]
    frequency_penalty: f32,

    /// Make tokens less likely by this much if they were seen lately; 0 does not
    #[arg(long, value_name = "X", default_value_t = DEFAULTS.presence_penalty, value_parser = number("presence_penalty"))]
    presence_penalty: f32,

    /// How many tokens count as seen lately; 0 none, -1 all
    #[arg(long, value_name = "N", default_value_t = DEFAULTS.repeat_last_n, value_parser = last_n)]
    repeat_last_n: usize,

    /// Seed of the random choices: the same seed gives the same answer [default: random]
    #[arg(short = 's', long, value_name = "N",
          value_parser = clap::value_parser!(i64).range(-1..))]
    seed: Option<i64>,
}

/// The number of tokens that `-1` (all) stands for: more than any context has.
pub const ALL: usize = i32::MAX as usize;

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
    /// There is no such option, or the value is not valid for it.
    pub fn change(&mut self, name: &str, value: &str) -> anyhow::Result<()> {
        let command =
            SamplingArgs::augment_args_for_update(Command::new("set").no_binary_name(true));
        // Other options stay unchanged.
        let command = command.mut_args(|option| option.default_value(Resettable::Reset));
        let is_called = |option: &Arg| {
            let mut aliases = option.get_all_aliases().into_iter().flatten();
            option.get_long() == Some(name) || aliases.any(|alias| alias == name)
        };
        if !command.get_arguments().any(is_called) {
            let names: Vec<&str> = command.get_arguments().filter_map(Arg::get_long).collect();
            bail!("there is no option '{name}': there are {}, predict", names.join(", "));
        }
        match command.try_get_matches_from([format!("--{name}={value}")]) {
            Ok(given) => Ok(self.update_from_arg_matches(&given)?),
            Err(error) => match error.source() {
                Some(why) => bail!("'{value}' for {name}: {}", plain::why(&why.to_string(), value)),
                None => bail!("'{value}' is no value of {name}"),
            },
        }
    }

    /// Returns the name of each option, its value in `options`, and what it does.
    pub fn listed(&self, options: &SamplerOptions) -> Vec<(String, String, String)> {
        let command = SamplingArgs::augment_args(Command::new("set"));
        let of = |option: &Arg| {
            let (name, help) = (option.get_long()?.to_owned(), option.get_help()?.to_string());
            let field = match name.as_str() {
                "temp" => "temperature".to_owned(),
                name => name.replace('-', "_"),
            };
            let number = SamplerOptions::NUMBERS.iter().find(|number| number.name == field);
            let value = match (number, name.as_str()) {
                (Some(number), _) => (number.get)(options).to_string(),
                (None, "top-k") => options.top_k.to_string(),
                (None, "repeat-last-n") if options.repeat_last_n == ALL => "-1".to_owned(),
                (None, "repeat-last-n") => options.repeat_last_n.to_string(),
                (None, "seed") => options.seed.to_string(),
                (None, _) => return None,
            };
            Some((name, value, help))
        };
        command.get_arguments().filter_map(of).collect()
    }

    /// Returns true if tokens are drawn, and differently in each run.
    pub fn are_random(&self) -> bool {
        self.temp > 0.0 && self.seed.is_none_or(|seed| seed < 0)
    }

    /// Returns the sampler's options. A seed of -1, or none, is replaced by one that differs in each run.
    pub fn options(&self) -> SamplerOptions {
        self.options_or_seed(SamplerOptions::any_seed)
    }

    /// Returns the sampler's options, which are the same in every run if no seed is given: it is then 0.
    pub fn fixed_options(&self) -> SamplerOptions {
        self.options_or_seed(|| if self.draws_seed() { SamplerOptions::any_seed() } else { 0 })
    }

    /// Returns true if the seed differs in every run.
    pub fn draws_seed(&self) -> bool {
        self.seed.is_some_and(|seed| seed < 0)
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
            ..SamplerOptions::DEFAULT
        }
    }
}

fn top_k(text: &str) -> Result<usize, ParseIntError> {
    text.parse::<i64>().map(|k| usize::try_from(k).unwrap_or(0))
}

fn last_n(text: &str) -> Result<usize, String> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(ALL),
        Ok(n) => usize::try_from(n).map_err(|_| "expected -1 or more".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns a parser of the numeric option `name`.
fn number(name: &'static str) -> impl Fn(&str) -> Result<f32, String> + Clone {
    move |text| {
        let numbers = SamplerOptions::numbers(name);
        match text.parse::<f32>() {
            Ok(x) if numbers.hold(x) => Ok(x),
            _ => Err(format!("expected {}", numbers.expected())),
        }
    }
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
        args.change("temp", "0.125").unwrap();
        args.change("temperature", "0.25").unwrap();
        args.change("presence-penalty", "-1").unwrap();
        assert_eq!(
            args.options(),
            SamplerOptions { temperature: 0.25, presence_penalty: -1.0, ..before }
        );
        // The values that llama.cpp uses.
        args.change("top-k", "-1").unwrap();
        args.change("repeat-last-n", "-1").unwrap();
        assert_eq!((args.options().top_k, args.options().repeat_last_n), (0, ALL));
        for (name, value, part) in [
            ("temp", "hot", "expected a number"),
            ("temp", "-1", "expected a number"),
            ("heat", "1", "top-k"),
            ("top-p", "2", "0 to 1"),
            ("top-k", "3.5", "expected a whole number"),
            ("repeat-last-n", "-2", "expected -1 or more"),
        ] {
            let error = args.change(name, value).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
