//! The token loop: compute, sample, hand out, until something ends it.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::drafter::Drafter;
use super::request::{Constraint, mask};
use super::sampler::Sampler;
use super::session::{MOST_REMEMBERED, Session};
use super::speculate::{MOST_DRAFT, Speculate, StepPlan, StepTimes};
use crate::error::ModelError;

/// When to end.
#[derive(Clone, Copy, Debug)]
pub struct GenerateOptions {
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// Go on after an end-of-generation token, and hand it out like any other.
    pub ignore_eos: bool,
    /// Whether tokens are drafted; the answer is the same.
    pub speculate: Speculate,
}

impl Default for GenerateOptions {
    /// No limit but the context.
    fn default() -> GenerateOptions {
        GenerateOptions {
            max_tokens: usize::MAX,
            ignore_eos: false,
            speculate: Speculate::default(),
        }
    }
}

/// Why generating ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model produced an end-of-generation token, which was not handed out.
    Stop,
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    ContextFull,
    /// The callback asked for it.
    Interrupted,
}

/// What was generated, and how long it took.
#[derive(Clone, Copy, Debug)]
pub struct Generated {
    /// Why it ended.
    pub finish: Finish,
    /// Tokens handed out.
    pub tokens: usize,
    /// Steps of decoding; fewer than tokens where drafts were right.
    pub steps: usize,
    /// From the call to the first token's logits.
    pub prompt: Duration,
    /// From there to the end.
    pub decode: Duration,
}

/// Feeds `prompt`, then samples tokens, hands each to `on_token` and feeds it.
///
/// Afterwards the sequence holds the prompt and every token handed out, unless it ended with
/// [`Finish::ContextFull`], which means that the last one did not fit. An end token is neither
/// handed out nor fed.
///
/// # Errors
/// As [`Session::feed`] of the prompt; a file that shrinks meanwhile.
pub fn generate(
    session: &mut Session<'_>,
    sampler: &mut Sampler,
    prompt: &[u32],
    options: &GenerateOptions,
    on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
) -> Result<Generated, ModelError> {
    generate_constrained(session, sampler, prompt, options, None, on_token)
}

/// As [`generate`], where a constraint rules tokens out of the answer.
///
/// # Errors
/// As [`generate`]; the constraint has no mask.
pub fn generate_constrained(
    session: &mut Session<'_>,
    sampler: &mut Sampler,
    prompt: &[u32],
    options: &GenerateOptions,
    constraint: Option<&mut dyn Constraint>,
    on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
) -> Result<Generated, ModelError> {
    let began = Instant::now();
    session.feed(prompt)?;
    for &token in prompt {
        sampler.accept(token);
    }
    let speculate = match options.speculate {
        // Where there is no memory for drafts, the sequence goes on without.
        wanted if wanted != Speculate::Off && session.get_ready_for_drafts().is_ok() => wanted,
        _ => Speculate::Off,
    };
    let most = session.context().min(MOST_REMEMBERED) + 1;
    let mut drafter = Drafter::new(speculate, most);
    drafter.read(session.tokens());
    let mut choice = Choice {
        sampler,
        masked: vec![0.0; if constraint.is_some() { session.model().spec().vocab } else { 0 }],
        constraint,
    };
    let done = go_on(session, &mut drafter, &mut choice, (began, options), on_token);
    session.end_draft(&mut drafter);
    done
}

/// How the next token is chosen.
struct Choice<'s, 'c> {
    sampler: &'s mut Sampler,
    constraint: Option<&'c mut dyn Constraint>,
    /// `[vocab]`, with a constraint: what it has left of the logits.
    masked: Vec<f32>,
}

impl Choice<'_, '_> {
    fn sample(&mut self, logits: &[f32]) -> Result<u32, ModelError> {
        let logits = mask(self.constraint.as_deref_mut(), logits, &mut self.masked)?;
        Ok(self.sampler.sample(logits))
    }

    /// A token has come that ends no answer.
    fn accept(&mut self, token: u32) {
        self.sampler.accept(token);
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token);
        }
    }
}

/// The token loop, after the prompt.
fn go_on(
    session: &mut Session<'_>,
    drafter: &mut Drafter,
    choice: &mut Choice<'_, '_>,
    (began, options): (Instant, &GenerateOptions),
    on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
) -> Result<Generated, ModelError> {
    let prompt = began.elapsed();
    let began = Instant::now();
    let tokenizer = session.model().tokenizer();
    let (mut tokens, mut steps) = (0, 0);
    let mut times = StepTimes::new(MOST_DRAFT + 1);
    let finish = loop {
        if tokens == options.max_tokens {
            break Finish::Length;
        }
        let token = choice.sample(session.logits_of(drafter)?)?;
        if !options.ignore_eos && tokenizer.is_end(token) {
            break Finish::Stop;
        }
        choice.accept(token);
        tokens += 1;
        let flow = on_token(token);
        let computed = drafter.came(token);
        if !computed {
            session.end_draft(drafter);
        }
        if !computed && session.position() == session.context() {
            break Finish::ContextFull;
        }
        if flow.is_break() || tokens == options.max_tokens {
            if !computed {
                session.defer(token)?;
            }
            break if flow.is_break() { Finish::Interrupted } else { Finish::Length };
        }
        if !computed {
            let most = session.room_for_draft().min(options.max_tokens - tokens - 1);
            let mut plan = StepPlan::new(&times, 1);
            let draft = drafter.propose(&mut plan, most, session.proposer.as_deref_mut());
            let (began, rows) = (Instant::now(), 1 + draft.len());
            if let Err(error) = session.decode_draft(token, draft) {
                // None of it is in the sequence.
                drafter.end();
                return Err(error);
            }
            times.took(rows, began.elapsed());
            steps += 1;
        }
    };
    Ok(Generated { finish, tokens, steps, prompt, decode: began.elapsed() })
}
