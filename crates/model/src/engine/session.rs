//! One sequence of tokens on a model: its cache, its buffers, and feeding it.

use std::path::PathBuf;

use alight_kernels::Isa;
use alight_kernels::attention::KvType;
use alight_kernels::matmul::{Precision, RowCounts};

use super::drafter::Drafter;
use super::net::Net;
use super::proposer::Proposer;
use super::speculate::MOST_DRAFT;
use crate::cache::{Cache, CacheError};
use crate::error::ModelError;
use crate::open::{DEFAULT_CONTEXT, Model};
use crate::parts::batch::{OfSequence, Role, Want};
use crate::parts::buffers::Buffers;
use crate::parts::compute::Compute;
use crate::prompts::{
    FoundPrompt, IgnoredPrompt, Key, LEAST_TOKENS, PromptFolder, PromptWriteError, Rounding,
};
use crate::spec::ModelSpec;
use crate::weights::not_finite;

/// Most tokens that are computed together.
pub const MAX_BATCH: usize = 4096;
/// Most positions of a context.
pub const MAX_CONTEXT: usize = 1 << 30;
/// Recurrent states are kept after so many tokens at the latest.
pub(super) const SNAPSHOT_EVERY: usize = 2048;
/// Memory for so many tokens at most is reserved beforehand.
pub(super) const MOST_REMEMBERED: usize = 1 << 20;
/// Positions whose logits are computed together by [`Session::feed_each`].
const LOGIT_ROWS: usize = 16;

/// What a session may hold.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Positions; `None`: [`DEFAULT_CONTEXT`], or what the model was trained for if that is less.
    /// More than it was trained for is allowed, and rarely useful.
    pub context: Option<usize>,
    /// Most tokens that are computed together. A prompt is fed in parts of this length; larger
    /// ones take more memory and are hardly faster.
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
/// After [`Session::new`], feeding allocates nothing (except [`Session::feed_each`], once). An
/// error leaves the sequence as it was before the call, or shorter, if the model has recurrent layers: their states have
/// taken in what was fed, and the sequence goes back to the latest of their snapshots ([`Session::position`] tells).
///
/// Snapshots are taken at the end of what is fed in one call, if it is more than a token, and every 2048 tokens.
pub struct Session<'m> {
    model: &'m Model,
    net: Net<'m>,
    cache: Cache,
    buffers: Buffers,
    /// `[vocab]`, of the last token fed.
    logits: Vec<f32>,
    /// `[LOGIT_ROWS, vocab]`, once they are needed.
    many_logits: Vec<f32>,
    /// Tokens of the sequence, the deferred one included.
    position: usize,
    /// Those tokens.
    tokens: Vec<u32>,
    /// The last token, if it is not in the cache yet.
    deferred: Option<u32>,
    context: usize,
    batch: usize,
    rounding: Rounding,
    /// For models that tell long sequences from others.
    length: Option<Length>,
    /// How many tokens at the beginning were fed as those of prompts.
    prompt: usize,
    /// How many tokens at the beginning came from a file, while nothing was computed with them.
    restored: usize,
    /// What proposes tokens to [`generate`](super::generate()).
    pub(super) proposer: Option<Box<Proposer<'m>>>,
}

/// What a session took from a folder of prompts.
#[derive(Debug, Default)]
pub struct Restored {
    /// How many tokens at the beginning of the prompt; they need not be fed.
    pub positions: usize,
    /// The file that has them.
    pub file: Option<PathBuf>,
    /// Files that should have been of use and are not.
    pub ignored: Vec<IgnoredPrompt>,
}

/// How long a sequence is to a model that rotates long ones in another way. When a sequence becomes long, or short again, it is
/// computed anew, as the model would have computed it from the beginning: what comes out depends on the tokens alone, and not on the
/// context that was asked for.
struct Length {
    /// Longer sequences are long.
    original: usize,
    /// Whether the cache is that of a long sequence.
    long: bool,
}

