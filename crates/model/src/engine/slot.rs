//! A sequence of an [`Engine`](super::Engine): a request, how far it has come, and the choice of its next token.

use super::drafter::Drafter;
use super::generate::Finish;
use super::request::{Constraint, OfPrompt, Request, RequestId};
use super::sampler::Sampler;
use crate::cache::Indexed;
use crate::open::Model;

/// What makes a sequence long.
pub(super) struct Growth {
    /// Most tokens of a sequence that is not long.
    pub(super) original: usize,
    /// What parts it from others then.
    pub(super) salt: Box<str>,
    /// What was generated, with room for all of it.
    pub(super) answer: Vec<u32>,
}

/// A sequence that is computed.
pub(super) struct Slot {
    pub(super) id: RequestId,
    pub(super) request: Request,
    pub(super) constraint: Option<Box<dyn Constraint>>,
    pub(super) sampler: Sampler,
    /// `[hidden]`, of requests that want it: the sum of what was computed.
    pub(super) embedding: Vec<f32>,
    /// Tokens that the cache holds, or will hold after the step.
    pub(super) position: usize,
    /// What proposes drafts, if the engine computes some.
    pub(super) drafter: Option<Drafter>,
    /// The token to compute next, if one was chosen.
    pub(super) next: Option<u32>,
    /// What makes the sequence long, if it is not and can become so.
    pub(super) growth: Option<Growth>,
    /// Whether it is long to a model that rotates long sequences in another way.
    pub(super) long: bool,
    /// What parts it from sequences that share nothing with it.
    pub(super) salt: Box<str>,
    pub(super) generated: usize,
    /// What of the prompt came from the index, and what of it is there now.
    pub(super) reused: usize,
    pub(super) indexed: Indexed,
    /// Another prompt begins like this one, and is read up to there first.
    pub(super) after: Option<(RequestId, usize)>,
    /// What the index or a file had made no numbers: all is computed, and nothing of it shared.
    pub(super) cold: bool,
    /// Positions at whose end the states of recurrent layers are to be kept.
    pub(super) marks: Vec<usize>,
}

impl Slot {
    /// Tokens of the prompt that were not read yet.
    pub(super) fn unread(&self) -> usize {
        self.request.prompt.len().saturating_sub(self.position)
    }

    /// Whether the rows of the prompt that are read next are wanted for themselves: all but the last one, which an answer
    /// follows from, or all.
    pub(super) fn is_wanted_itself(&self) -> bool {
        match self.request.of_prompt {
            OfPrompt::Nothing => false,
            OfPrompt::Logits => self.unread() > 1,
            OfPrompt::Embedding(_) => true,
        }
    }

    /// Tokens of the prompt that may be read in one step.
    pub(super) fn readable(&self) -> usize {
        let unread = self.unread();
        if self.request.of_prompt == OfPrompt::Logits && unread > 1 { unread - 1 } else { unread }
    }

    /// Tokens of the prompt that were read. Only these are shared: tokens that were generated are computed in another way.
    pub(super) fn read(&self) -> &[u32] {
        &self.request.prompt[..self.position.min(self.request.prompt.len())]
    }

    /// Computes all of the prompt, and shares nothing of it: a file may have what no model has computed.
    pub(super) fn begin_cold(&mut self) {
        self.cold = true;
        (self.position, self.reused) = (0, 0);
        self.marks.clear();
        self.embedding.fill(0.0);
    }

    /// Tokens of the prompt that may come from elsewhere: all but the last, whose logits are wanted.
    pub(super) fn reusable(&self) -> &[u32] {
        &self.request.prompt[..self.request.prompt.len() - 1]
    }

    /// The token that is computed next, if the prompt is read.
    pub(super) fn take_next(&mut self) -> Option<u32> {
        if self.unread() == 0 { self.next.take() } else { None }
    }

    /// Most tokens that a draft after the next token may have.
    pub(super) fn room_for_draft(&self, context: usize) -> usize {
        // A sequence that a draft makes long would be computed anew.
        let end = self.growth.as_ref().map_or(context, |growth| growth.original.min(context));
        let room = end.saturating_sub(self.position + 1);
        room.min(self.request.max_tokens - self.generated - 1)
    }

    /// Makes the sequence long if the next token does: all of it is read again, as the model would have read it if it had always been
    /// long. Returns whether it has become so.
    pub(super) fn grow(&mut self) -> bool {
        if self.next.is_none() || self.growth.as_ref().is_none_or(|g| self.position < g.original) {
            return false;
        }
        let Some(growth) = self.growth.take() else { return false };
        let computed = self.position - self.request.prompt.len();
        self.request.prompt.extend_from_slice(&growth.answer[..computed]);
        self.request.of_prompt = OfPrompt::Nothing;
        (self.long, self.salt) = (true, growth.salt);
        (self.position, self.indexed) = (0, Indexed::default());
        true
    }

    /// Rows of the prompt that are read at most before states have to be kept.
    pub(super) fn rows_to_mark(&self) -> usize {
        let next = self.marks.iter().filter(|mark| **mark > self.position).min();
        next.map_or(usize::MAX, |mark| mark - self.position)
    }
}

/// Chooses the next token of a sequence by `logits`, hands it out, and says whether the answer ends.
pub(super) fn next_token(
    slot: &mut Slot,
    model: &Model,
    context: usize,
    logits: &[f32],
    hand_out: &mut dyn FnMut(u32),
) -> Option<Finish> {
    if slot.generated == 0 {
        slot.request.prompt.iter().for_each(|token| slot.sampler.accept(*token));
    }
    if slot.generated == slot.request.max_tokens {
        return Some(Finish::Length);
    }
    let token = slot.sampler.sample(logits);
    if !slot.request.ignore_eos && model.tokenizer().is_end(token) {
        return Some(Finish::Stop);
    }
    slot.sampler.accept(token);
    if let Some(constraint) = &mut slot.constraint {
        constraint.accept(token);
    }
    let computed = slot.drafter.as_mut().is_some_and(|drafter| drafter.came(token));
    if let Some(growth) = &mut slot.growth {
        growth.answer.push(token);
    }
    slot.generated += 1;
    hand_out(token);
    if slot.generated == slot.request.max_tokens {
        return Some(Finish::Length);
    }
    if computed {
        slot.position += 1;
        return None;
    }
    if slot.position == context {
        return Some(Finish::ContextFull);
    }
    slot.next = Some(token);
    None
}
