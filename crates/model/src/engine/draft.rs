//! A draft model: a small model with the tokens of a large one, which proposes what that one may choose next. What it proposes is
//! computed and sampled like every other draft ([`speculate`](super::speculate)), so it changes no answer, whatever it says.

use std::time::Instant;

use super::session::{Session, SessionOptions};
use super::speculate::{MOST_DRAFT, Mean, Speculate, StepPlan};
use crate::error::ModelError;
use crate::open::Model;

/// Tokens that are not as likely, by the draft model, end a draft.
const LEAST_PROBABILITY: f32 = 0.4;
/// Where drafts do not pay, one is tried after so many tokens.
const RETRY: usize = 64;
/// So many tokens that the draft model has not seen are fed in one call.
const FEW: usize = 16;
/// So many tokens that the draft model has not seen are fed between two steps, so that no step waits long.
const MOST_READ: usize = 256;
/// Vocabularies may differ by so many tokens at their ends, where some files have padding.
const MOST_PADDING: usize = 128;

/// The draft model's own sequence, and what is known of its drafts.
pub(super) struct DraftModel<'m> {
    session: Session<'m>,
    /// How many tokens both have.
    vocab: usize,
    /// How often a proposed token has come lately.
    accepted: Mean,
    /// Seconds that a proposed token takes.
    seconds: Mean,
    /// Steps since the last draft.
    since: usize,
}

impl<'m> DraftModel<'m> {
    /// `draft` proposes for `model`, in sequences of up to `context` tokens.
    pub(super) fn new(
        draft: &'m Model,
        model: &Model,
        context: usize,
    ) -> Result<DraftModel<'m>, ModelError> {
        if let Some(why) = other_tokens(draft, model) {
            let (draft, model) = (draft.name().to_owned(), model.name().to_owned());
            return Err(ModelError::Draft { draft, model, why });
        }
        let options = SessionOptions { context: Some(context), ..SessionOptions::default() };
        Ok(DraftModel {
            session: Session::new(draft, &options)?,
            vocab: draft.spec().vocab.min(model.spec().vocab),
            accepted: Mean::guess(0.7, 3),
            seconds: Mean::guess(0.0, 0),
            since: 0,
        })
    }

    /// How many tokens a draft should have, at most `most`.
    fn length(&mut self, speculate: Speculate, plan: &StepPlan<'_>, most: usize) -> usize {
        self.since += 1;
        let seconds = (self.seconds.count() > 0).then(|| self.seconds.value());
        match plan.length(speculate, self.accepted.value(), seconds) {
            0 if speculate == Speculate::Auto && self.since > RETRY => 1.min(most),
            length => length.min(most),
        }
    }

    /// Proposes what follows `tokens`, into the beginning of `draft`; returns how many tokens. A long sequence that the draft model has
    /// not seen is read in several calls, the last of which proposes something.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub(super) fn propose(
        &mut self,
        speculate: Speculate,
        plan: &mut StepPlan<'_>,
        tokens: &[u32],
        most: usize,
        draft: &mut [u32; MOST_DRAFT],
    ) -> Result<usize, ModelError> {
        let wanted = self.length(speculate, plan, most);
        if wanted == 0 || tokens.is_empty() {
            return Ok(0);
        }
        if !self.catch_up(tokens)? {
            return Ok(0);
        }
        self.since = 0;
        let began = Instant::now();
        self.session.feed(&tokens[self.session.position()..])?;
        let mut length = 0;
        while let Some(next) = self.likeliest(speculate == Speculate::Auto) {
            draft[length] = next;
            length += 1;
            if length == wanted {
                break;
            }
            self.session.decode(next)?;
        }
        let took = began.elapsed().as_secs_f64();
        self.seconds.add(took / length.max(1) as f64);
        plan.add(length, self.accepted.value(), took);
        Ok(length)
    }

    /// Makes the sequence the beginning of `tokens`, of which a few at most are missing then. Returns whether it has come so far: some
    /// are read in each call.
    fn catch_up(&mut self, tokens: &[u32]) -> Result<bool, ModelError> {
        let own = self.session.tokens();
        let common = own.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        // The last token's logits are wanted.
        let kept = self.session.truncate(common.min(tokens.len() - 1));
        let missing = &tokens[kept..];
        if missing.len() > FEW {
            let read = (missing.len() - 1).min(MOST_READ);
            self.session.prefill(&missing[..read])?;
            return Ok(read + 1 == missing.len());
        }
        Ok(true)
    }

    /// The likeliest next token, if it is no end; and if it is likely, where that counts.
    fn likeliest(&self, counts: bool) -> Option<u32> {
        let logits = &self.session.logits()[..self.vocab];
        let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let next = logits.iter().position(|logit| *logit == greatest)? as u32;
        let sum: f32 = logits.iter().map(|logit| (logit - greatest).exp()).sum();
        let likely = !counts || 1.0 >= LEAST_PROBABILITY * sum;
        let end = self.session.model().tokenizer().is_end(next);
        (likely && !end && self.session.position() < self.session.context()).then_some(next)
    }

    /// Remembers whether a token that was proposed has come.
    pub(super) fn came(&mut self, as_proposed: bool) {
        self.accepted.add(f64::from(u8::from(as_proposed)));
    }
}

/// Why `draft` cannot propose tokens of `model`, if it has other ones.
fn other_tokens(draft: &Model, model: &Model) -> Option<String> {
    let [theirs, ours] = [draft, model].map(Model::tokenizer);
    let [there, here] = [theirs, ours].map(|tokenizer| tokenizer.vocab_size());
    if there.abs_diff(here) > MOST_PADDING {
        return Some(format!("it has {there} tokens, and the other {here}"));
    }
    let differs = |id: &u32| theirs.token_text(*id) != ours.token_text(*id);
    let id = (0..there.min(here) as u32).find(differs)?;
    let [there, here] =
        [theirs, ours].map(|t| String::from_utf8_lossy(t.token_text(id)).into_owned());
    Some(format!("its token {id} is {there:?}, and the other's {here:?}"))
}
