//! `alight run`: an answer to a prompt, streamed as it is made, or a chat.

mod answer;
mod chat;
mod engine;
mod prompt;
mod report;
mod sampling;

use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::time::Instant;

use alight_model::{Finish, GenerateOptions, Sampler, Session, SessionOptions};
use alight_text::{Encoder, Message, Style};
use anyhow::anyhow;
use clap::{ArgMatches, Args};
use rusage::Phases;

use crate::interrupt::Interrupt;
use crate::open::{self, EngineArgs};
use crate::outcome::{Outcome, Stop};
use crate::output::{self, Stream};
use crate::say;
use answer::answer;
use engine::{Engine, EngineChoice};
use prompt::Source;
use sampling::SamplingArgs;

/// Arguments of `alight run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  alight run model.gguf \"Why is the sky blue?\"
  alight run model.gguf                            a chat: arrow keys recall lines, Ctrl-C stops
                                                   an answer, Ctrl-D leaves
  alight run model.gguf < question.txt             the prompt is what comes on standard input
  cat main.c | alight run model.gguf - --system \"Explain this program.\"
  alight run model.gguf --raw \"Once upon a time\"   continue a text, without the chat template
  alight run model.gguf \"2+2=\" --temp 0 -n 8       most likely tokens only, at most eight
  alight run model.gguf \"Hi\" --json | jq .timings
  alight run model.gguf \"Hi\" --engine jax --tp 2    with the JAX engine, on two devices

Where the prompt comes from: the argument; else --file; else standard input if it is a pipe or a
file; else it is a chat. Standard input is not read when a prompt is given, unless that is `-`.

The answer ends when the model ends it, after -n tokens, when the context is full, or with Ctrl-C.")]
pub struct RunArgs {
    /// The model: a .gguf file (of a split model, its first shard)
    model: PathBuf,

    /// What to answer; `-` reads standard input
    #[arg(allow_hyphen_values = false)]
    prompt: Option<String>,

    /// The same as PROMPT
    #[arg(
        short = 'p',
        long = "prompt",
        value_name = "PROMPT",
        conflicts_with = "prompt",
        id = "p",
        allow_hyphen_values = true
    )]
    prompt_flag: Option<String>,

    /// Read the prompt from a file
    #[arg(short = 'f', long, value_name = "FILE", conflicts_with_all = ["prompt", "p"])]
    file: Option<PathBuf>,

    /// Who the model should be: the system message before the conversation
    #[arg(long, value_name = "TEXT", visible_alias = "system-prompt", conflicts_with = "raw")]
    system: Option<String>,

    /// Give the prompt to the model as it is, without the chat template
    #[arg(long)]
    raw: bool,

    /// Let special tokens written in the prompt, such as <|im_end|>, be special
    #[arg(long)]
    parse_special: bool,

    /// Write one line of JSON at the end instead of the streamed text
    #[arg(long)]
    json: bool,

    /// Say on standard error how long everything took
    #[arg(long)]
    stats: bool,

    /// Generate at most N tokens; -1: until the model ends or the context is full
    #[arg(short = 'n', long, value_name = "N", default_value_t = -1, visible_alias = "n-predict",
          allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    predict: i64,

    /// Tokens that the model can look back on; 0: as many as it was trained for
    /// [default: 4096, or what it was trained for if that is less]
    #[arg(short = 'c', long, value_name = "N")]
    ctx_size: Option<usize>,

    /// Go on when the model would end
    #[arg(long)]
    ignore_eos: bool,

    #[command(flatten)]
    engine: EngineArgs,

    #[command(flatten)]
    sampling: SamplingArgs,

    #[command(flatten)]
    choice: EngineChoice,
}

