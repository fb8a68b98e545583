//! What an [`Engine`](super::Engine) is asked for, and what it brings.

use std::fmt;

use super::generate::Finish;
use super::sampler::SamplerOptions;
use crate::error::ModelError;

/// A prompt, and how it is to be continued.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The tokens of the prompt.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplerOptions,
    /// What is added to the logits of tokens before they are chosen from, by token. Of several entries for a token the sum counts.
    pub logit_bias: Vec<(u32, f32)>,
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// Go on after an end-of-generation token, and hand it out like any other.
    pub ignore_eos: bool,
    /// Prompts share what was computed of them with those of the same salt alone. Where users must not find out by the
    /// time of an answer what others have asked, each has a salt.
    pub salt: Box<str>,
    /// What is wanted of the prompt beside its continuation.
    pub of_prompt: OfPrompt,
}

/// What is wanted of the tokens of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OfPrompt {
    /// Nothing but what follows them.
    #[default]
    Nothing,
    /// [`Event::PromptLogits`] for each of them but the last. They are all computed, whatever is known of the prompt already.
    Logits,
    /// [`Event::Embedding`], after which the request has ended.
    Embedding(Pooling),
}

/// How the final hidden states of tokens become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// That of the last token.
    Last,
    /// The mean of all. They are all computed, whatever is known of the prompt already.
    Mean,
}

/// A vector in the same direction, of length 1; without a direction, zeros.
pub fn to_unit_length(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
    vector.iter().map(|x| (f64::from(*x) * scale) as f32).collect()
}

impl Request {
    /// True if each row of the prompt is wanted, and not its last one alone.
    pub(super) fn wants_all_rows(&self) -> bool {
        matches!(self.of_prompt, OfPrompt::Logits | OfPrompt::Embedding(Pooling::Mean))
    }

    pub(super) fn wants_embedding(&self) -> bool {
        matches!(self.of_prompt, OfPrompt::Embedding(_))
    }
}

/// What rules tokens out of an answer, for example those that a grammar does not have next.
///
/// Both methods are called by the thread that calls [`Engine::step`](super::Engine::step) or
/// [`generate_constrained`](super::generate_constrained): `accept` when a token has come, and
/// `mask` before the next one is chosen. Between them the engine computes, so a mask that takes long to find is best begun by
/// another thread in `accept`.
pub trait Constraint: Send + fmt::Debug {
    /// Sets the logits `[vocab]` of tokens that cannot come next to −∞. To end an answer, leave its end tokens alone.
    ///
    /// # Errors
    /// Why there is no mask. The request fails with it.
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), Box<str>>;

    /// A token has come. End tokens are not told.
    fn accept(&mut self, token: u32);
}

/// The logits `[vocab]` that the next token is chosen by: `logits`, or what a constraint has left of them, in `masked`.
pub(super) fn mask<'l>(
    constraint: Option<&mut (dyn Constraint + '_)>,
    logits: &'l [f32],
    masked: &'l mut [f32],
) -> Result<&'l [f32], ModelError> {
    let Some(constraint) = constraint else { return Ok(logits) };
    masked.copy_from_slice(logits);
    constraint.mask(masked).map_err(|why| ModelError::Constraint { why })?;
    Ok(masked)
}

/// Which request an event is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(super) u64);

/// What a step has brought for a request.
#[derive(Debug)]
pub enum Event<'e> {
    /// So many tokens of the prompt were read, and there are more.
    Reading {
        /// Those that were not computed included.
        read: usize,
        /// Those that were not computed: they had been, of earlier prompts.
        reused: usize,
    },
    /// The logits `[vocab]` of what follows a token of the prompt, if they are wanted ([`OfPrompt::Logits`]).
    PromptLogits {
        /// Which token, from 0.
        position: usize,
        /// They are the model's: without bias, penalties or constraint.
        logits: &'e [f32],
    },
    /// The prompt was read. So many of its tokens were not computed: they had been, of earlier prompts.
    Prompt {
        /// Those tokens.
        reused: usize,
    },
    /// A token, and the logits `[vocab]` of its place: the model's, without bias, penalties or constraint.
    Token(u32, &'e [f32]),
    /// The final hidden states `[hidden]` of the prompt, pooled and not scaled ([`OfPrompt::Embedding`]). Nothing else follows.
    Embedding(&'e [f32]),
    /// The answer ended. Nothing else follows.
    Finished(Finish),
    /// The logits were not numbers, or a constraint has no mask. Nothing else follows.
    Failed(ModelError),
}
