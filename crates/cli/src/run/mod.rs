//! `alight run`: an answer to a prompt, streamed as it is generated, or a chat.

mod answer;
mod chat;
mod commands;
mod engine;
mod fitting;
mod held;
mod lines;
mod memory;
mod packing;
mod parts;
mod progress;
pub mod prompt;
mod report;
pub mod sampling;

use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::time::Instant;

use alight_chat::grammar::{AnswerRules, Held, PromptConstraint};
use alight_chat::thinking::ThinkingBudget;
use alight_files::folders;
use alight_model::{
    AdapterSet, Finish, GenerateOptions, Model, ModelError, SamplerOptions, Speculate,
};
use alight_text::prompt::check_length;
use alight_text::{Encoder, Message, Style};
use anyhow::anyhow;
use clap::ArgMatches;
use clap::parser::ValueSource;
use rusage::Phases;

use crate::answer_limits::LimitArgs;
use crate::drafts::DraftArgs;
use crate::hub::{coming, suggested};
use crate::interrupt::Interrupt;
use crate::lora::LoraArgs;
use crate::open::{self, EngineArgs};
use crate::outcome::{Outcome, Stop};
use crate::output::{self, Stream};
use crate::pack::KeepArgs;
use crate::prompt_cache::CacheArgs;
use crate::record::{AnswerConstraints, Record, RecordedAnswer, Recorder, RequestParts};
use crate::template::TemplateArgs;
use crate::{record, say, short_help, source};
use answer::{Answer, answer};
use engine::{About, Engine, EngineChoice, EngineKind, Jax, Native, Request};
use held::{HeldArgs, Holding};
use parts::{Parts, Thinking, Tone};
use prompt::Source;
use sampling::SamplingArgs;

/// Arguments of `alight run`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("no_thinking", |arg| arg.help(HIDE).conflicts_with("raw")), mut_args = short_help::only(SHORT), after_help = short_help::END, after_long_help = suggested::before("\
Examples:
  alight run model.gguf \"Why is the sky blue?\"
  alight run model.gguf                           a chat; Ctrl-D leaves it
  alight run model.gguf < question.txt            the prompt is the input
  cat main.c | alight run model.gguf - --system \"Explain this program.\"
  alight run model.gguf --raw \"Once upon a time\"  continue a text
  alight run model.gguf \"2+2=\" --temp 0 -n 8      the likeliest, at most eight
  alight run model.gguf \"Hi\" --json | jq .timings
  alight run model.gguf \"A pet?\" --json-schema-file pet.json
  alight run model.gguf \"Hi\" --engine jax --tp 2  JAX, on two devices
  alight run hf.co/USER/REPO \"Hi\"                 a model of the hub

The prompt is the argument or --file, and before it, with a blank line between them, what comes on \
standard input if that is a pipe or a file. Without either, that alone; on a terminal it is a chat. \
So in the body of a shell loop that reads, write `< /dev/null`: the loop's input is not for the model.

Where a model thinks before it answers, the thinking is dimmed on a terminal. A pipe or a file gets all \
of it between <think> and </think>, whichever marks the model writes, and then the answer; \
--no-thinking leaves the answer alone.

The answer ends when the model ends it, after -n tokens, when the context is full, or with Ctrl-C.

Options for every run go into ~/.config/alight/config.toml: see `alight --help`."))]
pub struct RunArgs {
    /// The model: a .gguf file, a folder with one model in it, or hf.co/USER/REPO
    ///
    /// Of a split model, its first shard. Of a fetched model of the hub, a part of its name is enough, if no other model's name
    /// contains it.
    model: PathBuf,

    /// The prompt; without it, a chat; `-` reads standard input
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

    /// System prompt
    #[arg(long, value_name = "TEXT", visible_alias = "system-prompt", conflicts_with = "raw")]
    system: Option<String>,

    /// Use the prompt as it is, without the chat template
    #[arg(long, conflicts_with_all = ["chat_template_file", "chat_template_kwargs", "tool_format"])]
    raw: bool,

