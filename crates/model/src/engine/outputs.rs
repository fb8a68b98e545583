//! The outputs of a step of an [`Engine`](super::Engine): tokens, logits and embeddings of prompts, and reading progress.

use std::ops::{ControlFlow, Range};

use alight_kernels::vec;

use super::active::ActiveRequest;
use super::prompt_store;
use super::request::{Event, OfPrompt, RequestId};
use super::runner::{Runner, numbers};
use super::sequence::Choice;
use crate::error::ModelError;
use crate::open::Model;
use crate::parts::batch::Role;
use crate::spec::Pooling;

/// The callback that receives the events of requests.
pub(super) type OnEvent<'e> = &'e mut dyn FnMut(RequestId, Event<'_>);

/// Scratch memory for outputs.
pub(super) struct Outputs {
    /// `[vocab]`: logits masked by a constraint.
    masked: Vec<f32>,
    /// `[hidden]`: the final hidden state of a row.
    hidden: Vec<f32>,
    /// A vector while the head is applied to it, and scratch for that.
    vectors: [Vec<f32>; 2],
    pub(super) drafts: DraftCounts,
}

/// Numbers of drafts and their tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Drafts.
    pub drafts: u64,
    /// Tokens that were proposed, and computed.
    pub proposed: u64,
    /// Those of them that are in an answer.
    pub accepted: u64,
}

impl Outputs {
    pub(super) fn new(model: &Model) -> Outputs {
        let spec = model.spec();
        Outputs {
            masked: vec![0.0; spec.vocab],
            hidden: vec![0.0; spec.hidden_size],
            vectors: [Vec::new(), Vec::new()],
            drafts: DraftCounts::default(),
        }
    }

    /// Chooses the next tokens of a request by the logits of its pending row and of its draft rows, and hands them out. Returns the number of those
    /// rows. A request that has ended is removed.
    pub(super) fn hand_out_tokens(
        &mut self,
        runner: &mut Runner<'_>,
        place: &mut Option<ActiveRequest>,
        row: usize,
        on_event: OnEvent<'_>,
    ) -> usize {
        let Some(active) = place else { return 0 };
        let drafted = active.sequence.drafter.as_ref().map_or(0, |drafter| drafter.draft().len());
        self.drafts.drafts += u64::from(drafted > 0);
        self.drafts.proposed += drafted as u64;
        for i in 0..=drafted {
            // A row after the first was computed from draft tokens up to its own, all of which the answer has.
            self.drafts.accepted += u64::from(i > 0);
            let goes_on = self.hand_out_token(runner, place, row + i, on_event);
            let chosen = |active: &ActiveRequest| active.sequence.is_pending();
            if !goes_on || place.as_ref().is_none_or(chosen) {
                break;
            }
        }
        if let Some(active) = place {
            runner.end_draft(&mut active.sequence);
        }
        1 + drafted
    }

    /// Chooses a token of a request by a row of logits, and hands it out. Returns true if the request continues.
    fn hand_out_token(
        &mut self,
        runner: &mut Runner<'_>,
        place: &mut Option<ActiveRequest>,
        row: usize,
        on_event: OnEvent<'_>,
    ) -> bool {
        let Some(active) = place else { return false };
        let id = active.id;
        let are_numbers = runner.check_numbers(row, active.sequence.computed() - 1);
        if active.generated == 0 {
            if are_numbers.is_err() && active.sequence.reused() > 0 {
                active.begin_cold();
                runner.cache.clear(active.sequence.index);
                return false;
            }
            let (reused, place) = (active.sequence.reused(), active.sequence.index);
            on_event(id, Event::Prompt { reused, place });
            active.sequence.tokens().iter().for_each(|token| active.sampler.accept(*token));
        }
        let logits = runner.logits(row);
        let mut choice = Choice {
            sampler: &mut active.sampler,
            constraint: active.constraint.as_deref_mut().map(|constraint| constraint as _),
            masked: &mut self.masked,
            tokenizer: runner.model.tokenizer(),
            max_tokens: active.request.max_tokens,
            ignore_eos: active.request.ignore_eos,
            context: runner.context(),
        };
        let mut on_token = |token| {
            on_event(id, Event::Token(token, logits));
            ControlFlow::Continue(())
        };
        let next = are_numbers.and_then(|()| {
            choice.next(&mut active.sequence, &mut active.generated, logits, &mut on_token)
        });
        let event = match next {
            Ok(None) => return true,
            Ok(Some(finish)) => Event::Finished(finish),
            Err(error) => Event::Failed(error),
        };
        leave(runner, place);
        on_event(id, event);
        false
    }

