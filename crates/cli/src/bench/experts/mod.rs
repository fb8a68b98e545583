//! `alight bench experts`: how fast a mixture of experts answers in less memory than it needs, when experts are read as they are
//! chosen. The command also replays the run's routing: for several sizes of memory and several eviction policies it reports the
//! hit rate, which is the share of the chosen experts that would have been in memory.

mod by_map;
mod group;
mod picture;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use alight_model::{
    ExpertTrace, Model, OpenOptions, Replayed, Rule, Sampler, SamplerOptions, Session,
    SessionOptions, SlotCounts, SlotOptions,
};
use alight_pages::Input;
use anyhow::{Context, anyhow};
use rusage::Usage;
use serde::Serialize;

use super::load::disk;
use super::work::Work;
use super::{at_least_one, machine, some_tokens, spare_memory};
use crate::outcome::{Outcome, Stop};
use crate::{new_file, output, say, source, threads, units};

/// Tokens before the answer.
const PROMPT: usize = 32;

/// Number of experts that fit into memory in a replay, in percent of all experts.
const ROOMS: [usize; 9] = [5, 10, 15, 20, 25, 30, 40, 50, 75];

/// Arguments of `alight bench experts`.
#[derive(Debug, clap::Args)]
pub struct ExpertsArgs {
    /// The model: a .gguf file (of a split model, its first shard)
    #[arg(required_unless_present = "replay")]
    pub model: Option<PathBuf>,

    /// Memory that the model may take, one after the other, such as 4G,8G
    #[arg(long, value_name = "SIZES", required_unless_present = "replay", value_delimiter = ',', value_parser = units::parse_bytes)]
    memory: Vec<u64>,

    /// Write which experts the answer has chosen to FILE
    #[arg(long, value_name = "FILE")]
    trace_experts: Option<PathBuf>,

    /// Measure nothing, and say which share of the experts in FILE, which --trace-experts wrote, would have been in memory
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "memory", "trace_experts", "svg"])]
    replay: Option<PathBuf>,

    /// Draw into FILE which experts were in memory with the last size, token by token and layer by layer
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Replace the file of --svg if it exists
    #[arg(long, requires = "svg")]
    force: bool,

    /// Tokens of the answer that are measured, after as many that are not
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64, value_parser = at_least_one, visible_alias = "n-gen")]
    predict: usize,

    /// Threads to compute with [default: one per core]
    #[arg(short = 't', long, value_name = "N", value_parser = threads::number)]
    threads: Option<usize>,

    /// Read no experts ahead of which it is only likely that the next layer chooses them
    #[arg(long)]
    no_guesses: bool,

    /// One line of JSON for each size, and one for the replay
    #[arg(long)]
    json: bool,

    /// For the process that this command starts: measure the map of the file, and nothing else
    #[arg(long, hide = true, conflicts_with_all = ["replay", "trace_experts", "svg"])]
    by_map: bool,
}

/// The results with one size. Fields are only ever added.
#[derive(Debug, Serialize)]
struct SizeRow {
    /// `slots`; `map` if the model fits.
    way: &'static str,
    /// All files of the model.
    #[serde(skip)]
    files: Vec<PathBuf>,
    memory: u64,
    /// Experts of all layers, and how many of them fit into memory; all, if the model fits.
    experts: Option<usize>,
    room: Option<usize>,
    /// The share of chosen experts that were resident.
    hits: Option<f64>,
    read_bytes_per_token: f64,
    /// Bytes of experts that were chosen and not resident, or had been read ahead.
    missed_bytes_per_token: f64,
    /// Of the bytes read, those read ahead and not chosen since.
    unwanted_bytes_per_token: f64,
    /// The number of reads per expert that was read, and the bytes of each read.
    reads_per_expert: Option<f64>,
    bytes_per_read: Option<f64>,
    /// The time without any read in progress, at least.
    idle_ms_per_token: f64,
    waited_ms_per_token: f64,
    prompt_tokens_per_second: f64,
    tokens_per_second: f64,
    /// True if it generated the same tokens as with the first size.
    same_answer: bool,
    /// The disk's sequential read rate, and the memory's.
    disk_bytes_per_second: f64,
    memory_bytes_per_second: f64,
    /// Tokens per second that the disk and memory allow with these hits, whichever is lower.
    roof_tokens_per_second: f64,
}

/// The limits of the rate of answers.
#[derive(Clone, Copy, Debug)]
struct Roofs {
    /// Bytes per second of the disk.
    disk: f64,
    /// Tokens per second that memory allows.
    memory: f64,
}

