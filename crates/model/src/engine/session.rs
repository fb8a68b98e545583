//! One sequence of tokens on a model, which the caller feeds, decodes and truncates.

use std::ops::ControlFlow;
use std::path::PathBuf;

use alight_kernels::Isa;
use alight_kernels::attention::KvType;
use alight_kernels::matmul::Precision;

use super::best::OutputCounts;
use super::drafter::Drafter;
use super::generate::Finish;
use super::runner::{Restored, Runner, RunnerOptions, SNAPSHOT_EVERY, admit};
use super::sampler::Sampler;
use super::sequence::{Choice, Sequence};
use super::speculate::{MAX_DRAFT, Speculate};
use crate::adapters::AdapterSet;
use crate::cancel::Cancel;
use crate::error::ModelError;
use crate::open::Model;
use crate::parts::batch::LogitRows;
use crate::prompts::{MIN_TOKENS, PromptFolder, PromptWriteError, Rounding};
use crate::spec::USUAL_BATCH;

/// Limits and number formats of a session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Maximum number of positions; `None`: [`DEFAULT_CONTEXT`], or the model's training context if that is smaller. A larger context than the model
    /// was trained for is allowed, and rarely useful.
    pub context: Option<usize>,
    /// Maximum number of prompt tokens that are computed together. Larger batches use more memory and are hardly faster.
    pub batch: usize,
    /// How activations of prompts are rounded, for quantised weights. Those of generated tokens have 16 bits.
    pub prompt_precision: Precision,
    /// Number format of keys and values.
    pub cache_type: KvType,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            context: None,
            batch: USUAL_BATCH,
            prompt_precision: Precision::Bits8,
            cache_type: KvType::F16,
        }
    }
}

/// A sequence of tokens on a model: prompt tokens are fed ([`Session::feed`]), in any number of calls, and generated tokens are decoded
/// ([`Session::decode`]). The result for a token depends on the tokens before it and on whether it is fed or decoded; not on the number of tokens fed
/// in a call.
///
/// After [`Session::new`], feeding allocates nothing. An error leaves the sequence as it was before the call, or shorter if the model has recurrent
/// layers, whose states have already consumed the fed tokens, or layers with a window, which have given back what they saw before: the sequence then
/// goes back to the latest of its places ([`Session::position`] returns the new length).
///
/// Places are kept at the end of each call that feeds more than one token, and every 2048 tokens; four of them at most, or the latest two of a model without
/// recurrent layers.
pub struct Session<'m> {
    runner: Runner<'m>,
    sequence: Sequence,
    /// Maximum number of prompt tokens that are computed together.
    batch: usize,
    /// The row of the runner's logits that holds those of the last call.
    row: usize,
}

/// Callback for the logits of prompt tokens: the index of the token among those fed, and `[vocab]`.
type EachLogits<'f> = &'f mut dyn FnMut(usize, &[f32]);