    /// Hands out the requested outputs of the prompt rows that a step has read, and the reading progress. The first `asked` rows of the step's logits
    /// belong to answers.
    ///
    /// # Errors
    /// As [`Runner::run`].
    pub(super) fn hand_out_prompts(
        &mut self,
        runner: &mut Runner<'_>,
        places: &mut [Option<ActiveRequest>],
        asked: usize,
        on_event: OnEvent<'_>,
    ) -> Result<(), ModelError> {
        for i in 0..runner.spans().len() {
            let span = &runner.spans()[i];
            let (position, rows) = (span.position, span.rows.clone());
            let place = &mut places[span.sequence];
            if span.role == Role::Decode {
                continue;
            }
            let Some(active) = place else { continue };
            let id = active.id;
            if rows.start >= asked {
                let done = match active.request.of_prompt {
                    OfPrompt::Nothing => Ok(()),
                    OfPrompt::Logits => runner
                        .each_logits(rows, position, &mut |position, logits| {
                            on_event(id, Event::PromptLogits { position, logits });
                        })
                        .map(|_| ()),
                    OfPrompt::Embedding(_) => {
                        self.hand_out_embedding(runner, place, rows, on_event)
                    }
                };
                match done {
                    Ok(()) => {}
                    Err(error @ ModelError::NotNumbers { .. }) => {
                        leave(runner, place);
                        on_event(id, Event::Failed(error));
                    }
                    Err(error) => return Err(error),
                }
            }
            let Some(active) = place else { continue };
            if active.sequence.unread() > 0 && active.generated == 0 {
                let (read, reused) = (active.sequence.computed(), active.sequence.reused());
                on_event(id, Event::Reading { read, reused });
            }
        }
        Ok(())
    }

    /// Adds rows of a prompt to its embedding, and hands it out at the end of the prompt.
    ///
    /// # Errors
    /// The embedding contains values that are not numbers.
    fn hand_out_embedding(
        &mut self,
        runner: &mut Runner<'_>,
        place: &mut Option<ActiveRequest>,
        rows: Range<usize>,
        on_event: OnEvent<'_>,
    ) -> Result<(), ModelError> {
        let Some(active) = place else { return Ok(()) };
        let isa = runner.model.isa();
        let [vector, scratch] = &mut self.vectors;
        for row in rows {
            runner.hidden(row, &mut self.hidden);
            if active.states == Some(Pooling::None) {
                vector.clone_from(&self.hidden);
                runner.apply_head(false, vector, scratch);
                active.embedding.extend_from_slice(vector);
            } else {
                vec::add_assign(isa, &mut active.embedding, &self.hidden);
            }
        }
        if active.sequence.unread() > 0 {
            return Ok(());
        }
        if active.states == Some(Pooling::Mean) {
            vec::scale(isa, &mut active.embedding, 1.0 / active.sequence.len() as f32);
        }
        let last = active.sequence.computed() - 1;
        let mut checked = numbers(runner.model, &active.embedding, last);
        if checked.is_ok() && active.states != Some(Pooling::None) {
            runner.apply_head(active.request.wants_scores(), &mut active.embedding, scratch);
            checked = numbers(runner.model, &active.embedding, last);
        }
        if let Err(error) = checked {
            if active.sequence.reused() == 0 {
                return Err(error);
            }
            active.begin_cold();
            runner.cache.clear(active.sequence.index);
            return Ok(());
        }
        let (id, embedding) = (active.id, std::mem::take(&mut active.embedding));
        leave(runner, place);
        on_event(id, Event::Embedding(&embedding));
        Ok(())
    }
}

/// Frees the place of a request. The computed part of its prompt stays in the index.
pub(super) fn leave(runner: &mut Runner<'_>, place: &mut Option<ActiveRequest>) {
    if let Some(mut active) = place.take() {
        prompt_store::index(runner, &mut active, true);
        runner.cache.clear(active.sequence.index);
    }
}
