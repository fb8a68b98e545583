//! `alight rerank`: documents in the order in which they suit a query.

use std::path::PathBuf;

use alight_chat::vectors::{ScoreRule, Scores, ranked};
use alight_chat::worker::GenerateRequest;
use alight_model::Model;
use anyhow::anyhow;
use serde::Serialize;

use super::compute::{self, Compute, VectorWork};
use super::lines::{TextLine, TextLines};
use super::sequences;
use crate::lora::LoraArgs;
use crate::open::{self, EngineArgs};
use crate::outcome::{Outcome, Stop};
use crate::{output, say, short_help, terminal_text};

/// Arguments of `alight rerank`.
#[derive(Debug, clap::Args)]
#[command(
    mut_args = short_help::only(SHORT),
    after_help = short_help::END,
    after_long_help = "\
Examples:
  alight rerank model.gguf \"What is a panda?\" documents.txt --top 3
  rg -l panda | alight rerank model.gguf \"What is a panda?\"
  alight rerank model.gguf \"a query\" documents.jsonl --json | jq .relevance_score

Each line of the input is a document. A line of the output has the score and the document, the best first; with --json an object with \
`index` (of the line, from 0), `relevance_score` and `text`, and then lines of the input are JSON, too: a text between quotes, or an \
object with `text`. Scores are probabilities, from 0 to 1: the sigmoid of what the model's classifier puts out, or, of several labels, \
the share of the first. --raw prints what it puts out. Of a pair that is too long, the document is shortened.")]
pub struct RerankArgs {
    /// The model, a reranker (cross-encoder): a .gguf file
    model: PathBuf,

    /// The query
    query: String,

    /// Documents, one to a line; -: standard input [default: standard input]
    inputs: Vec<PathBuf>,

    /// Print only the N best
    #[arg(long, value_name = "N")]
    top: Option<usize>,

    /// Print what the classifier puts out, and no probability
    #[arg(long)]
    raw: bool,

    /// Lines are JSON, of the input and of the output
    #[arg(long)]
    json: bool,

    /// Read at most N tokens of a query and a document [default: the model's limit]
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,

    /// Stop at a document that is too long, instead of reading its beginning only
    #[arg(long)]
    no_truncate: bool,

    /// Documents that are computed at the same time
    #[arg(long, value_name = "N", default_value_t = compute::SEQUENCES, value_parser = sequences)]
    sequences: usize,

    #[command(flatten)]
    lora: LoraArgs,

    #[command(flatten)]
    engine: EngineArgs,
}

/// The options that `-h` shows.
const SHORT: short_help::Shown = &[
    ("model", None),
    ("query", None),
    ("inputs", Some("Documents, one to a line [default: standard input]")),
    ("top", None),
    ("raw", Some("Print raw scores instead of probabilities")),
    ("json", Some("Lines are JSON, of the input and of the output")),
    ("threads", Some("Threads to compute with")),
];

/// The scores of all documents.
struct Documents<'a> {
    query: &'a str,
    lines: TextLines,
    scores: Scores<'a>,
    rule: ScoreRule,
    texts: Vec<String>,
    found: Vec<f64>,
    shortened: u64,
}

impl VectorWork for Documents<'_> {
    fn next(&mut self) -> Outcome<Option<GenerateRequest>> {
        let Some(TextLine { text, .. }) = self.lines.next()? else { return Ok(None) };
        let number = self.texts.len() + 1;
        let pair = self.scores.pair(self.query, &text);
        let input = pair.map_err(|error| anyhow!("document {number}: {error}"))?;
        self.shortened += u64::from(input.truncated);
        self.texts.push(text);
        Ok(Some(self.scores.request(input)))
    }

    fn done(&mut self, _number: u64, output: Vec<f32>) -> Outcome {
        self.found.push(self.rule.of(&output));
        Ok(())
    }
}

/// A line of `--json`. Fields are only ever added.
#[derive(Serialize)]
struct ScoreLine<'a> {
    index: usize,
    relevance_score: f64,
    text: &'a str,
}

/// Runs the command.
pub fn main(args: RerankArgs) -> Outcome {
    let lines = TextLines::open(&args.inputs, args.json)?;
    // Never dropped: the system takes the memory back when the process ends.
    let model: &'static Model = Box::leak(Box::new(open::model(&args.model, &args.engine)?));
    let adapters = args.lora.open(model)?;
    let (sequences, longest) = (args.sequences, args.max_tokens);
    let mut compute = Compute::start((model, adapters), &args.engine, sequences, longest)?;
    let (context, truncate) = (compute.context(), !args.no_truncate);
    let scores =
        Scores::new(model.spec(), model.vocabulary(), context, args.max_tokens, truncate, || false);
    let mut work = Documents {
        query: &args.query,
        lines,
        scores: scores.map_err(|error| anyhow!(error))?,
        rule: if args.raw { ScoreRule::Raw } else { ScoreRule::Probability },
        texts: Vec::new(),
        found: Vec::new(),
        shortened: 0,
    };
    compute.run(&mut work)?;
    if compute.interrupted() {
        return Err(Stop::Interrupted);
    }
    for index in ranked(&work.found).into_iter().take(args.top.unwrap_or(usize::MAX)) {
        let (score, text) = (work.found[index], work.texts[index].as_str());
        if args.json {
            output::json(&ScoreLine { index, relevance_score: score, text })?;
        } else {
            output::report(format!("{score:.6}\t{}\n", terminal_text::one_line(text)))?;
        }
    }
    args.engine.explain_outcome(model);
    if work.shortened > 0 {
        say::note(&format!(
            "documents that are longer than the model reads: {}; of each, the beginning was read",
            work.shortened
        ));
    }
    Ok(())
}

impl RerankArgs {
    /// See [`Command::models`](crate::args::Command::models).
    pub fn models(&mut self) -> (Vec<&mut PathBuf>, bool) {
        (vec![&mut self.model], self.engine.hub.offline)
    }
}
