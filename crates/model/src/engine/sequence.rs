//! A sequence of tokens: how far it is computed, and how it continues. A [`Session`](super::Session) has one, an [`Engine`](super::Engine) has one
//! for each active request.

use std::ops::{ControlFlow, Range};

use alight_text::Tokenizer;

use super::drafter::Drafter;
use super::generate::Finish;
use super::request::{Constraint, mask};
use super::sampler::Sampler;
use crate::adapters::AdapterSet;
use crate::error::ModelError;

/// The tokens of a sequence, in this order: computed tokens, prompt tokens that are not computed yet, and at most one generated token that is not
/// computed yet (the pending one).
pub(super) struct Sequence {
    /// Index of the sequence in the cache.
    pub(super) index: usize,
    tokens: Vec<u32>,
    /// The number of tokens that the cache holds, or will hold after the step.
    computed: usize,
    /// True if the last token was generated and is not computed yet.
    pending: bool,
    /// The number of tokens at the beginning that are computed as prompt tokens.
    prompt: usize,
    /// The number of tokens at the beginning that were computed before, for another sequence or by another process.
    reused: usize,
    /// Maximum length of a sequence that is not long, if the model rotates long ones differently.
    original: Option<usize>,
    /// True if the sequence is long. When it becomes long, or short again, all of it is computed again, as the model would have computed it from the
    /// beginning: the result depends on the tokens alone, and not on the configured context.
    long: bool,
    /// Rows that begin with vectors instead of tokens, in order; the tokens in their places have no meaning.
    vectors: Vec<VectorSpan>,
    /// The position at which the second segment begins, if there is one.
    pub(super) second_segment: Option<usize>,
    /// The proposer of drafts, while drafts are requested.
    pub(super) drafter: Option<Drafter>,
    /// The adapters of its projections.
    pub(super) adapters: AdapterSet,
}

/// Consecutive rows that begin with vectors.
pub(super) struct VectorSpan {
    /// The positions of the rows.
    pub(super) positions: Range<usize>,
    /// `[rows, hidden]`
    pub(super) values: Vec<f32>,
    /// True if the rows attend to each other, and not only to those before them.
    pub(super) is_group: bool,
}

impl Sequence {
    /// Creates an empty sequence, with memory for `capacity` tokens.
    pub(super) fn new(index: usize, original: Option<usize>, capacity: usize) -> Sequence {
        Sequence {
            index,
            tokens: Vec::with_capacity(capacity),
            computed: 0,
            pending: false,
            prompt: 0,
            reused: 0,
            original,
            long: false,
            vectors: Vec::new(),
            second_segment: None,
            drafter: None,
            adapters: AdapterSet::default(),
        }
    }

