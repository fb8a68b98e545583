//! `alight bench MODEL…`: prompts and answers of several lengths, depths and models, a row for each.

use std::fmt::Write;
use std::path::PathBuf;

use alight_model::{Model, Session, SessionOptions};
use anyhow::anyhow;
use rusage::Summary;
use serde::Serialize;

use super::{MAX_NUMBER, at_least_one, once, some_tokens, warm_up};
use crate::layout::table::{Style, Table};
use crate::open::{self, EngineArgs, HowArgs};
use crate::outcome::{Outcome, Stop};
use crate::terminal_text::one_line;
use crate::{output, say, threads, units};

/// Arguments of `alight bench MODEL`.
#[derive(Debug, clap::Args)]
pub struct TableArgs {
    /// Models, of each of which a prompt and an answer are measured: .gguf files, or folders with one model in them
    #[arg(value_name = "MODEL", required = true)]
    pub models: Vec<PathBuf>,

    /// Tokens of prompts, separated by commas; 0: none
    #[arg(short = 'p', long, value_name = "N,…", default_value = "512", value_delimiter = ',',
          value_parser = count, visible_alias = "n-prompt")]
    prompt: Vec<usize>,

    /// Tokens of answers, separated by commas; 0: none
    #[arg(short = 'n', long, value_name = "N,…", default_value = "128", value_delimiter = ',',
          value_parser = count, visible_alias = "n-gen")]
    predict: Vec<usize>,

    /// Tokens that stand before them, separated by commas
    #[arg(short = 'd', long, value_name = "N,…", default_value = "0", value_delimiter = ',',
          value_parser = count, visible_alias = "n-depth")]
    depth: Vec<usize>,

    /// Repetitions
    #[arg(short = 'r', long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    repetitions: usize,

    /// How the rows are written
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "md")]
    format: Format,

    /// Numbers of threads to compute with, separated by commas [default: one per core]
    #[arg(short = 't', long, value_name = "N,…", value_delimiter = ',', value_parser = threads::number)]
    threads: Vec<usize>,

    #[command(flatten)]
    pub engine: HowArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// A table in Markdown
    Md,
    /// Comma-separated values
    Csv,
    /// A list of objects
    Json,
    /// An object on each line, as soon as it is measured
    Jsonl,
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 0..=MAX_NUMBER) => Ok(n),
        _ => Err(format!("expected numbers from 0 to {MAX_NUMBER}, separated by commas")),
    }
}

/// One measurement. Fields are only ever added.
#[derive(Debug, Serialize)]
struct MeasurementRow {
    #[serde(serialize_with = "output::lossy")]
    model: PathBuf,
    name: String,
    #[serde(rename = "type")]
    quantization: String,
    bytes: u64,
    parameters: u64,
    threads: usize,
    /// `prefill` or `decode`.
    what: &'static str,
    tokens: usize,
    depth: usize,
    tokens_per_second: Summary,
}

/// Runs the command.
pub fn main(args: &TableArgs) -> Outcome {
    let tests: Vec<(bool, usize)> = args
        .prompt
        .iter()
        .map(|tokens| (false, *tokens))
        .chain(args.predict.iter().map(|tokens| (true, *tokens)))
        .filter(|(_, tokens)| *tokens > 0)
        .collect();
    if tests.is_empty() {
        return Err(Stop::Usage("nothing is to be measured: -p and -n are 0".to_owned()));
    }
    let mut rows = Vec::new();
    if let Some(text) = args.models.first().and_then(|path| super::no_measurement(path)) {
        return Err(Stop::Usage(text));
    }
    let threads: Vec<Option<usize>> = match &args.threads[..] {
        [] => vec![None],
        given => given.iter().copied().map(Some).collect(),
    };
    let each = || args.models.iter().flat_map(|path| threads.iter().map(move |n| (path, *n)));
    for (path, threads) in each() {
        let engine = EngineArgs { threads, how: args.engine.clone() };
        let model = open::model(path, &engine)?;
        let quantization = super::report::quantization_of(&model);
        for depth in &args.depth {
            for (decode, tokens) in &tests {
                let test = test(*decode, *tokens, *depth);
                say::progress(&format!("{}: {test}, {} threads", path.display(), model.threads()));
                let rate = measure(&model, args, *decode, *tokens, *depth)?;
                let row = MeasurementRow {
                    model: path.clone(),
                    name: model.name().to_owned(),
                    quantization: quantization.clone(),
                    bytes: model.file_bytes(),
                    parameters: model.parameters(),
                    threads: model.threads(),
                    what: if *decode { "decode" } else { "prefill" },
                    tokens: *tokens,
                    depth: *depth,
                    tokens_per_second: rate,
                };
                if args.format == Format::Jsonl {
                    say::progress("");
                    output::json(&row)?;
                }
                rows.push(row);
            }
        }
        args.engine.explain_outcome(&model);
    }
    say::progress("");
    match args.format {
        Format::Md => output::report(markdown(&rows)),
        Format::Csv => output::report(csv(&rows)),
        Format::Json => output::json(&rows),
        // They have already been written.
        Format::Jsonl => Ok(()),
    }
}