impl Roofs {
    /// Returns the tokens per second that the disk and memory allow, whichever is lower, if a token needs `read` bytes from the
    /// disk.
    fn tokens_per_second(&self, read: f64) -> f64 {
        self.memory.min(self.disk / read)
    }
}

/// The cost of a token, from which the limits of replays follow.
#[derive(Clone, Copy, Debug)]
struct Costs {
    /// Bytes of an expert.
    bytes: f64,
    roofs: Roofs,
    /// Tokens that count.
    tokens: f64,
}

/// Limits that follow from the hits of a replay.
#[derive(Debug, Serialize)]
struct ReplayLimits {
    read_bytes_per_token: f64,
    /// The rate that the disk and memory allow, whichever is lower.
    tokens_per_second: f64,
}

impl Costs {
    fn limits(&self, replayed: Replayed) -> ReplayLimits {
        let read = (replayed.wanted - replayed.hits) as f64 * self.bytes / self.tokens;
        ReplayLimits {
            read_bytes_per_token: read,
            tokens_per_second: self.roofs.tokens_per_second(read),
        }
    }
}

/// The hit rates of a replay with one size of memory.
#[derive(Debug, Serialize)]
struct Replay {
    /// Number of experts that fit into memory at the same time.
    room: usize,
    /// Number of experts of the model.
    experts: usize,
    /// With Alight's eviction policy, with least recently used, and with knowledge of the future.
    alight: f64,
    least_recent: f64,
    clairvoyant: f64,
    /// The limits per token, in the same order; null unless a size was measured in which experts were read when they were chosen.
    alight_limits: Option<ReplayLimits>,
    least_recent_limits: Option<ReplayLimits>,
    clairvoyant_limits: Option<ReplayLimits>,
}

/// Runs the command.
pub fn main(args: &ExpertsArgs) -> Outcome {
    if let Some(path) = &args.replay {
        let named = || format!("'{}'", path.display());
        let text = std::fs::read_to_string(path).with_context(named)?;
        let trace = text.parse().map_err(|error| anyhow!("'{}': {error}", path.display()))?;
        return report_replay(&trace, None, args.json);
    }
    let Some(path) = &args.model else { return Ok(()) };
    source::check_path(path)?;
    if args.by_map {
        return by_map::child(path, args);
    }
    let writes = args.trace_experts.is_some() || args.svg.is_some();
    let inputs = if writes { new_file::inputs([path.as_path()])? } else { Vec::new() };
    for (to, force) in [(&args.trace_experts, false), (&args.svg, args.force)] {
        if let Some(to) = to {
            new_file::check(to, force, &inputs)?;
        }
    }
    say::progress("measuring the disk");
    let disk = disk::rate(path);
    say::progress("");
    let disk = disk?;
    let mut first: Option<(Vec<u32>, ExpertTrace)> = None;
    let mut drawn = None;
    let mut costs = None;
    if !args.json {
        let line = "   memory   room   hits  read/token  reads/expert  wait/token  idle/token  prompt t/s  answer t/s   roof t/s\n";
        output::lines(line)?;
    }
    for memory in &args.memory {
        say::progress(&format!("{}: reading", units::bytes(*memory)));
        let (mut row, tokens, trace, cost) = measure(path, args, *memory, disk)?;
        costs = cost.or(costs);
        say::progress("");
        if args.svg.is_some() {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            drawn = picture::draw(trace.found(), &name, &units::bytes(*memory));
        }
        let (expected, _) = first.get_or_insert_with(|| (tokens.clone(), trace));
        row.same_answer = *expected == tokens;
        match args.json {
            true => output::json(&row)?,
            false => output::lines(&human(&row))?,
        }
        if !row.same_answer {
            return Err(Stop::Failed(anyhow!(
                "the answer is another one than with the first size: report this"
            )));
        }
        if row.room.is_some() {
            say::progress(&format!("{}: by the map", units::bytes(*memory)));
            let measured = by_map::beside(&row.files, args, *memory, &tokens);
            say::progress("");
            match (measured, args.json) {
                (Ok(by_map), true) => output::json(&by_map)?,
                (Ok(by_map), false) => output::lines(&by_map.human())?,
                // If its group kills the process, that is a result for the map, and has no bearing on the slots.
                (Err(error), _) => say::note(&format!("the map was not measured: {error:#}")),
            }
        }
    }
    let Some((_, trace)) = first else { return Ok(()) };
    if let Some(to) = &args.trace_experts {
        write(to, false, &inputs, &trace.to_string())?;
    }
    match (&args.svg, &drawn) {
        (Some(to), Some(drawn)) => write(to, args.force, &inputs, drawn)?,
        (Some(_), None) => {
            say::note("no picture is drawn: with the last size, all experts are in memory");
        }
        (None, _) => {}
    }
    report_replay(&trace, costs, args.json)
}

