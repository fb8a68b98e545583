//! `alight embed`: texts as vectors, one for each line; and `alight rerank`: documents in the order in which they suit a query.
//!
//! Lines are tokenized on this thread, the sequences of an engine compute them at the same time, and vectors are written in the order of
//! the lines ([`output`]). A run that was cut is continued by the same command.

mod compute;
mod lines;
mod output;
pub mod rerank;

use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Instant;

use alight_chat::vectors::{Normalization, VectorOptions, Vectors, cosine};
use alight_chat::worker::GenerateRequest;
use alight_model::{MAX_SEQUENCES, Model, Pooling};
use anyhow::anyhow;
use serde_json::Value;

use crate::bar::Bar;
use crate::lora::LoraArgs;
use crate::open::{self, EngineArgs};
use crate::outcome::{Outcome, Stop};
use crate::{new_file, output as stdout, say, short_help, units};
use compute::{Compute, VectorWork};
use lines::{TextLine, TextLines};
use output::{Row, VectorFormat, VectorOutput};

/// Arguments of `alight embed`.
#[derive(Debug, clap::Args)]
#[command(
    mut_args = short_help::only(SHORT),
    after_help = short_help::END,
    after_long_help = "\
Examples:
  alight embed model.gguf texts.txt -o vectors.npy
  alight embed model.gguf texts.jsonl --json -o vectors.jsonl
  echo \"How warm is it?\" | alight embed model.gguf --prompt-name query
  alight embed model.gguf --similarity \"a cat\" \"a kitten\"

Each line of the input is a text, and so is an empty one, so that row N belongs to line N. With --json a line is a text between quotes, or an \
object with `text` (or `input`, `content`) and perhaps `id`. Vectors have length 1, unless --normalize says otherwise, and are what the \
model's file says (its pooling), unless --pooling does.

The same command continues a run that was cut: every line has one vector, in order, whatever happened in between. A text's vector \
depends on the model, the text and these options, and not on the texts beside it.")]
pub struct EmbedArgs {
    /// The model: a .gguf file (of a split model, its first shard)
    model: PathBuf,

    /// Texts, one to a line; -: standard input [default: standard input]
    inputs: Vec<PathBuf>,

    /// Write vectors to a file; if an earlier run has begun it, go on with the lines that have none [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Replace the file of -o instead of going on with it
    #[arg(long, requires = "output")]
    force: bool,

    /// How vectors are written: lines of JSON, NumPy's format, or numbers of 32 bits without anything between
    /// [default: by the name of the file, otherwise jsonl]
    #[arg(long, value_name = "FORMAT")]
    format: Option<VectorFormat>,

    /// Lines of the input are JSON
    #[arg(long)]
    json: bool,

    /// Print how similar two texts are (the cosine of their vectors), and nothing else
    #[arg(long, num_args = 2, value_names = ["TEXT", "TEXT"], conflicts_with_all = ["inputs", "output", "json", "format"])]
    similarity: Option<Vec<String>>,

    /// How the vectors of tokens become that of a text [default: the model's]
    #[arg(long, value_name = "HOW", value_parser = open::named::<Pooling>(Pooling::OF_TEXTS.map(|(name, _)| name)))]
    pooling: Option<Pooling>,

    /// Scale vectors: 2: to length 1; -1: not at all; 1: to a sum of absolute values of 1; 0: to a largest number of 32760
    #[arg(long, visible_alias = "embd-normalize", value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(i64))]
    normalize: i64,

    /// Keep only the first N numbers of each vector, for models that were trained for it
    #[arg(long, value_name = "N")]
    dimensions: Option<usize>,

    /// Put the prompt of this name, which the model's file has, before each text
    #[arg(long, value_name = "NAME", conflicts_with = "prompt")]
    prompt_name: Option<String>,

    /// Put this text before each text
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,

    /// Read at most N tokens of a text [default: the model's limit]
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,

    /// Stop at a text that is too long, instead of reading its beginning only
    #[arg(long)]
    no_truncate: bool,

    /// Let special tokens written in a text, such as [SEP], be special
    #[arg(long)]
    parse_special: bool,

    /// Texts that are computed at the same time
    #[arg(long, value_name = "N", default_value_t = compute::SEQUENCES, value_parser = sequences)]
    sequences: usize,

    /// Say nothing but notes and errors on standard error
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten)]
    lora: LoraArgs,

    #[command(flatten)]
    engine: EngineArgs,
}

