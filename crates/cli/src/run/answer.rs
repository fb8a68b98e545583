//! One answer: the engine's tokens streamed as text, with timings.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use alight_model::Finish;
use rusage::Phases;

use super::engine::{About, Engine, Event, Request};
use super::parts::{Parts, Texts};
use super::progress::AnswerProgress;
use crate::interrupt::Interrupt;
use crate::outcome::Outcome;

/// An answer and its statistics.
#[derive(Debug)]
pub struct Answer {
    /// Its texts.
    pub texts: Texts,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// The reason why it ended.
    pub finish: Finish,
    /// True if a stop text ended it.
    pub by_text: bool,
    /// Number of tokens of the prompt that were computed, and of those that had been computed before.
    pub computed: usize,
    pub reused: usize,
    /// From the first prompt token computed to the first answer token chosen.
    pub prompt: Duration,
    /// The time at which each token had been written.
    pub written: Vec<Instant>,
}

impl Answer {
    /// Returns the times between written tokens.
    pub fn steps(&self) -> impl Iterator<Item = Duration> {
        self.written.windows(2).map(|w| w[1] - w[0])
    }

    /// Returns the tokens per second after the first token, if there were at least two.
    pub fn rate(&self) -> Option<f64> {
        let (first, last) = (self.written.first()?, self.written.last()?);
        let seconds = (*last - *first).as_secs_f64();
        (seconds > 0.0).then(|| (self.written.len() - 1) as f64 / seconds)
    }
}

/// The phases of an answer: up to the first token written, and after it.
pub const PROMPT: &str = "prompt";
/// See [`PROMPT`].
pub const ANSWER: &str = "answer";

/// Streams the answer of the model `about` through `parts`. `interrupt` may end it early. The phases continue from those before.
pub fn answer(
    about: &About<'_>,
    engine: &mut dyn Engine,
    request: &Request<'_>,
    mut parts: Parts<'_, '_>,
    interrupt: Option<Interrupt>,
    phases: &mut Phases,
) -> Outcome<Answer> {
    let began = Instant::now();
    let mut answer = Answer {
        texts: Texts::default(),
        tokens: Vec::new(),
        finish: Finish::Length,
        by_text: false,
        computed: 0,
        reused: 0,
        prompt: Duration::ZERO,
        written: Vec::new(),
    };
    let mut failed = None;
    let mut on_event = |event, progress: &AnswerProgress<'_>| {
        if let Event::Prompt { done } = event {
            progress.read(done);
        }
        if let Event::Token(id) = event {
            progress.end();
            if answer.tokens.is_empty() {
                answer.prompt = began.elapsed();
            }
            failed = parts.push(id).err();
            answer.tokens.push(id);
            answer.written.push(Instant::now());
            if answer.written.len() == 1 {
                phases.end(PROMPT);
            }
        }
        match interrupt {
            _ if failed.is_some() || parts.stopped() => ControlFlow::Break(()),
            Some(interrupt) if interrupt.pressed() => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    };
    if let Some(interrupt) = interrupt {
        engine.cancel_by(interrupt.cancel());
    }
    let answered = AnswerProgress::during(about.model, request.prompt.len(), |progress| {
        engine.answer(request, &mut |event| on_event(event, progress))
    });
    if let Some(error) = failed {
        return Err(error.into());
    }
    let answered = answered?;
    (answer.finish, answer.computed) = (answered.finish, answered.computed);
    if parts.stopped() {
        (answer.finish, answer.by_text) = (Finish::Stop, true);
    }
    answer.reused = request.prompt.len() - answered.computed;
    if answer.tokens.is_empty() {
        answer.prompt = began.elapsed();
    }
    phases.end(if answer.tokens.is_empty() { PROMPT } else { ANSWER });
    answer.texts = parts.finish()?;
    Ok(answer)
}
