//! A draft model: a small model with the tokens of a large one, which follows a sequence of the large one.

use super::session::{Session, SessionOptions};
use crate::cancel::Cancel;
use crate::error::ModelError;
use crate::open::Model;

/// Maximum number of unseen tokens that the draft model is fed in the call that drafts.
const FEW: usize = 16;
/// Maximum number of unseen tokens that the draft model is fed between two steps, so that no step is delayed for long.
const MAX_READ: usize = 256;
/// Maximum difference in size of the vocabularies: some files have padding at the end.
const MAX_PADDING: usize = 128;

/// The draft model's own sequence.
pub(super) struct DraftModel<'m>(Session<'m>);

impl<'m> DraftModel<'m> {
    /// Creates a draft model that follows sequences of `model` of up to `context` tokens.
    ///
    /// # Errors
    /// `draft` has other tokens, or the system does not provide the memory for its sequence.
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
        Session::new(draft, &options).map(DraftModel)
    }

    /// Lets `cancel` end its steps early.
    pub(super) fn cancel_by(&mut self, cancel: Cancel) {
        self.0.cancel_by(cancel);
    }

    /// Makes the sequence a prefix of `tokens` that lacks at most a few of them. Returns true if that is reached: each call reads a limited number of
    /// tokens.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub(super) fn catch_up(&mut self, tokens: &[u32]) -> Result<bool, ModelError> {
        let own = self.0.tokens();
        let common = own.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        // The last token's logits are needed.
        let kept = self.0.truncate(common.min(tokens.len() - 1));
        let missing = &tokens[kept..];
        if missing.len() > FEW {
            let read = (missing.len() - 1).min(MAX_READ);
            self.0.prefill(&missing[..read])?;
            return Ok(read + 1 == missing.len());
        }
        Ok(true)
    }

    /// Appends the missing tokens of `tokens`.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub(super) fn begin(&mut self, tokens: &[u32]) -> Result<(), ModelError> {
        self.0.feed(&tokens[self.0.position()..])?;
        Ok(())
    }

    /// Appends a token of the draft.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub(super) fn decode(&mut self, token: u32) -> Result<(), ModelError> {
        self.0.decode(token)?;
        Ok(())
    }

    /// The logits of the next token.
    pub(super) fn logits(&self) -> &[f32] {
        self.0.logits()
    }

    /// Returns true if another token fits.
    pub(super) fn has_room(&self) -> bool {
        self.0.position() < self.0.context()
    }
}

/// Returns why `draft` cannot propose tokens of `model`, if their tokens differ.
fn other_tokens(draft: &Model, model: &Model) -> Option<String> {
    let [theirs, ours] = [draft, model].map(Model::tokenizer);
    let [there, here] = [theirs, ours].map(|tokenizer| tokenizer.vocab_size());
    if there.abs_diff(here) > MAX_PADDING {
        return Some(format!("it has {there} tokens, and the other {here}"));
    }
    let mut texts = theirs.token_texts().zip(ours.token_texts()).enumerate();
    let (id, (there, here)) = texts.find(|(_, (there, here))| there != here)?;
    let [there, here] = [there, here].map(String::from_utf8_lossy);
    Some(format!("its token {id} is {there:?}, and the other's {here:?}"))
}