/// The options that `-h` shows.
const SHORT: short_help::Shown = &[
    ("model", None),
    ("inputs", Some("Texts, one to a line [default: standard input]")),
    ("output", Some("A file: .npy, .jsonl or .f32 [default: standard output]")),
    ("json", Some("Lines of the input are JSON")),
    ("similarity", Some("Print how similar two texts are")),
    ("pooling", Some("How tokens become a text [default: the model's]")),
    ("normalize", Some("2: vectors of length 1; -1: as they are")),
    ("dimensions", Some("Numbers of a vector that are kept")),
    ("prompt_name", Some("A prompt of the model, such as query")),
    ("threads", Some("Threads to compute with")),
];

fn sequences(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=MAX_SEQUENCES).contains(&n) => Ok(n),
        _ => Err(format!("expected a number from 1 to {MAX_SEQUENCES}")),
    }
}

/// Runs the command.
pub fn main(args: EmbedArgs) -> Outcome {
    let Some(normalization) = Normalization::of_number(args.normalize) else {
        let found = args.normalize;
        return Err(Stop::Usage(format!("--normalize {found}: expected a number from -1 to 64")));
    };
    let format = VectorFormat::of(args.format, args.output.as_deref());
    if format == VectorFormat::Npy && args.output.is_none() && args.similarity.is_none() {
        let message = "--format npy needs -o FILE: its header has the number of vectors";
        return Err(Stop::Usage(message.to_owned()));
    }
    if let Some(path) = &args.output {
        new_file::check(path, args.force || path.exists(), &new_file::inputs(args.files())?)?;
    }
    let nothing = args.inputs.is_empty() && args.similarity.is_none();
    if nothing && io::stdin().is_terminal() {
        let message = "there is no text: give a file with a text on each line, or pipe one in";
        return Err(Stop::Usage(message.to_owned()));
    }
    // Never dropped: the system takes the memory back when the process ends.
    let model: &'static Model = Box::leak(Box::new(open::model(&args.model, &args.engine)?));
    let adapters = args.lora.open(model)?;
    let own_prompt = adapters.iter().find_map(|(adapter, _)| adapter.prompt_prefix());
    let own_prompt = own_prompt.filter(|_| args.prompt_name.is_none()).map(str::to_owned);
    let options = VectorOptions {
        pooling: args.pooling,
        normalization: Some(normalization),
        dimensions: args.dimensions,
        prompt_name: args.prompt_name.clone(),
        prompt: args.prompt.clone().or(own_prompt),
        max_tokens: args.max_tokens,
        truncate: !args.no_truncate,
        parse_special: args.parse_special,
    };
    let mut compute =
        Compute::start((model, adapters), &args.engine, args.sequences, args.max_tokens)?;
    let (spec, vocabulary) = (model.spec(), model.vocabulary());
    let vectors = Vectors::new(spec, vocabulary, compute.context(), &options, || false);
    let vectors = vectors.map_err(|error| anyhow!(error))?;
    match &args.similarity {
        Some(texts) => similarity(texts, &vectors, &mut compute),
        None => all(&args, format, model, &vectors, &mut compute),
    }
}

/// Two texts or more, whose vectors are kept.
struct Few<'a> {
    texts: std::slice::Iter<'a, String>,
    vectors: &'a Vectors<'a>,
    found: Vec<Vec<f32>>,
}

impl VectorWork for Few<'_> {
    fn next(&mut self) -> Outcome<Option<GenerateRequest>> {
        let Some(text) = self.texts.next() else { return Ok(None) };
        let input = self.vectors.text(text).map_err(|error| anyhow!(error))?;
        Ok(Some(self.vectors.request(input)))
    }

    fn done(&mut self, _number: u64, output: Vec<f32>) -> Outcome {
        self.found.push(self.vectors.finish(output));
        Ok(())
    }
}

/// Prints the cosine of the vectors of two texts.
fn similarity(texts: &[String], vectors: &Vectors<'_>, compute: &mut Compute) -> Outcome {
    let mut few = Few { texts: texts.iter(), vectors, found: Vec::new() };
    compute.run(&mut few)?;
    let [a, b] = &few.found[..] else { return Err(Stop::Interrupted) };
    stdout::report(format!("{:.6}\n", cosine(a, b)))
}

/// The texts of all lines, whose vectors are written.
struct All<'a> {
    lines: TextLines,
    vectors: &'a Vectors<'a>,
    output: VectorOutput,
    /// Rows that an earlier run has written. The last of them is computed again: it shows whether they are of this model and these options.
    before: u64,
    /// The first row that is computed.
    first: u64,
    /// Of texts that are computed: the id, the number of tokens, and whether it was shortened.
    begun: VecDeque<(Option<Value>, usize, bool)>,
    shortened: u64,
    tokens: u64,
    written: u64,
    clock: Instant,
    bar: Option<Bar>,
}

