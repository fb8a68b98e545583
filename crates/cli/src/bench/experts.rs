//! `alight bench experts`: how fast a mixture of experts answers in less memory than it takes, where experts are read when they are
//! chosen.

use std::path::{Path, PathBuf};
use std::time::Instant;

use alight_model::{Model, OpenOptions, Sampler, SamplerOptions, Session, SessionOptions};
use anyhow::anyhow;
use serde::Serialize;

use super::{at_least_one, some_tokens};
use crate::outcome::{Outcome, Stop};
use crate::{output, say, source, threads, units};

/// Tokens before the answer.
const PROMPT: usize = 32;

/// Arguments of `alight bench experts`.
#[derive(Debug, clap::Args)]
pub struct ExpertsArgs {
    /// The model: a .gguf file (of a split model, its first shard)
    pub model: PathBuf,

    /// Memory that the model may take, one after the other, such as 4G,8G
    #[arg(long, value_name = "SIZES", required = true, value_delimiter = ',', value_parser = units::parse_bytes)]
    memory: Vec<u64>,

    /// Tokens of the answer that are measured, after as many that are not
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64, value_parser = at_least_one, visible_alias = "n-gen")]
    predict: usize,

    /// Threads to compute with [default: one per core]
    #[arg(short = 't', long, value_name = "N", value_parser = threads::number)]
    threads: Option<usize>,

    /// One line of JSON for each size
    #[arg(long)]
    json: bool,
}

/// What was measured with one size. Fields are only ever added.
#[derive(Debug, Serialize)]
struct Row {
    memory: u64,
    /// Experts of all layers, and how many of them have room; all, if the model fits.
    experts: Option<usize>,
    room: Option<usize>,
    /// Of those that were chosen, the share that was there.
    hits: Option<f64>,
    read_bytes_per_token: f64,
    waited_ms_per_token: f64,
    prompt_tokens_per_second: f64,
    tokens_per_second: f64,
    /// The same tokens came as with the first size.
    same_answer: bool,
}

/// Runs the command.
pub fn main(args: &ExpertsArgs) -> Outcome {
    source::check_path(&args.model)?;
    let mut first: Option<Vec<u32>> = None;
    if !args.json {
        let line = "   memory   room   hits  read/token  wait/token  prompt t/s  answer t/s\n";
        output::report(line)?;
    }
    for memory in &args.memory {
        say::progress(&format!("{}: reading", units::bytes(*memory)));
        let (mut row, tokens) = measure(&args.model, args, *memory)?;
        say::progress("");
        row.same_answer = *first.get_or_insert_with(|| tokens.clone()) == tokens;
        match args.json {
            true => output::json(&row)?,
            false => output::report(human(&row))?,
        }
        if !row.same_answer {
            return Err(Stop::Failed(anyhow!(
                "the answer is another one than with the first size: report this"
            )));
        }
    }
    Ok(())
}

fn measure(path: &Path, args: &ExpertsArgs, memory: u64) -> Outcome<(Row, Vec<u32>)> {
    let options =
        OpenOptions { threads: args.threads, memory: Some(memory), ..OpenOptions::default() };
    let model = Model::open(path, &options).map_err(|e| source::explain(path, anyhow!(e)))?;
    let context = Some(PROMPT + 2 * args.predict);
    let options = SessionOptions { context, ..SessionOptions::default() };
    let mut session = Session::new(&model, &options).map_err(|e| anyhow!(e))?;
    model.wait_loaded().map_err(|e| anyhow!(e))?;
    let prompt = some_tokens(model.spec().vocab, PROMPT);
    let began = Instant::now();
    session.feed(&prompt).map_err(|e| anyhow!(e))?;
    let prompt_rate = PROMPT as f64 / began.elapsed().as_secs_f64();
    // Not the likeliest tokens, which soon repeat, and so do their experts.
    let sampling = SamplerOptions { temperature: 1.0, seed: 1, ..SamplerOptions::default() };
    let mut sampler = Sampler::new(sampling, model.spec().vocab);
    let mut tokens = Vec::with_capacity(2 * args.predict);
    let counts = || model.load_report().slots.map(|slots| slots.counts);
    let (mut began, mut before) = (Instant::now(), counts());
    for i in 0..2 * args.predict {
        if i == args.predict {
            (began, before) = (Instant::now(), counts());
        }
        let token = sampler.sample(session.logits());
        tokens.push(token);
        session.decode(token).map_err(|e| anyhow!(e))?;
    }
    let (took, n) = (began.elapsed().as_secs_f64(), args.predict as f64);
    let slots = model.load_report().slots;
    let since = slots.zip(before).map(|(after, before)| (after.counts, before));
    let change = |f: fn(&alight_model::SlotCounts) -> f64| {
        since.as_ref().map_or(0.0, |(after, before)| f(after) - f(before))
    };
    let wanted = change(|counts| counts.wanted as f64);
    let row = Row {
        memory,
        experts: slots.map(|slots| slots.sizes.pieces),
        room: slots.map(|slots| slots.sizes.slots),
        hits: (wanted > 0.0).then(|| change(|counts| counts.hits as f64) / wanted),
        read_bytes_per_token: change(|counts| counts.read_bytes as f64) / n,
        waited_ms_per_token: change(|counts| counts.waited.as_secs_f64() * 1e3) / n,
        prompt_tokens_per_second: prompt_rate,
        tokens_per_second: n / took,
        same_answer: true,
    };
    Ok((row, tokens))
}

fn human(row: &Row) -> String {
    let percent = |share: f64| format!("{:.0} %", (100.0 * share).floor());
    let room = row.room.zip(row.experts).map(|(room, all)| room as f64 / all as f64);
    format!(
        "{:>9} {:>6} {:>6} {:>11} {:>11} {:>11} {:>11}\n",
        units::bytes(row.memory),
        room.map_or("all".into(), percent),
        row.hits.map_or("all".into(), percent),
        units::bytes(row.read_bytes_per_token as u64),
        units::ms(row.waited_ms_per_token),
        units::digits(row.prompt_tokens_per_second),
        units::digits(row.tokens_per_second),
    )
}