impl<'m> Session<'m> {
    /// An empty sequence. Memory is reserved for the whole context and taken as it is used.
    ///
    /// # Errors
    /// A context or batch of 0 or beyond all limits, keys and values that cannot be kept so, or memory that the system does not
    /// give.
    pub fn new(model: &'m Model, options: &SessionOptions) -> Result<Session<'m>, ModelError> {
        let c = model.spec();
        let context = options.context.unwrap_or(DEFAULT_CONTEXT.min(c.context));
        for (what, found, most) in
            [("context", context, MAX_CONTEXT), ("batch", options.batch, MAX_BATCH)]
        {
            if found == 0 || found > most {
                let expected = format!("1 to {most}");
                return Err(ModelError::Options { what, found, expected });
            }
        }
        let batch = options.batch.min(context);
        let original = c.long_context.original;
        // A sequence that cannot become long need not be told.
        let length = (c.long_context.rope.is_some() && context > original)
            .then_some(Length { original, long: false });
        let compute = Compute { pool: model.pool(), isa: model.isa() };
        let net = Net::new(c, model.weights().net(), model.store(), compute);
        let rounding = Rounding { prompt: options.prompt_precision, cache: options.cache_type };
        net.check_cache_type(rounding.cache)?;
        let cache = net.cache(context, 1, 0, rounding.cache)?;
        let buffers = net.buffers(context, [batch, MOST_DRAFT + 1], options.prompt_precision);
        Ok(Session {
            model,
            net,
            cache,
            buffers,
            logits: vec![0.0; c.vocab],
            many_logits: Vec::new(),
            position: 0,
            tokens: Vec::with_capacity(context.min(MOST_REMEMBERED)),
            deferred: None,
            context,
            batch,
            rounding,
            length,
            prompt: 0,
            restored: 0,
            proposer: None,
        })
    }

    /// Lets a smaller model with the same tokens propose what [`generate`](super::generate()) computes ahead, where the text itself
    /// has no proposal and where that is faster. The answers are the same.
    ///
    /// # Errors
    /// `draft` has other tokens, or the system does not give the memory for its sequence.
    pub fn draft_with(&mut self, draft: &'m Model) -> Result<(), ModelError> {
        self.proposer = Some(Box::new(Proposer::with_model(draft, self.model, self.context)?));
        Ok(())
    }

    /// Lets the layer for it that the model's file may have (multi-token prediction, MTP) propose what
    /// [`generate`](super::generate()) computes ahead, as [`Session::draft_with`] does with a model. It follows what is fed from now on.
    /// Returns whether there is such a layer.
    ///
    /// # Errors
    /// The system does not give the memory for its keys and values.
    pub fn draft_with_mtp(&mut self) -> Result<bool, ModelError> {
        let proposer = Proposer::with_mtp(self.model, self.context)?;
        let found = proposer.is_some();
        if found {
            self.proposer = proposer.map(Box::new);
        }
        Ok(found)
    }

    /// Takes from `folder` what is there of the beginning of `prompt`, all of which may be but its last token. It is mapped, and not
    /// read into memory of this process. What is computed after it has the bits that it would have if all had been fed.
    ///
    /// Nothing happens if the sequence is not empty. If what was taken makes no numbers after all, or its file is cut short before
    /// the first call that feeds something has ended, that call computes it.
    pub fn restore(&mut self, folder: &PromptFolder, prompt: &[u32]) -> Restored {
        let mut restored = Restored::default();
        let tokens = &prompt[..prompt.len().saturating_sub(1)];
        if self.position > 0 || prompt.len() > self.context {
            return restored;
        }
        let (found, ignored) = folder.find(&self.key(prompt), tokens, 0, self.cache.sizes());
        restored.ignored = ignored;
        let Some(FoundPrompt { file, positions }) = found else { return restored };
        let path = file.map.path();
        match self.cache.restore(0, &file, positions) {
            Ok(false) => return restored,
            Ok(true) => {}
            Err(why) => {
                restored.ignored.push(IgnoredPrompt::new(path.into(), why));
                return restored;
            }
        }
        if let Some(length) = &mut self.length {
            length.long = prompt.len() > length.original;
        }
        self.tokens.extend_from_slice(&tokens[..positions]);
        (self.position, self.prompt, self.restored) = (positions, positions, positions);
        self.keep_states(positions, true);
        (restored.positions, restored.file) = (positions, Some(path.into()));
        restored
    }

    /// Writes to `folder` what was computed of the prompt: the tokens at the beginning that were fed and not decoded. Returns the file,
    /// which may have been there before; `None` if there is nothing to write: the prompt has less than 64 tokens, or is larger than the
    /// folder may be.
    ///
    /// # Errors
    /// See [`PromptWriteError`]. Nothing is lost but the time that the file would have saved.
    pub fn keep(&self, folder: &PromptFolder) -> Result<Option<PathBuf>, PromptWriteError> {
        let prompt = &self.tokens[..self.prompt];
        // A sequence that has become long after its prompt has computed the prompt anew, in another way.
        let other = self.length.as_ref().is_some_and(|l| l.long != (prompt.len() > l.original));
        if prompt.len() < LEAST_TOKENS || other {
            return Ok(None);
        }
        match self.cache.contents(0, self.key(prompt), self.model.name(), prompt) {
            Some(contents) => folder.write(&contents),
            None => Ok(None),
        }
    }

    fn key(&self, prompt: &[u32]) -> Key {
        let long = self.length.as_ref().is_some_and(|length| prompt.len() > length.original);
        self.model.prompt_key(self.rounding, long, "")
    }

    /// Appends `tokens` of a prompt and returns the logits `[vocab]` of what follows the last of them.
    ///
    /// # Errors
    /// No tokens, a token outside the vocabulary, a context that is too small ([`ModelError`]
    /// says how to raise it), weights that cannot be loaded, a file that has shrunk, or logits that are
    /// not numbers.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], ModelError> {
        self.append(Role::Prompt, tokens, Want::Last)?;
        Ok(&self.logits)
    }

