//! The token loop: compute, sample, hand out, until something ends it.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::request::Constraint;
use super::sampler::Sampler;
use super::sequence::Choice;
use super::session::Session;
use super::speculate::Speculate;
use crate::error::ModelError;

/// Conditions that end generating.
#[derive(Clone, Copy, Debug)]
pub struct GenerateOptions {
    /// Maximum number of tokens to generate.
    pub max_tokens: usize,
    /// Continue after an end-of-generation token, and hand it out like any other.
    pub ignore_eos: bool,
    /// When tokens are drafted; the answer is the same.
    pub speculate: Speculate,
}

impl Default for GenerateOptions {
    /// No limit except the context.
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
    /// The maximum number of tokens was generated.
    Length,
    /// The context is full.
    ContextFull,
    /// The callback requested it.
    Interrupted,
}

/// Statistics of a generation.
#[derive(Clone, Copy, Debug)]
pub struct Generated {
    /// Why it ended.
    pub finish: Finish,
    /// Number of tokens handed out.
    pub tokens: usize,
    /// Number of decode steps; less than `tokens` where drafts were accepted.
    pub steps: usize,
    /// Time from the call to the first token's logits.
    pub prompt: Duration,
    /// Time from there to the end.
    pub decode: Duration,
}

/// Feeds `prompt`, then samples tokens, hands each to `on_token` and feeds it.
///
/// Afterwards the sequence holds the prompt and every token handed out, except a last one that does not fit the context
/// ([`Finish::ContextFull`]). An end token is neither handed out nor fed.
///
/// # Errors
/// As [`Session::feed`] of the prompt; a file that shrinks in the meantime.
pub fn generate(
    session: &mut Session<'_>,
    sampler: &mut Sampler,
    prompt: &[u32],
    options: &GenerateOptions,
    on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
) -> Result<Generated, ModelError> {
    generate_constrained(session, sampler, prompt, options, None, on_token)
}

/// As [`generate`], with a constraint that rules tokens out of the answer.
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
    if !session.model().spec().generates() {
        return Err(ModelError::Bidirectional { model: session.model().name().to_owned() });
    }
    let began = Instant::now();
    session.feed(prompt)?;
    for &token in prompt {
        sampler.accept(token);
    }
    session.begin_drafts(options.speculate);
    let model = session.model();
    let mut masked = vec![0.0; if constraint.is_some() { model.spec().vocab } else { 0 }];
    let mut choice = Choice {
        sampler,
        constraint: constraint.map(|constraint| constraint as &mut dyn Constraint),
        masked: &mut masked,
        tokenizer: model.tokenizer(),
        max_tokens: options.max_tokens,
        ignore_eos: options.ignore_eos,
        context: session.context(),
    };
    let prompt = began.elapsed();
    let began = Instant::now();
    let done = decode(session, &mut choice, on_token);
    session.end_drafts();
    let (finish, [tokens, steps]) = done?;
    Ok(Generated { finish, tokens, steps, prompt, decode: began.elapsed() })
}

/// The token loop, after the prompt. Returns why it ended, and the numbers of tokens and steps.
fn decode(
    session: &mut Session<'_>,
    choice: &mut Choice<'_>,
    on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
) -> Result<(Finish, [usize; 2]), ModelError> {
    let (mut tokens, mut steps) = (0, 0);
    loop {
        if let Some(finish) = session.choose(choice, &mut tokens, on_token)? {
            return Ok((finish, [tokens, steps]));
        }
        if session.needs_step() {
            let most = choice.max_tokens - tokens - 1;
            session.decode_pending(most, choice.only_sampler())?;
            steps += 1;
        }
    }
}
