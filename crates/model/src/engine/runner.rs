//! A model with everything needed to compute sequences: the network, the cache, buffers, logits. A step is a batch of rows of several sequences; the
//! owner of the sequences chooses the rows, and uses the results.

use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use alight_kernels::attention::KvType;
use alight_kernels::matmul::RowCounts;

use super::best::Best;
use super::drafter::Drafter;
use super::net::Net;
use super::proposer::Proposer;
use super::sequence::Sequence;
use super::speculate::{MAX_DRAFT, StepPlanner};
use crate::adapters::AdapterSet;
use crate::cache::{Cache, CacheError};
use crate::cancel::Cancel;
use crate::error::ModelError;
use crate::open::{DEFAULT_CONTEXT, Model};
use crate::parts::batch::{LogitRows, Role, SequenceRows, Span};
use crate::parts::buffers::Buffers;
use crate::positions::POSITIONS;
use crate::prompts::{FoundPrompt, IgnoredPrompt, Key, PromptFolder, Rounding};
use crate::store::Seen;

/// Maximum number of tokens that are computed together.
pub const MAX_BATCH: usize = 4096;
/// Maximum number of tokens of a text that is read as a whole, since its tokens see later ones.
pub const MAX_WHOLE_TEXT: usize = 8192;
/// Maximum number of positions of a context.
pub const MAX_CONTEXT: usize = 1 << 30;
/// Maximum number of sequences that are computed together.
pub const MAX_SEQUENCES: usize = 1024;
/// Recurrent states are saved at least once per this number of tokens.
pub(super) const SNAPSHOT_EVERY: usize = 2048;
/// Minimum number of rows whose logits are computed together, where those of many rows are requested.
const MIN_LOGITS: usize = 16;
/// Maximum number of tokens of a sequence for which memory is reserved in advance.
pub(super) const MAX_RESERVED: usize = 1 << 20;

/// Limits and number formats of a runner.
pub(super) struct RunnerOptions {
    pub(super) sequences: usize,
    /// Maximum number of positions of each sequence.
    pub(super) context: Option<usize>,
    /// Maximum number of rows of a step.
    pub(super) batch: usize,
    /// Maximum number of draft rows in a step.
    pub(super) drafted: usize,
    pub(super) rounding: Rounding,
    /// Bytes for cached prompts.
    pub(super) prompt_cache: usize,
}

/// The part of a prompt that was restored from a folder of prompts.
#[derive(Debug, Default)]
pub struct Restored {
    /// Number of tokens at the beginning of the prompt that need not be fed.
    pub positions: usize,
    /// The file that they come from.
    pub file: Option<PathBuf>,
    /// Files that should have been usable and are not.
    pub ignored: Vec<IgnoredPrompt>,
}

/// A model, and memory for sequences on it.
pub(super) struct Runner<'m> {
    pub(super) model: &'m Model,
    net: Net<'m>,
    pub(super) cache: Cache,
    buffers: Buffers,
    /// `[rows, vocab]`: at least a row for each sequence and for each draft token of a step.
    logits: Vec<f32>,
    context: usize,
    batch: usize,
    longest: usize,
    rounding: Rounding,
    planner: StepPlanner,
    /// The logits that are needed of the rows of a step.
    pub(super) best: Best,
    /// The failures of reading before the step.
    seen: Seen,
    /// Proposers of the first sequences of the cache, indexed by sequence.
    pub(super) proposers: Vec<Proposer<'m>>,
}

