//! `alight bench`: tokens per second, and their share of this machine's limits; and the time to the
//! first token ([`load`]).
//!
//! Each repetition starts from the same cache; the result is the median of the repetitions, given
//! with their spread. The machine's limits are measured by the same process, right after.

mod collective;
mod experts;
mod load;
mod machine;
mod report;
mod svg;
mod table;
mod work;

use std::path::{Path, PathBuf};
use std::time::Instant;

use alight_model::{Model, Sampler, SamplerOptions, Session, SessionOptions};
use anyhow::anyhow;
use clap::Subcommand;

use crate::open::{self, EngineArgs};
use crate::outcome::{Outcome, Stop};
use crate::{output, say, units};
use report::BenchReport;
use rusage::{Phases, Summary};
use work::Work;

/// Decoding is warmed up with this many tokens.
const WARM_UP_TOKENS: usize = 16;

/// Arguments of `alight bench`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  alight bench model.gguf                         prompt 512, answer 128
  alight bench a.gguf b.gguf -p 512,2048 -d 0,4096 -o csv
  alight bench model.gguf -t 1,2,4 -o jsonl       with several numbers of threads
  alight bench decode model.gguf                  128 tokens, one by one
  alight bench decode model.gguf -d 4096 -n 32    after 4096 other tokens
  alight bench prefill model.gguf -p 512          a prompt of 512 tokens at once
  alight bench decode model.gguf -r 10 --json | jq .tokens_per_second.median
  alight bench load model.gguf --svg load.svg     time to the first token
  alight bench experts model.gguf --memory 4G,8G  experts in less memory
  alight bench collective                         JAX's fused collective

Reading a result: decoding one token reads every weight once, so memory bandwidth is its limit; \
a long prompt is limited by multiplications. `share` says how close to that limit a run came. \
Close other programs first: on a busy machine the spread shows it."
)]
pub struct BenchArgs {
    #[command(flatten)]
    table: table::TableArgs,

    /// What to measure, in detail
    #[command(subcommand)]
    what: Option<What>,
}

impl BenchArgs {
    /// See [`Command::models`](crate::args::Command::models).
    pub fn models(&mut self) -> (Vec<&mut PathBuf>, bool) {
        match &mut self.what {
            None => (self.table.models.iter_mut().collect(), self.table.engine.hub.offline),
            Some(What::Decode { common, .. } | What::Prefill { common, .. }) => {
                (vec![&mut common.model], common.engine.hub.offline)
            }
            Some(What::Load(args)) => (vec![&mut args.model], false),
            Some(What::Experts(args)) => (args.model.iter_mut().collect(), false),
            Some(What::Collective(_) | What::Resident(_)) => (vec![], false),
        }
    }
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Tokens made one after the other, as in an answer
    Decode {
        /// Tokens per repetition
        #[arg(short = 'n', long, value_name = "N", default_value_t = 128,
              value_parser = at_least_one, visible_alias = "n-gen")]
        predict: usize,
        #[command(flatten)]
        common: Common,
    },
    /// Tokens taken in at once, as in a prompt
    Prefill {
        /// Tokens per repetition
        #[arg(short = 'p', long, value_name = "N", default_value_t = 512,
              value_parser = at_least_one, visible_alias = "n-prompt")]
        prompt: usize,
        #[command(flatten)]
        common: Common,
    },
    /// Time to the first token, by every way in which weights can come into memory
    Load(load::LoadArgs),
    /// A mixture of experts in less memory than it takes, whose experts are read when they are chosen
    Experts(experts::ExpertsArgs),
    /// JAX's fused collective beside psum + residual + norm (needs the Python package `alight` and jax)
    Collective(collective::CollectiveArgs),
    /// The process behind `load`'s resident cells
    #[command(hide = true)]
    Resident(load::ResidentArgs),
}

#[derive(Debug, clap::Args)]
struct Common {
    /// The model: a .gguf file (of a split model, its first shard)
    model: PathBuf,

    /// Repetitions
    #[arg(short = 'r', long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    repetitions: usize,

    /// Tokens in the cache before each repetition
    #[arg(short = 'd', long, value_name = "N", default_value_t = 0, value_parser = up_to_most,
          visible_alias = "n-depth")]
    depth: usize,

    /// Tokens that are computed at once
    #[arg(short = 'b', long = "batch-size", value_name = "N", value_parser = at_least_one)]
    batch: Option<usize>,

    /// One line of JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    engine: EngineArgs,
}

/// The maximum of any numeric argument. The sum of two is far from overflow.
const MAX_NUMBER: usize = 1 << 24;

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=MAX_NUMBER) => Ok(n),
        _ => Err(format!("expected a number from 1 to {MAX_NUMBER}")),
    }
}

fn up_to_most(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 0..=MAX_NUMBER) => Ok(n),
        _ => Err(format!("expected a number from 0 to {MAX_NUMBER}")),
    }
}

/// Returns a message if the first model looks like a mistyped measurement: a lower-case word that is not a file.
fn no_measurement(path: &Path) -> Option<String> {
    let word = path.to_str().filter(|text| text.bytes().all(|b| b.is_ascii_lowercase()))?;
    if path.exists() {
        return None;
    }
    let all = What::augment_subcommands(clap::Command::new("bench"));
    let shown = all.get_subcommands().filter(|one| !one.is_hide_set());
    let names: Vec<&str> = shown.map(clap::Command::get_name).collect();
    Some(format!("'{word}' is neither a file nor a measurement: those are {}", names.join(", ")))
}

