//! The sampling flags, with llama.cpp's names.

use std::error::Error;
use std::num::ParseIntError;

use alight_chat::body::options::BREAKERS;
use alight_model::{SamplerOptions, SamplerStages, StageError};
use anyhow::bail;
use clap::builder::Resettable;
use clap::{Arg, Args, Command, FromArgMatches};

use crate::outcome::{Outcome, Stop};
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

    /// DRY: make a token that would continue a repetition less likely by this, times a power of --dry-base; 0 does not
    #[arg(long, value_name = "X", default_value_t = DEFAULTS.dry_multiplier, value_parser = number("dry_multiplier"))]
    dry_multiplier: f32,

    /// DRY: base of the power, whose exponent is the length of the repetition beyond --dry-allowed-length
    #[arg(long, value_name = "X", default_value_t = DEFAULTS.dry_base, value_parser = number("dry_base"))]
    dry_base: f32,

    /// DRY: do nothing about repetitions shorter than N tokens
    #[arg(long, value_name = "N", default_value_t = DEFAULTS.dry_allowed_length)]
    dry_allowed_length: usize,

    /// DRY: how many tokens are searched for repetitions; 0 none, -1 all
    #[arg(long, value_name = "N", default_value_t = DEFAULTS.dry_penalty_last_n, value_parser = last_n)]
    dry_penalty_last_n: usize,

    /// DRY: no repetition goes beyond this text; again for another; 'none' for none [default: line breaks, ':', '"' and '*']
    #[arg(long, value_name = "TEXT", value_parser = breaker)]
    dry_sequence_breaker: Option<Vec<String>>,

    /// XTC: how often all likely tokens but the least likely of them are left out; 0 never
    #[arg(long, value_name = "P", default_value_t = DEFAULTS.xtc_probability, value_parser = number("xtc_probability"))]
    xtc_probability: f32,

    /// XTC: from this probability on a token is likely; above 0.5, none is left out
    #[arg(long, value_name = "P", default_value_t = DEFAULTS.xtc_threshold, value_parser = number("xtc_threshold"))]
    xtc_threshold: f32,

    /// Keep the tokens whose logits are at most N standard deviations below the greatest; 0 or less keeps all
    #[arg(long, value_name = "N", default_value_t = DEFAULTS.top_n_sigma, value_parser = number("top_n_sigma"),
          visible_alias = "top-n-sigma")]
    top_nsigma: f32,

    /// Draw with Mirostat 1 or 2, in place of penalties, top-nsigma, top-k, top-p, min-p and XTC; 0 does not
    #[arg(long, value_name = "N", default_value_t = DEFAULTS.mirostat, value_parser = mirostat)]
    mirostat: usize,

    /// Mirostat: how fast it learns
    #[arg(long, value_name = "X", default_value_t = DEFAULTS.mirostat_eta, value_parser = number("mirostat_eta"))]
    mirostat_lr: f32,

    /// Mirostat: mean surprise of a token to aim at, in bits
    #[arg(long, value_name = "X", default_value_t = DEFAULTS.mirostat_tau, value_parser = number("mirostat_tau"))]
    mirostat_ent: f32,

    /// Turn off all stages but these, by their names, with ';' between them [possible: penalties, dry, top_n_sigma, top_k, top_p, min_p, xtc,
    /// temperature, always in this order]
    #[arg(long, value_name = "NAMES", value_parser = stages)]
    samplers: Option<SamplerStages>,

    /// As --samplers, with a letter for each of them: e, d, s, k, p, m, x, t
    #[arg(long, value_name = "LETTERS", value_parser = stage_letters, visible_alias = "sampling-seq", overrides_with = "samplers")]
    sampler_seq: Option<SamplerStages>,

    /// Seed of the random choices: the same seed gives the same answer [default: random]
    #[arg(short = 's', long, value_name = "N",
          value_parser = clap::value_parser!(i64).range(-1..))]
    seed: Option<i64>,
}

/// The number of tokens that `-1` (all) stands for: more than any context has.
pub const ALL: usize = i32::MAX as usize;

/// Options that only the engine of this program has, by the ids of the arguments.
pub const ONLY_NATIVE: [&str; 19] = [
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "repeat_last_n",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breaker",
    "xtc_probability",
    "xtc_threshold",
    "top_nsigma",
    "mirostat",
    "mirostat_lr",
    "mirostat_ent",
    "samplers",
    "sampler_seq",
    "speculate",
    "draft",
];

