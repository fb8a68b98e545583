//! `alight batch`: many prompts, one per line, answered at the same time.
//!
//! The lines are read, parsed and tokenized on one thread ([`reader`]); the sequences of an engine compute them; results are
//! written in the order of the lines or as they arrive ([`results`]).

mod answer;
mod fingerprint;
pub mod lines;
pub mod output;
mod progress;
mod reader;
mod request;
mod result;
mod results;
pub mod resume;

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, IsTerminal};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use alight_chat::body::refusal::{Refusal, TOO_LONG};
use alight_chat::grammar::Grammars;
use alight_chat::worker::{EngineEvent, EngineLoop, GenerateRequest, Log};
use alight_model::{
    AdapterSet, EngineOptions, MAX_SEQUENCES, Model, ModelError, Request, SamplerOptions,
};
use alight_text::{Encoder, Style};
use anyhow::{Context, anyhow};
use serde_json::json;

use crate::answer_limits::LimitArgs;
use crate::body_options::OptionDefaults;
use crate::drafts::DraftArgs;
use crate::interrupt::Interrupt;
use crate::lora::LoraArgs;
use crate::open::{self, EngineArgs};
use crate::outcome::{Outcome, Stop};
use crate::record::Recorder;
use crate::run::{prompt, sampling};
use crate::{new_file, say, short_help, text_input, units};
use answer::LineAnswer;
use lines::InputLines;
use output::Output;
use progress::Progress;
use reader::{Item, Items, Read, Reader};
use request::{Defaults, Prepared};
use result::LineId;
use results::Results;
use resume::{Done, Keys};

/// How long to wait for a line before checking for Ctrl-C again.
const PATIENCE: Duration = Duration::from_millis(50);

/// Arguments of `alight batch`.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("seed", |arg| arg.help("Seed of the random choices of each line that gives none; -1: another one in every run [default: 0]")),
    mut_args = short_help::only(SHORT),
    after_help = short_help::END,
    after_long_help = "\
Examples:
  alight batch model.gguf prompts.jsonl -o answers.jsonl
  alight batch model.gguf < prompts.jsonl | jq -r .response.body.choices[0].message.content
  jq -R . questions.txt | alight batch model.gguf --system \"Answer in one word.\" -n 8
  alight batch model.gguf prompts.jsonl --unordered --sequences 16 --temp 0

A line of the input is one of:
  \"a prompt\"
  {\"prompt\": \"…\"}  or  {\"messages\": [{\"role\": \"user\", \"content\": \"…\"}]}
  {\"custom_id\": \"…\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\": {…}}
The last is OpenAI's batch format (also /v1/completions), and so are the results. A line may have a custom_id, and set max_tokens, \
temperature, top_p, top_k, min_p, repeat_penalty, seed, stop, tools, response_format and more, and a field that is not \
supported makes an error of that line alone; docs/reference/batch.md has the whole format.

The same command continues a run that was cut. The answer to a line depends on the model, the line and these options, and not on the lines beside it, their \
order or --sequences. Exit status: 0 all lines are answered, 1 some failed (their results say why) or all \
stopped, 2 wrong usage, 130 Ctrl-C.")]
pub struct BatchArgs {
    /// The model: a .gguf file (of a split model, its first shard)
    model: PathBuf,

    /// The prompts, one to a line [default: standard input]
    input: Option<PathBuf>,

    /// Write results to a file; if an earlier run has begun it, go on with the lines that have none; -: to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Replace the file of -o instead of going on with it
    #[arg(long, requires = "output")]
    force: bool,

    /// Write each result when it is there, and not in the order of the lines
    #[arg(long)]
    unordered: bool,

    /// Add to each answer the record that `alight replay` computes it again from
    #[arg(long)]
    record: bool,

    /// Lines that are computed at the same time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = sequences)]
    sequences: usize,

    /// Say nothing but notes and errors on standard error
    #[arg(short, long)]
    quiet: bool,

    /// System prompt of lines that are a prompt and no conversation
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,

    /// Give prompts to the model as they are, without the chat template; conversations have it nevertheless
    #[arg(long)]
    raw: bool,

    /// Let special tokens written in a prompt, such as <|im_end|>, be special
    #[arg(long)]
    parse_special: bool,

    #[command(flatten)]
    limits: LimitArgs,

    #[command(flatten)]
    lora: LoraArgs,

    #[command(flatten)]
    drafts: DraftArgs,

    #[command(flatten)]
    engine: EngineArgs,

    #[command(flatten)]
    sampling: sampling::SamplingArgs,
}

/// The options that `-h` shows.
const SHORT: short_help::Shown = &[
    ("model", None),
    ("input", Some("A line of JSON for each prompt [default: standard input]")),
    ("output", Some("The results [default: standard output]")),
    ("unordered", Some("Write each result as soon as it is there")),
    ("sequences", Some("Prompts that are answered at the same time")),
    ("system", Some("System message of lines that have none")),
    ("predict", Some("At most N tokens for each answer")),
    ("threads", Some("Threads to compute with")),
    ("temp", Some("Temperature; 0: the most likely token")),
    ("seed", Some("Seed of the random choices [default: 0]")),
];

fn sequences(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=MAX_SEQUENCES).contains(&n) => Ok(n),
        _ => Err(format!("expected a number from 1 to {MAX_SEQUENCES}")),
    }
}

