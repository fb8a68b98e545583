//! One sequence of tokens on a model, which is fed, decoded and cut as you like.

use std::ops::ControlFlow;
use std::path::PathBuf;

use alight_kernels::Isa;
use alight_kernels::attention::KvType;
use alight_kernels::matmul::Precision;

use super::drafter::Drafter;
use super::generate::Finish;
use super::runner::{Restored, Runner, RunnerOptions, SNAPSHOT_EVERY, admit};
use super::sequence::{Choice, Sequence};
use super::speculate::{MAX_DRAFT, Speculate};
use crate::error::ModelError;
use crate::open::Model;
use crate::parts::batch::LogitRows;
use crate::prompts::{MIN_TOKENS, PromptFolder, PromptWriteError, Rounding};

/// What a session may hold.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Positions; `None`: [`DEFAULT_CONTEXT`], or what the model was trained for if that is less.
    /// More than it was trained for is allowed, and rarely useful.
    pub context: Option<usize>,
    /// Most tokens of a prompt that are computed together. Larger parts take more memory and are hardly faster.
    pub batch: usize,
    /// How activations of prompts are rounded, for weights that are quantised. Those of generated tokens have 16 bits.
    pub prompt_precision: Precision,
    /// How keys and values are kept.
    pub cache_type: KvType,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            context: None,
            batch: 512,
            prompt_precision: Precision::Bits8,
            cache_type: KvType::F16,
        }
    }
}

/// A sequence of tokens on a model: those of prompts are fed ([`Session::feed`]), in as many calls as you like, and those that
/// were generated are decoded ([`Session::decode`]). What is computed of a token follows from the tokens before it, and from
/// which of both it is; not from how many were fed in a call.
///
/// After [`Session::new`], feeding allocates nothing. An error leaves the sequence as it was before the call, or shorter, if the model has recurrent layers: their states have
/// taken in what was fed, and the sequence goes back to the latest of their snapshots ([`Session::position`] tells).
///
/// Snapshots are taken at the end of what is fed in one call, if it is more than a token, and every 2048 tokens.
pub struct Session<'m> {
    runner: Runner<'m>,
    sequence: Sequence,
    /// Most tokens of a prompt that are computed together.
    batch: usize,
    /// The row of the runner's logits that are those of the last call.
    row: usize,
}

/// What is done with the logits of tokens of a prompt: their number in what is fed, and `[vocab]`.
type EachLogits<'f> = &'f mut dyn FnMut(usize, &[f32]);

impl<'m> Session<'m> {
    /// An empty sequence. Memory is reserved for the whole context and taken as it is used.
    ///
    /// # Errors
    /// A context or batch of 0 or beyond all limits, keys and values that cannot be kept so, or memory that the system does not
    /// give.
    pub fn new(model: &'m Model, options: &SessionOptions) -> Result<Session<'m>, ModelError> {
        let &SessionOptions { context, batch, prompt_precision, cache_type } = options;
        let rounding = Rounding { prompt: prompt_precision, cache: cache_type };
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
        let batch = batch.min(runner.context());
        Ok(Session { runner, sequence, batch, row: 0 })
    }

    /// Lets a smaller model with the same tokens propose what [`generate`](super::generate()) computes ahead, where the text itself
    /// has no proposal and where that is faster. The answers are the same.
    ///
    /// # Errors
    /// `draft` has other tokens, or the system does not give the memory for its sequence.
    pub fn draft_with(&mut self, draft: &'m Model) -> Result<(), ModelError> {
        self.runner.draft_with(draft, 1)
    }

    /// Lets the layer for it that the model's file may have (multi-token prediction, MTP) propose what
    /// [`generate`](super::generate()) computes ahead, as [`Session::draft_with`] does with a model. It follows what is fed from now on.
    /// Returns whether there is such a layer.
    ///
    /// # Errors
    /// The system does not give the memory for its keys and values.
    pub fn draft_with_mtp(&mut self) -> Result<bool, ModelError> {
        self.runner.draft_with_mtp(1)
    }

    /// Takes from `folder` what is there of the beginning of `prompt`, all of which may be but its last token. It is mapped, and not
    /// read into memory of this process. What is computed after it has the bits that it would have if all had been fed.
    ///
    /// Nothing happens if the sequence is not empty. If what was taken makes no numbers after all, or its file is cut short before
    /// the first call that feeds something has ended, that call computes it.
    pub fn restore(&mut self, folder: &PromptFolder, prompt: &[u32]) -> Restored {
        if self.position() > 0 || prompt.len() > self.context() {
            return Restored::default();
        }
        self.sequence.append(prompt);
        self.sequence.set_length(prompt.len());
        let restored = self.runner.restore(&mut self.sequence, folder, "", 0);
        self.sequence.truncate(restored.positions);
        self.keep_states(true);
        restored
    }

    /// Writes to `folder` what was computed of the prompt: the tokens at the beginning that were fed and not decoded. Returns the file,
    /// which may have been there before; `None` if there is nothing to write: the prompt has less than 64 tokens, or is larger than the
    /// folder may be.
    ///
    /// # Errors
    /// See [`PromptWriteError`]. Nothing is lost but the time that the file would have saved.
    pub fn keep(&self, folder: &PromptFolder) -> Result<Option<PathBuf>, PromptWriteError> {
        let prompt = self.sequence.read();
        // What begins a long sequence is not what a short prompt is.
        let other = self.sequence.is_long_with(prompt.len()) != self.sequence.is_long();
        if prompt.len() < MIN_TOKENS || other {
            return Ok(None);
        }
        let key = self.runner.key(self.sequence.is_long(), "");
        match self.runner.cache.contents(0, key, self.model().name(), prompt) {
            Some(contents) => folder.write(&contents),
            None => Ok(None),
        }
    }

    /// Appends `tokens` of a prompt and returns the logits `[vocab]` of what follows the last of them.
    ///
    /// # Errors
    /// No tokens, a token outside the vocabulary, a context that is too small ([`ModelError`]
    /// says how to raise it), weights that cannot be loaded, a file that has shrunk, or logits that are
    /// not numbers.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], ModelError> {
        self.append(tokens, LogitRows::Last, &mut |_, _| {})?;
        Ok(self.logits())
    }