    /// All tokens.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn computed(&self) -> usize {
        self.computed
    }

    pub(super) fn is_pending(&self) -> bool {
        self.pending
    }

    pub(super) fn reused(&self) -> usize {
        self.reused
    }

    pub(super) fn is_long(&self) -> bool {
        self.long
    }

    /// Returns true if the sequence is long with `n` tokens.
    pub(super) fn is_long_with(&self, n: usize) -> bool {
        self.original.is_some_and(|original| n > original)
    }

    /// The number of prompt tokens that are not computed yet.
    pub(super) fn unread(&self) -> usize {
        self.tokens.len() - usize::from(self.pending) - self.computed
    }

    /// The tokens at the beginning that are computed as prompt tokens. Only these are shared: generated tokens are computed differently.
    pub(super) fn read(&self) -> &[u32] {
        let before_vectors = self.vectors.first().map_or(usize::MAX, |span| span.positions.start);
        &self.tokens[..self.computed.min(self.prompt).min(before_vectors)]
    }

    /// The prompt tokens whose results may be reused: all but the last, whose logits are needed.
    pub(super) fn reusable(&self) -> &[u32] {
        &self.tokens[..self.tokens.len().saturating_sub(1)]
    }

    /// Appends tokens of a prompt; nothing is pending.
    pub(super) fn append(&mut self, tokens: &[u32]) {
        debug_assert!(!self.pending, "a pending token is the last one");
        if self.prompt == self.tokens.len() {
            self.prompt += tokens.len();
        }
        self.tokens.extend_from_slice(tokens);
    }

    /// Appends rows of a prompt that begin with `values` `[rows, hidden]`; nothing is pending.
    pub(super) fn append_vectors(&mut self, values: &[f32], hidden: usize, is_group: bool) {
        let start = self.tokens.len();
        let rows = values.len() / hidden;
        if self.prompt == start {
            self.prompt += rows;
        }
        self.tokens.resize(start + rows, 0);
        let positions = start..start + rows;
        self.vectors.push(VectorSpan { positions, values: values.to_vec(), is_group });
    }

    /// Returns the spans of vectors that overlap these positions.
    pub(super) fn vectors_at(&self, positions: Range<usize>) -> impl Iterator<Item = &VectorSpan> {
        let some = move |span: &&VectorSpan| {
            span.positions.start < positions.end && positions.start < span.positions.end
        };
        self.vectors.iter().filter(some)
    }

    /// The last position up to `n` at which the sequence can be truncated: rows that attend to each other are kept or dropped as a whole.
    pub(super) fn last_cut(&self, n: usize) -> usize {
        let cut = |span: &&VectorSpan| {
            span.is_group && span.positions.start < n && n < span.positions.end
        };
        self.vectors.iter().find(cut).map_or(n, |span| span.positions.start)
    }

    /// Appends a generated token that is not computed yet; all others are computed.
    pub(super) fn push(&mut self, token: u32) {
        debug_assert!(!self.pending && self.unread() == 0, "all others are computed");
        self.tokens.push(token);
        self.pending = true;
    }

    /// Marks the first `n` tokens, none of which was computed here, as computed before.
    pub(super) fn reuse(&mut self, n: usize) {
        self.reused += n - self.computed;
        self.computed = n;
    }

    /// Marks the reused tokens as reliable.
    pub(super) fn trust(&mut self) {
        self.reused = 0;
    }

    /// Returns the next `rows` prompt tokens, which then count as computed, and the number of tokens before them.
    pub(super) fn read_next(&mut self, rows: usize) -> (usize, &[u32]) {
        let position = self.computed;
        self.computed += rows;
        (position, &self.tokens[position..self.computed])
    }

    /// Returns the pending token, which then counts as computed, and the number of tokens before it.
    pub(super) fn take_pending(&mut self) -> (usize, u32) {
        debug_assert!(
            self.pending && self.unread() == 0,
            "a token that is the next one to compute"
        );
        let position = self.computed;
        (self.pending, self.computed) = (false, position + 1);
        (position, self.tokens[position])
    }

    /// Undoes [`Sequence::take_pending`] after the step has failed: the token is pending again, without a draft.
    pub(super) fn undo_pending(&mut self) {
        (self.computed, self.pending) = (self.tokens.len() - 1, true);
        if let Some(drafter) = &mut self.drafter {
            drafter.end();
        }
    }

    /// Undoes [`Sequence::read_next`] from position `n` on after the step has failed.
    pub(super) fn unread_from(&mut self, n: usize) {
        self.computed = n;
    }

    /// Marks all tokens as not computed and not reused.
    pub(super) fn begin_again(&mut self) {
        (self.computed, self.reused) = (0, 0);
    }

    /// Makes the sequence long or short as the model does with `n` tokens. Returns true if that has changed: then all of it has to be computed again,
    /// as a prompt.
    pub(super) fn set_length(&mut self, n: usize) -> bool {
        let long = self.is_long_with(n);
        let changed = long != self.long;
        self.long = long;
        if changed && self.computed > 0 {
            self.begin_again();
            self.prompt = self.tokens.len() - usize::from(self.pending);
            return true;
        }
        false
    }

    /// The maximum length of a draft after the pending token, in a context of `context` positions.
    pub(super) fn max_draft(&self, context: usize) -> usize {
        // If a draft made the sequence long, it would have to be computed again.
        let short = self.original.filter(|_| !self.long);
        let end = short.map_or(context, |original| original.min(context));
        end.saturating_sub(self.tokens.len())
    }

    /// Forgets the tokens from position `n` on.
    pub(super) fn truncate(&mut self, n: usize) {
        if n < self.tokens.len() {
            self.tokens.truncate(n);
            self.pending = false;
            self.computed = self.computed.min(n);
            self.prompt = self.prompt.min(n);
            self.reused = self.reused.min(n);
            self.vectors.retain(|span| span.positions.start < n);
            if let Some(last) = self.vectors.last_mut() {
                let width = last.values.len() / last.positions.len();
                last.positions.end = last.positions.end.min(n);
                last.values.truncate(last.positions.len() * width);
            }
        }
    }

    /// Appends a chosen token. It is already computed if it is the next one of a draft, otherwise it is pending.
    fn choose(&mut self, token: u32) {
        let drafted = self.drafter.as_mut().is_some_and(|drafter| drafter.came(token));
        self.push(token);
        if drafted {
            self.take_pending();
        }
    }
}

/// How the next token of an answer is chosen, and when the answer ends.
pub(super) struct Choice<'c> {
    pub(super) sampler: &'c mut Sampler,
    pub(super) constraint: Option<&'c mut dyn Constraint>,
    /// `[vocab]`, with a constraint: the logits after masking.
    pub(super) masked: &'c mut [f32],
    pub(super) tokenizer: &'c Tokenizer,
    pub(super) max_tokens: usize,
    pub(super) ignore_eos: bool,
    /// Maximum number of positions of the sequence.
    pub(super) context: usize,
}