/// Runs the command.
pub fn main(args: BatchArgs) -> Outcome {
    args.sampling.check()?;
    let input = Input::open(args.input.as_deref())?;
    let output = args.output.as_ref().filter(|path| path.as_path() != Path::new("-"));
    if let Some(path) = output {
        let replace = args.force || path.exists();
        new_file::check(path, replace, &new_file::inputs(input.path)?)?;
    }
    // Neither is dropped at the end: the system takes the memory back when the process ends. The reading thread may still be
    // waiting for its input then.
    let model: &'static Model = Box::leak(Box::new(open::model(&args.model, &args.engine)?));
    let adapters = args.lora.open(model)?;
    let (keys, run) = (Keys::default(), args.hash(model, &adapters));
    let (file, done) = match output {
        None => (None, Done::default()),
        Some(path) => {
            let inputs = new_file::inputs(model.files().chain(input.path))?;
            let (file, done) = resume::open(path, args.force, &inputs, &keys, run)?;
            if done.unmarked > 0 {
                say::note(&format!(
                    "{} results in '{}' do not say which model, options and lines they are of, and are taken as those of this command",
                    done.unmarked,
                    path.display()
                ));
            }
            (Some(Output::new(file, path)?), done)
        }
    };
    let before = (done.results, done.failed);
    let options = EngineOptions {
        sequences: args.sequences,
        context: Some(args.limits.context(model.spec().context)),
        prompt_precision: args.engine.prompt_precision(),
        cache_type: args.engine.cache_type(),
        speculate: args.drafts.speculate,
        ..EngineOptions::default()
    };
    let draft = args.drafts.leaked(&args.engine)?;
    let log: Log = Arc::new(say::note);
    let mut engine = EngineLoop::start(model, draft, &options, &log).map_err(|e| anyhow!(e))?;
    let interrupt = Interrupt::catch()?;
    engine.cancel_by(interrupt.cancel());
    let shown = !args.quiet && (file.is_some() || !io::stdout().is_terminal());
    let progress = Progress::new(shown, input.len);
    let source = input.path.map(Path::to_owned);
    let goes_on = file.is_some();
    let recorder = args
        .record
        .then(|| Arc::new(Recorder::new(model, &args.engine, engine.context(), &adapters)));
    let reader = args.reader(input, model, engine.context(), run, done, keys);
    let (send, events) = channel();
    let mut batch = Batch {
        model,
        recorder,
        engine: ManuallyDrop::new(engine),
        send,
        events,
        items: Items::begin(reader, args.sequences),
        results: Results::new(file, args.unordered),
        progress,
        active: HashMap::new(),
        begun: 0,
        adapters,
        sequences: args.sequences,
        ended: false,
        interrupt,
        source,
        goes_on,
    };
    let outcome = batch.run();
    batch.progress.clear();
    outcome?;
    batch.results.finish()?;
    args.engine.explain_outcome(model);
    batch.report(args.quiet, before)
}