    /// Appends rows of a prompt that are given as vectors `[rows, hidden]` instead of tokens, and returns the logits `[vocab]` of what
    /// follows the last of them. A vector stands for what the embedding of a token would be, with the model's factor: a patch of a
    /// picture, for example. If they are a group they see each other, and not only what is before them.
    ///
    /// What is computed of them is shared with no other sequence. In [`Session::tokens`] the first token stands in their places.
    ///
    /// # Errors
    /// As [`Session::feed`]; no whole vectors, or a group of more rows than are computed together.
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

    /// Appends `tokens` of a prompt and calls `f(i, logits)` with the logits `[vocab]` of what follows
    /// `tokens[i]`, for every `i` in order. If an error is returned, `f` may have been called for
    /// some of them.
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

    /// Appends a token that was generated and returns the logits `[vocab]` of what follows it.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn decode(&mut self, token: u32) -> Result<&[f32], ModelError> {
        self.defer(token)?;
        self.decode_pending(0)?;
        Ok(self.logits())
    }

    /// Appends a generated token that is computed only if something is fed after it: the last token of an
    /// answer costs nothing if no other turn follows.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn defer(&mut self, token: u32) -> Result<(), ModelError> {
        self.admit(&[token])?;
        self.settle(self.position() + 1)?;
        self.sequence.push(token);
        Ok(())
    }

    /// Computes the pending token, and the logits of what follows it and each token of a draft of up to `most` tokens. After an error the
    /// token is not in the sequence.
    pub(super) fn decode_pending(&mut self, most: usize) -> Result<(), ModelError> {
        self.runner.end_draft(&mut self.sequence);
        let n = self.position();
        let most = most.min(self.sequence.max_draft(self.context()));
        self.call(n - 1, |session, _| {
            session.set_length(n)?;
            session.read(0, LogitRows::Nothing, &mut |_, _| {})?;
            session.run_pending(LogitRows::All, most)
        })
    }

    /// Computes the pending token; all others are computed.
    fn run_pending(&mut self, want: LogitRows, most: usize) -> Result<(), ModelError> {
        if most > 0 {
            // What comes after may have to be taken back.
            self.keep_states(false);
        }
        let Session { runner, sequence, .. } = self;
        runner.begin(1);
        let rows = runner.push_pending(sequence, want, most);
        let wanted = if want == LogitRows::Nothing { 0 } else { rows };
        let done = runner.run(wanted).and_then(|_| match wanted {
            0 => Ok(()),
            // Those of a draft count if they are asked for; one that is no number has no other after it that is.
            _ => runner.check_numbers(0, sequence.computed() - 1),
        });
        if done.is_err() {
            sequence.undo_pending();
        } else if rows == 1 {
            self.keep_states(false);
        }
        self.row = 0;
        done
    }

    /// Begins to draft, where there is memory for it.
    pub(super) fn begin_drafts(&mut self, speculate: Speculate) {
        let wanted = speculate != Speculate::Off && self.runner.get_ready_for_drafts(0).is_ok();
        self.sequence.drafter = wanted.then(|| {
            let mut drafter = Drafter::new(speculate, self.runner.max_tokens());
            drafter.read(self.sequence.tokens());
            drafter
        });
    }

    /// Ends drafting: what has not come of a draft is taken out of the sequence.
    pub(super) fn end_drafts(&mut self) {
        self.runner.end_draft(&mut self.sequence);
        self.sequence.drafter = None;
    }

    /// True if the token that was chosen last has to be computed, and was not as one of a draft.
    pub(super) fn needs_step(&self) -> bool {
        self.sequence.is_pending()
    }

    /// Chooses the token that follows, by the logits of the last call or of what has come of its draft, and hands it out. Returns why the
    /// answer ends, if it does.
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

    /// Appends tokens of a prompt, and calls `each` with the logits of those that are wanted all.
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

    /// Does what a call has to compute. If it fails, the sequence goes back to its first `before` tokens, or further; and if some of it
    /// came from a file, which may have what no model has computed, all of it is computed once more, unless something has been handed out
    /// already, which `compute` tells.
    fn call(
        &mut self,
        before: usize,
        mut compute: impl FnMut(&mut Session<'m>, &mut bool) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let mut handed_out = false;
        let mut done = compute(self, &mut handed_out);
        if done.is_err() && self.sequence.reused() > 0 && !handed_out {
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

    /// Goes back to the first `n` tokens, or further, after a step that has failed: states have tokens in them that the sequence has not.
    fn go_back(&mut self, n: usize) {
        let Session { runner, sequence, .. } = self;
        let computed = sequence.computed();
        let states = &mut runner.cache.sequences[0].states;
        let left = match (states.is_empty(), sequence.unread()) {
            (false, _) => states.back_to(n.min(computed)),
            (true, 0) => n,
            (true, _) => n.min(computed),
        };
        sequence.truncate(left);
    }

    /// Reads what is unread of a prompt. Of the tokens from `from` on those logits are computed that are wanted; `each(i, logits)` is
    /// called for token `from + i`, if all are.
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
            self.keep_states(false);
        }
        self.keep_states(unread > 1);
        Ok(())
    }

    /// Reads some of what is unread.
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
            LogitRows::Nothing => {}
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

    /// Computes what is not computed yet, in a sequence that will have `n` tokens.
    ///
    /// # Errors
    /// As [`Session::feed`]; the sequence may be shorter then.
    fn settle(&mut self, n: usize) -> Result<(), ModelError> {
        let all = self.position();
        let mut done = self.set_length(n);
        if done.is_ok() && self.sequence.is_pending() {
            done = self.run_pending(LogitRows::Nothing, 0);
        }
        if done.is_err() {
            self.go_back(all);
        }
        done
    }

    /// Computes the sequence again if the model rotates one of `n` tokens in another way than it was.
    fn set_length(&mut self, n: usize) -> Result<(), ModelError> {
        if !self.sequence.set_length(n) {
            return Ok(());
        }
        self.runner.cache.clear(0);
        self.read(0, LogitRows::Nothing, &mut |_, _| {})
    }

    /// Keeps recurrent states if `now` or if it was long ago that they were.
    fn keep_states(&mut self, now: bool) {
        let position = self.sequence.computed();
        let states = &mut self.runner.cache.sequences[0].states;
        if now || position >= states.latest() + SNAPSHOT_EVERY {
            states.save(position);
        }
    }

    /// Refuses what cannot be fed.
    fn admit(&self, tokens: &[u32]) -> Result<(), ModelError> {
        admit(self.model(), tokens, self.position(), [self.context(), self.batch])
    }

    /// The tokens of the sequence.
    pub fn tokens(&self) -> &[u32] {
        self.sequence.tokens()
    }

    /// The logits of the last [`Session::feed`], [`Session::feed_each`] or [`Session::decode`]; zeros before the first.
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

    /// How many tokens the sequence has.
    pub fn position(&self) -> usize {
        self.sequence.len()
    }

    /// How many it may have.
    pub fn context(&self) -> usize {
        self.runner.context()
    }

    /// Forgets everything from position `n` on; nothing if the sequence is not as long. Returns how many tokens are left:
    /// `n`, or fewer within a group of vectors, which is forgotten as a whole, and if the model has recurrent layers, whose states cannot be cut. Then the sequence goes back to the
    /// latest snapshot of them, and what lies between has to be fed again. It costs nothing else.
    pub fn truncate(&mut self, n: usize) -> usize {
        let Session { runner, sequence, .. } = self;
        let states = &mut runner.cache.sequences[0].states;
        let n = sequence.last_cut(n);
        let left = match states.is_empty() || n >= sequence.computed() {
            true => n,
            false => sequence.last_cut(states.back_to(n)),
        };
        sequence.truncate(left);
        self.position()
    }

    /// The model that it runs on.
    pub fn model(&self) -> &'m Model {
        self.runner.model
    }

    /// The SIMD level of kernels in use.
    pub fn isa(&self) -> Isa {
        self.model().isa()
    }
}
