//! Many sequences on one model: they join and leave between steps, and every step computes one batch of rows of all of them.
//!
//! A step has one row for each sequence that decodes, and then as many prompt rows as fit into the time limit of a step ([`pace`](super::pace)). That
//! time decides how prompts are split, and neither the split nor the other sequences of a batch change any bit of an answer (see
//! [`batch`](crate::parts::batch)).

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use alight_kernels::attention::KvType;
use alight_kernels::matmul::Precision;
use alight_pages::slots::Slots;
use alight_text::SequenceBreakers;

use super::active::{ActiveRequest, salt};
use super::best::OutputCounts;
use super::drafter::Drafter;
use super::outputs::{DraftCounts, OnEvent, Outputs, leave};
use super::pace::Pace;
use super::prompt_store::{self, PromptStore};
use super::request::{Constraint, Event, Request, RequestId};
use super::runner::{MAX_RESERVED, Runner, RunnerOptions, admit};
use super::sampler::Sampler;
use super::speculate::{MAX_DRAFT, Speculate};
use crate::adapters::AdapterSet;
use crate::cache::Indexed;
use crate::cancel::Cancel;
use crate::error::ModelError;
use crate::open::Model;
use crate::parts::batch::LogitRows;
use crate::positions::POSITIONS;
use crate::prompts::{IgnoredPrompt, PromptFolder, PromptWriteError, RestoreError, Rounding};
use crate::spec::Pooling;

/// Maximum number of sequences with drafts of the maximum length in one step.
const MAX_DRAFTING: usize = 4;
/// Maximum number of sequences with a draft model or an MTP layer.
const MAX_PROPOSERS: usize = 8;

/// Limits and number formats of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Number of sequences that are computed at the same time; other requests wait.
    pub sequences: usize,
    /// Maximum number of positions of each sequence; `None`: [`DEFAULT_CONTEXT`], or the model's training context if that is smaller.
    pub context: Option<usize>,
    /// Maximum number of rows that are computed together.
    pub batch: usize,
    /// How activations of prompts are rounded.
    pub prompt_precision: Precision,
    /// Number format of keys and values.
    pub cache_type: KvType,
    /// Target time limit of a step in which a sequence decodes while prompts are read.
    pub step: Duration,
    /// Bytes of memory for cached prompts, so that a prompt that begins like an earlier one is computed only from where they differ. 0: nothing is
    /// kept. The least recently used entries are evicted first.
    pub prompt_cache: usize,
    /// The folder in which prompts computed before this engine existed are looked up, and to which [`Engine::keep`] writes.
    pub prompts: Option<PromptFolder>,
    /// When tokens are drafted; the answer is the same.
    pub speculate: Speculate,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            sequences: 8,
            context: None,
            batch: 512,
            prompt_precision: Precision::Bits8,
            cache_type: KvType::F16,
            step: Duration::from_millis(100),
            prompt_cache: 1 << 30,
            prompts: None,
            speculate: Speculate::default(),
        }
    }
}

/// The sizes of pages of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachePage {
    /// Number of positions of a page.
    pub positions: usize,
    /// Bytes of a page, in all layers that keep every position.
    pub bytes: usize,
    /// Bytes of a page, in all layers with a window; 0 if there are none.
    pub window_bytes: usize,
    /// Maximum number of pages of those layers that a sequence keeps while it decodes.
    pub window_pages: usize,
}

/// A request that has no sequence yet.
struct Waiting {
    id: RequestId,
    request: Request,
    constraint: Option<Box<dyn Constraint>>,
}