impl<'m> Runner<'m> {
    /// Address space is reserved for all sequences, and memory is used only as they grow.
    ///
    /// # Errors
    /// Options beyond the limits, a cache type that the model does not support, or memory that the system does not provide.
    pub(super) fn new(model: &'m Model, options: &RunnerOptions) -> Result<Runner<'m>, ModelError> {
        let &RunnerOptions { sequences, batch, drafted, rounding, prompt_cache, .. } = options;
        let spec = model.spec();
        let whole = spec.is_bidirectional();
        // Texts that are read as a whole need keys and values for one step only: they are not rounded.
        let rounding = match rounding.cache {
            KvType::F16 if whole => Rounding { cache: KvType::F32, ..rounding },
            _ => rounding,
        };
        let usual = if whole { MAX_WHOLE_TEXT } else { DEFAULT_CONTEXT };
        let context = options.context.unwrap_or(usual.min(spec.context));
        for (what, found, most) in [
            ("context", context, MAX_CONTEXT),
            ("batch", batch, MAX_BATCH),
            ("number of sequences", sequences, MAX_SEQUENCES),
        ] {
            if found == 0 || found > most {
                let expected = format!("1 to {most}");
                return Err(ModelError::Options { what, found, expected });
            }
        }
        let context = spec.max_positions().map_or(context, |positions| context.min(positions));
        let decode = sequences + drafted;
        let batch = batch.min(context.saturating_mul(sequences)).max(decode);
        // A longer text has a step to itself.
        let longest = if whole { context.min(MAX_WHOLE_TEXT).max(batch) } else { batch };
        let threads = (model.pool(), model.isa());
        let net = Net::new(spec, model.weights().net(), model.store(), threads);
        net.check_cache_type(rounding.cache)?;
        // Each sequence has whole pages.
        let positions = context.next_multiple_of(POSITIONS).saturating_mul(sequences);
        // Without address space for prompts, the sequences work without a prompt cache.
        let cache = net.cache(positions, sequences, prompt_cache, rounding.cache);
        let cache = cache.or_else(|_| net.cache(positions, sequences, 0, rounding.cache))?;
        let buffers = net.buffers(context, [longest, decode], rounding.prompt);
        Ok(Runner {
            model,
            net,
            cache,
            buffers,
            logits: vec![
                0.0;
                if spec.has_output { decode.max(MIN_LOGITS) * spec.vocab } else { 0 }
            ],
            context,
            batch,
            longest,
            rounding,
            planner: StepPlanner::new(decode),
            best: Best::new(model),
            seen: Seen::default(),
            proposers: Vec::new(),
        })
    }

    /// The maximum number of positions of each sequence.
    pub(super) fn context(&self) -> usize {
        self.context
    }

    /// The maximum number of rows of a step.
    pub(super) fn batch(&self) -> usize {
        self.batch
    }

    /// The maximum number of tokens of a text that is read as a whole, which may be more than a step has otherwise.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// An empty sequence, with memory for `capacity` tokens.
    pub(super) fn sequence(&self, index: usize, capacity: usize) -> Sequence {
        Sequence::new(index, self.original(), capacity)
    }

    /// Returns the maximum length of a sequence that is not long, if the model rotates long ones differently.
    fn original(&self) -> Option<usize> {
        let long = &self.model.spec().long_context;
        // Where no sequence can become long, there is nothing to distinguish.
        (long.rope.is_some() && self.context > long.original).then_some(long.original)
    }

    /// Returns true if a sequence of `n` tokens is long.
    pub(super) fn is_long(&self, n: usize) -> bool {
        self.original().is_some_and(|original| n > original)
    }

    /// Returns the number of tokens of a sequence for which memory is reserved: those of its context, and a chosen one that is not computed.
    pub(super) fn max_tokens(&self) -> usize {
        self.context.min(MAX_RESERVED) + 1
    }

    /// Lets a smaller model with the same tokens propose tokens of the first `count` sequences.
    ///
    /// # Errors
    /// `draft` has other tokens, or the system does not provide the memory for its sequences.
    pub(super) fn draft_with(&mut self, draft: &'m Model, count: usize) -> Result<(), ModelError> {
        let drafts = (0..count).map(|_| Proposer::with_model(draft, self.model, self.context));
        self.proposers = drafts.collect::<Result<_, _>>()?;
        self.cancel_by(self.net.cancel().clone());
        Ok(())
    }

    /// Lets `cancel` end a step early, with [`ModelError::Cancelled`]; those of proposers as well.
    pub(super) fn cancel_by(&mut self, cancel: Cancel) {
        for proposer in &mut self.proposers {
            proposer.cancel_by(cancel.clone());
        }
        self.net.cancel_by(cancel);
    }

    /// Lets the MTP layer of the model's file, if any, propose tokens of the first `count` sequences. Returns true if there is one.
    ///
    /// # Errors
    /// The system does not provide the memory for its keys and values.
    pub(super) fn draft_with_mtp(&mut self, count: usize) -> Result<bool, ModelError> {
        if self.model.weights().mtp.is_some() {
            // No section of a load has its weights.
            self.model.wait_received()?;
        }
        let heads =
            (0..count).map_while(|_| Proposer::with_mtp(self.model, self.context).transpose());
        let heads = heads.collect::<Result<Vec<_>, _>>()?;
        let found = !heads.is_empty();
        if found {
            self.proposers = heads;
            self.cancel_by(self.net.cancel().clone());
        }
        Ok(found)
    }

    /// Gives a sequence, of which nothing is computed yet, its adapters.
    ///
    /// # Errors
    /// One of them is of another model.
    pub(super) fn adapt(
        &mut self,
        sequence: &mut Sequence,
        set: &AdapterSet,
    ) -> Result<(), ModelError> {
        self.check_adapters(set)?;
        self.adapt_checked(sequence, set);
        Ok(())
    }

    /// Gives a sequence adapters that are of this model.
    pub(super) fn adapt_checked(&mut self, sequence: &mut Sequence, set: &AdapterSet) {
        self.buffers.adapters.set(sequence.index, set);
        sequence.adapters = set.clone();
    }

    /// Checks that adapters are of this model.
    ///
    /// # Errors
    /// One of them is of another one.
    pub(super) fn check_adapters(&self, set: &AdapterSet) -> Result<(), ModelError> {
        if let Some((adapter, _)) = set.iter().find(|(a, _)| a.base != self.model.identity()) {
            let (path, model) = (adapter.path().into(), self.model.name().to_owned());
            return Err(ModelError::OtherBase { path, model });
        }
        Ok(())
    }

    /// Prepares a sequence for drafts.
    ///
    /// # Errors
    /// The system does not provide the memory for the states of recurrent layers after each token of a draft.
    pub(super) fn get_ready_for_drafts(&mut self, sequence: usize) -> Result<(), CacheError> {
        self.cache.get_ready_for_drafts(sequence, MAX_DRAFT)
    }

    /// Begins a step in which `decoding` sequences decode.
    pub(super) fn begin(&mut self, decoding: usize) {
        self.buffers.batch.clear();
        self.buffers.adapters.clear();
        self.best.begin();
        self.planner.begin(decoding);
    }

    /// Adds the pending token of a sequence to the step, with a draft of up to `most` tokens where drafts pay. Returns the number of rows; logits are
    /// requested for all of them or for none.
    pub(super) fn push_pending(
        &mut self,
        sequence: &mut Sequence,
        want: LogitRows,
        most: usize,
    ) -> usize {
        let mut tokens = [0; MAX_DRAFT + 1];
        let mut rows = 1;
        let proposer = self.proposers.get_mut(sequence.index);
        if let Some(drafter) = &mut sequence.drafter {
            let draft = drafter.propose(&mut self.planner, most, proposer);
            tokens[1..=draft.len()].copy_from_slice(draft);
            rows += draft.len();
        }
        let of = of(sequence, Role::Decode);
        let (position, token) = sequence.take_pending();
        tokens[0] = token;
        let states = self.cache.has_states();
        self.buffers.batch.push(of, position, &tokens[..rows], want, states);
        self.buffers.adapters.push(of.sequence, rows, wanted_of_draft(want, states));
        rows
    }

    /// Adds the next `rows` tokens of a sequence's prompt to the step.
    pub(super) fn push_prompt(&mut self, sequence: &mut Sequence, rows: usize, want: LogitRows) {
        let of = of(sequence, Role::Prompt);
        let (position, tokens) = sequence.read_next(rows);
        let states = self.cache.has_states();
        let batch = &mut self.buffers.batch;
        let first = batch.tokens().len();
        batch.push(of, position, tokens, want, states);
        self.buffers.adapters.push(of.sequence, rows, want);
        let batch = &mut self.buffers.batch;
        let hidden = self.model.spec().hidden_size;
        for span in sequence.vectors_at(position..position + rows) {
            let here = span.positions.start.max(position)..span.positions.end.min(position + rows);
            let row = first + (here.start - position);
            let before = here.start - span.positions.start;
            let values = &span.values[before * hidden..][..here.len() * hidden];
            batch.set_vectors(row, values, hidden);
            if span.is_group {
                batch.group(row..row + here.len());
            }
        }
    }

    /// Computes the step, and the logits of the first `logits` requested rows. Returns the time it took.
    ///
    /// # Errors
    /// Weights that cannot be loaded, a file that has shrunk, or a cancelled step. The cache contents for the rows are then invalid. The next step has
    /// files read again.
    pub(super) fn run(&mut self, logits: usize) -> Result<Duration, ModelError> {
        let began = Instant::now();
        self.seen = self.model.begin_step();
        let (net, cache, buffers) = (&self.net, &mut self.cache, &mut self.buffers);
        let proposers = &mut self.proposers;
        let rows = buffers.batch.tokens().len();
        // The rows of a sequence may be several spans, of which the first sees pages that the others do not.
        for spans in buffers.batch.all_spans().chunk_by(|a, b| a.sequence == b.sequence) {
            let (Some(first), Some(last)) = (spans.first(), spans.last()) else { continue };
            let end = last.position + last.rows.len();
            let prepared = cache.prepare(first.sequence, first.position, end);
            assert!(prepared, "pages for the whole context of every sequence");
        }
        let decodes = buffers.batch.spans(Role::Prompt).next().is_none();
        match proposers.iter_mut().any(|proposer| proposer.mtp().is_some()) {
            false => net.run(buffers, cache)?,
            true => net.run_and_show(buffers, cache, |b, span| {
                match proposers.get_mut(span.sequence).and_then(Proposer::mtp) {
                    Some(head) => head.see(net, b, span),
                    None => Ok(()),
                }
            })?,
        }
        let counts = buffers.batch.counts_of_first(logits);
        if counts.all() > 0 {
            let logits = &mut self.logits[..counts.all() * self.model.spec().vocab];
            let few = net.logits(buffers, 0, counts, logits, self.best.of(counts))?;
            self.best.count(counts, few);
        }
        self.check()?;
        let took = began.elapsed();
        if decodes {
            self.planner.took(rows, took);
        }
        Ok(took)
    }

    /// The rows of the step: after it has been computed, only the requested ones.
    pub(super) fn spans(&self) -> &[Span] {
        self.buffers.batch.all_spans()
    }

    /// The logits `[vocab]` of a row.
    pub(super) fn logits(&self, row: usize) -> &[f32] {
        let vocab = self.model.spec().vocab;
        &self.logits[row * vocab..][..vocab]
    }

    /// Checks that the logits of a row, for the position after `position`, are numbers.
    ///
    /// # Errors
    /// They are not.
    pub(super) fn check_numbers(&self, row: usize, position: usize) -> Result<(), ModelError> {
        numbers(self.model, self.logits(row), position)
    }

    /// Computes the logits of rows of a prompt, the first of which is at `position`, and calls `f(position, logits)` with those of each. Overwrites
    /// the logits of the step. Returns the row of the last logits.
    ///
    /// # Errors
    /// As [`Runner::run`]; [`ModelError::NotNumbers`], before `f` is called for the row.
    pub(super) fn each_logits(
        &mut self,
        rows: Range<usize>,
        position: usize,
        f: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<usize, ModelError> {
        let vocab = self.model.spec().vocab;
        let most = self.logits.len() / vocab;
        let mut last = 0;
        for first in rows.clone().step_by(most) {
            let n = most.min(rows.end - first);
            let logits = &mut self.logits[..n * vocab];
            let counts = RowCounts::new(self.rounding.prompt, n);
            self.net.logits(&mut self.buffers, first, counts, logits, None)?;
            self.check()?;
            let position = position + (first - rows.start);
            (0..n).try_for_each(|i| self.check_numbers(i, position + i))?;
            (0..n).for_each(|i| f(position + i, self.logits(i)));
            last = n - 1;
        }
        Ok(last)
    }

    /// The final hidden state `[hidden]` of a row.
    pub(super) fn hidden(&self, row: usize, hidden: &mut [f32]) {
        self.net.hidden(&self.buffers, row, hidden);
    }

    /// Makes of the pooled state `x` `[hidden]` the vector `[embedding_size]` of its text, or with `rank` the scores `[labels]`. `y` is scratch.
    pub(super) fn apply_head(&mut self, rank: bool, x: &mut Vec<f32>, y: &mut Vec<f32>) {
        self.net.apply_head(&mut self.buffers, rank, x, y);
    }

    /// Removes the rejected tokens of the last draft from a sequence.
    pub(super) fn end_draft(&mut self, sequence: &mut Sequence) {
        if let Some([came, wrong]) = sequence.drafter.as_mut().map(Drafter::end)
            && wrong > 0
        {
            self.cache.back_to_draft(sequence.index, came);
        }
    }

    /// Returns the key that separates computed prompts from those computed with other settings.
    pub(super) fn key(&self, long: bool, salt: &str) -> Key {
        self.model.prompt_key(self.rounding, long, salt)
    }

    /// Restores from `folder` as much as it has of a sequence whose tokens are all still to be read, if that is more than the first `least` tokens;
    /// at most all but the last token. The file is mapped, and not read into memory of this process. Everything computed afterwards is bit-identical
    /// to computing the whole sequence. If a file turns out to be unusable, no token of the sequence counts as computed any more.
    pub(super) fn restore(
        &mut self,
        sequence: &mut Sequence,
        folder: &PromptFolder,
        salt: &str,
        least: usize,
    ) -> Restored {
        let key = self.key(sequence.is_long(), salt);
        let (found, ignored) = folder.find(&key, sequence.reusable(), least, &self.cache.sizes());
        let mut restored = Restored { ignored, ..Restored::default() };
        let Some(FoundPrompt { file, positions }) = found else { return restored };
        let path = file.map.path();
        match self.cache.restore(sequence.index, &file, positions) {
            Ok(true) => {
                sequence.reuse(positions);
                (restored.positions, restored.file) = (positions, Some(path.into()));
                return restored;
            }
            Ok(false) => {}
            Err(why) => restored.ignored.push(folder.ignore(path.into(), why)),
        }
        sequence.begin_again();
        restored
    }

    /// Checks that everything that the step has read from files is reliable.
    ///
    /// # Errors
    /// A file has become shorter since it was mapped, or cannot be read.
    fn check(&self) -> Result<(), ModelError> {
        self.cache.check()?;
        self.buffers.adapters.check()?;
        self.model.check_step(self.seen)
    }
}

/// The rows of a draft that are wanted: each of them, if any, where each is a span of its own.
fn wanted_of_draft(want: LogitRows, spans: bool) -> LogitRows {
    match want {
        LogitRows::First | LogitRows::Last if spans => LogitRows::All,
        _ => want,
    }
}

/// How the rows of a sequence are computed.
fn of(sequence: &Sequence, role: Role) -> SequenceRows {
    SequenceRows {
        sequence: sequence.index,
        role,
        long: sequence.is_long(),
        second_segment: sequence.second_segment,
    }
}

/// Rejects tokens that cannot continue a sequence of `used` tokens in a context of `limit`, of which at most `batch` are computed together.
///
/// # Errors
/// No tokens, a token outside the vocabulary, or more tokens than fit; for a network that reads texts as a whole, a text longer than a batch.
pub(super) fn admit(
    model: &Model,
    tokens: &[u32],
    used: usize,
    [limit, batch]: [usize; 2],
) -> Result<(), ModelError> {
    let spec = model.spec();
    if tokens.is_empty() {
        return Err(ModelError::EmptyInput);
    }
    if let Some(&id) = tokens.iter().find(|id| **id as usize >= spec.vocab) {
        return Err(ModelError::TokenRange { id, vocab: spec.vocab });
    }
    let asked = tokens.len();
    if asked > limit - used {
        let (trained, computable) = (spec.context, spec.max_positions().unwrap_or(usize::MAX));
        return Err(ModelError::ContextFull { used, asked, limit, trained, computable });
    }
    if spec.is_bidirectional() {
        if used > 0 {
            return Err(ModelError::Bidirectional { model: model.name().to_owned() });
        }
        if asked > batch {
            return Err(ModelError::TooLongForBatch { found: asked, expected: batch });
        }
    }
    Ok(())
}

/// Checks that `logits` for the position after `position` are finite.
///
/// # Errors
/// [`ModelError::NotNumbers`], which names the first weight that is not a number, if there is one. This reads all weights, so it takes as long as a
/// step.
pub(super) fn numbers(model: &Model, logits: &[f32], position: usize) -> Result<(), ModelError> {
    // Every comparison with NaN is false. Each chunk is checked as a whole: the compiler vectorises loops without an early exit.
    let all =
        |chunk: &[f32]| chunk.iter().fold(true, |all, logit| all & (logit.abs() < f32::INFINITY));
    if logits.chunks(1024).all(all) {
        return Ok(());
    }
    let path = model.files().next().map(Into::into).unwrap_or_default();
    let weight = model.first_not_finite();
    Err(ModelError::NotNumbers { path, position, weight })
}
