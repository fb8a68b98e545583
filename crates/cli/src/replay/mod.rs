//! `alight replay`: computes recorded answers again, and says where they differ and why they may.
//!
//! A record's prompt is fed as tokens, and tokens are drawn with the record's options and seed, until one differs. Threads, SIMD level,
//! layout and load are the user's.
//!
//! **Invariant:** the exit status is 0 if all answers are equal, 1 if one differs, and 2 if there was nothing to compare: a wrong command
//! line, or a record or model that cannot be used.
//!
//! **Invariant:** a record is hostile: it is read within limits, and checked against the model before anything is computed; nothing is
//! computed beyond the tokens that it has and one more.

mod compare;
mod reasons;
mod report;
mod source;

use std::path::PathBuf;
use std::sync::Arc;

use alight_chat::grammar::{Grammars, NotHeld};
use alight_model::{Adapter, AdapterSet, Model};
use alight_text::Vocabulary;
use alight_text::output::Format;
use anyhow::anyhow;
use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::interrupt::Interrupt;
use crate::open::{self, EngineArgs};
use crate::outcome::{Outcome, Stop, chain};
use crate::record::{FoundRecord, ReadRecord, RecordedAdapter, hexadecimal};
use crate::{output, say};
use compare::{AnswerComparison, Replayer, Wish};
use reasons::{ThisRun, digits, shown};
use report::{Place, ReplaySummary};
use source::{RecordLine, Records};

/// Log-probabilities that are shown if no number is given, and the most that are.
const LOGPROBS: &str = "5";
const MAX_LOGPROBS: usize = 100;

/// Arguments of `alight replay`.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("prompt_precision", |arg| arg.hide(true)),
    mut_arg("cache_type", |arg| arg.hide(true)),
    after_help = "\
Examples:
  alight run model.gguf \"Why is the sky blue?\" --json > answer.json
  alight replay answer.json model.gguf
  alight replay answer.json packed.gguf -t 1 --logprobs
  alight batch model.gguf prompts.jsonl --record -o answers.jsonl
  alight replay answers.jsonl model.gguf

The record is what `alight run --json` and `alight batch --record` write: the prompt as tokens, all options, the seed, the answer, and what computed it. \
The answer is computed again from it, on any machine, in any layout of the model and with any number of threads. The result is \
`equal`, or the first token that differs, and what of the record is different here and may be why: the model, the arithmetic, the \
version, the kernels. A record is a complete report of a wrong answer.

Exit status: 0 all are equal, 1 one differs, 2 wrong usage, or a record or model that cannot be used, 130 Ctrl-C.")]
pub struct ReplayArgs {
    /// The record: a file with what `run --json` or `batch --record` wrote, of which each line may be one; -: standard input
    record: PathBuf,

    /// The model: a .gguf file, a folder with one model in it, or hf.co/USER/REPO
    model: PathBuf,

    /// Show the N likeliest tokens where the answers differ; with --json, everywhere
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = LOGPROBS, value_parser = logprobs)]
    logprobs: Option<usize>,

    /// Write a line of JSON for each record
    #[arg(long)]
    json: bool,

    /// A LoRA adapter that records name; may be given several times. Their scales are the records'
    #[arg(long, value_name = "FILE", value_delimiter = ',', action = clap::ArgAction::Append)]
    lora: Vec<PathBuf>,

    #[command(flatten)]
    engine: EngineArgs,
}

/// Options that a record has.
const OF_RECORD: [(&str, &str); 2] =
    [("prompt_precision", "--prompt-precision"), ("cache_type", "--cache-type")];

fn logprobs(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=MAX_LOGPROBS).contains(&n) => Ok(n),
        _ => Err(format!("expected a number from 1 to {MAX_LOGPROBS}")),
    }
}

impl ReplayArgs {
    /// See [`Command::models`](crate::args::Command::models).
    pub fn models(&mut self) -> (Vec<&mut PathBuf>, bool) {
        (vec![&mut self.model], self.engine.hub.offline)
    }
}

/// Runs the command. `given` are the arguments of the command line.
pub fn main(args: &ReplayArgs, given: &ArgMatches) -> Outcome {
    for (id, option) in OF_RECORD {
        if given.value_source(id) == Some(ValueSource::CommandLine) {
            let text = format!("{option} is one of the record's options: leave it out");
            return Err(Stop::Usage(text));
        }
    }
    let mut records = Records::open(&args.record).map_err(unusable)?;
    // Records are read before the model is, which may take long.
    let Some(first) = records.next().map_err(unusable)? else {
        return Err(Stop::Usage(format!("there is no record in {}: it is empty", records.name())));
    };
    let mut next = records.next().map_err(unusable)?;
    // The system frees the memory when the process ends.
    let mut model = Box::new(open::model(&args.model, &args.engine).map_err(no_model)?);
    let format = first.content.as_ref().ok().and_then(ReadRecord::tool_format_in);
    if let Some(format) = format {
        model.vocabulary_mut().set_output_format(format);
    }
    let model: &'static Model = Box::leak(model);
    let open = |path: &PathBuf| {
        model.open_adapter(path).map(Arc::new).map_err(|error| unusable(anyhow!(error)))
    };
    let adapters = args.lora.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let mut replay = ReplayRun {
        args,
        name: records.name().to_owned(),
        are_several: next.is_some(),
        this: ThisRun::of(model),
        adapters,
        grammars: Grammars::new(model.vocabulary()),
        replayer: Replayer::new(model, Interrupt::catch()?),
        vocabulary: model.vocabulary(),
        format,
        summary: ReplaySummary::default(),
    };
    replay.line(first)?;
    while let Some(line) = next {
        replay.line(line)?;
        next = records.next().map_err(unusable)?;
    }
    args.engine.explain_outcome(model);
    replay.end()
}