/// Many sequences on a model.
///
/// The answer to a request depends on the model, its prompt, its options and its seed: not on concurrent requests, on its time of arrival, or on the
/// number of sequences. A step allocates nothing unless a request begins, a sequence is read again because it has become long, or a prompt is the
/// first one with its salt.
///
/// ```
/// # use alight_model::{Engine, EngineOptions, Event, Model, ModelError, Request, SamplerOptions};
/// /// Answers two prompts at the same time.
/// fn both(model: &Model, prompts: [Vec<u32>; 2]) -> Result<[Vec<u32>; 2], ModelError> {
///     let mut engine = Engine::new(model, &EngineOptions::default())?;
///     let mut answers = [Vec::new(), Vec::new()];
///     let mut ids = Vec::new();
///     for prompt in prompts {
///         let sampling = SamplerOptions::greedy();
///         let request = Request { prompt, sampling, max_tokens: 20, ..Request::default() };
///         ids.push(engine.add(request)?);
///     }
///     while engine.step(&mut |id, event| {
///         if let Event::Token(token, _) = event {
///             answers[ids.iter().position(|other| *other == id).unwrap()].push(token);
///         }
///     })? {}
///     Ok(answers)
/// }
/// ```
pub struct Engine<'m> {
    runner: Runner<'m>,
    /// Indexed by sequence of the cache.
    places: Vec<Option<ActiveRequest>>,
    waiting: VecDeque<Waiting>,
    last_id: u64,
    pace: Pace,
    prompts: PromptStore,
    outputs: Outputs,
    speculate: Speculate,
    /// Maximum number of draft rows in a step.
    max_drafted: usize,
    /// Sequences whose prompts are being read, in the order of their turns.
    order: Vec<usize>,
    /// Sequences whose logits the step computes, in the order of their rows.
    asked: Vec<usize>,
    /// The number of those rows. Rows that are requested for their own sake (all logits, hidden states) come after them.
    asked_rows: usize,
    /// The texts that broke sequences for the last request with DRY, and their tokens: finding these takes a search in all tokens.
    breakers: Option<(Option<Vec<String>>, Arc<SequenceBreakers>)>,
}