/// Runs the command.
pub fn main(args: BenchArgs) -> Outcome {
    let Some(what) = args.what else { return table::main(&args.table) };
    let (common, tokens, decode) = match what {
        What::Decode { predict, common } => (common, predict, true),
        What::Prefill { prompt, common } => (common, prompt, false),
        What::Load(args) => return load::main(&args),
        What::Experts(args) => return experts::main(&args),
        What::Collective(args) => return collective::main(&args),
        What::Resident(args) => return load::resident(&args),
    };
    let mut phases = Phases::start();
    let model = open::model(&common.model, &common.engine)?;
    phases.end("open");
    let mut options = SessionOptions {
        context: Some(common.depth + tokens),
        prompt_precision: common.engine.prompt_precision(),
        cache_type: common.engine.cache_type(),
        ..SessionOptions::default()
    };
    if let Some(batch) = common.batch {
        options.batch = batch;
    }
    let mut session = Session::new(&model, &options).map_err(|e| anyhow!(e))?;
    let ids = some_tokens(model.spec().vocab, common.depth + tokens);
    let (before, ids) = ids.split_at(common.depth);

    if !before.is_empty() {
        say::progress(&format!("filling the cache with {} tokens", common.depth));
        session.prefill(before).map_err(|e| anyhow!(e))?;
    }
    say::progress("warming up");
    warm_up(&model, &mut session, common.depth, ids, decode)?;

    phases.end("warm up");
    let mut rates = Vec::new();
    let mut steps = Vec::new();
    for i in 0..common.repetitions {
        say::progress(&format!("repetition {} of {}", i + 1, common.repetitions));
        let times = once(&mut session, common.depth, ids, decode)?;
        rates.push(tokens as f64 / times.iter().sum::<f64>());
        if decode {
            steps.extend(times.iter().map(|s| s * 1e3));
        }
    }
    phases.end("measure");
    say::progress("measuring the machine's limits");
    let limits = machine::measure(model.threads(), model.isa(), spare_memory(&model));
    say::progress("");
    if limits.read_bytes < machine::WANTED {
        say::note(&format!(
            "there was memory for {} only to measure how fast it is read, instead of {}: the limit may be \
             that of caches",
            units::bytes(limits.read_bytes),
            units::bytes(machine::WANTED)
        ));
    }

    let work = if decode {
        Work::decode(&model, common.depth, tokens)
    } else {
        Work::prefill(&model, common.depth, tokens)
    };
    let rate = Summary::of(&rates)
        .ok_or_else(|| Stop::Failed(anyhow!("the clock gave no usable times")))?;
    let measured = report::Measured {
        rate,
        steps: Summary::of(&steps),
        limits,
        phases: phases.list().to_vec(),
    };
    let run = report::Run { decode, tokens, depth: common.depth };
    let report = BenchReport::new(&common.model, &model, run, work, measured);
    if common.json {
        output::json(&report)?;
    } else {
        output::lines(&report.human(output::columns()))?;
    }
    common.engine.explain_outcome(&model);
    Ok(())
}

/// Warms up, and waits until a cold file is completely loaded after the first steps, which is not part of their speed.
fn warm_up(
    model: &Model,
    session: &mut Session<'_>,
    depth: usize,
    ids: &[u32],
    decode: bool,
) -> Outcome<()> {
    let ids = if decode { &ids[..ids.len().min(WARM_UP_TOKENS)] } else { ids };
    once(session, depth, ids, decode)?;
    model.wait_loaded().map_err(|e| anyhow!(e).into())
}

/// Runs one repetition; returns the seconds of each step.
fn once(session: &mut Session<'_>, depth: usize, ids: &[u32], decode: bool) -> Outcome<Vec<f64>> {
    session.truncate(depth);
    // Of the logits of an answer, what a sampler with the usual options needs.
    let mut sampler = Sampler::new(SamplerOptions::DEFAULT, session.model().spec().vocab);
    let mut times = Vec::with_capacity(ids.len());
    for piece in ids.chunks(if decode { 1 } else { ids.len() }) {
        let began = Instant::now();
        let done = match decode {
            true => session.decode_for(piece[0], &mut sampler),
            false => session.feed(piece),
        };
        done.map_err(|e| anyhow!(e))?;
        times.push(began.elapsed().as_secs_f64());
    }
    Ok(times)
}

/// Returns token ids from all over the vocabulary, the same every time.
fn some_tokens(vocab: usize, count: usize) -> Vec<u32> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (((state >> 32) * vocab as u64) >> 32) as u32
        })
        .collect()
}

/// Returns the bytes that measuring may use without evicting anything: a part of the memory available when the model was opened,
/// minus what the model itself used.
fn spare_memory(model: &Model) -> u64 {
    let report = model.load_report();
    let available = report.files.iter().map(|file| file.facts.available).min().unwrap_or(u64::MAX);
    available.saturating_sub(report.bytes_read.max(report.bytes_repacked)) / 4
}

#[cfg(test)]
mod tests {
    #[test]
    fn tokens_are_in_the_vocabulary_and_repeat_from_run_to_run() {
        let ids = super::some_tokens(1000, 5000);
        assert!(ids.iter().all(|&t| t < 1000));
        assert!(ids.iter().any(|&t| t < 50) && ids.iter().any(|&t| t >= 950));
        assert_eq!(ids[..10], super::some_tokens(1000, 10)[..]);
    }
}