impl<'m> Session<'m> {
    /// Creates an empty sequence. Address space is reserved for the whole context, and memory is used only as the sequence grows.
    ///
    /// # Errors
    /// A context or batch of 0 or beyond the limits, a cache type that the model does not support, or memory that the system does not provide; an
    /// encoder, which has no output ([`Engine`](super::Engine) computes its vectors).
    pub fn new(model: &'m Model, options: &SessionOptions) -> Result<Session<'m>, ModelError> {
        let &SessionOptions { context, batch, prompt_precision, cache_type } = options;
        let rounding = Rounding { prompt: prompt_precision, cache: cache_type };
        if !model.spec().has_output {
            return Err(ModelError::Bidirectional { model: model.name().to_owned() });
        }
        let runner = Runner::new(
            model,
            &RunnerOptions {
                sequences: 1,
                context,
                batch,
                drafted: MAX_DRAFT,
                rounding,
                prompt_cache: 0,
            },
        )?;
        let sequence = runner.sequence(0, runner.max_tokens());
        let batch = match model.spec().is_bidirectional() {
            true => runner.longest(),
            false => batch.min(runner.context()),
        };
        Ok(Session { runner, sequence, batch, row: 0 })
    }

    /// Lets a smaller model with the same tokens propose the draft tokens of [`generate`](super::generate()), where the text itself has no proposal
    /// and where that is faster. The answers are the same.
    ///
    /// # Errors
    /// `draft` has other tokens, or the system does not provide the memory for its sequence.
    pub fn draft_with(&mut self, draft: &'m Model) -> Result<(), ModelError> {
        self.runner.draft_with(draft, 1)
    }

    /// Lets the MTP layer (multi-token prediction) that the model's file may have propose the draft tokens of [`generate`](super::generate()), as
    /// [`Session::draft_with`] does with a model. It follows the tokens fed from now on. Returns true if there is such a layer.
    ///
    /// # Errors
    /// The system does not provide the memory for its keys and values.
    pub fn draft_with_mtp(&mut self) -> Result<bool, ModelError> {
        self.runner.draft_with_mtp(1)
    }

    /// Changes what the sequence is computed with. Everything that it has is forgotten, unless it has the same adapters already.
    ///
    /// # Errors
    /// An adapter was opened for another model.
    pub fn set_adapters(&mut self, adapters: &AdapterSet) -> Result<(), ModelError> {
        if self.sequence.adapters != *adapters {
            self.truncate(0);
            self.runner.cache.clear(0);
            self.runner.adapt(&mut self.sequence, adapters)?;
        }
        Ok(())
    }

    /// The adapters that the sequence is computed with.
    pub fn adapters(&self) -> &AdapterSet {
        &self.sequence.adapters
    }

    /// Lets `cancel` end calls early, with [`ModelError::Cancelled`]: the sequence is then as after any other error.
    pub fn cancel_by(&mut self, cancel: Cancel) {
        self.runner.cancel_by(cancel);
    }

    /// Restores from `folder` as much of the beginning of `prompt` as it has, at most all but the last token. The file is mapped, and not read into
    /// memory of this process. Everything computed afterwards is bit-identical to feeding the whole prompt.
    ///
    /// Does nothing if the sequence is not empty. If the restored data turns out to yield logits that are not numbers, or its file is truncated
    /// before the first call that feeds something has ended, that call computes the prompt.
    pub fn restore(&mut self, folder: &PromptFolder, prompt: &[u32]) -> Restored {
        if self.position() > 0 || prompt.len() > self.context() {
            return Restored::default();
        }
        self.sequence.append(prompt);
        self.sequence.set_length(prompt.len());
        let salt = self.sequence.adapters.salt("");
        let restored = self.runner.restore(&mut self.sequence, folder, &salt, 0);
        self.sequence.truncate(restored.positions);
        self.keep_place(true);
        restored
    }

    /// Writes the computed prompt to `folder`: the tokens at the beginning that were fed and not decoded. Returns the file, which may have existed
    /// already; `None` if there is nothing to write: the prompt has fewer than 64 tokens, or exceeds the size limit of the folder.
    ///
    /// # Errors
    /// See [`PromptWriteError`]. Only the time that the file would have saved is lost.
    pub fn keep(&self, folder: &PromptFolder) -> Result<Option<PathBuf>, PromptWriteError> {
        let prompt = self.sequence.read();
        // The beginning of a long sequence differs from a short prompt with the same tokens.
        let other = self.sequence.is_long_with(prompt.len()) != self.sequence.is_long();
        if prompt.len() < MIN_TOKENS || other {
            return Ok(None);
        }
        let salt = self.sequence.adapters.salt("");
        let key = self.runner.key(self.sequence.is_long(), &salt);
        match self.runner.cache.contents(0, key, self.model().name(), prompt) {
            Some(contents) => folder.write(&contents),
            None => Ok(None),
        }
    }

    /// Appends `tokens` of a prompt and returns the logits `[vocab]` for the position after the last of them.
    ///
    /// # Errors
    /// No tokens, a token outside the vocabulary, a context that is too small (the [`ModelError`] explains how to raise it), weights that cannot be
    /// loaded, a file that has shrunk, or logits that are not numbers.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], ModelError> {
        self.append(tokens, LogitRows::Last, &mut |_, _| {})?;
        Ok(self.logits())
    }

    /// Appends rows of a prompt that are given as vectors `[rows, hidden]` instead of tokens, and returns the logits `[vocab]` for the position after
    /// the last of them. A vector takes the place of a token's embedding, already multiplied by the model's factor: a patch of a picture, for
    /// example. The rows of a group attend to all rows of the group, and not only to those before them.
    ///
    /// They are not shared with other sequences. [`Session::tokens`] has token 0 in their places.
    ///
    /// # Errors
    /// As [`Session::feed`]; an incomplete vector, or a group of more rows than are computed together.
    pub fn feed_vectors(&mut self, vectors: &[f32], is_group: bool) -> Result<&[f32], ModelError> {
        let hidden = self.model().spec().hidden_size;
        if !vectors.len().is_multiple_of(hidden) {
            return Err(ModelError::Options {
                what: "rows of vectors",
                found: vectors.len(),
                expected: format!("a multiple of {hidden} numbers"),
            });
        }
        let rows = vectors.len() / hidden;
        if is_group && rows > self.batch {
            return Err(ModelError::TooLongForBatch { found: rows, expected: self.batch });
        }
        self.admit(&vec![0; rows])?;
        self.append_with(rows, LogitRows::Last, &mut |_, _| {}, |sequence| {
            sequence.append_vectors(vectors, hidden, is_group);
        })?;
        Ok(self.logits())
    }

