//! A request that an [`Engine`](super::Engine) computes.

use super::request::{Constraint, OfPrompt, Request, RequestId};
use super::sampler::Sampler;
use super::sequence::Sequence;
use crate::cache::Indexed;

/// A request with its sequence.
pub(super) struct ActiveRequest {
    pub(super) id: RequestId,
    /// Without its prompt, which the sequence has.
    pub(super) request: Request,
    pub(super) constraint: Option<Box<dyn Constraint>>,
    pub(super) sampler: Sampler,
    pub(super) sequence: Sequence,
    /// Tokens of the answer that were handed out.
    pub(super) generated: usize,
    /// `[hidden]`, of requests that want it: the sum of what was computed.
    pub(super) embedding: Vec<f32>,
    /// What parts it from sequences that share nothing with it.
    pub(super) salt: Box<str>,
    /// What of the prompt is in the index.
    pub(super) indexed: Indexed,
    /// Another prompt begins like this one, and is read up to there first.
    pub(super) after: Option<(RequestId, usize)>,
    /// All is computed, and nothing of it shared: what the index or a file had made no numbers, or tokens see those after them.
    pub(super) cold: bool,
    /// Its prompt is read in one step, since tokens see those after them.
    pub(super) is_whole: bool,
    /// Positions at whose end the states of recurrent layers are to be kept.
    pub(super) marks: Vec<usize>,
}

impl ActiveRequest {
    /// True if the rows of the prompt that are read next are wanted for themselves: all but the last one, which an answer
    /// follows from, or all.
    pub(super) fn wants_rows(&self) -> bool {
        match self.request.of_prompt {
            OfPrompt::Nothing => false,
            OfPrompt::Logits => self.sequence.unread() > 1,
            OfPrompt::Embedding(_) => true,
        }
    }

    /// Tokens of the prompt that may be read in one step: up to where states have to be kept, at most.
    pub(super) fn readable(&self) -> usize {
        let (unread, computed) = (self.sequence.unread(), self.sequence.computed());
        let mark = self.marks.iter().filter(|mark| **mark > computed).min();
        let to_mark = mark.map_or(usize::MAX, |mark| mark - computed);
        match self.request.of_prompt {
            OfPrompt::Logits if unread > 1 => (unread - 1).min(to_mark),
            _ => unread.min(to_mark),
        }
    }

    /// True if the next token of the answer is to be computed.
    pub(super) fn decodes(&self) -> bool {
        self.sequence.is_pending() && self.sequence.unread() == 0
    }

    /// Most tokens that a draft after the pending token may have.
    pub(super) fn max_draft(&self, context: usize) -> usize {
        self.sequence.max_draft(context).min(self.request.max_tokens - self.generated - 1)
    }

    /// Computes all of the prompt, and shares nothing of it: a file may have what no model has computed.
    pub(super) fn begin_cold(&mut self) {
        self.cold = true;
        self.sequence.begin_again();
        self.marks.clear();
        self.embedding.fill(0.0);
    }

    /// It has become long: all of it is read again, and shared with other long ones alone.
    pub(super) fn become_long(&mut self) {
        self.salt = salt(&self.request.salt, true);
        self.indexed = Indexed::default();
        self.request.of_prompt = OfPrompt::Nothing;
    }
}

/// What parts sequences that share nothing: users, and those that are rotated in another way.
pub(super) fn salt(salt: &str, long: bool) -> Box<str> {
    match long {
        true => format!("\0long {salt}").into(),
        // No user has the salt of another's long sequences.
        false if salt.starts_with('\0') => format!("\0{salt}").into(),
        false => salt.into(),
    }
}