impl<'m> Engine<'m> {
    /// Creates an engine without requests. Address space is reserved for all sequences, and memory is used only as they grow.
    ///
    /// # Errors
    /// Options beyond the limits, or memory that the system does not provide.
    pub fn new(model: &'m Model, options: &EngineOptions) -> Result<Engine<'m>, ModelError> {
        let sequences = options.sequences;
        // At least one row for each sequence, and for one draft; for more drafts if the requested batch has space for them.
        let drafts = options.speculate != Speculate::Off;
        let most = MAX_DRAFT * sequences.clamp(1, MAX_DRAFTING);
        let drafted = options.batch.saturating_sub(sequences).clamp(MAX_DRAFT, most);
        let max_drafted = if drafts { drafted } else { 0 };
        let rounding = Rounding { prompt: options.prompt_precision, cache: options.cache_type };
        let mut runner = Runner::new(
            model,
            &RunnerOptions {
                sequences,
                context: options.context,
                batch: options.batch,
                drafted: max_drafted,
                rounding,
                prompt_cache: options.prompt_cache,
            },
        )?;
        if drafts {
            (0..sequences).try_for_each(|sequence| runner.get_ready_for_drafts(sequence))?;
            runner.draft_with_mtp(sequences.min(MAX_PROPOSERS))?;
        }
        Ok(Engine {
            runner,
            places: (0..sequences).map(|_| None).collect(),
            waiting: VecDeque::new(),
            last_id: 0,
            pace: Pace::new(options.step),
            prompts: PromptStore::new(options.prompts.clone()),
            outputs: Outputs::new(model),
            speculate: options.speculate,
            max_drafted,
            order: Vec::with_capacity(sequences),
            asked: Vec::with_capacity(sequences),
            asked_rows: 0,
            breakers: None,
        })
    }

    /// Lets a smaller model with the same tokens propose draft tokens, where the text itself has no proposal and where that is faster. The answers
    /// are the same. At most eight sequences use it; call it before the first request is added.
    ///
    /// # Errors
    /// `draft` has other tokens, or the system does not provide the memory for its sequences.
    pub fn draft_with(&mut self, draft: &'m Model) -> Result<(), ModelError> {
        self.runner.draft_with(draft, self.places.len().min(MAX_PROPOSERS))
    }

    /// Lets `cancel` end a step early, with [`ModelError::Cancelled`].
    pub fn cancel_by(&mut self, cancel: Cancel) {
        self.runner.cancel_by(cancel);
    }

    /// The maximum number of positions of each sequence.
    pub fn context(&self) -> usize {
        self.runner.context()
    }

    /// Adds a request, which is computed from the next step on, or once an earlier sequence has ended.
    ///
    /// # Errors
    /// An empty prompt, a token outside the vocabulary, or a prompt that does not fit the context.
    pub fn add(&mut self, request: Request) -> Result<RequestId, ModelError> {
        self.add_constrained(request, None)
    }

    /// As [`Engine::add`], for a request whose answer is constrained.
    ///
    /// # Errors
    /// As [`Engine::add`].
    pub fn add_constrained(
        &mut self,
        mut request: Request,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Result<RequestId, ModelError> {
        let (model, limits) = (self.runner.model, [self.context(), self.runner.longest()]);
        admit(model, &request.prompt, 0, limits)?;
        let (spec, name) = (model.spec(), || model.name().to_owned());
        if !spec.generates() && !request.wants_embedding() {
            return Err(ModelError::Bidirectional { model: name() });
        }
        if request.wants_scores() && spec.classifier.is_none() {
            return Err(ModelError::NoClassifier { model: name() });
        }
        self.runner.check_adapters(&request.adapters)?;
        request.salt = request.adapters.salt(&request.salt);
        request.place = request.place.filter(|place| *place < self.places.len());
        self.last_id += 1;
        let id = RequestId(self.last_id);
        self.waiting.push_back(Waiting { id, request, constraint });
        Ok(id)
    }

    /// Drops a request; no more events are reported for it. Returns true if it existed.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let is_it = |place: &&mut Option<ActiveRequest>| place.as_ref().is_some_and(|a| a.id == id);
        if let Some(place) = self.places.iter_mut().find(is_it) {
            leave(&mut self.runner, place);
            return true;
        }
        let before = self.waiting.len();
        self.waiting.retain(|other| other.id != id);
        self.waiting.len() < before
    }

    /// Writes the cached beginning of a prompt, which was computed with this salt and these adapters, to the folder of prompts, where this process and
    /// others find it. Returns the file; `None` if there is no folder, or nothing to write.
    ///
    /// # Errors
    /// See [`PromptWriteError`]. Only the time that the file would have saved is lost.
    pub fn keep(
        &mut self,
        (salt, adapters): (&str, &AdapterSet),
        prompt: &[u32],
    ) -> Result<Option<PathBuf>, PromptWriteError> {
        self.prompts.keep(&mut self.runner, &adapters.salt(salt), prompt)
    }

    /// Writes the cached beginning of a prompt to the file at `path`, which only this user may read. It replaces a prompt file of this user's, and no
    /// other file and no link. Returns its number of tokens and bytes; `None` if nothing of the prompt is cached.
    ///
    /// # Errors
    /// See [`PromptWriteError`]. An existing file is left as it was.
    pub fn save(
        &mut self,
        (salt, adapters): (&str, &AdapterSet),
        prompt: &[u32],
        path: &Path,
    ) -> Result<Option<(usize, u64)>, PromptWriteError> {
        prompt_store::save(&mut self.runner, &adapters.salt(salt), prompt, path)
    }

    /// Adds the prompt in the file at `path` to the cached prompts. The file is mapped, and not read into memory of this process. Returns the prompt,
    /// and the size of the file in bytes.
    ///
    /// # Errors
    /// The file is unusable, or there is no capacity for it now: no sequence is free, or prompts are not cached.
    pub fn restore(
        &mut self,
        (salt, adapters): (&str, &AdapterSet),
        path: &Path,
    ) -> Result<(Vec<u32>, u64), RestoreError> {
        let free = self.places.iter().position(Option::is_none);
        prompt_store::restore(&mut self.runner, free, &adapters.salt(salt), path)
    }

    /// Drops the cached beginning of a prompt, except for what other prompts share with it. Returns the number of tokens dropped.
    pub fn forget(&mut self, (salt, adapters): (&str, &AdapterSet), prompt: &[u32]) -> usize {
        prompt_store::forget(&mut self.runner, &adapters.salt(salt), prompt)
    }

    /// Takes the list of prompt files that should have been usable and were not, since the last call.
    pub fn ignored_prompts(&mut self) -> Vec<IgnoredPrompt> {
        self.prompts.take_ignored()
    }

    /// Bytes of memory used by cached prompts; never more than [`EngineOptions::prompt_cache`], not counting pages that active sequences use.
    pub fn kept_bytes(&self) -> usize {
        self.runner.cache.kept_bytes()
    }

    /// The pages of the KV cache.
    pub fn page(&self) -> CachePage {
        let sizes = self.runner.cache.sizes();
        CachePage {
            positions: POSITIONS,
            bytes: sizes.page,
            window_bytes: sizes.window_page,
            window_pages: sizes.windows.most_pages(),
        }
    }

    /// Takes the numbers of draft tokens since the last call.
    pub fn take_draft_counts(&mut self) -> DraftCounts {
        std::mem::take(&mut self.outputs.drafts)
    }

    /// Returns how the output matrix was read for the tokens of answers, if its high bits are stored apart.
    pub fn output_counts(&self) -> Option<OutputCounts> {
        self.runner.best.counts()
    }

    /// Returns true if there is nothing to compute.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.places.iter().all(Option::is_none)
    }