/// A file of records that are replayed, one by one.
struct ReplayRun<'a> {
    args: &'a ReplayArgs,
    /// The name of the file.
    name: String,
    /// True if the file has more than one record.
    are_several: bool,
    this: ThisRun,
    /// Those that records may name.
    adapters: Vec<Arc<Adapter>>,
    grammars: Grammars,
    replayer: Replayer,
    vocabulary: &'static Vocabulary,
    /// The notation of thinking and calls that it has been given in place of its own: that of the first record.
    format: Option<Format>,
    summary: ReplaySummary,
}

impl ReplayRun<'_> {
    /// Replays the record of a line, and reports it.
    fn line(&mut self, line: RecordLine) -> Outcome {
        let RecordLine { line, content } = line;
        let custom_id = content.as_ref().ok().and_then(|value| value.get("custom_id")?.as_str());
        let place = Place { line, custom_id: custom_id.map(str::to_owned) };
        let found =
            content.and_then(|value| ReadRecord::find(value).map_err(|refusal| refusal.message));
        let mut record = match found {
            Ok(FoundRecord::Record(record)) => record,
            Ok(FoundRecord::Failed) => {
                self.summary.failed += 1;
                return Ok(());
            }
            Err(why) => return self.unreadable(&place, &why),
        };
        let requested = record
            .check_tool_format(self.format)
            .map_err(NotHeld::Refused)
            .and_then(|()| record.requested(self.vocabulary, &self.grammars));
        let mut request = match requested {
            Ok(request) => request,
            Err(NotHeld::Refused(refusal)) => return self.unreadable(&place, &refusal.message),
            Err(why @ NotHeld::Compiler(_)) => return self.unreadable(&place, &why.to_string()),
        };
        match self.adapters(&record) {
            Ok(adapters) => request.request.adapters = adapters,
            Err(why) => return self.unreadable(&place, &why),
        }
        let wish = Wish { logprobs: self.args.logprobs, everywhere: self.args.json };
        match self.replayer.compare(&record, request, wish) {
            Ok(comparison) => self.compared(&place, &record, &comparison),
            Err(Stop::Failed(error)) => self.unreadable(&place, &chain(&error)),
            Err(stop) => Err(stop),
        }
    }

    /// Returns the adapters of a record.
    ///
    /// # Errors
    /// One of them was not given.
    fn adapters(&self, record: &ReadRecord) -> Result<AdapterSet, String> {
        let find = |recorded: &RecordedAdapter| {
            let is_it = |adapter: &&Arc<Adapter>| hexadecimal(adapter.hash()) == recorded.hash;
            let found = self.adapters.iter().find(is_it).ok_or_else(|| {
                format!(
                    "the answer has the adapter '{}' ({}): give its file with --lora",
                    shown(&recorded.name),
                    digits(&recorded.hash)
                )
            })?;
            Ok((Arc::clone(found), recorded.scale))
        };
        Ok(AdapterSet::new(record.lora.iter().map(find).collect::<Result<Vec<_>, String>>()?))
    }

    /// Reports a comparison.
    fn compared(
        &mut self,
        place: &Place,
        record: &ReadRecord,
        comparison: &AnswerComparison,
    ) -> Outcome {
        let why = self.this.reasons(record);
        self.summary.count(comparison);
        if comparison.difference.is_none() && self.this.has_another_model(record) {
            say::note("the answer is equal, although the model is another than the record's");
        }
        if self.args.json {
            return output::json(&report::json(place, comparison, &why, self.vocabulary));
        }
        let shown = self.are_several.then_some(place);
        output::report(report::text(shown, comparison, &why, self.vocabulary))
    }

    /// Reports a record that cannot be replayed.
    fn unreadable(&mut self, place: &Place, why: &str) -> Outcome {
        self.summary.unreadable += 1;
        let at = if self.are_several { place.in_words() } else { String::new() };
        say::error(&format!("{}: {at}{why}", self.name));
        Ok(())
    }

    /// Reports all of them, and returns the exit status.
    fn end(&self) -> Outcome {
        let ReplaySummary { equal, differing, unreadable, .. } = self.summary;
        if !self.args.json && self.summary.all() > 1 {
            output::report(self.summary.line())?;
        }
        if unreadable > 0 {
            return Err(Stop::Refused);
        }
        if differing > 0 {
            return Err(Stop::AlreadyReported);
        }
        if equal == 0 {
            let text = format!("no line of {} has an answer: all of them failed", self.name);
            return Err(Stop::Usage(text));
        }
        Ok(())
    }
}

/// A record that cannot be read is wrong usage.
fn unusable(error: anyhow::Error) -> Stop {
    Stop::Usage(chain(&error))
}

/// So is a model that cannot be found or opened: there is nothing to compare.
pub fn no_model(stop: Stop) -> Stop {
    match stop {
        Stop::Failed(error) => unusable(anyhow!(error)),
        stop => stop,
    }
}