    #[command(flatten)]
    template: TemplateArgs,

    #[command(flatten)]
    keep: KeepArgs,

    /// Parse special tokens written in the prompt, such as <|im_end|>
    #[arg(long)]
    parse_special: bool,

    /// Refuse a prompt that is not UTF-8, instead of decoding it from the encoding that it seems to have
    #[arg(long)]
    strict_utf8: bool,

    /// Keep no history of what is typed in a chat [default: in alight/history in $XDG_STATE_HOME, or in
    /// ~/.local/state; a message that begins with a space is not kept]
    #[arg(long)]
    no_history: bool,

    /// Write one line of JSON instead of the streamed text
    #[arg(long)]
    json: bool,

    /// Report times and memory use
    ///
    /// On standard error.
    #[arg(long)]
    stats: bool,

    #[command(flatten)]
    limits: LimitArgs,

    /// End the answer before this text; may be given several times
    #[arg(long, value_name = "TEXT", visible_alias = "reverse-prompt", action = clap::ArgAction::Append,
          allow_hyphen_values = true)]
    stop: Vec<String>,

    #[command(flatten)]
    lora: LoraArgs,

    #[command(flatten)]
    drafts: DraftArgs,

    #[command(flatten)]
    cache: CacheArgs,

    #[command(flatten)]
    engine: EngineArgs,

    #[command(flatten)]
    sampling: SamplingArgs,

    #[command(flatten)]
    held: HeldArgs,

    #[command(flatten)]
    choice: EngineChoice,
}

/// The help of `--no-thinking` where the answer is read by a person.
const HIDE: &str =
    "Hide the model's thinking, and turn it off where the chat template has a switch for it";

/// The options that `-h` shows.
const SHORT: short_help::Shown = &[
    ("model", Some("The model: a .gguf file, a folder with one, or hf.co/USER/REPO")),
    ("prompt", None),
    ("file", None),
    ("system", None),
    ("stats", None),
    ("predict", None),
    ("ctx_size", None),
    ("threads", None),
    ("temp", None),
];

