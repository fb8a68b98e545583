//! A conversation at the terminal.
//!
//! The history is rendered again each turn; the engine keeps the part of its cache that matches the
//! beginning of the new tokens, so only the added tokens are computed. When the history no longer
//! fits, the oldest exchange is dropped, and the user is notified.

use std::time::Instant;

use alight_model::{Finish, GenerateOptions, SamplerOptions};
use alight_text::{Encoder, Message, Style};
use anyhow::{Context, anyhow};
use rusage::Phases;

use super::answer::answer;
use super::commands::{self, Next, Talk};
use super::engine::{About, Engine, Kind, Request};
use super::held::Holding;
use super::lines::Lines;
use super::parts::{Parts, Texts, Tone};
use super::{RunArgs, context_full, parts_style, report};
use crate::interrupt::Interrupt;
use crate::outcome::{Outcome, chain};
use crate::output::Stream;
use crate::say;
use crate::terminal::Terminal;

/// Number of tokens to leave for an answer before history is dropped, unless the context is so
/// small that this would leave nothing for the history.
const ROOM: usize = 512;

/// Holds a conversation until the user leaves. The arguments determine how each answer is sampled, when it ends, and its constraint.
pub fn main(
    args: &RunArgs,
    about: &About<'_>,
    style: Style,
    engine: &mut dyn Engine,
    (sampling, limits, held): (SamplerOptions, GenerateOptions, Option<Holding>),
) -> Outcome {
    let terminal = Terminal::of_process().context("the terminal")?;
    let interrupt = Interrupt::catch_with(terminal)
        // If no thread can be created, the terminal is not restored, and everything else works.
        .or_else(|_| Interrupt::catch())?;
    say::plain(&format!(
        "{}: Ctrl-C stops an answer, Ctrl-D leaves, /help tells more.{}",
        about.name,
        match style {
            Style::Chat => "",
            Style::Raw => " Each line is continued on its own.",
        }
    ));
    let mut lines = Lines::new(terminal, args.history())?;
    let mut talk = Talk {
        about,
        style,
        chat: Chat::new(args.system.as_deref()),
        given: args.sampling.clone(),
        sampling,
        limits,
        native: args.choice.kind == Kind::Native,
        held,
        tokens: 0,
        file: None,
    };
    // From the first line on, so that no typed input is lost.
    terminal.hushed(|| {
        loop {
            interrupt.take();
            let Some(line) = lines.next()? else { return Ok(()) };
            let line = match commands::run(line, &mut talk) {
                Ok(Next::Ask(line)) => line,
                Ok(Next::Listen) => continue,
                Ok(Next::Leave) => return Ok(()),
                Err(error) => {
                    say::error(&chain(&error));
                    continue;
                }
            };
            let asked = Instant::now();
            let mut phases = Phases::start();

            let room = ROOM.min(about.context / 4);
            let held = talk.held.as_ref().map(|holding| &holding.held);
            let (encoder, limits) = args.held_by(about, style, talk.limits, held);
            let prompt = match talk.chat.prompt(&line, &encoder, about.context, room) {
                Ok(prompt) => prompt,
                Err(error) => {
                    say::error(&chain(&error));
                    continue;
                }
            };
            let mut out = Stream::wrapped();
            let mut sink = |tone, piece: &str| match tone {
                Tone::Plain => out.write(piece),
                Tone::Dim => out.write_dim(piece),
            };
            let parts = Parts::new(
                about.vocabulary,
                parts_style(style, held),
                &prompt,
                args.thinking(),
                &args.stop,
                &mut sink,
            );
            let request = Request { prompt: &prompt, sampling: talk.sampling, limits, held };
            let answer = answer(about, engine, &request, parts, Some(interrupt), &mut phases)?;
            out.end()?;
            if args.stats {
                let engine = engine.description();
                say::plain(&report::human(&engine, &answer, asked, "question", &phases));
            }
            if matches!(answer.finish, Finish::ContextFull) {
                say::note(&context_full(about));
            }
            // The last token of an answer occupies no position yet: it would be computed with the next prompt.
            talk.tokens = (prompt.len() + answer.tokens.len()).min(about.context);
            talk.chat.answered(answer.texts);
            engine.keep();
        }
    })
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

    /// Removes the last exchange, and returns the user's message.
    pub fn take_last(&mut self) -> Option<String> {
        let answer = self.turns.pop_if(|message| message.role == "assistant");
        let asked = self.turns.pop_if(|message| message.role == "user");
        if asked.is_none() {
            self.turns.extend(answer);
        }
        asked.map(|message| message.content)
    }

    /// Adds the user's line, and returns the tokens of the conversation, with the oldest exchanges
    /// dropped until `room` tokens of the context are left. On an error the line is removed.
    fn prompt(
        &mut self,
        line: &str,
        encoder: &Encoder<'_>,
        context: usize,
        room: usize,
    ) -> anyhow::Result<Vec<u32>> {
        let result = self.fitted(line, context, room, |turns| match encoder.style() {
            Style::Chat => Ok(encoder.chat(turns, true)?),
            Style::Raw => Ok(encoder.raw(line)?),
        });
        match result {
            Ok((tokens, dropped)) => {
                if encoder.style() == Style::Raw {
                    // Each line is independent.
                    let before = self.turns.len() - 1;
                    self.forgotten.extend(self.turns.drain(..before));
                } else if dropped > 0 {
                    say::note(&format!(
                        "the conversation no longer fits into {context} tokens: the model has \
                         forgotten its oldest {}",
                        if dropped == 1 {
                            "exchange".to_owned()
                        } else {
                            format!("{dropped} exchanges")
                        }
                    ));
                }
                Ok(tokens)
            }
            Err(error) => {
                self.turns.pop();
                Err(error)
            }
        }
    }

    /// Returns the tokens that fit, and the number of exchanges dropped for that.
    fn fitted(
        &mut self,
        line: &str,
        context: usize,
        room: usize,
        encode: impl Fn(&[Message]) -> anyhow::Result<Vec<u32>>,
    ) -> anyhow::Result<(Vec<u32>, usize)> {
        self.turns.push(Message::user(line));
        let exchanges = self.turns.len() / 2;
        for dropped in 0..=exchanges {
            let kept = self.system.iter().chain(&self.turns[2 * dropped..]);
            let tokens = encode(&kept.cloned().collect::<Vec<_>>())?;
            // If nothing is left to drop, the prompt may use the whole context, less one token for the answer.
            let room = if dropped == exchanges { 1 } else { room };
            if tokens.len() + room <= context {
                self.forgotten.extend(self.turns.drain(..2 * dropped));
                return Ok((tokens, dropped));
            }
            if dropped == exchanges {
                return Err(anyhow!(
                    "this message takes {} tokens and the context holds {context}: shorten it, or \
                     start again with a larger -c",
                    tokens.len()
                ));
            }
        }
        unreachable!("the last round returns")
    }

    /// Adds the answer to the history.
    fn answered(&mut self, texts: Texts) {
        if !self.turns.is_empty() {
            let thinking = Some(texts.thinking).filter(|thinking| !thinking.is_empty());
            self.turns.push(Message { thinking, ..Message::assistant(&texts.answer) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes one token per character.
    fn encode(turns: &[Message]) -> anyhow::Result<Vec<u32>> {
        Ok(turns.iter().flat_map(|t| t.content.chars()).map(u32::from).collect())
    }

    fn exchanges(chat: &mut Chat, n: usize) {
        for i in 0..n {
            chat.turns.push(Message::user(&format!("question {i}")));
            chat.turns.push(Message::assistant(&format!("answer {i}")));
        }
    }

    #[test]
    fn the_oldest_exchanges_go_first_and_the_system_message_stays() {
        let mut chat = Chat::new(Some("sys"));
        exchanges(&mut chat, 3); // 3 + 3 · 18 tokens
        let (tokens, dropped) = chat.fitted("hello", 50, 4, encode).unwrap();
        // 3 + 2 · 18 + 5 = 44, plus 4 left for the answer.
        assert_eq!((tokens.len(), dropped), (44, 1));
        assert_eq!(chat.turns[0].content, "question 1");
        assert_eq!(chat.turns.last().unwrap(), &Message::user("hello"));
    }

    #[test]
    fn all_of_it_is_kept_while_it_fits() {
        let mut chat = Chat::new(None);
        exchanges(&mut chat, 2);
        assert_eq!(chat.fitted("x", 41, 4, encode).unwrap().1, 0);
        assert_eq!(chat.turns.len(), 5);
    }

    #[test]
    fn a_message_too_long_on_its_own_is_an_error() {
        let mut chat = Chat::new(Some("system"));
        exchanges(&mut chat, 2);
        assert_eq!(
            chat.fitted("123", 10, 4, encode).unwrap(),
            (encode(&[Message::system("system"), Message::user("123")]).unwrap(), 2)
        );
        chat.turns.clear();
        exchanges(&mut chat, 2);
        assert!(chat.fitted("1234", 10, 4, encode).unwrap_err().to_string().contains("takes 10"));
        assert_eq!(chat.turns.len(), 4 + 1, "nothing is forgotten for a message that fails");
    }
}
