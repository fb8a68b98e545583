//! The report on an answer: one line of JSON, or a few for people.

use std::path::Path;
use std::time::{Duration, Instant};

use alight_model::{Finish, OutputCounts, SlotsReport};
use rusage::{Memory, Phase, Phases, Usage};
use serde::Serialize;
use serde_json::{Map, Value};

use super::answer::{ANSWER, Answer};
use super::engine::{Description, Load};
use super::memory;
use crate::needs::Held;
use crate::record::{Record, RecordedFinish};
use crate::{explain_load, output, phases, say, units};

/// The line that `--json` writes. Times are in milliseconds; fields are only ever added.
#[derive(Debug, Serialize)]
pub struct ReportLine<'a> {
    #[serde(serialize_with = "output::lossy")]
    model: &'a Path,
    /// The text that a pipe would receive.
    text: &'a str,
    /// The part of it that is addressed to the user.
    answer: &'a str,
    /// The model's thinking, also with --no-thinking; null if there was none.
    thinking: Option<&'a str>,
    tokens: &'a [u32],
    /// `stop`: the model ended; `length`: -n was reached; `context`: the context is full; `interrupted`.
    finish: &'static str,
    prompt_tokens: usize,
    /// Number of prompt tokens that were not computed, because a kept prompt (`--cache`) had them.
    reused_tokens: usize,
    generated_tokens: usize,
    tokens_per_second: Option<f64>,
    prompt_tokens_per_second: f64,
    seed: u64,
    /// Fields of the engine: `engine`, with `threads` and `isa` of `native`, `tp` and `weights` of `jax`.
    #[serde(flatten)]
    engine: Map<String, Value>,
    timings: Timings,
    #[serde(flatten)]
    account: Option<Account>,
    /// The record that `alight replay` reads; only the engine of this program has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<Record>,
}

impl ReportLine<'_> {
    /// Adds the record of the answer. Making one reads the model's files, so it comes after the account.
    pub fn with_record(self, record: Option<Record>) -> Self {
        ReportLine { record, ..self }
    }
}

/// The resources that this process used, if it is the one that computed.
#[derive(Debug, Serialize)]
struct Account {
    load: Load,
    /// In bytes, at the end.
    held: Option<Held>,
    /// Null if all weights are in memory, or in the map of their file.
    experts: Option<SlotStatistics>,
    /// The same of the matrices of layers that are read as they are computed.
    layers: Option<SlotStatistics>,
    /// In bytes, at the end; null if the system does not provide it.
    memory: Memory,
    faults: FaultCounts,
    /// Bytes that this process caused the system to read from disks; null if it does not provide that.
    bytes_read: Option<u64>,
    /// The resources that the process used, from its start on: `open`, `prepare`, `prompt`, and `answer` after its first token.
    phases: Vec<Phase>,
}

/// Statistics of experts that were read when they were chosen, or of matrices of layers that were read when they were computed.
#[derive(Debug, Serialize)]
struct SlotStatistics {
    /// All of them, the number of them that fit into memory, and the bytes of those.
    all: usize,
    slots: usize,
    bytes: u64,
    /// Chosen experts, and those of them that were in memory.
    wanted: u64,
    hits: u64,
    /// Bytes of those that were not, bytes read, and bytes that were read ahead and not chosen since.
    missed_bytes: u64,
    read_bytes: u64,
    unwanted_bytes: u64,
    /// Experts that were read because the next layer might choose them, and those of them that it chose.
    guessed: u64,
    guessed_right: u64,
    waited_ms: f64,
}

impl SlotStatistics {
    fn of(SlotsReport { sizes, counts, .. }: &SlotsReport) -> SlotStatistics {
        SlotStatistics {
            all: sizes.pieces,
            slots: sizes.slots,
            bytes: sizes.bytes,
            wanted: counts.wanted,
            hits: counts.hits,
            missed_bytes: counts.missed_bytes,
            read_bytes: counts.read_bytes,
            unwanted_bytes: counts.unwanted_bytes,
            guessed: counts.guessed,
            guessed_right: counts.guessed_right,
            waited_ms: ms(counts.waited),
        }
    }
}

/// Page faults of the process.
#[derive(Debug, Serialize)]
struct FaultCounts {
    minor: u64,
    major: u64,
    /// Major faults after the first token was written; null if there was none.
    major_after_first_token: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Timings {
    /// Opening the model (`open_ms`), and its parts; or other durations of the engine's start.
    #[serde(flatten)]
    start: Map<String, Value>,
    /// From the first prompt token computed to the first answer token chosen.
    prompt_ms: f64,
    /// From the start of the process (its `main`, a millisecond after the system began to load it)
    /// to the first token written; null if there was none.
    first_token_ms: Option<f64>,
    /// From the start of the process to the last token written.
    total_ms: f64,
    /// The time between each written token and the one before it.
    token_ms: Vec<f64>,
}

/// Returns the reason in one word.
fn finish(finish: &Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::ContextFull => "context",
        Finish::Interrupted => "interrupted",
    }
}

/// Returns the reason for a record, in which a stop text is not the model's own end.
pub fn recorded_finish(answer: &Answer) -> RecordedFinish {
    match answer.finish {
        _ if answer.by_text => RecordedFinish::StopText,
        Finish::Stop => RecordedFinish::Stop,
        Finish::Length => RecordedFinish::Length,
        Finish::ContextFull => RecordedFinish::Context,
        Finish::Interrupted => RecordedFinish::Interrupted,
    }
}

fn ms(d: Duration) -> f64 {
    // Microseconds are finer than the variation between runs.
    (d.as_secs_f64() * 1e6).round() / 1e3
}