impl VectorWork for All<'_> {
    fn next(&mut self) -> Outcome<Option<GenerateRequest>> {
        let Some(TextLine { text, id }) = self.lines.next()? else { return Ok(None) };
        let number = self.first + (self.written + self.begun.len() as u64) + 1;
        let input = self.vectors.text(&text).map_err(|error| anyhow!("text {number}: {error}"))?;
        self.shortened += u64::from(input.truncated);
        self.tokens += input.tokens.len() as u64;
        self.begun.push_back((id, input.tokens.len(), input.truncated));
        Ok(Some(self.vectors.request(input)))
    }

    fn done(&mut self, number: u64, output: Vec<f32>) -> Outcome {
        let vector = self.vectors.finish(output);
        let Some((id, tokens, truncated)) = self.begun.pop_front() else { return Ok(()) };
        let index = self.first + number;
        let row = Row { index, id, vector: &vector, tokens, truncated };
        if index < self.before {
            return Ok(self.output.check(&row)?);
        }
        self.output.put(&row)?;
        self.written += 1;
        let (done, seconds) = (self.before + self.written, self.clock.elapsed().as_secs_f64());
        if let Some(bar) = &mut self.bar {
            let share = self.lines.len().map(|total| (self.lines.read(), total));
            let rate = self.written as f64 / seconds.max(1e-3);
            bar.show_text(share, || {
                format!("{}, {} texts/s", units::so_many(done, "text"), units::digits(rate))
            });
        }
        Ok(())
    }
}

/// Computes the vectors of all lines.
fn all(
    args: &EmbedArgs,
    format: VectorFormat,
    model: &Model,
    vectors: &Vectors<'_>,
    compute: &mut Compute,
) -> Outcome {
    let mut lines = TextLines::open(&args.inputs, args.json)?;
    let width = vectors.dimensions;
    let output = match &args.output {
        None => VectorOutput::stdout(format, width),
        Some(path) => {
            let inputs = new_file::inputs(model.files().chain(args.files()))?;
            VectorOutput::file(path, args.force, &inputs, format, width)?
        }
    };
    let before = output.rows();
    let first = before.saturating_sub(1);
    for read in 0..before {
        // The last one is read by the work.
        let is_there = if read < first { lines.next()?.is_some() } else { lines.has_more()? };
        if !is_there {
            return Err(anyhow!(
                "the file of -o has {before} vectors, and there are {read} texts: give another file, or --force to replace this one"
            )
            .into());
        }
    }
    let shown = !args.quiet && (args.output.is_some() || !io::stdout().is_terminal());
    let mut work = All {
        lines,
        vectors,
        output,
        before,
        first,
        begun: VecDeque::new(),
        shortened: 0,
        tokens: 0,
        written: 0,
        clock: Instant::now(),
        bar: shown.then(|| Bar::new("embed")),
    };
    let outcome = compute.run(&mut work);
    if let Some(bar) = &mut work.bar {
        bar.clear();
    }
    work.output.finish()?;
    outcome?;
    args.engine.explain_outcome(model);
    if shown {
        work.report(width);
    }
    if work.shortened > 0 {
        let which = match work.shortened {
            1 => "1 text was".to_owned(),
            n => format!("{n} texts were"),
        };
        say::note(&format!(
            "{which} longer than the model reads, and shortened: --no-truncate stops at such a text"
        ));
    }
    if compute.interrupted() {
        if args.output.is_some() && !args.quiet {
            say::note("the same command continues there");
        }
        return Err(Stop::Interrupted);
    }
    Ok(())
}

impl All<'_> {
    fn report(&self, width: usize) {
        let seconds = self.clock.elapsed().as_secs_f64();
        let before = match self.before {
            0 => String::new(),
            n => format!(", {n} were there already"),
        };
        say::plain(&format!(
            "{} of {width} numbers{before}; {} tokens in {} = {} texts/s",
            units::so_many(self.written, "vector"),
            self.tokens,
            units::ms(seconds * 1e3),
            units::digits(self.written as f64 / seconds.max(1e-3)),
        ));
    }
}

impl EmbedArgs {
    /// See [`Command::models`](crate::args::Command::models).
    pub fn models(&mut self) -> (Vec<&mut PathBuf>, bool) {
        (vec![&mut self.model], self.engine.hub.offline)
    }

    /// The inputs that are files.
    fn files(&self) -> impl Iterator<Item = &Path> {
        self.inputs.iter().map(PathBuf::as_path).filter(|path| *path != Path::new("-"))
    }
}
