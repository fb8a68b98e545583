//! A conversation at the terminal.
//!
//! The history is rendered again each turn; the engine keeps the part of its cache that matches the
//! beginning of the new tokens, so only the added tokens are computed. When the history no longer
//! fits, the oldest exchanges are dropped ([`fitting`](super::fitting)), and the user is notified.

use std::time::Instant;

use alight_chat::grammar::PromptConstraint;
use alight_chat::thinking::ThinkingBudget;
use alight_model::{Finish, GenerateOptions, SamplerOptions};
use alight_text::prompt::check_length;
use alight_text::{Encoder, Message, Style, Tokenizer};
use anyhow::{Context, anyhow, ensure};
use rusage::Phases;

use super::answer::answer;
use super::commands::{self, Next, Talk};
use super::engine::{About, Engine, EngineKind, Request};
use super::fitting::{self, Asked, Bounds, Positions};
use super::held::Holding;
use super::lines::Lines;
use super::parts::{Parts, Texts, Tone};
use super::{RunArgs, context_full, report};
use crate::interrupt::Interrupt;
use crate::outcome::{Outcome, chain};
use crate::output::Stream;
use crate::terminal::Terminal;
use crate::{say, units};

/// Number of tokens to leave for an answer before history is dropped, unless the context is so
/// small that this would leave nothing for the history.
const ANSWER: usize = 512;

/// Holds a conversation until the user leaves. The arguments determine how each answer is sampled, when it ends, and its constraint.
pub fn main(
    args: &RunArgs,
    about: &About<'static>,
    style: Style,
    engine: &mut dyn Engine,
    (sampling, limits, held): (SamplerOptions, GenerateOptions, Option<Holding>),
) -> Outcome {
    let terminal = Terminal::of_process().context("the terminal")?;
    let interrupt = Interrupt::catch_with(terminal)
        // If no thread can be created, the terminal is not restored, and everything else works.
        .or_else(|_| Interrupt::catch())?;
    say::plain(&format!(
        "{}\nCtrl-C stops an answer, Ctrl-D leaves, /help tells more.{}",
        about.name,
        match style {
            Style::Chat => "",
            Style::Raw => " Each line is continued on its own.",
        }
    ));
    if let Some(model) = about.model {
        // Nothing is asked yet: whatever comes now saves time later.
        model.receive_rest();
    }
    let mut lines = Lines::new(terminal, args.history(), commands::completions)?;
    let mut talk = Talk {
        about,
        style,
        chat: Chat::new(args.system.as_deref()),
        given: args.sampling.clone(),
        sampling,
        limits,
        native: args.choice.kind == EngineKind::Native,
        held,
        tokens: 0,
        context: about.context,
        file: None,
        texts: Vec::new(),
        verbose: false,
        interrupt,
    };
    // From the first line on, so that no typed input is lost.
    terminal.hushed(|| {
        loop {
            interrupt.take();
            let Some(line) = lines.next()? else { return Ok(()) };
            let question = match commands::run(line, &mut talk) {
                Ok(Next::Ask(question)) => question,
                Ok(Next::Listen) => continue,
                Ok(Next::Leave) => return Ok(()),
                Err(error) => {
                    say::error(&chain(&error));
                    continue;
                }
            };
            let asked = Instant::now();
            let mut phases = Phases::start();

            let positions = Positions {
                context: talk.context,
                max_context: about.max_context,
                answer: ANSWER.min(talk.context / 4),
            };
            let held = talk.held.as_ref().map(|holding| &holding.held);
            let (encoder, limits, budget) = args.held_by(about, style, talk.limits, held);
            let tokenizer = &about.vocabulary.tokenizer;
            let prompt = talk.chat.prompt(&question, encoder, tokenizer, positions, interrupt);
            let prompt = match prompt {
                Ok(Some(prompt)) => prompt,
                Ok(None) => {
                    say::line("(stopped, and not asked)");
                    continue;
                }
                Err(error) => {
                    say::error(&chain(&error));
                    continue;
                }
            };
            if prompt.len() >= talk.context {
                talk.context = about.context_for(prompt.len());
                say::note(&format!(
                    "the message alone takes {} tokens: the context has {} from now on",
                    units::grouped(prompt.len()),
                    units::grouped(talk.context)
                ));
            }
            let fitted = PromptConstraint::new(held.cloned(), style, &prompt, about.vocabulary);
            let budget = budget.filter(|_| fitted.rules.thinking);
            let thinking = budget.map(|tokens| ThinkingBudget::new(tokens, about.vocabulary, None));
            let mut out = Stream::new();
            let mut sink = |tone, piece: &str| match tone {
                Tone::Plain => out.write(piece),
                Tone::Dim => out.write_dim(piece),
            };
            let parts = Parts::new(
                about.vocabulary,
                fitted.style(style),
                &prompt,
                args.thinking(),
                &args.stop,
                &mut sink,
            );
            let (context, sampling) = (talk.context, talk.sampling);
            let breakers = talk.given.breakers();
            let (prompt, held) = (&prompt, fitted.held.as_ref());
            let request = Request { prompt, context, sampling, breakers, limits, held, thinking };
            let answer = answer(about, engine, &request, parts, Some(interrupt), &mut phases)?;
            out.end()?;
            if talk.verbose {
                say::plain(&report::brief(&answer, talk.context));
            }
            if args.stats {
                let engine = engine.description();
                say::plain(&report::human(&engine, &answer, asked, "question", &phases));
            }
            if matches!(answer.finish, Finish::ContextFull) {
                say::note(&context_full(talk.context, about.trained, prompt.len()));
            }
            // The last token of an answer occupies no position yet: it would be computed with the next prompt.
            talk.tokens = (prompt.len() + answer.tokens.len()).min(talk.context);
            talk.chat.answered(answer.texts);
            engine.keep();
        }
    })
}