    /// Appends a token that was generated and returns the logits `[vocab]` of what follows it.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn decode(&mut self, token: u32) -> Result<&[f32], ModelError> {
        self.append(Role::Decode, &[token], Want::Last)?;
        Ok(&self.logits)
    }

    /// Makes [`decode_draft`](Session::decode_draft) able to compute drafts.
    ///
    /// # Errors
    /// The system does not give the memory for the states of recurrent layers after each token of a draft.
    pub(super) fn get_ready_for_drafts(&mut self) -> Result<(), CacheError> {
        self.reserve_logits();
        self.cache.get_ready_for_drafts(0, MOST_DRAFT)
    }

    /// Most tokens that a draft may have after the next token.
    pub(super) fn room_for_draft(&self) -> usize {
        // A sequence that a draft makes long would be computed anew.
        let short = self.length.as_ref().filter(|length| !length.long);
        let end = short.map_or(self.context, |length| length.original.min(self.context));
        end.saturating_sub(self.position + 1).min(self.batch - 1)
    }

    /// Memory for the logits of several rows.
    fn reserve_logits(&mut self) {
        if self.many_logits.is_empty() {
            self.many_logits = vec![0.0; LOGIT_ROWS.min(self.batch) * self.logits.len()];
        }
    }

    /// Appends a token that was generated and a draft of those that may follow, and computes the logits of what follows each of them
    /// ([`logits_of`](Session::logits_of)).
    pub(super) fn decode_draft(&mut self, token: u32, draft: &[u32]) -> Result<(), ModelError> {
        if draft.is_empty() {
            self.decode(token)?;
            return Ok(());
        }
        let mut tokens = [token; MOST_DRAFT + 1];
        tokens[1..=draft.len()].copy_from_slice(draft);
        let tokens = &tokens[..=draft.len()];
        self.admit(tokens)?;
        self.become_as_long_as(self.position + tokens.len())?;
        self.settle()?;
        // What comes after may have to be taken back.
        self.keep_states(self.position, false);
        let done = self.compute_draft(tokens);
        self.end_call(tokens, done)
    }

    /// Appends a generated token and a draft, with nothing deferred.
    fn compute_draft(&mut self, tokens: &[u32]) -> Result<(), ModelError> {
        let (position, n, vocab) = (self.position, tokens.len(), self.logits.len());
        self.reserve_logits();
        self.run(Role::Decode, position, tokens, Want::All)?;
        let logits = &mut self.many_logits[..n * vocab];
        self.net.logits(&mut self.buffers, 0, RowCounts::new(Precision::Bits16, n), logits)?;
        check(self.model, &self.cache)?;
        // Those of a draft count if they are asked for; one that is no number has no other after it that is.
        numbers(self.model, &logits[..vocab], position)?;
        self.logits.copy_from_slice(&logits[..vocab]);
        self.position += n;
        Ok(())
    }

    /// Takes tokens of a draft that have not come out of the sequence, in which all of it is.
    pub(super) fn end_draft(&mut self, drafter: &mut Drafter) {
        let [came, wrong] = drafter.end();
        if wrong > 0 {
            self.cache.back_to_draft(0, came);
            self.cut(self.position - wrong);
        }
    }

    /// The logits that the token after those of a draft that have come is chosen by.
    ///
    /// # Errors
    /// They are not numbers.
    pub(super) fn logits_of(&self, drafter: &Drafter) -> Result<&[f32], ModelError> {
        let (row, len) = (drafter.accepted(), drafter.draft().len());
        if row == 0 {
            return Ok(&self.logits);
        }
        let vocab = self.logits.len();
        let logits = &self.many_logits[row * vocab..][..vocab];
        numbers(self.model, logits, self.position - (len - row) - 1)?;
        Ok(logits)
    }

    /// The tokens of the sequence.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Appends `tokens` of a prompt without computing logits.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<(), ModelError> {
        self.append(Role::Prompt, tokens, Want::Nothing)
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
        self.admit(tokens)?;
        self.become_as_long_as(self.position + tokens.len())?;
        let rows = LOGIT_ROWS.min(self.batch);
        self.reserve_logits();
        self.settle()?;
        let done = self.each(tokens, rows, f);
        self.end_call(tokens, done)
    }

    /// [`Session::feed_each`] with nothing deferred, the logits of `rows` tokens at a time.
    fn each(
        &mut self,
        tokens: &[u32],
        rows: usize,
        f: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), ModelError> {
        let vocab = self.logits.len();
        let start = self.position;
        for (part, tokens) in tokens.chunks(self.batch).enumerate() {
            let pos = start + part * self.batch;
            self.run(Role::Prompt, pos, tokens, Want::All)?;
            for first in (0..tokens.len()).step_by(rows) {
                let n = rows.min(tokens.len() - first);
                let logits = &mut self.many_logits[..n * vocab];
                let counts = RowCounts::new(self.rounding.prompt, n);
                self.net.logits(&mut self.buffers, first, counts, logits)?;
                check(self.model, &self.cache)?;
                for (i, row) in logits.chunks_exact(vocab).enumerate() {
                    numbers(self.model, row, pos + first + i)?;
                }
                for (i, row) in logits.chunks_exact(vocab).enumerate() {
                    f(part * self.batch + first + i, row);
                }
                self.logits.copy_from_slice(&logits[(n - 1) * vocab..]);
            }
            self.keep_states(pos + tokens.len(), false);
        }
        self.position = start + tokens.len();
        self.keep_states(self.position, tokens.len() > 1);
        Ok(())
    }

    fn append(&mut self, role: Role, tokens: &[u32], want: Want) -> Result<(), ModelError> {
        self.admit(tokens)?;
        self.become_as_long_as(self.position + tokens.len())?;
        self.settle()?;
        let mut done = self.compute(role, tokens, want);
        let restored = std::mem::take(&mut self.restored);
        if done.is_err() && restored > 0 {
            self.cache.clear(0);
            self.position = 0;
            let all = std::mem::take(&mut self.tokens);
            done = self.compute(Role::Prompt, &all[..restored], Want::Nothing);
            self.tokens = all;
            if done.is_ok() {
                done = self.compute(role, tokens, want);
            }
        }
        if done.is_ok() && role == Role::Prompt && self.prompt + tokens.len() == self.position {
            self.prompt = self.position;
        }
        self.end_call(tokens, done)
    }

    /// Computes the sequence anew if the model rotates one of `n` tokens in another way than the cache was.
    ///
    /// # Errors
    /// As [`Session::feed`]; the sequence is empty then.
    fn become_as_long_as(&mut self, n: usize) -> Result<(), ModelError> {
        let Some(length) = &mut self.length else { return Ok(()) };
        if (n > length.original) == length.long {
            return Ok(());
        }
        length.long = !length.long;
        let mut tokens = std::mem::take(&mut self.tokens);
        let (all, computed) = (self.position, self.position - usize::from(self.deferred.is_some()));
        self.position = 0;
        let done = match computed {
            0 => Ok(()),
            _ => self.compute(Role::Prompt, &tokens[..computed], Want::Nothing),
        };
        match done {
            Ok(()) => self.position = all,
            Err(_) => {
                tokens.clear();
                self.deferred = None;
            }
        }
        self.tokens = tokens;
        done
    }

    /// Appends tokens, with nothing deferred.
    fn compute(&mut self, role: Role, tokens: &[u32], want: Want) -> Result<(), ModelError> {
        let mut pos = self.position;
        let parts = tokens.len().div_ceil(self.batch);
        for (part, tokens) in tokens.chunks(self.batch).enumerate() {
            let want = if part + 1 == parts { want } else { Want::Nothing };
            self.run(role, pos, tokens, want)?;
            if want == Want::Last {
                let counts = self.buffers.batch.counts();
                self.net.logits(&mut self.buffers, 0, counts, &mut self.logits)?;
            }
            check(self.model, &self.cache)?;
            if want == Want::Last {
                numbers(self.model, &self.logits, pos + tokens.len() - 1)?;
            }
            pos += tokens.len();
            self.keep_states(pos, false);
        }
        self.position = pos;
        self.keep_states(pos, tokens.len() > 1);
        Ok(())
    }

    /// Computes tokens that follow the first `position` ones.
    fn run(
        &mut self,
        role: Role,
        position: usize,
        tokens: &[u32],
        want: Want,
    ) -> Result<(), ModelError> {
        let batch = &mut self.buffers.batch;
        batch.clear();
        let long = self.length.as_ref().is_some_and(|length| length.long);
        let of = OfSequence { sequence: 0, role, long };
        batch.push(of, position, tokens, want, self.cache.has_states());
        let room = self.cache.prepare(0, position, position + tokens.len());
        assert!(room, "pages for the whole context");
        let (net, b) = (&self.net, &mut self.buffers);
        let Some(head) = self.proposer.as_deref_mut().and_then(Proposer::mtp) else {
            return Ok(net.run(b, &mut self.cache)?);
        };
        Ok(net.run_and_show(b, &mut self.cache, |b, span| head.see(net, b, span))?)
    }

    /// Keeps recurrent states, in which `position` tokens are, if `now` or if it was long ago that they were.
    fn keep_states(&mut self, position: usize, now: bool) {
        let states = &mut self.cache.sequences[0].states;
        if now || position >= states.latest() + SNAPSHOT_EVERY {
            states.save(position);
        }
    }

    /// Remembers the tokens that were appended. After an error the states have tokens in them that the sequence has not.
    fn end_call(&mut self, tokens: &[u32], done: Result<(), ModelError>) -> Result<(), ModelError> {
        let states = &mut self.cache.sequences[0].states;
        if done.is_err() && !states.is_empty() {
            self.position = states.back_to(self.position);
        }
        if done.is_ok() {
            self.tokens.extend_from_slice(tokens);
        }
        self.tokens.truncate(self.position);
        self.prompt = self.prompt.min(self.position);
        done
    }

    /// Appends a generated token that is computed only if something is fed after it: the last token of an
    /// answer costs nothing if no other turn follows.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn defer(&mut self, token: u32) -> Result<(), ModelError> {
        self.admit(&[token])?;
        self.settle()?;
        self.deferred = Some(token);
        self.position += 1;
        self.tokens.push(token);
        Ok(())
    }

    /// Computes the deferred token, if there is one.
    fn settle(&mut self) -> Result<(), ModelError> {
        let Some(token) = self.deferred else { return Ok(()) };
        let pos = self.position - 1;
        let run = self.run(Role::Decode, pos, &[token], Want::Nothing);
        let done = run.and_then(|()| check(self.model, &self.cache));
        if done.is_ok() {
            self.deferred = None;
        } else if !self.cache.sequences[0].states.is_empty() {
            // They may have a part of the token in them.
            self.deferred = None;
            self.position = self.cache.sequences[0].states.back_to(pos);
        }
        done
    }

    /// Refuses what cannot be fed.
    fn admit(&self, tokens: &[u32]) -> Result<(), ModelError> {
        admit(self.model.spec(), tokens, self.position, self.context)
    }

    /// The logits of the last [`Session::feed`] or [`Session::feed_each`]; zeros before the first.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// The final hidden state `[hidden]` that the logits of the last call were computed from.
    #[cfg(test)]
    pub(super) fn final_state(&self) -> Vec<f32> {
        let mut state = vec![0.0; self.model.spec().hidden_size];
        self.net.hidden(&self.buffers, 0, &mut state);
        state
    }

    /// How many tokens the sequence has.
    pub fn position(&self) -> usize {
        self.position
    }

    /// How many it may have.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Forgets everything from position `n` on; nothing if the sequence is not as long. Returns how many tokens are left:
    /// `n`, or fewer if the model has recurrent layers, whose states cannot be cut. Then the sequence goes back to the
    /// latest snapshot of them, and what lies between has to be fed again. Free but for that.
    pub fn truncate(&mut self, n: usize) -> usize {
        if n < self.position {
            let computed = self.position - usize::from(self.deferred.take().is_some());
            let states = &mut self.cache.sequences[0].states;
            let left = match states.is_empty() || n == computed {
                true => n,
                false => states.back_to(n),
            };
            self.cut(left);
        }
        self.position
    }

    /// Forgets the tokens from position `n` on, of which nothing is in the states of recurrent layers.
    fn cut(&mut self, n: usize) {
        self.position = n;
        self.tokens.truncate(n);
        self.prompt = self.prompt.min(n);
        self.restored = self.restored.min(n);
    }

    /// The model that it runs on.
    pub fn model(&self) -> &'m Model {
        self.model
    }

    /// The SIMD level of kernels in use.
    pub fn isa(&self) -> Isa {
        self.model.isa()
    }
}

