//! The token loop: compute, sample, hand out, until something ends it.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::sampler::Sampler;
use super::session::Session;
use crate::error::ModelError;

/// When to end.
#[derive(Clone, Copy, Debug)]
pub struct GenerateOptions {
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// Go on after an end-of-generation token, and hand it out like any other.
    pub ignore_eos: bool,
}

impl Default for GenerateOptions {
    /// No limit but the context.
    fn default() -> GenerateOptions {
        GenerateOptions { max_tokens: usize::MAX, ignore_eos: false }
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
    let began = Instant::now();
    session.feed(prompt)?;
    for &token in prompt {
        sampler.accept(token);
    }
    let prompt = began.elapsed();
    let began = Instant::now();
    let tokenizer = session.model().tokenizer();
    let mut tokens = 0;
    let finish = loop {
        if tokens == options.max_tokens {
            break Finish::Length;
        }
        let token = sampler.sample(session.logits());
        if !options.ignore_eos && tokenizer.is_end(token) {
            break Finish::Stop;
        }
        sampler.accept(token);
        tokens += 1;
        let flow = on_token(token);
        if session.position() == session.context() {
            break Finish::ContextFull;
        }
        if flow.is_break() || tokens == options.max_tokens {
            session.defer(token)?;
            break if flow.is_break() { Finish::Interrupted } else { Finish::Length };
        }
        session.decode(token)?;
    };
    Ok(Generated { finish, tokens, prompt, decode: began.elapsed() })
}