/// A message to be answered.
#[derive(Debug, PartialEq, Eq)]
pub enum Question {
    /// A new one.
    New(String),
    /// The last one of the conversation, whose answer is replaced.
    Again(String),
}

/// The conversation so far.
#[derive(Debug)]
pub struct Chat {
    /// The system message.
    pub system: Option<Message>,
    /// Messages that the model no longer sees.
    forgotten: Vec<Message>,
    /// User and assistant in turn.
    turns: Vec<Message>,
}

impl Chat {
    fn new(system: Option<&str>) -> Chat {
        Chat { system: system.map(Message::system), forgotten: Vec::new(), turns: Vec::new() }
    }

    /// Starts over, with the same system message.
    pub fn clear(&mut self) {
        self.forgotten.clear();
        self.turns.clear();
    }

    /// Continues with these messages: a system message, if it is the first, then exchanges.
    pub fn replace(&mut self, mut messages: Vec<Message>) {
        let system = messages.first().is_some_and(|message| message.role == "system");
        self.clear();
        self.system = system.then(|| messages.remove(0));
        self.turns = messages;
    }

    /// Returns all messages, including those that the model no longer sees.
    pub fn all(&self) -> impl Iterator<Item = &Message> {
        self.system.iter().chain(&self.forgotten).chain(&self.turns)
    }

    /// Returns the number of pairs of a message and its answer that the model sees.
    pub fn exchanges(&self) -> usize {
        self.turns.len() / 2
    }

    /// Returns the last message of the user, to be answered again.
    pub fn last_question(&self) -> Option<Question> {
        let asked = self.turns.rchunks_exact(2).next()?.first()?;
        Some(Question::Again(asked.content.clone()))
    }

    /// Adds the message, in place of the last exchange if it is that exchange's, and returns the tokens of the conversation, with as few of
    /// the oldest exchanges dropped as leave the positions for an answer. On an error, and if Ctrl-C is pressed (`None`), nothing changes.
    fn prompt(
        &mut self,
        question: &Question,
        encoder: Encoder<'static>,
        tokenizer: &Tokenizer,
        positions: Positions,
        interrupt: Interrupt,
    ) -> anyhow::Result<Option<Vec<u32>>> {
        let (line, replaced) = match question {
            Question::New(line) => (line, 0),
            Question::Again(line) => (line, 2),
        };
        let (style, line) = (encoder.style(), Message::user(line));
        let before = self.turns.len() - replaced;
        let (system, turns) = match style {
            Style::Chat => (self.system.as_ref(), &self.turns[..before]),
            // Each line is independent.
            Style::Raw => (None, &[][..]),
        };
        let bounds = bounds(system, turns, &line, tokenizer, positions)?;
        let newest = turns[turns.len() - 2 * bounds.max..].to_vec();
        let asked = Asked { system: system.cloned(), turns: newest, line: line.clone() };
        let fit = interrupt.unless_pressed(move |pressed| {
            fitting::newest(bounds, positions, |kept| {
                ensure!(!pressed(), "stopped");
                asked.tokens(kept, &encoder)
            })
        });
        let Some(fit) = fit.transpose()? else { return Ok(None) };
        let dropped = before / 2 - fit.kept;
        self.turns.truncate(before);
        self.forgotten.extend(self.turns.drain(..2 * dropped));
        self.turns.push(line);
        if style == Style::Chat && dropped > 0 {
            let which = match dropped {
                1 => "exchange".to_owned(),
                n => format!("{n} exchanges"),
            };
            say::note(&format!(
                "the conversation no longer fits into {} tokens: the model has forgotten its oldest {which}",
                positions.context
            ));
        }
        Ok(Some(fit.tokens))
    }

    /// Adds the answer to the history.
    fn answered(&mut self, texts: Texts) {
        if !self.turns.is_empty() {
            let thinking = Some(texts.thinking).filter(|thinking| !thinking.is_empty());
            self.turns.push(Message { thinking, ..Message::assistant(&texts.answer) });
        }
    }
}

/// Returns how many of the newest exchanges in `turns` may fit with the messages that are never dropped.
fn bounds(
    system: Option<&Message>,
    turns: &[Message],
    line: &Message,
    tokenizer: &Tokenizer,
    positions: Positions,
) -> anyhow::Result<Bounds> {
    let fixed = system.into_iter().chain([line]).map(fitting::written_bytes).sum();
    let newest_first = turns.rchunks_exact(2);
    let exchanges = newest_first.map(|exchange| {
        let bytes = |of: fn(&Message) -> usize| exchange.iter().map(of).sum::<usize>();
        (bytes(fitting::written_bytes), bytes(fitting::all_bytes))
    });
    let check = |bytes, context| check_length(bytes, tokenizer, context);
    Bounds::of(fixed, exchanges, positions, check).map_err(|error| anyhow!(error))
}
