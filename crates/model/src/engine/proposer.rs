//! Proposers that compute their proposals: a smaller model with the same tokens, or the MTP layer of the model's own file. Proposed tokens are
//! computed and sampled like every other draft ([`speculate`](super::speculate)), so a proposal never changes an answer.

use std::time::Instant;

use super::draft::DraftModel;
use super::mtp::MtpHead;
use super::speculate::{MAX_DRAFT, Mean, Speculate, StepPlanner};
use crate::cancel::Cancel;
use crate::error::ModelError;
use crate::open::Model;

/// A proposed token with a lower probability ends the draft.
const MIN_PROBABILITY: f32 = 0.4;
/// While drafts do not pay, one is tried after this number of tokens.
const RETRY: usize = 64;

/// The proposer of a sequence, and the statistics of its drafts.
pub(super) struct Proposer<'m> {
    by: By<'m>,
    /// The model whose tokens they are.
    model: &'m Model,
    /// The number of its tokens that may be proposed.
    vocab: usize,
    /// The share of proposed tokens accepted recently.
    accepted: Mean,
    /// Seconds per proposed token.
    seconds: Mean,
    /// Steps since the last draft.
    since: usize,
    /// True if this sequence uses proposals.
    wanted: bool,
    /// True if the proposer has failed in this sequence, which then continues without proposals.
    failed: bool,
}

enum By<'m> {
    Model(Box<DraftModel<'m>>),
    Mtp(Box<MtpHead<'m>>),
}

impl<'m> Proposer<'m> {
    fn new(by: By<'m>, model: &'m Model, vocab: usize) -> Proposer<'m> {
        let (accepted, seconds) = (Mean::guess(0.7, 3), Mean::guess(0.0, 0));
        Proposer { by, model, vocab, accepted, seconds, since: 0, wanted: true, failed: false }
    }

    /// Lets `draft` propose for `model`, in sequences of up to `context` tokens.
    ///
    /// # Errors
    /// `draft` has other tokens, or the system does not provide the memory for its sequence.
    pub(super) fn with_model(
        draft: &'m Model,
        model: &'m Model,
        context: usize,
    ) -> Result<Proposer<'m>, ModelError> {
        let vocab = draft.spec().vocab.min(model.spec().vocab);
        let by = By::Model(Box::new(DraftModel::new(draft, model, context)?));
        Ok(Proposer::new(by, model, vocab))
    }

    /// Lets the model's own MTP layer propose, if its file has one.
    ///
    /// # Errors
    /// The system does not provide the memory for its keys and values.
    pub(super) fn with_mtp(
        model: &'m Model,
        context: usize,
    ) -> Result<Option<Proposer<'m>>, ModelError> {
        let head = MtpHead::new(model, context)?;
        let vocab = model.spec().vocab;
        Ok(head.map(|head| Proposer::new(By::Mtp(Box::new(head)), model, vocab)))
    }

    /// The model's own layer, which has to be shown everything that the model computes.
    pub(super) fn mtp(&mut self) -> Option<&mut MtpHead<'m>> {
        match &mut self.by {
            By::Mtp(head) if self.wanted => Some(head),
            By::Mtp(_) | By::Model(_) => None,
        }
    }

    /// Lets `cancel` end its steps early.
    pub(super) fn cancel_by(&mut self, cancel: Cancel) {
        match &mut self.by {
            By::Model(model) => model.cancel_by(cancel),
            By::Mtp(head) => head.cancel_by(cancel),
        }
    }

    /// Begins another sequence, which uses proposals if `wanted`.
    pub(super) fn begin_sequence(&mut self, wanted: bool) {
        (self.failed, self.wanted) = (false, wanted);
        if let By::Mtp(head) = &mut self.by {
            head.clear();
        }
    }

    /// Returns the number of tokens that a draft should have, at most `most`.
    fn length(&mut self, speculate: Speculate, planner: &StepPlanner, most: usize) -> usize {
        self.since += 1;
        let seconds = (self.seconds.count() > 0).then(|| self.seconds.value());
        match planner.length(speculate, self.accepted.value(), seconds) {
            0 if speculate == Speculate::Auto && self.since > RETRY => 1.min(most),
            length => length.min(most),
        }
    }

    /// Writes a proposal for the tokens after `tokens` to the beginning of `draft`; returns its number of tokens. A long sequence that a draft model
    /// has not seen is read in several calls, the last of which proposes something.
    ///
    /// A proposer may fail: a token that it does not have, logits that are not numbers, a file that has shrunk. That is not an error of the answer,
    /// which needs no proposals.
    pub(super) fn propose(
        &mut self,
        speculate: Speculate,
        planner: &mut StepPlanner,
        tokens: &[u32],
        most: usize,
        draft: &mut [u32; MAX_DRAFT],
    ) -> usize {
        let wanted = self.length(speculate, planner, most.min(MAX_DRAFT));
        if wanted == 0 || tokens.is_empty() || self.failed {
            return 0;
        }
        let proposed = self.compute(speculate, planner, tokens, &mut draft[..wanted]);
        // A cancelled step says nothing about those after it.
        self.failed = matches!(&proposed, Err(error) if !matches!(error, ModelError::Cancelled));
        proposed.unwrap_or(0)
    }

    /// Computes a proposal of at most `draft.len()` tokens.
    fn compute(
        &mut self,
        speculate: Speculate,
        planner: &mut StepPlanner,
        tokens: &[u32],
        draft: &mut [u32],
    ) -> Result<usize, ModelError> {
        let ready = match &mut self.by {
            By::Model(model) => model.catch_up(tokens)?,
            By::Mtp(head) => head.has_seen(tokens.len() - 1),
        };
        if !ready {
            return Ok(0);
        }
        self.since = 0;
        let began = Instant::now();
        match &mut self.by {
            By::Model(model) => model.begin(tokens)?,
            By::Mtp(head) => head.begin(tokens[tokens.len() - 1])?,
        }
        let mut length = 0;
        while let Some(next) = self.likeliest(speculate == Speculate::Auto) {
            draft[length] = next;
            length += 1;
            if length == draft.len() {
                break;
            }
            match &mut self.by {
                By::Model(model) => model.decode(next)?,
                By::Mtp(head) => head.decode(next)?,
            }
        }
        let took = began.elapsed().as_secs_f64();
        self.seconds.add(took / length.max(1) as f64);
        planner.add(length, self.accepted.value(), took);
        Ok(length)
    }

    /// Returns the most likely next token, unless it is an end token or, if `counts`, not likely enough.
    fn likeliest(&self, counts: bool) -> Option<u32> {
        let (logits, has_room) = match &self.by {
            By::Model(model) => (model.logits(), model.has_room()),
            By::Mtp(head) => (head.logits(), head.has_room()),
        };
        let logits = &logits[..self.vocab];
        let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let next = logits.iter().position(|logit| *logit == greatest)? as u32;
        let sum: f32 = logits.iter().map(|logit| (logit - greatest).exp()).sum();
        let likely = !counts || 1.0 >= MIN_PROBABILITY * sum;
        (likely && !self.model.tokenizer().is_end(next) && has_room).then_some(next)
    }

    /// Records the number of accepted tokens of a draft, and whether the token after them was rejected.
    pub(super) fn learn(&mut self, came: usize, other: bool) {
        (0..came).for_each(|_| self.accepted.add(1.0));
        if other {
            self.accepted.add(0.0);
        }
    }
}