    /// Computes the next batch and hands out its events. Returns true if there is more to compute.
    ///
    /// # Errors
    /// Weights that cannot be loaded, a file that has shrunk, or a step that was cancelled. All requests are dropped in that case.
    pub fn step(
        &mut self,
        on_event: &mut dyn FnMut(RequestId, Event<'_>),
    ) -> Result<bool, ModelError> {
        self.join();
        let decoding = self.push_decoding();
        let prompts = self.push_prompts(decoding);
        if decoding + prompts == 0 {
            return Ok(false);
        }
        let done = self.runner.run(self.asked_rows).and_then(|took| {
            self.learn(took, [decoding, prompts]);
            self.hand_out(on_event)
        });
        if let Err(error) = done {
            // The cache contents for the rows of this step are invalid.
            self.places.iter_mut().for_each(|place| *place = None);
            self.runner.cache.forget();
            self.waiting.clear();
            return Err(error);
        }
        Ok(!self.is_idle())
    }

    /// Assigns free sequences to waiting requests, and reuses the cached beginnings of their prompts.
    fn join(&mut self) {
        for index in 0..self.places.len() {
            if self.places[index].is_some() {
                continue;
            }
            let fits = |waiting: &Waiting| waiting.request.place.is_none_or(|place| place == index);
            let next = self.waiting.iter().position(fits);
            let Some(waiting) = next.and_then(|at| self.waiting.remove(at)) else { continue };
            let mut active = self.activate(index, waiting);
            if !active.wants_earlier_rows() && !active.is_whole {
                self.prompts.look_up(&mut self.runner, &mut active);
                prompt_store::follow(&self.runner, &mut self.places, &mut active);
            }
            self.places[index] = Some(active);
        }
        for index in 0..self.places.len() {
            let Some((leader, to)) = self.places[index].as_ref().and_then(|active| active.after)
            else {
                continue;
            };
            let reads =
                |other: &ActiveRequest| other.id == leader && other.sequence.computed() < to;
            if !self.places.iter().flatten().any(reads)
                && let Some(active) = &mut self.places[index]
            {
                active.after = None;
                self.prompts.look_up(&mut self.runner, active);
            }
        }
    }

    /// Assigns a sequence of the cache to a request.
    fn activate(&mut self, index: usize, waiting: Waiting) -> ActiveRequest {
        let Waiting { id, mut request, constraint } = waiting;
        let runner = &mut self.runner;
        let model = runner.model;
        let prompt = std::mem::take(&mut request.prompt);
        let answer = request.max_tokens.min(runner.context() - prompt.len()).min(MAX_RESERVED);
        let mut sequence = runner.sequence(index, prompt.len() + answer + 1);
        sequence.append(&prompt);
        sequence.set_length(prompt.len());
        sequence.second_segment = request.second_segment;
        runner.adapt_checked(&mut sequence, &request.adapters);
        let spec = model.spec();
        let states = request.states(spec);
        if self.speculate != Speculate::Off && states.is_none() {
            let mut drafter = Drafter::new(self.speculate, runner.max_tokens());
            drafter.read(&prompt);
            sequence.drafter = Some(drafter);
        }
        if let Some(proposer) = runner.proposers.get_mut(index) {
            proposer.begin_sequence(states.is_none());
        }
        let sampler = Sampler::new(request.sampling, model.tokenizer().vocab_size());
        let sampler =
            sampler.with_bias(&request.logit_bias).with_breakers(self.breakers_of(&request));
        let embedding = match states {
            None => Vec::new(),
            Some(Pooling::None) => Vec::with_capacity(prompt.len() * spec.embedding_size),
            Some(_) => vec![0.0; spec.hidden_size],
        };
        ActiveRequest {
            id,
            constraint,
            sampler,
            generated: 0,
            states,
            embedding,
            salt: salt(&request.salt, sequence.is_long()),
            indexed: Indexed::default(),
            after: None,
            cold: spec.is_bidirectional(),
            is_whole: spec.is_bidirectional(),
            marks: Vec::new(),
            ends_at_marks: self.runner.cache.has_states(),
            sequence,
            request,
        }
    }

    /// Returns the tokens that break sequences for DRY.
    fn breakers_of(&mut self, request: &Request) -> Arc<SequenceBreakers> {
        let texts = &request.dry_sequence_breakers;
        match &self.breakers {
            _ if !request.sampling.has_dry() => Arc::default(),
            Some((known, found)) if known == texts => Arc::clone(found),
            _ => {
                let tokenizer = self.runner.model.tokenizer();
                let found = request.sampling.breakers(tokenizer, texts.as_deref());
                self.breakers = Some((texts.clone(), Arc::clone(&found)));
                found
            }
        }
    }

    /// Begins a batch with the pending tokens of all sequences that decode, and their drafts. Returns the number of rows.
    fn push_decoding(&mut self) -> usize {
        let Engine { runner, places, order, asked, .. } = self;
        asked.clear();
        order.clear();
        for active in places.iter_mut().flatten() {
            let sequence = &mut active.sequence;
            if sequence.is_pending() && sequence.set_length(sequence.len()) {
                runner.cache.clear(sequence.index);
                active.become_long();
            }
        }
        runner.begin(places.iter().flatten().filter(|active| active.decodes()).count());
        let (mut rows, mut left) = (0, self.max_drafted);
        for (index, active) in places.iter_mut().enumerate() {
            let Some(active) = active else { continue };
            if !active.decodes() {
                order.push(index);
                continue;
            }
            let most = active.max_draft(runner.context()).min(left);
            let pushed = runner.push_pending(&mut active.sequence, LogitRows::All, most);
            runner.best.add(pushed, active.only_sampler());
            left -= pushed - 1;
            rows += pushed;
            asked.push(index);
        }
        self.asked_rows = rows;
        rows
    }

    /// Adds rows of prompts to a batch in which `decoding` rows decode. Returns the number of rows added.
    fn push_prompts(&mut self, decoding: usize) -> usize {
        let mut left = self.prompt_rows(decoding);
        let Engine { runner, places, order, asked, .. } = self;
        order.retain(|index| places[*index].as_ref().is_some_and(|a| a.after.is_none()));
        // Shortest first: each prompt has an equal share, and the unused part of it goes to the others. Rows requested for their own sake come after
        // those that an answer follows from. Texts that are read as a whole come in the order of their requests, so that shorter ones do not hold
        // up a long one for ever.
        order.sort_unstable_by_key(|index| {
            let active = places[*index].as_ref();
            active.map(|active| {
                let turn = match active.is_whole {
                    true => active.id.0,
                    false => active.sequence.unread() as u64,
                };
                (active.wants_rows(), turn, *index)
            })
        });
        let mut prompts = 0;
        for (i, &index) in order.iter().enumerate() {
            let Some(active) = &mut places[index] else { continue };
            let share = left.div_ceil(order.len() - i);
            let rows = match active.is_whole {
                // A text that is longer than a step has one to itself.
                true if active.readable() > left && prompts > 0 => 0,
                true => active.readable(),
                false => active.readable().min(share).min(left),
            };
            if rows == 0 {
                continue;
            }
            let wants_rows = active.wants_rows();
            // A sequence that is read again already has its next token.
            let ends = rows == active.sequence.unread() && !active.sequence.is_pending();
            let want = match ends {
                ends if wants_rows => active.wanted_rows(ends),
                true => LogitRows::Last,
                false => LogitRows::Nothing,
            };
            runner.push_prompt(&mut active.sequence, rows, want);
            (left, prompts) = (left.saturating_sub(rows), prompts + rows);
            if ends && !wants_rows {
                asked.push(index);
                self.asked_rows += 1;
            }
        }
        prompts
    }

    /// Returns the number of prompt rows for the next step when `decoding` rows decode.
    fn prompt_rows(&self, decoding: usize) -> usize {
        let left = self.runner.batch() - decoding;
        match decoding {
            0 => left,
            _ => self.pace.rows(left, self.runner.model.store().slots().map(Slots::sizes)),
        }
    }

    /// Records the time that a step took, with its numbers of decode rows and prompt rows.
    fn learn(&mut self, took: Duration, rows: [usize; 2]) {
        let counts = self.runner.model.store().slots().map(Slots::counts);
        self.pace.took(took, rows, counts.unwrap_or_default());
    }

    /// Caches the prompts that a step has computed, and hands out the resulting events.
    ///
    /// # Errors
    /// As [`Engine::step`].
    fn hand_out(&mut self, on_event: OnEvent<'_>) -> Result<(), ModelError> {
        let Engine { runner, places, outputs, order, asked, asked_rows, .. } = self;
        for index in order.iter() {
            if let Some(active) = &mut places[*index] {
                prompt_store::index(runner, active, false);
            }
        }
        let mut row = 0;
        for index in asked.iter() {
            row += outputs.hand_out_tokens(runner, &mut places[*index], row, on_event);
        }
        outputs.hand_out_prompts(runner, places, *asked_rows, on_event)
    }
}