fn write(to: &Path, force: bool, inputs: &[Input], text: &str) -> Outcome {
    let file = new_file::create(to, force, inputs, text.len() as u64)?;
    let written = file.file().write_all(text.as_bytes());
    written.with_context(|| format!("'{}'", to.display()))?;
    Ok(file.commit().map_err(|e| anyhow!(e))?)
}

/// Reports the share of the chosen experts that would have been in memory, for several sizes of it, and the limits that follow.
/// The first half of the trace is not counted.
fn report_replay(trace: &ExpertTrace, costs: Option<Costs>, json: bool) -> Outcome {
    if trace.visits() == 0 {
        // A model without experts.
        return Ok(());
    }
    let all = trace.experts();
    let mut heading = match costs {
        None => "\n     room   alight   least recent   clairvoyant\n",
        Some(_) => {
            "\n     room   alight: hits, read/token, t/s   least recent: hits, read/token, t/s   clairvoyant: hits, read/token, t/s\n"
        }
    };
    for percent in ROOMS {
        say::progress(&format!("replaying with room for {percent} %"));
        let room = all * percent / 100;
        let [alight, least_recent, clairvoyant] =
            Rule::ALL.map(|rule| trace.replay(room, rule, trace.visits() / 2));
        let (Some(alight), Some(least_recent), Some(clairvoyant)) =
            (alight, least_recent, clairvoyant)
        else {
            continue;
        };
        say::progress("");
        let limits = |replayed| costs.map(|costs| costs.limits(replayed));
        let row = Replay {
            room,
            experts: all,
            alight: alight.share(),
            least_recent: least_recent.share(),
            clairvoyant: clairvoyant.share(),
            alight_limits: limits(alight),
            least_recent_limits: limits(least_recent),
            clairvoyant_limits: limits(clairvoyant),
        };
        match json {
            true => output::json(&row)?,
            false => {
                output::lines(&(std::mem::take(&mut heading).to_owned() + &row.human(percent)))?
            }
        }
    }
    say::progress("");
    Ok(())
}

impl Replay {
    /// Returns the line of the table for a memory that holds `percent` of the experts.
    fn human(&self, percent: usize) -> String {
        let rules = [
            (self.alight, &self.alight_limits, [6, 27]),
            (self.least_recent, &self.least_recent_limits, [12, 33]),
            (self.clairvoyant, &self.clairvoyant_limits, [11, 32]),
        ];
        let cells = rules.map(|(hits, limits, [narrow, wide])| match limits {
            None => format!("{:>narrow$.1} %", 100.0 * hits),
            Some(limits) => {
                let text = format!(
                    "{:.1} %{:>12}{:>6}",
                    100.0 * hits,
                    units::bytes(limits.read_bytes_per_token as u64),
                    units::digits(limits.tokens_per_second)
                );
                format!("{text:>wide$}  ")
            }
        });
        let [alight, least_recent, clairvoyant] = cells;
        let line = format!("{percent:>7} % {alight} {least_recent} {clairvoyant}");
        format!("{}\n", line.trim_end())
    }
}

/// The results of a run.
struct Ran {
    model: Model,
    prompt_rate: f64,
    /// Tokens per second of the second half of the answer.
    rate: f64,
    tokens: Vec<u32>,
    trace: ExpertTrace,
    /// Counts of the slots and of the process when the second half began.
    slots_before: Option<SlotCounts>,
    disk_before: Option<u64>,
}

/// Runs a model to generate an answer.
fn answer(path: &Path, args: &ExpertsArgs, options: &OpenOptions) -> Outcome<Ran> {
    let model = Model::open(path, options).map_err(|e| source::explain(path, anyhow!(e)))?;
    let context = Some(PROMPT + 2 * args.predict);
    let options = SessionOptions { context, ..SessionOptions::default() };
    let mut session = Session::new(&model, &options).map_err(|e| anyhow!(e))?;
    model.wait_loaded().map_err(|e| anyhow!(e))?;
    let prompt = some_tokens(model.spec().vocab, PROMPT);
    let began = Instant::now();
    session.feed(&prompt).map_err(|e| anyhow!(e))?;
    let prompt_rate = PROMPT as f64 / began.elapsed().as_secs_f64();
    // Not the most likely tokens, which soon repeat, and so do their experts.
    let sampling = SamplerOptions { temperature: 1.0, seed: 1, ..SamplerOptions::default() };
    let mut sampler = Sampler::new(sampling, model.spec().vocab);
    let mut tokens = Vec::with_capacity(2 * args.predict);
    model.record_experts();
    let counts =
        || (model.load_report().slots.map(|slots| slots.counts), Usage::of_self().read_bytes);
    let (mut began, (mut slots_before, mut disk_before)) = (Instant::now(), counts());
    for i in 0..2 * args.predict {
        if i == args.predict {
            (slots_before, disk_before) = counts();
            began = Instant::now();
        }
        let token = sampler.sample(session.logits());
        tokens.push(token);
        session.decode(token).map_err(|e| anyhow!(e))?;
    }
    let rate = args.predict as f64 / began.elapsed().as_secs_f64();
    let trace = model.recorded_experts();
    drop(session);
    Ok(Ran { model, prompt_rate, rate, tokens, trace, slots_before, disk_before })
}

