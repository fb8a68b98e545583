//! The engines that answer prompts, behind one interface: the engine of this program ([`Native`]), or JAX ([`Jax`]).
//!
//! An engine receives the tokens of a prompt and yields the tokens of the answer. Everything else that a user sees of
//! `alight run` (prompts, templates, text, terminal, Ctrl-C, statistics) belongs to the front end, and so is the same for all
//! engines.

mod jax;
mod native;

use std::ops::ControlFlow;
use std::time::Duration;

use alight_chat::grammar::Held as HeldTo;
use alight_chat::thinking::ThinkingBudget;
use alight_model::{
    Cancel, Finish, GenerateOptions, Model, OutputCounts, SamplerOptions, SlotsReport,
};
use alight_text::Vocabulary;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command};
use serde::Serialize;
use serde_json::{Map, Value};

pub use jax::{Jax, JaxArgs};
pub use native::{Load, Native, STEP_TOKENS};

use super::sampling::ONLY_NATIVE;
use crate::needs::Held;
use crate::open::EngineArgs;
use crate::outcome::{Outcome, Stop};
use crate::prompt_cache::CacheArgs;

/// An engine that holds one conversation: its cache keeps the last prompt and answer.
pub trait Engine {
    /// Returns when an answer can begin.
    fn ready(&mut self) -> Outcome;

    /// Answers a prompt. The part of its beginning that the cache holds ([`alight_model::reusable`]) is not computed again.
    ///
    /// Each event is passed to `on_event` as it happens; the answer ends, with [`Finish::Interrupted`], when that returns
    /// [`ControlFlow::Break`].
    fn answer(
        &mut self,
        request: &Request<'_>,
        on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Outcome<Answered>;

    /// Lets `cancel` end an answer early, with [`Finish::Interrupted`], also between two events. An engine that ignores it ends at the next event.
    fn cancel_by(&mut self, _cancel: Cancel) {}

    /// Called after an answer, when the user is not waiting: saves the prompt, if it is worth keeping.
    fn keep(&mut self) {}

    /// Called after the last answer, of this number of tokens: waits for unfinished work.
    fn finish(&mut self, tokens: usize) -> Outcome;

    /// Returns the data to report about the engine, once it has answered.
    fn description(&self) -> Description;
}

/// A prompt, and the options of its answer.
#[derive(Debug)]
pub struct Request<'r> {
    /// The tokens of the whole conversation, at least one.
    pub prompt: &'r [u32],
    /// The positions that it and its answer may have: no more than the engine was made for.
    pub context: usize,
    /// The sampling options. The sequence of random draws continues from one answer to the next while this stays the same, unless
    /// the engine restarts it each time (JAX does).
    pub sampling: SamplerOptions,
    /// Texts that break sequences for DRY, if they are not the usual ones.
    pub breakers: Option<&'r [String]>,
    /// The limits of the answer.
    pub limits: GenerateOptions,
    /// Constrained output, which JAX does not support.
    pub held: Option<&'r HeldTo>,
    /// The limit on its thinking, which JAX does not support.
    pub thinking: Option<ThinkingBudget>,
}

/// An event while a prompt is answered.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// This number of tokens of the prompt are done.
    Prompt { done: usize },
    /// The next token of the answer.
    Token(u32),
}

/// The end of an answer.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// The reason.
    pub finish: Finish,
    /// The number of tokens of the prompt that were computed.
    pub computed: usize,
}

/// The data about the model that the front end needs, whichever engine computes with it.
pub struct About<'m> {
    /// Its name.
    pub name: &'m str,
    /// Its tokenizer and chat template.
    pub vocabulary: &'m Vocabulary,
    /// The context size of the conversation.
    pub context: usize,
    /// The most that it may become for a prompt that needs more.
    pub max_context: usize,
    /// The context length that the model was trained for.
    pub trained: usize,
    /// The model, if this process loads its weights.
    pub model: Option<&'m Model>,
}

impl About<'_> {
    /// Returns the context for a prompt of this number of tokens: the context size, or for a longer prompt as many more positions as that has,
    /// if the most that it may become allows it.
    pub fn context_for(&self, prompt: usize) -> usize {
        match prompt < self.context {
            true => self.context,
            false => (prompt + self.context).min(self.max_context),
        }
    }
}

/// The data to report about an engine.
#[derive(Debug)]
pub struct Description {
    /// Fields of the line of JSON that describe the engine.
    pub fields: Map<String, Value>,
    /// The duration of each part of the start.
    pub start: Vec<(&'static str, Duration)>,
    /// The same, for people.
    pub start_line: String,
    /// The engine, for people.
    pub by: String,
    /// The memory of this process held by the model and the conversation.
    pub held: Option<Held>,
    /// How this process loaded the weights; `None` if another process computes, which this process's statistics do not cover.
    pub load: Option<Load>,
    /// Statistics of weights that were read when they were needed, if they were.
    pub slots: Option<SlotsReport>,
    /// How the output matrix was read, if its high bits are stored apart.
    pub output: Option<OutputCounts>,
}

/// Returns the fields of a value that is a struct.
fn fields(value: impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// The engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EngineKind {
    /// This program.
    Native,
    /// JAX, through the Python package `alight` and jax.
    Jax,
}

/// The choice of engine, and the options that only JAX has.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Engine")]
pub struct EngineChoice {
    /// What computes: this program, or JAX, which needs the Python package `alight` and jax: that of the
    /// Python in ALIGHT_PYTHON, of the virtual environment that this command is in, or of python3
    #[arg(long = "engine", value_name = "NAME", default_value = "native")]
    pub kind: EngineKind,

    #[command(flatten)]
    pub jax: JaxArgs,
}

impl EngineChoice {
    /// Rejects options that the chosen engine does not have, by name. `given`: the command line.
    pub fn check(&self, given: &ArgMatches) -> Outcome {
        let by_hand = |id: &str| given.value_source(id) == Some(ValueSource::CommandLine);
        let named = |id: &str| format!("--{}", id.replace('_', "-"));
        let ids = |command: Command| -> Vec<String> {
            command.get_arguments().map(|argument| argument.get_id().to_string()).collect()
        };
        let only_jax = ids(JaxArgs::augment_args(Command::new("jax")));
        let mut only_native = ids(EngineArgs::augment_args(Command::new("native")));
        only_native.retain(|id| id != "memory");
        only_native.extend(ids(CacheArgs::augment_args(Command::new("cache"))));
        only_native.extend(ONLY_NATIVE.map(str::to_owned));
        match self.kind {
            EngineKind::Native => match only_jax.iter().find(|id| by_hand(id)) {
                None => Ok(()),
                Some(id) => Err(Stop::Usage(format!("{} needs --engine jax", named(id)))),
            },
            EngineKind::Jax => match only_native.iter().find(|id| by_hand(id)) {
                None => Ok(()),
                Some(id) => {
                    Err(Stop::Usage(format!("{} is not an option of the JAX engine", named(id))))
                }
            },
        }
    }
}