/// Runs the command. `given` is what was written on the command line, `started` when the process began.
pub fn main(args: RunArgs, given: &ArgMatches, started: Instant) -> Outcome {
    match args.choice.engine {
        Engine::Native => engine::check_native(given)?,
        Engine::Jax => {
            return engine::exec(&RunArgs::augment_args(clap::Command::new("run")), given);
        }
    }
    let mut phases = Phases::start();
    let source =
        Source::of(args.prompt.as_deref().or(args.prompt_flag.as_deref()), args.file.as_deref());
    if source == Source::Terminal && args.json {
        return Err(Stop::Usage(
            "--json needs a prompt: give one as an argument or pipe one in".to_owned(),
        ));
    }
    // The system takes memory and threads back when the process ends, all at once; taking the model
    // apart piece by piece before that would only keep the user waiting.
    let model = ManuallyDrop::new(open::model(&args.model, &args.engine)?);
    phases.end("open");
    let style = style(&model, &args);
    let encoder = Encoder::new(model.vocabulary(), style, args.parse_special);
    let trained = model.spec().context;
    let context = match args.ctx_size {
        Some(0) => Some(trained),
        other => other,
    };
    if context.is_some_and(|c| c > trained) {
        say::note(&format!("the model was trained to look back on {trained} tokens, not more"));
    }
    let options = SessionOptions { context, ..SessionOptions::default() };
    let session = Session::new(&model, &options).map_err(|e| anyhow!(e))?;
    let mut session = ManuallyDrop::new(session);
    let sampler_options = args.sampling.options();
    let seed = sampler_options.seed;
    let mut sampler = Sampler::new(sampler_options, model.tokenizer().vocab_size());
    let options = GenerateOptions {
        max_tokens: usize::try_from(args.predict).unwrap_or(usize::MAX),
        ignore_eos: args.ignore_eos,
    };

    if source == Source::Terminal {
        return chat::main(&args, &encoder, &mut session, &mut sampler, &options);
    }
    let text = source.read()?;
    prompt::check_length(&text, &session)?;
    let tokens = match style {
        Style::Raw => encoder.raw(&text),
        Style::Chat => {
            let system = args.system.iter().map(|s| Message::system(s));
            encoder.chat(&system.chain([Message::user(&text)]).collect::<Vec<_>>(), true)
        }
    }
    .map_err(|e| anyhow!(e))?;

    phases.end("prepare");
    let interrupt = Interrupt::catch()?;
    let mut out = Stream::new();
    let mut sink = |piece: &str| if args.json { Ok(()) } else { out.write(piece) };
    let answer =
        answer(&mut session, &mut sampler, &tokens, &options, interrupt, &mut phases, &mut sink)?;
    if !answer.tokens.is_empty() {
        // All weights have been used, so they are there; what the load still has to write down takes
        // a moment on a busy machine, and the report is about it. A failure would have ended the
        // answer.
        let _ = model.wait_loaded();
    }
    if args.json {
        output::json(&report::json(&args.model, &model, &answer, seed, started, &phases))?;
    } else {
        out.end()?;
    }
    args.engine.explain_outcome(&model);
    if args.stats {
        say::plain(&report::human(&model, &answer, started, "start of the process", &phases));
    }
    match answer.finish {
        Finish::Interrupted => Err(Stop::Interrupted),
        Finish::ContextFull => {
            say::note(&context_full(&session));
            Ok(())
        }
        Finish::Stop | Finish::Length => Ok(()),
    }
}

/// With a template or without one; says so where the file decides it.
fn style(model: &alight_model::Model, args: &RunArgs) -> Style {
    if args.raw {
        return Style::Raw;
    }
    match model.vocabulary().template() {
        Some(Ok(_)) => return Style::Chat,
        Some(Err(error)) => say::note(&format!(
            "the chat template in '{}' cannot be used ({error}): continuing the text as with --raw",
            args.model.display()
        )),
        None => say::note(&format!(
            "'{}' has no chat template: continuing the text as with --raw",
            args.model.display()
        )),
    }
    if args.system.is_some() {
        say::note("--system has no effect without a chat template");
    }
    Style::Raw
}

/// What to say when the context is full.
fn context_full(session: &Session<'_>) -> String {
    let (context, trained) = (session.context(), session.model().spec().context);
    let advice = if context < trained {
        format!("-c {} would let it go on (up to {trained})", (2 * context).min(trained))
    } else {
        "that is all it was trained for".to_owned()
    };
    format!("the answer stops here because the context of {context} tokens is full: {advice}")
}