/// Refuses tokens that a sequence of `used` tokens cannot be continued with in a context of `limit`.
pub(super) fn admit(
    spec: &ModelSpec,
    tokens: &[u32],
    used: usize,
    limit: usize,
) -> Result<(), ModelError> {
    if tokens.is_empty() {
        return Err(ModelError::EmptyInput);
    }
    if let Some(&id) = tokens.iter().find(|id| **id as usize >= spec.vocab) {
        return Err(ModelError::TokenRange { id, vocab: spec.vocab });
    }
    let asked = tokens.len();
    if asked > limit - used {
        return Err(ModelError::ContextFull { used, asked, limit, trained: spec.context });
    }
    Ok(())
}

/// Whether everything that was read from files so far can be relied on.
///
/// # Errors
/// A file has become shorter since it was mapped, or cannot be read.
pub(super) fn check(model: &Model, cache: &Cache) -> Result<(), ModelError> {
    cache.check()?;
    model.check()
}

/// Whether `logits` of what follows `position` are numbers, or −∞.
///
/// # Errors
/// [`ModelError::NotNumbers`], which names the first weight that is not a number, if there is one. All
/// weights are read for that, so it takes as long as a step.
pub(super) fn numbers(model: &Model, logits: &[f32], position: usize) -> Result<(), ModelError> {
    // A NaN compares as not less than anything. Each chunk is looked at whole: the compiler makes SIMD of what has no way
    // out in between.
    let all = |chunk: &[f32]| chunk.iter().fold(true, |all, logit| all & (*logit < f32::INFINITY));
    if logits.chunks(1024).all(all) {
        return Ok(());
    }
    let path = model.files().next().map(Into::into).unwrap_or_default();
    let weight = not_finite(model.store().maps().iter().map(|map| &**map));
    Err(ModelError::NotNumbers { path, position, weight })
}