/// Runs the command. `given` are the arguments of the command line, `started` the time at which the process began.
pub fn main(mut args: RunArgs, given: &ArgMatches, started: Instant) -> Outcome {
    args.choice.check(given)?;
    args.sampling.check()?;
    args.choice.jax.check(args.sampling.are_random())?;
    let mut phases = Phases::start();
    if args.model.is_dir() {
        args.model = source::model_file(&args.model)?;
    }
    let mut source =
        Source::of(args.prompt.as_deref().or(args.prompt_flag.as_deref()), args.file.as_deref());
    if args.choice.jax.are_several() {
        source = source.without_input();
    }
    if source == Source::Terminal {
        check_chat(&args)?;
    }
    let asked = match args.choice.kind {
        EngineKind::Native => args.held.constraint(given)?,
        EngineKind::Jax => {
            args.held.refuse(given)?;
            args.lora.refuse("has no effect with --engine jax, which applies no adapters")?;
            None
        }
    };
    let coming = match args.reads_coming() {
        true => coming::begin(&mut args.model, args.engine.hub.offline)?,
        false => None,
    };
    let adapters = AdapterSet::default();
    let mut front = Front { args: &args, source, held: None, adapters, started };
    let sampling = args.sampling.options();
    match args.choice.kind {
        EngineKind::Native => {
            // The system frees memory and threads when the process ends, all at once; dropping the model piece by piece before
            // that would only keep the user waiting, and a thread that Ctrl-C has left may still read it.
            let model = match &coming {
                Some(coming) => coming.open(|maps| open::mapped(maps, &args.engine))?,
                None => open::model(&args.keep.file(&args.model)?, &args.engine)?,
            };
            let model = Box::leak(Box::new(model));
            args.template.give(model.vocabulary_mut())?;
            let model: &'static Model = model;
            phases.end("open");
            if !model.spec().generates() {
                let name = model.name().to_owned();
                return Err(anyhow!(ModelError::Bidirectional { model: name }).into());
            }
            let trained = model.spec().context;
            let mut about = About {
                name: model.name(),
                vocabulary: model.vocabulary(),
                context: args.limits.context(trained),
                max_context: args.limits.max_context(trained),
                trained,
                model: Some(model),
            };
            let style = style(&about, &args, given)?;
            front.held = asked.map(|asked| asked.held(about.vocabulary)).transpose()?;
            if about.context > trained {
                say::note(&format!(
                    "the model was trained for a context of {trained} tokens: beyond it, answers get worse"
                ));
            }
            let draft = ManuallyDrop::new(args.drafts.model(&args.engine)?);
            let prompt = front.prompt(&about, style)?;
            if let Some(prompt) = &prompt {
                about.context = about.context_for(prompt.len());
                // Nothing else is asked.
                about.max_context = about.context;
            }
            memory::note(model, about.context, args.engine.cache_type());
            let mut engine = Native::new(
                model,
                about.max_context,
                (sampling, args.sampling.breakers()),
                &args.engine,
            )?;
            front.adapters = args.lora.open(model)?;
            engine.adapt(&front.adapters)?;
            engine.keep_prompts(args.cache.folder()?);
            match &*draft {
                Some(draft) => engine.draft_with(draft)?,
                // The weights of its layer for that are the last to come.
                None if args.drafts.speculate == Speculate::Off || model.is_incoming() => {}
                None => engine.draft_with_mtp()?,
            }
            let outcome = front.run(&mut engine, &about, (prompt, style), sampling, phases);
            let Some(coming) = coming else {
                if outcome.is_ok() && args.engine.isa.is_none() {
                    packing::note(model);
                }
                return outcome;
            };
            coming.end(outcome)?;
            engine.keep();
            Ok(())
        }
        EngineKind::Jax => {
            let mut engine = Jax::start(&args.model, &args.choice.jax)?;
            let clock = Instant::now();
            let text = Box::leak(Box::new(open::text(&args.model, args.engine.is_strict())?));
            args.template.give(&mut text.vocabulary)?;
            let text: &'static open::ModelText = text;
            phases.end("open");
            let about = About {
                name: &text.name,
                vocabulary: &text.vocabulary,
                context: args.limits.context(text.trained),
                max_context: args.limits.context(text.trained),
                trained: text.trained,
                model: None,
            };
            engine.open(&about, clock.elapsed(), args.engine.memory())?;
            let style = style(&about, &args, given)?;
            let prompt = front.prompt(&about, style)?;
            front.run(&mut engine, &about, (prompt, style), sampling, phases)
        }
    }
}

/// Rejects options that a chat does not support.
fn check_chat(args: &RunArgs) -> Outcome {
    let why = if args.json {
        "--json needs a prompt: give one as an argument or pipe one in"
    } else if args.choice.jax.are_several() {
        "a run in several processes needs a prompt: give all of them the same"
    } else {
        return Ok(());
    };
    Err(Stop::Usage(why.to_owned()))
}

impl RunArgs {
    /// See [`Command::models`](crate::args::Command::models).
    pub fn models(&mut self) -> (Vec<&mut PathBuf>, bool) {
        let offline = self.engine.hub.offline;
        match self.reads_coming() {
            true => (self.drafts.file_mut().into_iter().collect(), offline),
            false => (self.drafts.models(&mut self.model), offline),
        }
    }

    /// Returns true if the model may be read while it is being fetched.
    fn reads_coming(&self) -> bool {
        // Adapters are checked against all of its files.
        self.choice.kind == EngineKind::Native && !self.keep.is_on() && !self.lora.are_given()
    }