/// Returns the speed over all repetitions.
fn measure(
    model: &Model,
    args: &TableArgs,
    decode: bool,
    tokens: usize,
    depth: usize,
) -> Outcome<Summary> {
    let options = SessionOptions {
        context: Some(depth + tokens),
        prompt_precision: args.engine.prompt_precision(),
        cache_type: args.engine.cache_type(),
        ..SessionOptions::default()
    };
    let mut session = Session::new(model, &options).map_err(|e| anyhow!(e))?;
    let ids = some_tokens(model.spec().vocab, depth + tokens);
    let (before, ids) = ids.split_at(depth);
    if !before.is_empty() {
        session.prefill(before).map_err(|e| anyhow!(e))?;
    }
    warm_up(model, &mut session, depth, ids, decode)?;
    let mut rates = Vec::with_capacity(args.repetitions);
    for _ in 0..args.repetitions {
        let times = once(&mut session, depth, ids, decode)?;
        rates.push(tokens as f64 / times.iter().sum::<f64>());
    }
    let summary = Summary::of(&rates);
    summary.ok_or_else(|| Stop::Failed(anyhow!("the clock gave no usable times")))
}

/// Returns the name of a test in llama-bench's notation.
fn test(decode: bool, tokens: usize, depth: usize) -> String {
    let what = if decode { "tg" } else { "pp" };
    match depth {
        0 => format!("{what}{tokens}"),
        _ => format!("{what}{tokens} @ d{depth}"),
    }
}

fn markdown(rows: &[MeasurementRow]) -> String {
    let head = ["model", "type", "size", "params", "threads", "test", "tokens/s", "from", "to"];
    let mut table = Table::new(head, 2, Style::Markdown);
    for row in rows {
        let rate = &row.tokens_per_second;
        table.row([
            one_line(&row.name).replace('|', "\\|"),
            row.quantization.clone(),
            units::bytes(row.bytes),
            units::count(row.parameters),
            row.threads.to_string(),
            test(row.what == "decode", row.tokens, row.depth),
            units::digits(rate.median),
            units::digits(rate.min),
            units::digits(rate.max),
        ]);
    }
    table.text(output::columns())
}

fn csv(rows: &[MeasurementRow]) -> String {
    let quoted = |text: &str| format!("\"{}\"", one_line(text).replace('"', "\"\""));
    let mut text =
        "model,name,type,bytes,parameters,threads,what,tokens,depth,median,min,max,q1,q3,runs\n"
            .to_owned();
    for row in rows {
        let Summary { median, min, max, q1, q3, runs, .. } = row.tokens_per_second;
        let MeasurementRow {
            quantization, bytes, parameters, threads, what, tokens, depth, ..
        } = row;
        let (model, name) = (quoted(&row.model.to_string_lossy()), quoted(&row.name));
        let _ = writeln!(
            text,
            "{model},{name},{quantization},{bytes},{parameters},{threads},{what},{tokens},{depth},{median},{min},{max},{q1},{q3},{runs}"
        );
    }
    text
}