fn measure(
    path: &Path,
    args: &ExpertsArgs,
    memory: u64,
    disk: f64,
) -> Outcome<(SizeRow, Vec<u32>, ExpertTrace, Option<Costs>)> {
    let options = OpenOptions {
        threads: args.threads,
        memory: Some(memory),
        slots: SlotOptions { guess: !args.no_guesses, ..SlotOptions::default() },
        ..OpenOptions::default()
    };
    let ran = answer(path, args, &options)?;
    let Ran { model, slots_before, .. } = &ran;
    let n = args.predict as f64;
    let slots = model.load_report().slots;
    let since = slots.zip(*slots_before).map(|(after, before)| (after.counts, before));
    let change = |f: fn(&SlotCounts) -> f64| {
        since.as_ref().map_or(0.0, |(after, before)| f(after) - f(before))
    };
    let wanted = change(|counts| counts.wanted as f64);
    let limits = machine::measure(model.threads(), model.isa(), spare_memory(model));
    let work = Work::decode(model, PROMPT + args.predict, args.predict);
    let read = change(|counts| counts.read_bytes as f64) / n;
    let (brought, reads) =
        (change(|counts| counts.brought as f64), change(|counts| counts.reads as f64));
    let roofs = Roofs { disk, memory: limits.read_bytes_per_second / (work.bytes() / n) };
    let costs = slots.map(|slots| Costs { bytes: slots.sizes.slot_bytes(), roofs, tokens: n });
    let row = SizeRow {
        way: if slots.is_some() { "slots" } else { "map" },
        files: model.load_report().files.into_iter().map(|file| file.path).collect(),
        memory,
        experts: slots.map(|slots| slots.sizes.pieces),
        room: slots.map(|slots| slots.sizes.slots),
        hits: (wanted > 0.0).then(|| change(|counts| counts.hits as f64) / wanted),
        read_bytes_per_token: read,
        missed_bytes_per_token: change(|counts| counts.missed_bytes as f64) / n,
        unwanted_bytes_per_token: change(|counts| counts.unwanted_bytes as f64) / n,
        reads_per_expert: (brought > 0.0).then(|| reads / brought),
        bytes_per_read: (reads > 0.0).then(|| read * n / reads),
        idle_ms_per_token: change(|counts| counts.idle.as_secs_f64() * 1e3) / n,
        waited_ms_per_token: change(|counts| counts.waited.as_secs_f64() * 1e3) / n,
        prompt_tokens_per_second: ran.prompt_rate,
        tokens_per_second: ran.rate,
        same_answer: true,
        disk_bytes_per_second: disk,
        memory_bytes_per_second: limits.read_bytes_per_second,
        roof_tokens_per_second: roofs.tokens_per_second(read),
    };
    Ok((row, ran.tokens, ran.trace, costs))
}

fn human(row: &SizeRow) -> String {
    let percent = |share: f64| format!("{:.0} %", (100.0 * share).floor());
    let room = row.room.zip(row.experts).map(|(room, all)| room as f64 / all as f64);
    format!(
        "{:>9} {:>6} {:>6} {:>11} {:>13} {:>11} {:>11} {:>11} {:>11} {:>10}\n",
        units::bytes(row.memory),
        room.map_or("all".into(), percent),
        row.hits.map_or("all".into(), percent),
        units::bytes(row.read_bytes_per_token as u64),
        row.reads_per_expert.map_or("none".into(), units::digits),
        units::ms(row.waited_ms_per_token),
        units::ms(row.idle_ms_per_token),
        units::digits(row.prompt_tokens_per_second),
        units::digits(row.tokens_per_second),
        units::digits(row.roof_tokens_per_second),
    )
}