    /// Returns the encoder of messages, the limits of an answer and that of its thinking, if it has this constraint. The thinking is limited
    /// where the prompt leaves a place for it ([`PromptConstraint`]).
    fn held_by<'m>(
        &self,
        about: &About<'m>,
        style: Style,
        limits: GenerateOptions,
        held: Option<&Held>,
    ) -> (Encoder<'m>, GenerateOptions, Option<usize>) {
        let (rules, mut variables) = (AnswerRules::of(held), self.template.variables());
        let budget = self.limits.fit_thinking(&mut variables, about.vocabulary, rules.thinking);
        let encoder = Encoder::new(about.vocabulary, style, self.parse_special);
        // Of a conversation that is too long whatever its tokens are, none is sought.
        let encoder = encoder.within(about.max_context);
        let ignore_eos = limits.ignore_eos && rules.past_end;
        let limits = GenerateOptions { ignore_eos, ..limits };
        (encoder.with_variables(variables), limits, budget.filter(|_| style == Style::Chat))
    }

    fn generate_options(&self) -> GenerateOptions {
        GenerateOptions {
            max_tokens: self.limits.max_tokens(),
            ignore_eos: self.limits.ignore_eos,
            speculate: self.drafts.speculate,
        }
    }

    /// Returns how thinking is shown.
    fn thinking(&self) -> Thinking {
        if self.limits.no_thinking {
            Thinking::Hidden
        } else if output::can_dim() && !self.json {
            Thinking::Dimmed
        } else {
            Thinking::Tagged
        }
    }

    /// Returns the file of messages typed in chats.
    fn history(&self) -> Option<PathBuf> {
        let folder = folders::of_user(folders::STATE).filter(|_| !self.no_history);
        folder.map(|folder| folder.join("history"))
    }
}

/// The note about thinking that only the native engine can end.
const STILL_THINKS: &str = "the chat template has no switch for thinking, and the JAX engine cannot end it: the model may still think, unseen";

/// The whole command except for the engine.
struct Front<'a> {
    args: &'a RunArgs,
    source: Source<'a>,
    /// The constraint on each answer.
    held: Option<Holding>,
    /// The adapters of all answers.
    adapters: AdapterSet,
    started: Instant,
}