impl BatchArgs {
    /// See [`Command::models`](crate::args::Command::models).
    pub fn models(&mut self) -> (Vec<&mut PathBuf>, bool) {
        (self.drafts.models(&mut self.model), self.engine.hub.offline)
    }

    /// Returns the reader of the input.
    fn reader(
        &self,
        input: Input<'_>,
        model: &'static Model,
        context: usize,
        run: u64,
        done: Done,
        keys: Keys,
    ) -> Reader {
        let vocabulary = model.vocabulary();
        let trained = model.spec().context;
        if context > trained {
            say::note(&format!(
                "the model was trained for a context of {trained} tokens: beyond it, answers get worse"
            ));
        }
        let style = prompt::style(vocabulary, &self.model, self.raw);
        if style == Style::Raw && self.system.is_some() {
            say::note("--system has no effect without a chat template");
        }
        let encoder = Encoder::new(vocabulary, style, self.parse_special).within(context);
        let defaults = Defaults {
            options: OptionDefaults {
                sampling: self.sampling.fixed_options(),
                breakers: self.sampling.breakers().map(<[String]>::to_vec),
                max_tokens: self.limits.max_tokens(),
                ignore_eos: self.limits.ignore_eos,
            },
            no_thinking: self.limits.no_thinking,
            system: self.system.clone(),
            style,
            context,
        };
        let lines = InputLines::new(input.reader, lines::LIMIT);
        let (name, seen) = (input.name, HashMap::new());
        let (no_json, grammars) = (Some(0), Grammars::new(vocabulary));
        Reader {
            lines,
            name,
            vocabulary,
            encoder,
            grammars,
            defaults,
            run,
            done,
            keys,
            seen,
            no_json,
        }
    }

    /// Returns a hash of everything that answers depend on besides their lines: the model, and the options except those that only
    /// change the speed.
    fn hash(&self, model: &Model, adapters: &AdapterSet) -> u64 {
        let BatchArgs { limits, engine, sampling, .. } = self;
        let options = sampling.fixed_options();
        let numbers = SamplerOptions::NUMBERS.map(|number| (number.get)(&options));
        let counts = SamplerOptions::COUNTS.map(|count| (count.get)(&options));
        let mut all = json!({
            "model": model.identity(),
            "sampling": numbers,
            "counts": counts,
            "breakers": sampling.breakers(),
            "limits": [limits.max_tokens(), limits.context(model.spec().context)],
            // A different seed in every run is the same option.
            "seed": (!sampling.draws_seed()).then_some(options.seed),
            "switches": [limits.ignore_eos, limits.no_thinking, self.raw, self.parse_special],
            "system": self.system,
            "arithmetic": format!("{:?} {:?}", engine.prompt_precision(), engine.cache_type()),
        });
        if !adapters.is_empty() {
            all["adapters"] = adapters.salt("").as_ref().into();
        }
        fingerprint::hash(all.to_string().as_bytes())
    }
}

/// The source of the lines.
struct Input<'a> {
    name: String,
    /// The path, if it is a file.
    path: Option<&'a Path>,
    /// Its size in bytes, if it is a file.
    len: Option<u64>,
    reader: Box<dyn BufRead + Send>,
}