fn prompt_rate(answer: &Answer) -> f64 {
    answer.computed as f64 / answer.prompt.as_secs_f64().max(1e-9)
}

/// Returns the JSON line.
pub fn json<'a>(
    path: &'a Path,
    engine: Description,
    answer: &'a Answer,
    seed: u64,
    started: Instant,
    phases: &Phases,
) -> ReportLine<'a> {
    let since = |t: &Instant| ms(*t - started);
    let texts = &answer.texts;
    let start = engine.start.iter().map(|(name, took)| (format!("{name}_ms"), ms(*took).into()));
    ReportLine {
        model: path,
        text: &texts.written,
        answer: &texts.answer,
        thinking: Some(&*texts.thinking).filter(|thinking| !thinking.is_empty()),
        tokens: &answer.tokens,
        finish: finish(&answer.finish),
        prompt_tokens: answer.computed + answer.reused,
        reused_tokens: answer.reused,
        generated_tokens: answer.tokens.len(),
        tokens_per_second: answer.rate(),
        prompt_tokens_per_second: prompt_rate(answer),
        seed,
        engine: engine.fields,
        timings: Timings {
            start: start.collect(),
            prompt_ms: ms(answer.prompt),
            first_token_ms: answer.written.first().map(since),
            total_ms: answer.written.last().map_or_else(|| ms(started.elapsed()), since),
            token_ms: answer.steps().map(ms).collect(),
        },
        account: engine.load.map(|load| account(load, engine.held, engine.slots.as_ref(), phases)),
        record: None,
    }
}

fn account(
    load: Load,
    held: Option<Held>,
    slots: Option<&SlotsReport>,
    phases: &Phases,
) -> Account {
    let used = Usage::of_self();
    let statistics =
        |streamed| slots.filter(|slots| slots.streamed == streamed).map(SlotStatistics::of);
    Account {
        load,
        held,
        experts: statistics(false),
        layers: statistics(true),
        memory: Memory::of_self(),
        faults: FaultCounts {
            minor: used.minor_faults,
            major: used.major_faults,
            major_after_first_token: phases
                .list()
                .iter()
                .find(|phase| phase.name == ANSWER)
                .map(|phase| phase.usage.major_faults),
        },
        bytes_read: used.read_bytes,
        phases: phases.list().to_vec(),
    }
}

/// Returns a line about an answer in a context of this number of positions.
pub fn brief(answer: &Answer, context: usize) -> String {
    let prompt = answer.computed + answer.reused;
    let speed =
        answer.rate().map_or(String::new(), |rate| format!(", {} a second", units::digits(rate)));
    format!(
        "({} tokens{speed}; the prompt has {} tokens, {} of them known, and took {}; {} of {} positions are used)",
        units::grouped(answer.tokens.len()),
        units::grouped(prompt),
        units::grouped(answer.reused),
        units::ms(answer.prompt.as_secs_f64() * 1e3),
        units::grouped((prompt + answer.tokens.len()).min(context)),
        units::grouped(context),
    )
}

/// Returns the line of `--stats` about an output matrix whose high bits are stored apart.
fn output_line(counts: &OutputCounts) -> String {
    let &OutputCounts { by_high_bits, rows, whole, all_rows, bytes, .. } = counts;
    let read = rows as f64 / by_high_bits.max(1) as f64;
    format!(
        "output       {} of {} a token: {} of {} rows whole for {} tokens, all for {}\n",
        units::bytes(counts.bytes_per_token() as u64),
        units::bytes(bytes),
        units::grouped(read.round() as usize),
        units::grouped(all_rows as usize),
        units::grouped(by_high_bits as usize),
        units::grouped(whole as usize),
    )
}

/// Returns the lines of `--stats`. The first token's time counts from `since`, the time of `what`:
/// the start of the process, or a question.
pub fn human(
    engine: &Description,
    answer: &Answer,
    since: Instant,
    what: &str,
    account: &Phases,
) -> String {
    let time = |d: Duration| units::ms(d.as_secs_f64() * 1e3);
    let first = match answer.written.first() {
        Some(t) => format!("{} after the {what}", time(*t - since)),
        None => "none".to_owned(),
    };
    let rate = match answer.rate() {
        Some(r) => format!("{} tokens/s", units::digits(r)),
        None => "too few to time".to_owned(),
    };
    let text = format!(
        "{}\n\
         prompt       {} tokens in {} = {} tokens/s{}\n\
         first token  {first}\n\
         answer       {} tokens, {rate}, ended by {}; {}",
        engine.start_line,
        answer.computed,
        time(answer.prompt),
        units::digits(prompt_rate(answer)),
        match answer.reused {
            0 => String::new(),
            reused => format!(", after {reused} that were there"),
        },
        answer.tokens.len(),
        match answer.finish {
            Finish::Stop => "the model",
            Finish::Length => "-n",
            Finish::ContextFull => "the full context",
            Finish::Interrupted => "Ctrl-C",
        },
        engine.by,
    );
    match engine.load {
        Some(_) => {
            let memory = engine.held.map(|held| format!("{}\n", memory::line(held)));
            let slots = engine.slots.as_ref().map(explain_load::slots);
            let slots = slots.map(|(of, text)| format!("{of:13}{text}\n"));
            let output = engine.output.as_ref().map(output_line);
            format!(
                "{text}\n{}{}{}{}",
                memory.unwrap_or_default(),
                output.unwrap_or_default(),
                slots.unwrap_or_default(),
                phases::table(account.list(), say::columns())
            )
        }
        None => text,
    }
}
