//! Requests to an [`Engine`](super::Engine), and their events.

use std::fmt;

use super::generate::Finish;
use super::sampler::SamplerOptions;
use crate::adapters::AdapterSet;
use crate::error::ModelError;
use crate::spec::{ModelSpec, Pooling};

/// A prompt, and how to continue it.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The tokens of the prompt.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplerOptions,
    /// Biases added to the logits of tokens before sampling, by token. Several entries for a token are summed.
    pub logit_bias: Vec<(u32, f32)>,
    /// Texts that break sequences for DRY; `None`: [`SamplerOptions::DRY_SEQUENCE_BREAKERS`].
    pub dry_sequence_breakers: Option<Vec<String>>,
    /// Maximum number of tokens to generate.
    pub max_tokens: usize,
    /// Continue after an end-of-generation token, and hand it out like any other.
    pub ignore_eos: bool,
    /// Computed prompts are shared only between requests with the same salt. Where users must not be able to infer from response times what others
    /// have sent, each user has a salt.
    pub salt: Box<str>,
    /// The adapters that it is computed with. Requests with other adapters, or other scales, share nothing.
    pub adapters: AdapterSet,
    /// Outputs for the prompt, in addition to its continuation.
    pub of_prompt: OfPrompt,
    /// True if the logits of [`Event::Token`] are not looked at. Those of tokens that could not be chosen may then not be computed, if that is faster: they
    /// are `f32::MIN`.
    pub ignores_logits: bool,
    /// The index of the token with which the second segment of the prompt begins, for a model that tells the two texts of a pair apart by an embedding
    /// of their own (BERT's token types). Other models ignore it.
    pub second_segment: Option<usize>,
    /// The index of the sequence that computes it, for which it waits; `None`, or an index beyond the engine's sequences: the first that is free. The
    /// answer is the same.
    pub place: Option<usize>,
}

/// Outputs for the tokens of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OfPrompt {
    /// Only the continuation.
    #[default]
    Nothing,
    /// [`Event::PromptLogits`] for each of them except the last. They are all computed, even if the prompt is already cached.
    Logits,
    /// [`Event::Embedding`], after which the request ends. Unless the state of the last token alone is needed, all are computed, even if the
    /// prompt is already cached.
    Embedding(Pooling),
}

/// Returns a vector in the same direction, of length 1; zeros if there is no direction.
pub fn to_unit_length(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
    vector.iter().map(|x| (f64::from(*x) * scale) as f32).collect()
}

impl Request {
    pub(super) fn wants_embedding(&self) -> bool {
        matches!(self.of_prompt, OfPrompt::Embedding(_))
    }

    /// Returns true if the scores of the model's classifier are requested.
    pub(super) fn wants_scores(&self) -> bool {
        self.of_prompt == OfPrompt::Embedding(Pooling::Rank)
    }

    /// Returns the states that a requested vector is made of.
    pub(super) fn states(&self, spec: &ModelSpec) -> Option<Pooling> {
        match self.of_prompt {
            OfPrompt::Embedding(Pooling::Rank) => Some(spec.classifier.as_ref()?.pooling),
            OfPrompt::Embedding(pooling) => Some(pooling),
            OfPrompt::Nothing | OfPrompt::Logits => None,
        }
    }
}

/// A constraint rules tokens out of an answer, for example those that a grammar does not allow next.
///
/// Both methods are called by the thread that calls [`Engine::step`](super::Engine::step) or [`generate_constrained`](super::generate_constrained):
/// `accept` when a token has been chosen, and `mask` before the next one is chosen. The engine computes in between, so a mask that is expensive to
/// compute is best started on another thread in `accept`.
pub trait Constraint: Send + fmt::Debug {
    /// Sets the logits `[vocab]` of tokens that cannot come next to −∞. To allow an answer to end, leave its end tokens unchanged.
    ///
    /// # Errors
    /// The reason why there is no mask. The request fails with it.
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), Box<str>>;

    /// Notifies the constraint of a chosen token. It is not called for end tokens.
    fn accept(&mut self, token: u32);
}

/// Returns the logits `[vocab]` from which the next token is chosen: `logits`, or those masked by a constraint, in `masked`.
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

/// Identifies the request of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(super) u64);

/// An output of a step for a request.
#[derive(Debug)]
pub enum Event<'e> {
    /// Part of the prompt was read, and there is more.
    Reading {
        /// The number of tokens read, including reused ones.
        read: usize,
        /// The number of tokens that were reused from earlier prompts instead of computed.
        reused: usize,
    },
    /// The logits `[vocab]` for the position after a prompt token, if requested ([`OfPrompt::Logits`]).
    PromptLogits {
        /// The index of the token.
        position: usize,
        /// The model's own logits: without bias, penalties or constraint.
        logits: &'e [f32],
    },
    /// The prompt was read.
    Prompt {
        /// The number of tokens that were reused from earlier prompts instead of computed.
        reused: usize,
        /// The index of the sequence that computes the request.
        place: usize,
    },
    /// A token, and the logits `[vocab]` it was chosen from: the model's own, without bias, penalties or constraint
    /// ([`Request::ignores_logits`]).
    Token(u32, &'e [f32]),
    /// The vector of the prompt ([`OfPrompt::Embedding`]): its final hidden states, pooled, and projected if the file has projections for that
    /// ([`ModelSpec::embedding_size`]); not scaled to any length. With [`Pooling::Rank`] the scores `[labels]` of the classifier as they are, with
    /// [`Pooling::None`] the vectors of all tokens `[tokens, embedding_size]`. The last event of a request.
    Embedding(&'e [f32]),
    /// The answer ended. The last event of a request.
    Finished(Finish),
    /// The logits were not numbers, or a constraint has no mask. The last event of a request.
    Failed(ModelError),
}