impl Choice<'_> {
    /// Returns the sampler if nothing else looks at the logits.
    pub(super) fn only_sampler(&mut self) -> Option<&mut Sampler> {
        self.constraint.is_none().then_some(&mut *self.sampler)
    }

    /// Chooses the token that follows `sequence`, after `generated` tokens of the answer, by `logits` `[vocab]`, and hands it out. Returns why the
    /// answer ends, if it does. A token that does not fit in the context is handed out, but not appended to the sequence.
    ///
    /// # Errors
    /// The constraint has no mask.
    pub(super) fn next(
        &mut self,
        sequence: &mut Sequence,
        generated: &mut usize,
        logits: &[f32],
        on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Option<Finish>, ModelError> {
        if *generated == self.max_tokens {
            return Ok(Some(Finish::Length));
        }
        let logits = mask(self.constraint.as_deref_mut(), logits, self.masked)?;
        let token = self.sampler.sample(logits);
        if !self.ignore_eos && self.tokenizer.is_end(token) {
            return Ok(Some(Finish::Stop));
        }
        self.sampler.accept(token);
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token);
        }
        *generated += 1;
        let fits = sequence.len() < self.context;
        if fits {
            sequence.choose(token);
        }
        if on_token(token).is_break() {
            return Ok(Some(Finish::Interrupted));
        }
        if *generated == self.max_tokens {
            return Ok(Some(Finish::Length));
        }
        Ok((!fits).then_some(Finish::ContextFull))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_knows_what_is_computed_of_it() {
        let mut sequence = Sequence::new(0, None, 10);
        sequence.append(&[1, 2, 3]);
        assert_eq!((sequence.unread(), sequence.reusable()), (3, &[1, 2][..]));
        sequence.reuse(1);
        assert_eq!(sequence.read_next(2), (1, &[2, 3][..]));
        sequence.push(4);
        assert_eq!((sequence.unread(), sequence.is_pending()), (0, true));
        assert_eq!((sequence.take_pending(), sequence.computed()), ((3, 4), 4));
        sequence.append(&[5]);
        assert_eq!(
            (sequence.unread(), sequence.read()),
            (1, &[1, 2, 3][..]),
            "only the first prompt is shared"
        );
        sequence.truncate(2);
        assert_eq!(
            (sequence.tokens(), sequence.read(), sequence.reused()),
            (&[1, 2][..], &[1, 2][..], 1)
        );
    }

    #[test]
    fn rows_that_see_each_other_are_not_cut() {
        let mut sequence = Sequence::new(0, None, 10);
        sequence.append(&[1, 2]);
        sequence.append_vectors(&[0.5; 6], 2, true);
        sequence.append_vectors(&[0.25; 4], 2, false);
        sequence.append(&[3]);
        let cuts: Vec<_> = (0..=8).map(|n| sequence.last_cut(n)).collect();
        assert_eq!(cuts, [0, 1, 2, 2, 2, 5, 6, 7, 8]);
        let at = |sequence: &Sequence, positions| {
            sequence.vectors_at(positions).map(|span| span.positions.clone()).collect::<Vec<_>>()
        };
        assert_eq!(at(&sequence, 0..2), []);
        assert_eq!(at(&sequence, 4..6), [2..5, 5..7]);
        sequence.read_next(8);
        assert_eq!(sequence.read(), [1, 2], "no vector is shared");
        sequence.truncate(6);
        assert_eq!(at(&sequence, 0..8), [2..5, 5..6]);
        assert_eq!(sequence.vectors[1].values, [0.25; 2]);
        sequence.truncate(2);
        assert_eq!((at(&sequence, 0..8), sequence.read()), (vec![], &[1, 2][..]));
    }

    #[test]
    fn a_sequence_that_becomes_long_is_read_again() {
        let mut sequence = Sequence::new(0, Some(4), 10);
        sequence.append(&[1, 2, 3]);
        assert!(!sequence.set_length(3));
        sequence.read_next(3);
        sequence.push(4);
        assert!(!sequence.set_length(4));
        assert_eq!(sequence.max_draft(10), 0, "a draft makes no sequence long");
        sequence.take_pending();
        sequence.push(5);
        assert!(sequence.set_length(5));
        assert_eq!((sequence.unread(), sequence.is_pending(), sequence.is_long()), (4, true, true));
        assert_eq!(sequence.max_draft(10), 5);
        sequence.read_next(4);
        assert_eq!(sequence.read(), [1, 2, 3, 4], "all that was read again is a prompt's");
        sequence.truncate(3);
        assert!(sequence.set_length(4));
        assert_eq!((sequence.unread(), sequence.is_long()), (3, false));
    }
}