    /// Appends `tokens` of a prompt without computing logits.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<(), ModelError> {
        self.append(tokens, LogitRows::Nothing, &mut |_, _| {})
    }

    /// Appends `tokens` of a prompt and calls `f(i, logits)` with the logits `[vocab]` for the position after `tokens[i]`, for every `i` in order. If
    /// an error is returned, `f` may have been called for some of them.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn feed_each(
        &mut self,
        tokens: &[u32],
        f: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), ModelError> {
        self.append(tokens, LogitRows::All, f)
    }

    /// Appends a generated token and returns the logits `[vocab]` for the position after it.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn decode(&mut self, token: u32) -> Result<&[f32], ModelError> {
        self.defer(token)?;
        self.decode_pending(0, None)?;
        Ok(self.logits())
    }

    /// As [`Session::decode`], for logits by which only `sampler` chooses, before it accepts another token. Those that it cannot choose may not be
    /// computed, if that is faster: they are then `f32::MIN`.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn decode_for(&mut self, token: u32, sampler: &mut Sampler) -> Result<&[f32], ModelError> {
        self.defer(token)?;
        self.decode_pending(0, Some(sampler))?;
        Ok(self.logits())
    }

    /// Appends a generated token that is computed only if something is fed after it: the last token of an answer costs nothing if no other turn
    /// follows.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn defer(&mut self, token: u32) -> Result<(), ModelError> {
        self.admit(&[token])?;
        self.settle(self.position() + 1)?;
        self.sequence.push(token);
        Ok(())
    }

    /// Computes the pending token and a draft of up to `most` tokens, with the logits after each of them, or those that `sampler` needs if nothing else
    /// looks at them. After an error the token is not in the sequence.
    pub(super) fn decode_pending(
        &mut self,
        most: usize,
        mut sampler: Option<&mut Sampler>,
    ) -> Result<(), ModelError> {
        self.runner.end_draft(&mut self.sequence);
        let n = self.position();
        let most = most.min(self.sequence.max_draft(self.context()));
        self.call(n - 1, |session, _| {
            session.set_length(n)?;
            session.read(0, LogitRows::Nothing, &mut |_, _| {})?;
            session.run_pending(LogitRows::All, most, sampler.as_deref_mut())
        })
    }

    /// Computes the pending token; all others are already computed.
    fn run_pending(
        &mut self,
        want: LogitRows,
        most: usize,
        sampler: Option<&mut Sampler>,
    ) -> Result<(), ModelError> {
        if most > 0 {
            // The tokens computed next may have to be taken back.
            self.keep_place(false);
        }
        let Session { runner, sequence, .. } = self;
        runner.begin(1);
        let rows = runner.push_pending(sequence, want, most);
        runner.best.add(rows, sampler);
        let wanted = if want == LogitRows::Nothing { 0 } else { rows };
        let done = runner.run(wanted).and_then(|_| match wanted {
            0 => Ok(()),
            // The logits of a draft count only when they are used; after one row that is not a number, no later row is a number either.
            _ => runner.check_numbers(0, sequence.computed() - 1),
        });
        if done.is_err() {
            sequence.undo_pending();
        } else if rows == 1 {
            self.keep_place(false);
        }
        self.row = 0;
        done
    }

    /// Begins to draft, if there is memory for it.
    pub(super) fn begin_drafts(&mut self, speculate: Speculate) {
        let wanted = speculate != Speculate::Off && self.runner.get_ready_for_drafts(0).is_ok();
        self.sequence.drafter = wanted.then(|| {
            let mut drafter = Drafter::new(speculate, self.runner.max_tokens());
            drafter.read(self.sequence.tokens());
            drafter
        });
    }

    /// Ends drafting: draft tokens that were not accepted are removed from the sequence.
    pub(super) fn end_drafts(&mut self) {
        self.runner.end_draft(&mut self.sequence);
        self.sequence.drafter = None;
    }

    /// Returns true if the token chosen last has yet to be computed, because it was not part of a draft.
    pub(super) fn needs_step(&self) -> bool {
        self.sequence.is_pending()
    }

    /// Chooses the next token, by the logits of the last call or of the accepted part of its draft, and hands it out. Returns why the answer ends, if
    /// it does.
    ///
    /// # Errors
    /// The logits are not numbers, or a constraint has no mask.
    pub(super) fn choose(
        &mut self,
        choice: &mut Choice<'_>,
        generated: &mut usize,
        on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Option<Finish>, ModelError> {
        let Session { runner, sequence, row, .. } = self;
        let came = sequence.drafter.as_ref().map_or(0, Drafter::accepted);
        if came > 0 {
            runner.check_numbers(came, sequence.computed() - 1)?;
            *row = came;
        }
        choice.next(sequence, generated, runner.logits(*row), on_token)
    }

    /// Appends tokens of a prompt, and calls `each` with their logits if all of them are requested.
    fn append(
        &mut self,
        tokens: &[u32],
        want: LogitRows,
        each: EachLogits<'_>,
    ) -> Result<(), ModelError> {
        self.admit(tokens)?;
        self.append_with(tokens.len(), want, each, |sequence| sequence.append(tokens))
    }

    /// Appends `rows` rows of a prompt, which `add` adds to the sequence.
    fn append_with(
        &mut self,
        rows: usize,
        want: LogitRows,
        each: EachLogits<'_>,
        add: impl FnOnce(&mut Sequence),
    ) -> Result<(), ModelError> {
        self.settle(self.position() + rows)?;
        let before = self.position();
        add(&mut self.sequence);
        self.call(before, |session, handed_out| {
            session.read(before, want, &mut |i, logits| {
                *handed_out = true;
                each(i, logits);
            })
        })
    }

    /// Runs `compute` for a call. If it fails, the sequence goes back to its first `before` tokens, or fewer. If part of the sequence came from a
    /// file, whose contents may not be the output of a model, everything is first computed once more, unless `compute` has reported through its flag
    /// that something was already handed out.
    fn call(
        &mut self,
        before: usize,
        mut compute: impl FnMut(&mut Session<'m>, &mut bool) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let mut handed_out = false;
        let mut done = compute(self, &mut handed_out);
        let is_cancelled = matches!(done, Err(ModelError::Cancelled));
        if done.is_err() && !is_cancelled && self.sequence.reused() > 0 && !handed_out {
            self.runner.cache.clear(0);
            self.sequence.begin_again();
            done = compute(self, &mut handed_out);
        }
        self.sequence.trust();
        if done.is_err() {
            self.go_back(before);
        }
        done
    }

    /// Goes back to the first `n` tokens, or fewer, after a failed step: recurrent states contain tokens that the sequence no longer has.
    fn go_back(&mut self, n: usize) {
        let Session { runner, sequence, .. } = self;
        let computed = sequence.computed();
        let left = match (runner.cache.has_states(), sequence.unread()) {
            (false, 0) if n >= computed => n,
            _ => runner.cache.go_back(0, n.min(computed)),
        };
        sequence.truncate(left);
    }

    /// Computes the uncomputed tokens of a prompt, with the requested logits for tokens from `from` on; calls `each(i, logits)` for token `from + i`
    /// if the logits of all of them are requested.
    fn read(
        &mut self,
        from: usize,
        want: LogitRows,
        each: EachLogits<'_>,
    ) -> Result<(), ModelError> {
        let unread = self.sequence.unread();
        while self.sequence.unread() > 0 {
            let start = self.sequence.computed();
            if let Err(error) = self.read_part(from, want, each) {
                self.sequence.unread_from(start);
                return Err(error);
            }
            self.keep_place(false);
        }
        self.keep_place(unread > 1);
        Ok(())
    }

    /// Computes one batch of the uncomputed tokens.
    fn read_part(
        &mut self,
        from: usize,
        want: LogitRows,
        each: EachLogits<'_>,
    ) -> Result<(), ModelError> {
        let Session { runner, sequence, batch, row } = self;
        let (start, unread) = (sequence.computed(), sequence.unread());
        let end = if start < from { from - start } else { unread };
        let rows = sequence.last_cut(start + unread.min(end).min(*batch)) - start;
        let want = match want {
            LogitRows::All if start >= from => LogitRows::All,
            LogitRows::Last if rows == unread => LogitRows::Last,
            _ => LogitRows::Nothing,
        };
        runner.begin(0);
        runner.push_prompt(sequence, rows, want);
        runner.run(usize::from(want == LogitRows::Last))?;
        match want {
            LogitRows::Nothing | LogitRows::First => {}
            LogitRows::Last => {
                runner.check_numbers(0, start + rows - 1)?;
                *row = 0;
            }
            LogitRows::All => {
                let mut each = |position: usize, logits: &[f32]| each(position - from, logits);
                *row = runner.each_logits(0..rows, start, &mut each)?;
            }
        }
        Ok(())
    }

    /// Computes all tokens that are not computed yet, in a sequence that will have `n` tokens.
    ///
    /// # Errors
    /// As [`Session::feed`]; the sequence may then be shorter.
    fn settle(&mut self, n: usize) -> Result<(), ModelError> {
        let all = self.position();
        let mut done = self.set_length(n);
        if done.is_ok() && self.sequence.is_pending() {
            done = self.run_pending(LogitRows::Nothing, 0, None);
        }
        if done.is_err() {
            self.go_back(all);
        }
        done
    }

    /// Recomputes the sequence if a length of `n` tokens makes the model rotate positions differently than before.
    fn set_length(&mut self, n: usize) -> Result<(), ModelError> {
        if !self.sequence.set_length(n) {
            return Ok(());
        }
        self.runner.cache.clear(0);
        self.read(0, LogitRows::Nothing, &mut |_, _| {})
    }

    /// Saves a place that the sequence can go back to if `now`, or if the last one is too far back.
    fn keep_place(&mut self, now: bool) {
        let position = self.sequence.computed();
        let cache = &mut self.runner.cache;
        if now || position >= cache.latest_place(0) + SNAPSHOT_EVERY {
            cache.save_place(0, position);
        }
    }

    /// Rejects tokens that cannot be fed.
    fn admit(&self, tokens: &[u32]) -> Result<(), ModelError> {
        admit(self.model(), tokens, self.position(), [self.context(), self.batch])
    }

    /// The tokens of the sequence.
    pub fn tokens(&self) -> &[u32] {
        self.sequence.tokens()
    }

    /// Returns how the output matrix was read for the tokens of answers, if its high bits are stored apart.
    pub fn output_counts(&self) -> Option<OutputCounts> {
        self.runner.best.counts()
    }

    /// The logits of the last [`Session::feed`], [`Session::feed_each`] or [`Session::decode`]; zeros before the first. After an answer of
    /// [`generate`](super::generate()), those of tokens that could not be chosen may be `f32::MIN`.
    pub fn logits(&self) -> &[f32] {
        self.runner.logits(self.row)
    }

    /// The final hidden state `[hidden]` that the logits of the last call were computed from.
    #[cfg(test)]
    pub(super) fn final_state(&self) -> Vec<f32> {
        let mut state = vec![0.0; self.model().spec().hidden_size];
        self.runner.hidden(0, &mut state);
        state
    }

    /// The layer that proposes tokens.
    #[cfg(test)]
    pub(super) fn mtp(&mut self) -> Option<&mut super::mtp::MtpHead<'m>> {
        self.runner.proposers.first_mut()?.mtp()
    }

    /// The number of tokens in the sequence.
    pub fn position(&self) -> usize {
        self.sequence.len()
    }

    /// The maximum number of tokens of the sequence.
    pub fn context(&self) -> usize {
        self.runner.context()
    }

    /// Forgets everything from position `n` on; nothing if the sequence is shorter. Returns the number of tokens left: `n`, or fewer if `n` is within
    /// a group of vectors, which is forgotten as a whole, or if the model has recurrent layers, whose states cannot be truncated, or layers with a
    /// window, and what a token at `n` sees is not kept any more (up to 64 tokens can always be cut off). The sequence then goes back to the latest
    /// place that was kept before `n`, and the tokens after it have to be fed again. It costs nothing else.
    pub fn truncate(&mut self, n: usize) -> usize {
        let Session { runner, sequence, .. } = self;
        let n = sequence.last_cut(n);
        let left = match n >= sequence.computed() {
            true => n,
            false => sequence.last_cut(runner.cache.go_back(0, n)),
        };
        sequence.truncate(left);
        self.position()
    }

    /// The session's model.
    pub fn model(&self) -> &'m Model {
        self.runner.model
    }

    /// The SIMD level of kernels in use.
    pub fn isa(&self) -> Isa {
        self.model().isa()
    }
}
