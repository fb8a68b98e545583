//! A request that an [`Engine`](super::Engine) computes.

use super::request::{Constraint, OfPrompt, Request, RequestId};
use super::sampler::Sampler;
use super::sequence::Sequence;
use crate::cache::Indexed;
use crate::parts::batch::LogitRows;
use crate::spec::Pooling;

/// A request with its sequence.
pub(super) struct ActiveRequest {
    pub(super) id: RequestId,
    /// Without its prompt, which is in the sequence.
    pub(super) request: Request,
    pub(super) constraint: Option<Box<dyn Constraint>>,
    pub(super) sampler: Sampler,
    pub(super) sequence: Sequence,
    /// Number of answer tokens that were handed out.
    pub(super) generated: usize,
    /// The states that a requested vector is made of.
    pub(super) states: Option<Pooling>,
    /// `[hidden]`, for requests of a vector: the sum of the states so far. Where those of all tokens are requested: `[tokens, embedding_size]`.
    pub(super) embedding: Vec<f32>,
    /// Separates it from sequences that share nothing with it.
    pub(super) salt: Box<str>,
    /// The part of the prompt that is in the index.
    pub(super) indexed: Indexed,
    /// Another prompt that begins like this one and is read first, and the position up to which this one waits for it.
    pub(super) after: Option<(RequestId, usize)>,
    /// True if everything is computed and nothing shared: reused data led to logits that are not numbers, or tokens attend to later ones.
    pub(super) cold: bool,
    /// True if its prompt is read in one step, since tokens attend to later ones.
    pub(super) is_whole: bool,
    /// Positions after which the states of recurrent layers are to be saved, or pages of layers with a window are to be kept.
    pub(super) marks: Vec<usize>,
    /// True if a step ends at each of them: states are those after its last row, and pages are kept later.
    pub(super) ends_at_marks: bool,
}

impl ActiveRequest {
    /// Returns true if the prompt rows that are read next are requested for their own sake: all of them, or all but the last, which an answer follows
    /// from.
    pub(super) fn wants_rows(&self) -> bool {
        match self.request.of_prompt {
            OfPrompt::Nothing => false,
            OfPrompt::Logits => self.sequence.unread() > 1,
            OfPrompt::Embedding(_) => true,
        }
    }

    /// The number of prompt tokens that may be read in one step: at most up to the next position at which states have to be saved.
    pub(super) fn readable(&self) -> usize {
        let (unread, computed) = (self.sequence.unread(), self.sequence.computed());
        let marks = self.marks.iter().filter(|_| self.ends_at_marks);
        let mark = marks.filter(|mark| **mark > computed).min();
        let to_mark = mark.map_or(usize::MAX, |mark| mark - computed);
        match self.request.of_prompt {
            OfPrompt::Logits if unread > 1 => (unread - 1).min(to_mark),
            _ => unread.min(to_mark),
        }
    }

    /// Returns true if the state of a token before the last one is requested. So all tokens are computed.
    pub(super) fn wants_earlier_rows(&self) -> bool {
        self.request.of_prompt == OfPrompt::Logits
            || self.states.is_some_and(|states| states != Pooling::Last)
    }

    /// Returns the rows of the next part of the prompt that are requested for their own sake, of which `ends` tells whether it is the last part.
    pub(super) fn wanted_rows(&self, ends: bool) -> LogitRows {
        match self.states {
            None => LogitRows::All,
            Some(states) if states.takes_all() => LogitRows::All,
            Some(Pooling::Cls) if self.sequence.computed() == 0 => LogitRows::First,
            Some(Pooling::Last) if ends => LogitRows::Last,
            Some(_) => LogitRows::Nothing,
        }
    }

    /// Returns the sampler if nothing else looks at the logits of the answer.
    pub(super) fn only_sampler(&mut self) -> Option<&mut Sampler> {
        let only = self.request.ignores_logits && self.constraint.is_none();
        only.then_some(&mut self.sampler)
    }

    /// Returns true if the next token of the answer is to be computed.
    pub(super) fn decodes(&self) -> bool {
        self.sequence.is_pending() && self.sequence.unread() == 0
    }

    /// The maximum length of a draft after the pending token.
    pub(super) fn max_draft(&self, context: usize) -> usize {
        self.sequence.max_draft(context).min(self.request.max_tokens - self.generated - 1)
    }

    /// Starts to compute the whole prompt without sharing: the contents of a file may not be the output of a model.
    pub(super) fn begin_cold(&mut self) {
        self.cold = true;
        self.sequence.begin_again();
        self.marks.clear();
        match self.states {
            Some(Pooling::None) => self.embedding.clear(),
            _ => self.embedding.fill(0.0),
        }
    }

    /// Handles that the sequence has become long: all of it is read again, and shared only with other long ones.
    pub(super) fn become_long(&mut self) {
        self.salt = salt(&self.request.salt, true);
        self.indexed = Indexed::default();
        self.request.of_prompt = OfPrompt::Nothing;
    }
}

/// Returns the salt that separates sequences that share nothing: those of different users, and those that are rotated differently.
pub(super) fn salt(salt: &str, long: bool) -> Box<str> {
    match long {
        true => format!("\0long {salt}").into(),
        // No user's salt equals that of another's long sequences.
        false if salt.starts_with('\0') => format!("\0{salt}").into(),
        false => salt.into(),
    }
}