impl SamplingArgs {
    /// Returns the names of all options.
    pub fn names() -> Vec<String> {
        let command = SamplingArgs::augment_args_for_update(Command::new("set"));
        command.get_arguments().filter_map(Arg::get_long).map(str::to_owned).collect()
    }

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
            bail!(
                "there is no option '{name}': there are {}, predict",
                SamplingArgs::names().join(", ")
            );
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
                "top-nsigma" => "top_n_sigma".to_owned(),
                "mirostat-lr" => "mirostat_eta".to_owned(),
                "mirostat-ent" => "mirostat_tau".to_owned(),
                name => name.replace('-', "_"),
            };
            let number = SamplerOptions::NUMBERS.iter().find(|number| number.name == field);
            let number = number.map(|number| (number.get)(options).to_string());
            let count = || SamplerOptions::COUNTS.iter().find(|count| count.name == field);
            let value = match name.as_str() {
                "seed" => options.seed.to_string(),
                "dry-sequence-breaker" => self.breakers_in_words(),
                "samplers" | "sampler-seq" => self.stages_in_words(),
                _ => number.or_else(|| count().map(|count| or_all((count.get)(options))))?,
            };
            Some((name, value, help))
        };
        command.get_arguments().filter_map(of).collect()
    }

    /// Refuses more texts that break sequences than a request may have.
    pub fn check(&self) -> Outcome {
        let ((most, _), given) = (BREAKERS, self.breakers().map_or(0, <[String]>::len));
        if given <= most {
            return Ok(());
        }
        Err(Stop::Usage(format!(
            "--dry-sequence-breaker is given {given} times, expected at most {most}: leave some out"
        )))
    }

    /// Returns the texts that break sequences for DRY, if they are not the usual ones.
    pub fn breakers(&self) -> Option<&[String]> {
        let given = self.dry_sequence_breaker.as_deref()?;
        // 'none' drops those before it, as in llama.cpp.
        let from = given.iter().rposition(|text| text == "none").map_or(0, |at| at + 1);
        Some(&given[from..])
    }

    /// Returns the texts that break sequences, as text.
    fn breakers_in_words(&self) -> String {
        match self.breakers() {
            None => "usual".to_owned(),
            Some([]) => "none".to_owned(),
            Some(texts) => format!("{texts:?}"),
        }
    }

    /// Returns the stages that are on, as text.
    fn stages_in_words(&self) -> String {
        match self.stages() {
            None => "all".to_owned(),
            Some(stages) => stages.names().collect::<Vec<_>>().join(";"),
        }
    }

    fn stages(&self) -> Option<SamplerStages> {
        self.sampler_seq.or(self.samplers)
    }

    /// Returns true if tokens are drawn, and differently in each run.
    pub fn are_random(&self) -> bool {
        // XTC draws whether it leaves tokens out, at any temperature.
        (self.temp > 0.0 || self.xtc_probability > 0.0) && self.seed.is_none_or(|seed| seed < 0)
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
        let mut options = SamplerOptions {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            repeat_last_n: self.repeat_last_n,
            dry_multiplier: self.dry_multiplier,
            dry_base: self.dry_base,
            dry_allowed_length: self.dry_allowed_length,
            dry_penalty_last_n: self.dry_penalty_last_n,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            top_n_sigma: self.top_nsigma,
            mirostat: self.mirostat,
            mirostat_tau: self.mirostat_ent,
            mirostat_eta: self.mirostat_lr,
            seed: self.seed.and_then(|s| u64::try_from(s).ok()).unwrap_or_else(seed),
            min_keep: DEFAULTS.min_keep,
        };
        if let Some(stages) = self.stages() {
            stages.keep(&mut options);
        }
        options
    }
}

/// A number of tokens, as text.
pub fn or_all(n: usize) -> String {
    if n == ALL { "-1".to_owned() } else { n.to_string() }
}

fn mirostat(text: &str) -> Result<usize, String> {
    let mirostat = SamplerOptions::count("mirostat");
    let read = text.parse::<i64>().ok().and_then(|n| mirostat.read(n.into()));
    read.ok_or_else(|| format!("expected {}", mirostat.expected()))
}

fn breaker(text: &str) -> Result<String, String> {
    let (_, longest) = BREAKERS;
    match text.len() {
        1.. if text.len() <= longest => Ok(text.to_owned()),
        n => Err(format!("it has {n} bytes, expected 1 to {longest}")),
    }
}

fn stages(text: &str) -> Result<SamplerStages, StageError> {
    SamplerStages::of_names(text.split(';').map(str::trim).filter(|name| !name.is_empty()))
}

fn stage_letters(text: &str) -> Result<SamplerStages, StageError> {
    SamplerStages::of_letters(text)
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
        args.change("mirostat-ent", "2.5").unwrap();
        args.change("top-n-sigma", "1.5").unwrap();
        let options = args.options();
        assert_eq!((options.mirostat_tau, options.top_n_sigma), (2.5, 1.5));
        assert_eq!(args.breakers(), None);
        args.change("dry-sequence-breaker", "a b").unwrap();
        assert_eq!(args.breakers(), Some(&["a b".to_owned()][..]));
        args.change("dry-sequence-breaker", "none").unwrap();
        assert_eq!(args.breakers(), Some(&[][..]));
        let listed = args.listed(&options);
        let value = |name: &str| listed.iter().find(|one| one.0 == name).map(|one| one.1.as_str());
        assert_eq!(value("dry-sequence-breaker"), Some("none"));
        assert_eq!((value("mirostat-ent"), value("top-nsigma")), (Some("2.5"), Some("1.5")));
        assert_eq!((value("samplers"), value("dry-allowed-length")), (Some("all"), Some("2")));
        // As many as a request may have; those before 'none' do not count.
        let with = |texts: &[&str]| {
            let given = texts.iter().flat_map(|text| ["--dry-sequence-breaker", text]);
            let line = ["x"].into_iter().chain(given);
            <Line as clap::Parser>::parse_from(line).sampling.check()
        };
        assert!(
            with(&["a"; 32]).is_ok() && with(&[["a"; 33].as_slice(), &["none"]].concat()).is_ok()
        );
        let Err(Stop::Usage(why)) = with(&["a"; 33]) else { panic!("33 texts") };
        assert!(why.contains("given 33 times, expected at most 32"), "{why}");
        args.change("samplers", "top_k;temperature").unwrap();
        assert_eq!((args.options().top_k, args.options().top_p), (7, 1.0));
        assert_eq!(
            args.listed(&options).iter().filter(|one| one.1 == "top_k;temperature").count(),
            2
        );
        args.change("sampler-seq", "edskypmxt").unwrap();
        assert_eq!(args.options().top_p, before.top_p);
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
            ("mirostat", "3", "from 0 to 2"),
            ("dry-base", "0.5", "not below 1"),
            ("dry-sequence-breaker", &"a".repeat(41), "expected 1 to 40"),
            ("samplers", "temperature;top_k", "top_k comes after temperature"),
            ("sampler-seq", "z", "there is no stage"),
        ] {
            let error = args.change(name, value).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