impl<'a> Input<'a> {
    fn open(path: Option<&'a Path>) -> Outcome<Input<'a>> {
        const BUFFER: usize = 1 << 16;
        let Some(path) = path.filter(|path| *path != Path::new("-")) else {
            if path.is_none() && io::stdin().is_terminal() {
                return Err(Stop::Usage(
                    "there is no input: give a file of prompts, or pipe one in".to_owned(),
                ));
            }
            let reader = Box::new(BufReader::with_capacity(BUFFER, io::stdin()));
            return Ok(Input { name: "standard input".to_owned(), path: None, len: None, reader });
        };
        let name = format!("'{}'", path.display());
        let file = text_input::open(path, "a file of prompts")?;
        let known = file.metadata().with_context(|| name.clone())?;
        let len = known.is_file().then_some(known.len());
        let reader = Box::new(BufReader::with_capacity(BUFFER, file));
        Ok(Input { name, path: known.is_file().then_some(path), len, reader })
    }
}

/// A batch in progress.
struct Batch {
    model: &'static Model,
    /// Makes the records of answers, if they were requested.
    recorder: Option<Arc<Recorder>>,
    /// Never dropped: the process ends sooner than all of its memory could be freed.
    engine: ManuallyDrop<EngineLoop<'static>>,
    /// The events of requests, with their places among the results.
    send: Sender<(u64, EngineEvent)>,
    events: Receiver<(u64, EngineEvent)>,
    items: Items,
    results: Results,
    progress: Progress,
    /// By place among the results, which is the key of the request.
    active: HashMap<u64, LineAnswer>,
    /// Lines that have been started: places among the results.
    begun: u64,
    /// Of all answers.
    adapters: AdapterSet,
    sequences: usize,
    /// All lines have been read.
    ended: bool,
    interrupt: Interrupt,
    /// The input, if it is a file.
    source: Option<PathBuf>,
    /// True if the same command can resume after this run: results are in a file.
    goes_on: bool,
}

impl Batch {
    /// Computes until all lines have results, or until Ctrl-C.
    fn run(&mut self) -> Outcome {
        while !self.interrupt.pressed() {
            self.admit()?;
            if !self.active.is_empty() {
                self.step()?;
            } else if self.ended {
                break;
            }
            self.progress.show(&self.results);
        }
        Ok(())
    }

    /// Assigns lines to free sequences. Waits for a line if there is nothing else to do.
    fn admit(&mut self) -> Outcome {
        while !self.ended && self.active.len() < self.sequences && !self.results.is_full() {
            let patience = if self.active.is_empty() { PATIENCE } else { Duration::ZERO };
            let Some(item) = self.items.next(patience) else { return Ok(()) };
            match item {
                Item::End => self.ended = true,
                Item::Failed(error) => return Err(error.into()),
                Item::Line(at, read) => {
                    self.progress.read = at;
                    self.take(read)?;
                }
            }
            // Lines that need no computing do not return to `run`, so check here.
            if self.interrupt.pressed() {
                return Ok(());
            }
            self.progress.show(&self.results);
        }
        Ok(())
    }

    fn take(&mut self, read: Read) -> Outcome {
        let index = self.begun;
        match read {
            Read::Done => {
                self.progress.skipped += 1;
                Ok(())
            }
            Read::Refused(line, refusal) => {
                self.begun += 1;
                self.put(index, &line, result::LineOutcome::Refused(refusal))
            }
            Read::Failed(line, refusal) => {
                self.begun += 1;
                self.put(index, &line, result::LineOutcome::Failed(refusal))
            }
            Read::Request(prepared) => {
                self.begun += 1;
                self.begin(index, *prepared)
            }
        }
    }

    fn begin(&mut self, index: u64, prepared: Prepared) -> Outcome {
        let records = self.recorder.is_some();
        let answer = LineAnswer::new(&prepared, self.model.vocabulary(), records);
        let Prepared {
            prompt,
            sampling,
            breakers,
            max_tokens,
            ignore_eos,
            held: grammar,
            thinking,
            ..
        } = prepared;
        let request = Request {
            adapters: self.adapters.clone(),
            prompt,
            sampling,
            dry_sequence_breakers: breakers,
            max_tokens,
            ignore_eos,
            ..Request::default()
        };
        let request = GenerateRequest { request, grammar, thinking, ..GenerateRequest::default() };
        let send = self.send.clone();
        let on_event = Box::new(move |event| {
            // Once the batch has ended, nothing receives events.
            let _ = send.send((index, event));
        });
        self.engine.generate(index, request, on_event);
        self.active.insert(index, answer);
        Ok(())
    }

    /// Computes the next token of all sequences.
    fn step(&mut self) -> Outcome {
        self.engine.step();
        while let Ok((index, event)) = self.events.try_recv() {
            self.on_event(index, event)?;
        }
        Ok(())
    }