impl Front<'_> {
    /// Answers the prompt, or holds a chat if there is none.
    fn run(
        &self,
        engine: &mut dyn Engine,
        about: &About<'static>,
        (prompt, style): (Option<Vec<u32>>, Style),
        sampling: SamplerOptions,
        mut phases: Phases,
    ) -> Outcome {
        let (args, limits) = (self.args, self.args.generate_options());
        engine.ready()?;
        let Some(prompt) = &prompt else {
            return chat::main(args, about, style, engine, (sampling, limits, self.held.clone()));
        };
        let held = self.held.as_ref().map(|holding| &holding.held);
        let (_, limits, budget) = args.held_by(about, style, limits, held);
        let fitted = PromptConstraint::new(held.cloned(), style, prompt, about.vocabulary);
        let budget = budget.filter(|_| fitted.rules.thinking);
        if budget.is_some() && args.choice.kind == EngineKind::Jax {
            say::note(STILL_THINKS);
        }
        phases.end("prepare");
        // Several processes must stop at the same token, so Ctrl-C ends the process at once, and with it all others.
        let several = args.choice.jax.are_several();
        let interrupt = (!several).then(Interrupt::catch).transpose()?;
        let speaks = args.choice.jax.speaks();
        let mut out = Stream::new();
        let mut sink = |tone, piece: &str| match tone {
            _ if args.json || !speaks => Ok(()),
            Tone::Plain => out.write(piece),
            Tone::Dim => out.write_dim(piece),
        };
        let parts = Parts::new(
            about.vocabulary,
            fitted.style(style),
            prompt,
            args.thinking(),
            &args.stop,
            &mut sink,
        );
        let context = about.context;
        let breakers = args.sampling.breakers();
        let thinking = budget.map(|tokens| ThinkingBudget::new(tokens, about.vocabulary, None));
        let held = fitted.held.as_ref();
        let request = Request { prompt, context, sampling, breakers, limits, held, thinking };
        let answer = answer(about, engine, &request, parts, interrupt, &mut phases)?;
        if speaks && !args.json {
            out.end()?;
        }
        engine.keep();
        let finished = engine.finish(answer.tokens.len());
        let description = engine.description();
        if speaks && args.stats {
            let what = "start of the process";
            say::plain(&report::human(&description, &answer, self.started, what, &phases));
        }
        if speaks && args.json {
            let (model, seed) = (&args.model, sampling.seed);
            let line = report::json(model, description, &answer, seed, self.started, &phases);
            let record = self.record(about, style, &request, budget, &answer);
            output::json(&line.with_record(record))?;
        }
        finished?;
        match answer.finish {
            Finish::Interrupted => Err(Stop::Interrupted),
            Finish::ContextFull if speaks => {
                say::note(&context_full(about.context, about.trained, prompt.len()));
                Ok(())
            }
            Finish::ContextFull | Finish::Stop | Finish::Length => Ok(()),
        }
    }

    /// Returns the record of an answer, unless another process has computed it.
    fn record(
        &self,
        about: &About<'_>,
        style: Style,
        request: &Request<'_>,
        thinking_budget: Option<usize>,
        answer: &Answer,
    ) -> Option<Record> {
        let context = about.context;
        let recorder = Recorder::new(about.model?, &self.args.engine, context, &self.adapters);
        let constraint = self.held.as_ref().map(|holding| holding.field.clone());
        let chat = style == Style::Chat;
        let tool_format = self.args.template.tool_format();
        let limits =
            AnswerConstraints { constraint, chat, thinking_budget, tools: None, tool_format };
        let parts = RequestParts {
            prompt: request.prompt,
            sampling: &request.sampling,
            breakers: request.breakers,
            max_tokens: request.limits.max_tokens,
            ignore_eos: request.limits.ignore_eos,
            stops: &self.args.stop,
            limits: &limits,
        };
        let answer = RecordedAnswer {
            finish: report::recorded_finish(answer),
            text: record::text(&answer.tokens, about.vocabulary),
            tokens: answer.tokens.clone(),
        };
        Some(recorder.record(parts.body(), chat, answer))
    }

    /// Returns the tokens of the prompt; `None` if it is a chat.
    fn prompt(&self, about: &About<'_>, style: Style) -> Outcome<Option<Vec<u32>>> {
        if self.source == Source::Terminal {
            return Ok(None);
        }
        let held = self.held.as_ref().map(|holding| &holding.held);
        let (encoder, ..) = self.args.held_by(about, style, self.args.generate_options(), held);
        let text = self.source.read(self.args.strict_utf8)?;
        check_length(text.len(), &about.vocabulary.tokenizer, about.max_context)
            .map_err(|e| anyhow!(e))?;
        let tokens = match encoder.style() {
            Style::Raw => encoder.raw(&text),
            Style::Chat => {
                let system = self.args.system.iter().map(|s| Message::system(s));
                encoder.chat(&system.chain([Message::user(&text)]).collect::<Vec<_>>(), true)
            }
        };
        Ok(Some(tokens.map_err(|e| anyhow!(e))?))
    }
}

/// Returns the style: with a template or without one; prints a note if the file decides it.
fn style(about: &About<'_>, args: &RunArgs, given: &ArgMatches) -> Outcome<Style> {
    if args.template.is_given() {
        return Ok(Style::Chat);
    }
    let is_given = |name| given.value_source(name) == Some(ValueSource::CommandLine);
    // An option on the command line takes precedence over a conflicting default of the user's.
    let raw = args.raw && (is_given("raw") || !is_given("system"));
    let style = prompt::style(about.vocabulary, &args.model, raw);
    // A default of the user's applies only to models that support it.
    if style == Style::Raw && is_given("system") {
        return Err(Stop::Usage(
            "--system needs a chat template: without one, write what it says into the prompt"
                .to_owned(),
        ));
    }
    Ok(style)
}

/// Returns the message for a context that a prompt of this number of tokens and its answer fill.
fn context_full(context: usize, trained: usize, prompt: usize) -> String {
    let advice = if context < trained {
        format!("-c {} would let it go on (up to {trained})", (2 * context).min(trained))
    } else {
        "that is all it was trained for".to_owned()
    };
    format!(
        "the answer stops here because the context of {context} tokens is full, {prompt} of them with the prompt: {advice}"
    )
}