    fn on_event(&mut self, index: u64, event: EngineEvent) -> Outcome {
        // Events after the end of an answer in the same step add nothing.
        let Some(answer) = self.active.get_mut(&index) else { return Ok(()) };
        let finish = match event {
            EngineEvent::Prompt { .. } => {
                self.progress.prompt_tokens += answer.prompt_tokens as u64;
                return Ok(());
            }
            EngineEvent::Token(token, _) => {
                self.progress.tokens += 1;
                if !answer.push(token) {
                    return Ok(());
                }
                None
            }
            EngineEvent::Finished(finish) => Some(finish),
            EngineEvent::Refused(error) => {
                let code = match *error {
                    ModelError::ContextFull { .. } => TOO_LONG,
                    _ => "invalid_request",
                };
                let refused = Refusal::new(code, error.to_string());
                return self.end(index, |_| result::LineOutcome::Refused(refused));
            }
            EngineEvent::Failed(error) => {
                let failed = Refusal::new("model_error", error.to_string());
                return self.end(index, |_| result::LineOutcome::Failed(failed));
            }
            EngineEvent::EngineFailed(error) => return Err(anyhow!(error).into()),
            // The progress of a prompt, and outputs that no line requests.
            EngineEvent::Waiting { .. }
            | EngineEvent::Reading { .. }
            | EngineEvent::PromptToken(..)
            | EngineEvent::Embedding(_)
            | EngineEvent::Ending => return Ok(()),
        };
        let name = self.model.name();
        let recorder = self.recorder.clone();
        self.end(index, |mut answer| {
            let record = recorder.and_then(|recorder| answer.record(finish, &recorder));
            result::LineOutcome::Answered(answer.body(finish, name), record.map(Box::new))
        })
    }

    /// Ends an answer with this outcome.
    fn end(
        &mut self,
        index: u64,
        outcome: impl FnOnce(LineAnswer) -> result::LineOutcome,
    ) -> Outcome {
        let Some(answer) = self.active.remove(&index) else { return Ok(()) };
        self.engine.cancel(index);
        let line = answer.line.clone();
        let outcome = outcome(answer);
        self.put(index, &line, outcome)
    }

    fn put(&mut self, index: u64, line: &LineId, outcome: result::LineOutcome) -> Outcome {
        self.results.put(index, line, outcome)
    }

    /// Returns the work left after Ctrl-C, if any.
    fn remaining(&self) -> Option<String> {
        let Results { answered, failed, .. } = self.results;
        let done = self.progress.skipped + answered + failed;
        // The number of lines left in a pipe is unknown.
        let left = self.source.as_deref().and_then(|path| lines::count(path).ok());
        let left = left.map(|all| all.saturating_sub(done));
        let which = match left {
            Some(0) => return None,
            Some(1) => "1 line has no result yet".to_owned(),
            Some(n) => format!("{} have no result yet", units::so_many(n, "line")),
            None => "lines that were not read or not answered have no result yet".to_owned(),
        };
        Some(match self.goes_on {
            true => format!("{which}: the same command continues there"),
            false => {
                format!("{which}: with -o FILE, the same command continues where it was stopped")
            }
        })
    }

    /// Reports the results and returns the exit status of the program. `before`: results of earlier runs, and how many of them
    /// failed.
    fn report(&self, quiet: bool, before: (u64, u64)) -> Outcome {
        if !quiet {
            say::plain(&self.progress.summary(&self.results));
        }
        if self.interrupt.pressed() {
            if !quiet && self.results.waiting() > 0 {
                say::note(&format!(
                    "{} more were finished but not written, because an earlier line is not finished; --unordered writes each at once",
                    self.results.waiting()
                ));
            }
            if !quiet && let Some(text) = self.remaining() {
                say::note(&text);
            }
            return Err(Stop::Interrupted);
        }
        let (all, failed) = (
            before.0 + self.results.answered + self.results.failed,
            before.1 + self.results.failed,
        );
        if failed > 0 {
            return Err(anyhow!("{failed} of {all} lines failed: their results say why").into());
        }
        Ok(())
    }
}
