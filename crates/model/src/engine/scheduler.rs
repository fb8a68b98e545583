//! Many sequences on one model: they join and leave between steps, and every step computes one batch of rows of all of them.
//!
//! A step has the rows of all sequences that decode, one each, and then as many rows of prompts as fit into the time that a step
//! may take ([`pace`](super::pace)). That time decides how prompts are cut, and how they are cut changes no bit of an answer; nor does
//! anything else beside a sequence (see [`batch`](crate::parts::batch)).

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use alight_kernels::attention::KvType;
use alight_kernels::matmul::{Precision, RowCounts};
use alight_kernels::vec;
use alight_pages::slots::Slots;

use super::drafter::Drafter;
use super::net::Net;
use super::pace::Pace;
use super::proposer::Proposer;
use super::request::{Constraint, Event, OfPrompt, Pooling, Request, RequestId, mask};
use super::sampler::Sampler;
use super::session::{
    MAX_BATCH, MAX_CONTEXT, MOST_REMEMBERED, SNAPSHOT_EVERY, admit, check, numbers,
};
use super::slot::{Growth, Slot, next_token};
use super::speculate::{MOST_DRAFT, Speculate, StepPlan, StepTimes};
use crate::cache::{Cache, Indexed};
use crate::error::ModelError;
use crate::open::{DEFAULT_CONTEXT, Model};
use crate::parts::batch::{OfSequence, Role, Want};
use crate::parts::buffers::Buffers;
use crate::parts::compute::Compute;
use crate::positions::{POSITIONS, common};
use crate::prompts::{
    FoundPrompt, IgnoredPrompt, PromptFile, PromptFileError, PromptFolder, PromptWriteError,
    RestoreError, Rounding,
};

/// Most sequences of an engine.
pub const MAX_SEQUENCES: usize = 1024;
/// Files that were of no use are remembered until somebody asks, and not more.
const MOST_IGNORED: usize = 64;
/// States of recurrent layers are kept at the end of a prompt if at least so many tokens of it were computed: they are large, and
/// the prompt is cut for them.
const LEAST_KEPT: usize = 256;
/// So many sequences have drafts of the longest kind in one step.
const MOST_DRAFTING: usize = 4;
/// So many sequences have something beside them that computes what may come.
const MOST_PROPOSERS: usize = 8;

/// What an engine may hold.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Sequences that are computed at the same time; others wait.
    pub sequences: usize,
    /// Positions of each sequence; `None`: [`DEFAULT_CONTEXT`], or what the model was trained for if that is less.
    pub context: Option<usize>,
    /// Most rows that are computed together.
    pub batch: usize,
    /// How activations of prompts are rounded.
    pub prompt_precision: Precision,
    /// How keys and values are kept.
    pub cache_type: KvType,
    /// How long a step should take at most while a sequence decodes and prompts are read beside it.
    pub step: Duration,
    /// Bytes of memory for what was computed of prompts, so that a prompt that begins like an earlier one goes on where that one
    /// differs. 0: nothing is kept. What was least recently used goes first.
    pub prompt_cache: usize,
    /// Where prompts are looked up that were computed before this engine was made; and where [`Engine::keep`] writes them.
    pub prompts: Option<PromptFolder>,
    /// Whether tokens are drafted; the answer is the same.
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

/// A request that has no sequence yet.
struct Waiting {
    id: RequestId,
    request: Request,
    constraint: Option<Box<dyn Constraint>>,
}

/// Many sequences on a model.
///
/// What a request gets depends on the model, its prompt, its options and its seed: not on the requests beside it, on when it
/// came, or on how many sequences there are. A step allocates nothing in which no request begins, no sequence is read again because it
/// has become long, and no prompt is the first one of a salt.
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
    model: &'m Model,
    net: Net<'m>,
    cache: Cache,
    buffers: Buffers,
    /// `[sequences, vocab]`
    logits: Vec<f32>,
    /// By sequence of the cache.
    slots: Vec<Option<Slot>>,
    /// `[vocab]`: those that a constraint has masked.
    masked: Vec<f32>,
    /// `[hidden]`: the final hidden state of a row.
    hidden: Vec<f32>,
    waiting: VecDeque<Waiting>,
    last_id: u64,
    context: usize,
    batch: usize,
    pace: Pace,
    /// Sequences whose prompts are read, in the order of their turns.
    order: Vec<usize>,
    /// Sequences that the step asks logits of, in the order of their rows.
    asked: Vec<usize>,
    /// How many rows those are. Rows that are wanted for themselves come after them.
    asked_rows: usize,
    prompts: Option<PromptFolder>,
    rounding: Rounding,
    ignored: Vec<IgnoredPrompt>,
    speculate: Speculate,
    times: StepTimes,
    /// What computes proposals: of the first sequences of the cache, by sequence.
    proposers: Vec<Proposer<'m>>,
}

impl<'m> Engine<'m> {
    /// An engine without requests. Memory is reserved for all sequences and taken as it is used.
    ///
    /// # Errors
    /// Options beyond all limits, or memory that the system does not give.
    pub fn new(model: &'m Model, options: &EngineOptions) -> Result<Engine<'m>, ModelError> {
        let spec = model.spec();
        let context = options.context.unwrap_or(DEFAULT_CONTEXT.min(spec.context));
        for (what, found, most) in [
            ("context", context, MAX_CONTEXT),
            ("batch", options.batch, MAX_BATCH),
            ("number of sequences", options.sequences, MAX_SEQUENCES),
        ] {
            if found == 0 || found > most {
                let expected = format!("1 to {most}");
                return Err(ModelError::Options { what, found, expected });
            }
        }
        let sequences = options.sequences;
        // A row for each sequence at least, and for a draft; for more of them, where that is no more than was asked for.
        let drafts = options.speculate != Speculate::Off;
        let most = MOST_DRAFT * sequences.min(MOST_DRAFTING);
        let drafted = options.batch.saturating_sub(sequences).clamp(MOST_DRAFT, most);
        let drafted = if drafts { drafted } else { 0 };
        let decode = sequences + drafted;
        let batch = options.batch.max(decode);
        let net = Net::new(
            spec,
            model.weights().net(),
            model.store(),
            Compute { pool: model.pool(), isa: model.isa() },
        );
        // Each sequence has whole pages.
        let positions =
            context.next_multiple_of(crate::positions::POSITIONS).saturating_mul(sequences);
        // Where there is no address space for prompts, the sequences go on without.
        let rounding = Rounding { prompt: options.prompt_precision, cache: options.cache_type };
        net.check_cache_type(rounding.cache)?;
        let cache = net.cache(positions, sequences, options.prompt_cache, rounding.cache);
        let mut cache = cache.or_else(|_| net.cache(positions, sequences, 0, rounding.cache))?;
        if drafts {
            (0..sequences).try_for_each(|s| cache.get_ready_for_drafts(s, MOST_DRAFT))?;
        }
        let buffers = net.buffers(context, [batch, decode], options.prompt_precision);
        let proposers = if drafts { sequences.min(MOST_PROPOSERS) } else { 0 };
        let proposers =
            (0..proposers).filter_map(|_| Proposer::with_mtp(model, context).transpose());
        let proposers = proposers.collect::<Result<_, _>>()?;
        Ok(Engine {
            model,
            net,
            cache,
            buffers,
            logits: vec![0.0; decode * spec.vocab],
            slots: (0..sequences).map(|_| None).collect(),
            masked: vec![0.0; spec.vocab],
            hidden: vec![0.0; spec.hidden_size],
            waiting: VecDeque::new(),
            last_id: 0,
            context,
            batch,
            pace: Pace::new(options.step),
            order: Vec::with_capacity(sequences),
            asked: Vec::with_capacity(sequences),
            asked_rows: 0,
            prompts: options.prompts.clone(),
            rounding,
            ignored: Vec::new(),
            speculate: options.speculate,
            times: StepTimes::new(decode),
            proposers,
        })
    }

    /// Lets a smaller model with the same tokens propose what is computed ahead, where the text itself has no proposal and where that is
    /// faster. The answers are the same. Up to eight sequences have one beside them; call it before the first request is added.
    ///
    /// # Errors
    /// `draft` has other tokens, or the system does not give the memory for its sequences.
    pub fn draft_with(&mut self, draft: &'m Model) -> Result<(), ModelError> {
        let count = self.slots.len().min(MOST_PROPOSERS);
        let drafts = (0..count).map(|_| Proposer::with_model(draft, self.model, self.context));
        self.proposers = drafts.collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Positions that each sequence may have.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Adds a request, which is computed from the next step on, or when a sequence before it has ended.
    ///
    /// # Errors
    /// An empty prompt, a token outside of the vocabulary, or a prompt that does not fit the context.
    pub fn add(&mut self, request: Request) -> Result<RequestId, ModelError> {
        self.add_constrained(request, None)
    }

    /// [`Engine::add`], of a request whose answer is constrained.
    ///
    /// # Errors
    /// As [`Engine::add`].
    pub fn add_constrained(
        &mut self,
        request: Request,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Result<RequestId, ModelError> {
        admit(self.model.spec(), &request.prompt, 0, self.context)?;
        self.last_id += 1;
        let id = RequestId(self.last_id);
        self.waiting.push_back(Waiting { id, request, constraint });
        Ok(id)
    }

    /// Forgets a request, of which nothing else is heard. Returns whether it was there.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let found = self.slots.iter().position(|slot| slot.as_ref().is_some_and(|s| s.id == id));
        if let Some(sequence) = found {
            self.leave(sequence);
            return true;
        }
        let before = self.waiting.len();
        self.waiting.retain(|other| other.id != id);
        self.waiting.len() < before
    }

    /// Writes what is kept of the beginning of a prompt to the folder of prompts, where this process and others find it. Returns the
    /// file; `None` if there is no folder, or nothing to write.
    ///
    /// # Errors
    /// See [`PromptWriteError`]. Nothing is lost but the time that the file would have saved.
    pub fn keep(
        &mut self,
        salt: &str,
        prompt: &[u32],
    ) -> Result<Option<PathBuf>, PromptWriteError> {
        let Some(folder) = &self.prompts else { return Ok(None) };
        let long = self.is_long(prompt.len());
        let key = self.model.prompt_key(self.rounding, long, salt);
        let salt = &self.salt(salt, long);
        match self.cache.indexed_contents(salt, key, self.model.name(), prompt) {
            Some(contents) => folder.write(&contents),
            None => Ok(None),
        }
    }

    /// Writes what is kept of the beginning of a prompt to the file at `path`, which only this user may read and which replaces one that is
    /// there. Returns how many tokens and bytes it has; `None` if nothing is kept of the prompt.
    ///
    /// # Errors
    /// See [`PromptWriteError`]. A file that was there is there still.
    pub fn save(
        &mut self,
        salt: &str,
        prompt: &[u32],
        path: &Path,
    ) -> Result<Option<(usize, u64)>, PromptWriteError> {
        let long = self.is_long(prompt.len());
        let key = self.model.prompt_key(self.rounding, long, salt);
        let salt = &self.salt(salt, long);
        let name = self.model.name();
        let Some(contents) = self.cache.indexed_contents(salt, key, name, prompt) else {
            return Ok(None);
        };
        contents.write(path)?;
        Ok(Some((contents.tokens.len(), contents.len())))
    }

    /// Adds what the file at `path` has of a prompt to what is kept of prompts. It is mapped, and not read into memory of this process.
    /// Returns the prompt, and the bytes of the file.
    ///
    /// # Errors
    /// The file is of no use, or there is no room for it now: no sequence is free, or nothing is kept of prompts.
    pub fn restore(&mut self, salt: &str, path: &Path) -> Result<(Vec<u32>, u64), RestoreError> {
        let free = self.slots.iter().position(Option::is_none);
        let (Some(sequence), true) = (free, self.cache.has_index()) else {
            return Err(RestoreError::NoRoom);
        };
        let file = PromptFile::open(path)?;
        let mut tokens = file.header.tokens.clone();
        let long = self.is_long(tokens.len());
        if file.header.key != self.model.prompt_key(self.rounding, long, salt) {
            return Err(PromptFileError::Foreign.into());
        }
        let [stride, states] = self.cache.sizes();
        file.check_shape(stride, states)?;
        let positions = file.usable(&tokens, states > 0);
        if positions == 0 || positions > self.context {
            return Err(PromptFileError::Foreign.into());
        }
        if !self.cache.restore(sequence, &file, positions)? {
            return Err(RestoreError::NoRoom);
        }
        tokens.truncate(positions);
        let mut indexed = Indexed::default();
        let salt = self.salt(salt, long);
        self.cache.add(sequence, &salt, &tokens, true, &mut indexed);
        self.cache.keep_states(sequence, &indexed);
        self.cache.clear(sequence);
        Ok((tokens, file.map.len() as u64))
    }

    /// Gives up what is kept of the beginning of a prompt, but for what other prompts share with it. Returns how many tokens that were.
    pub fn forget(&mut self, salt: &str, prompt: &[u32]) -> usize {
        let salt = self.salt(salt, self.is_long(prompt.len()));
        self.cache.forget_prompt(&salt, prompt)
    }

    /// Files of prompts that should have been of use and were not, since this was last asked.
    pub fn ignored_prompts(&mut self) -> Vec<IgnoredPrompt> {
        std::mem::take(&mut self.ignored)
    }

    /// Bytes of memory of what is kept of prompts; never more than [`EngineOptions::prompt_cache`] but for what sequences have now.
    pub fn kept_bytes(&self) -> usize {
        self.cache.kept_bytes()
    }

    /// Positions of a page of the KV cache, and the bytes of one in all layers.
    pub fn page(&self) -> (usize, usize) {
        (POSITIONS, self.cache.sizes()[0])
    }

    /// Whether there is nothing to compute.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.slots.iter().all(Option::is_none)
    }

    /// Computes the next batch and hands out what it brought. Returns whether there is more to compute.
    ///
    /// # Errors
    /// Weights that cannot be loaded, or a file that has shrunk. All requests are forgotten then.
    pub fn step(
        &mut self,
        on_event: &mut dyn FnMut(RequestId, Event<'_>),
    ) -> Result<bool, ModelError> {
        self.join();
        let [decoding, prompts] = self.fill();
        if decoding + prompts == 0 {
            return Ok(false);
        }
        let began = Instant::now();
        let done = self.compute();
        if done.is_ok() {
            self.remember(began.elapsed(), [decoding, prompts]);
            self.index_prompts();
            self.hand_out(on_event);
        }
        if let Err(error) = done.and_then(|()| self.hand_out_of_prompts(on_event)) {
            // What the cache holds of the rows of this step is of no use.
            self.slots.iter_mut().for_each(|slot| *slot = None);
            self.cache.forget();
            self.waiting.clear();
            return Err(error);
        }
        Ok(!self.is_idle())
    }

    /// Gives free sequences to those that wait, with what is known of the beginnings of their prompts.
    fn join(&mut self) {
        let vocab_size = self.model.tokenizer().vocab_size();
        for sequence in 0..self.slots.len() {
            if self.slots[sequence].is_some() {
                continue;
            }
            let Some(Waiting { id, mut request, constraint }) = self.waiting.pop_front() else {
                break;
            };
            let sampler = Sampler::new(request.sampling, vocab_size).with_bias(&request.logit_bias);
            let hidden = if request.wants_embedding() { self.model.spec().hidden_size } else { 0 };
            let long = self.is_long(request.prompt.len());
            let salt = self.salt(&request.salt, long);
            let growth = (self.may_be_long() && !long).then(|| {
                let original = self.model.spec().long_context.original;
                let room = original + 1 - request.prompt.len();
                request.prompt.reserve(room);
                let salt = self.salt(&request.salt, true);
                Growth { original, salt, answer: Vec::with_capacity(room) }
            });
            let drafter = (self.speculate != Speculate::Off).then(|| {
                let most = self.context.min(MOST_REMEMBERED) + 1;
                let mut drafter = Drafter::new(self.speculate, most);
                drafter.read(&request.prompt);
                drafter
            });
            if let Some(proposer) = self.proposers.get_mut(sequence) {
                proposer.begin_sequence();
            }
            let mut slot = Slot {
                id,
                request,
                constraint,
                sampler,
                embedding: vec![0.0; hidden],
                position: 0,
                drafter,
                next: None,
                growth,
                long,
                salt,
                generated: 0,
                reused: 0,
                indexed: Indexed::default(),
                after: None,
                cold: false,
                marks: Vec::new(),
            };
            if !slot.request.wants_all_rows() {
                self.look_up(sequence, &mut slot);
                self.follow(&mut slot);
            }
            self.slots[sequence] = Some(slot);
        }
        for sequence in 0..self.slots.len() {
            let Some(slot) = &self.slots[sequence] else { continue };
            let Some((leader, to)) = slot.after else { continue };
            let reading = |other: &Slot| other.id == leader && other.position < to;
            if !self.slots.iter().flatten().any(reading)
                && let Some(mut slot) = self.slots[sequence].take()
            {
                slot.after = None;
                self.look_up(sequence, &mut slot);
                self.slots[sequence] = Some(slot);
            }
        }
    }

    /// Whether sequences can become so long that the model rotates them in another way.
    fn may_be_long(&self) -> bool {
        let long = &self.model.spec().long_context;
        long.rope.is_some() && self.context > long.original
    }

    /// Whether a prompt of `n` tokens is so long.
    fn is_long(&self, n: usize) -> bool {
        self.may_be_long() && n > self.model.spec().long_context.original
    }

    /// What parts sequences that share nothing: users, and those that are rotated in another way.
    fn salt(&self, salt: &str, long: bool) -> Box<str> {
        match long {
            true => format!("\0long {salt}").into(),
            // No user has the salt of another's long sequences.
            false if salt.starts_with('\0') => format!("\0{salt}").into(),
            false => salt.into(),
        }
    }

    /// Takes from the index what it has of a prompt beyond what was read.
    fn look_up(&mut self, sequence: usize, slot: &mut Slot) {
        self.adopt(sequence, slot);
        self.look_up_file(sequence, slot);
        if self.cache.is_recurrent() {
            let (tokens, from) = (slot.reusable().len(), slot.position);
            let attended = self.cache.attended(&slot.salt, slot.reusable());
            // Where another prompt parted from this one, others will; and the next turn begins with all of it.
            let ends = [attended, tokens].map(|end| end / POSITIONS * POSITIONS);
            let ends = ends.into_iter().filter(|end| *end >= from + LEAST_KEPT);
            let between = (0..tokens).step_by(SNAPSHOT_EVERY).filter(|at| *at > from);
            slot.marks.extend(ends.chain(between));
        }
    }

    /// Gives a sequence the pages and states that the index has of its prompt, if they are of more than was read.
    fn adopt(&mut self, sequence: usize, slot: &mut Slot) {
        let (salt, tokens) = (&slot.salt, slot.reusable());
        if let Some((found, indexed)) = self.cache.adopt(sequence, salt, tokens, slot.position) {
            slot.reused += found.positions - slot.position;
            (slot.position, slot.indexed) = (found.positions, indexed);
        }
    }

    /// Takes from a file what it has of a prompt, if that is a page more than was read.
    fn look_up_file(&mut self, sequence: usize, slot: &mut Slot) {
        let (Some(folder), true) = (&self.prompts, self.cache.has_index()) else { return };
        let key = self.model.prompt_key(self.rounding, slot.long, &slot.request.salt);
        // A file is found if it has more than this: a file of a whole page, as an engine writes them, is of use.
        let least = slot.position + POSITIONS - 1;
        let (found, ignored) = folder.find(&key, slot.reusable(), least, self.cache.sizes());
        self.ignored.extend(ignored);
        self.ignored.truncate(MOST_IGNORED);
        let Some(FoundPrompt { file, positions }) = found else { return };
        match self.cache.restore(sequence, &file, positions) {
            Ok(true) => {
                slot.reused += positions - slot.position;
                (slot.position, slot.indexed) = (positions, Indexed::default());
                let tokens = &slot.request.prompt[..positions];
                self.cache.add(sequence, &slot.salt, tokens, false, &mut slot.indexed);
            }
            restored => {
                if let Err(why) = restored {
                    self.ignored.push(IgnoredPrompt::new(file.map.path().into(), why));
                }
                // The sequence has nothing any more: what the index had of the prompt is there still.
                (slot.position, slot.reused) = (0, 0);
                self.adopt(sequence, slot);
            }
        }
    }

    /// Lets a prompt wait for one that begins alike and is being read, if that one will come further.
    fn follow(&mut self, slot: &mut Slot) {
        if !self.cache.has_index() {
            return;
        }
        let mut best = slot.position + POSITIONS - 1;
        let mut leader = None;
        for (i, other) in self.slots.iter().enumerate() {
            let Some(other) = other else { continue };
            if other.unread() == 0 || other.salt != slot.salt {
                continue;
            }
            let alike = common(&other.request.prompt, slot.reusable()) / POSITIONS * POSITIONS;
            if alike > best && alike > other.position {
                (best, leader) = (alike, Some((i, other.id)));
            }
        }
        let Some((i, id)) = leader else { return };
        slot.after = Some((id, best));
        if self.cache.is_recurrent()
            && let Some(leader) = &mut self.slots[i]
        {
            leader.marks.push(best);
        }
    }

    /// Makes the batch: a row for each sequence that decodes, with those of its draft, then rows of prompts. Returns how many of
    /// either.
    fn fill(&mut self) -> [usize; 2] {
        let batch = &mut self.buffers.batch;
        batch.clear();
        self.asked.clear();
        self.asked_rows = 0;
        self.order.clear();
        let states = self.cache.has_states();
        let decode = |slot: &&mut Slot| slot.unread() == 0 && slot.next.is_some();
        for (sequence, slot) in self.slots.iter_mut().enumerate() {
            if slot.as_mut().is_some_and(Slot::grow) {
                self.cache.clear(sequence);
            }
        }
        let decoding = self.slots.iter_mut().flatten().filter(decode).count();
        let mut plan = StepPlan::new(&self.times, decoding);
        // Drafts may have the rows of logits that are left when each sequence has one, which it needs also if its prompt ends in this step.
        let mut room = self.logits.len() / self.model.spec().vocab - self.slots.len();
        for (sequence, slot) in self.slots.iter_mut().enumerate() {
            let Some(slot) = slot else { continue };
            let Some(token) = slot.take_next() else {
                self.order.push(sequence);
                continue;
            };
            let most = slot.room_for_draft(self.context).min(room);
            let mut tokens = [token; MOST_DRAFT + 1];
            let mut rows = 1;
            let proposer = self.proposers.get_mut(sequence);
            let drafter = slot.drafter.as_mut();
            if let Some(drafter) = drafter {
                let draft = drafter.propose(&mut plan, most, proposer);
                tokens[1..=draft.len()].copy_from_slice(draft);
                rows += draft.len();
            }
            let of = OfSequence { sequence, role: Role::Decode, long: slot.long };
            batch.push(of, slot.position, &tokens[..rows], Want::All, states);
            slot.position += 1;
            room -= rows - 1;
            self.asked_rows += rows;
            self.asked.push(sequence);
        }
        let decoding = self.asked_rows;
        let mut left = self.prompt_rows(decoding);
        let batch = &mut self.buffers.batch;
        // Short ones first: each has an equal part, and what it does not need is for the others.
        let slots = &self.slots;
        self.order.retain(|sequence| slots[*sequence].as_ref().is_some_and(|s| s.after.is_none()));
        let unread = |sequence: &usize| slots[*sequence].as_ref().map_or(0, Slot::unread);
        // Rows that are wanted for themselves come after those that an answer follows from.
        let of_prompt =
            |sequence: &usize| slots[*sequence].as_ref().is_some_and(Slot::is_wanted_itself);
        self.order
            .sort_unstable_by_key(|sequence| (of_prompt(sequence), unread(sequence), *sequence));
        let mut prompts = 0;
        for (i, &sequence) in self.order.iter().enumerate() {
            let Some(slot) = &mut self.slots[sequence] else { continue };
            let share = left.div_ceil(self.order.len() - i);
            let rows = slot.readable().min(share).min(left).min(slot.rows_to_mark());
            if rows == 0 {
                continue;
            }
            let last = rows == slot.unread();
            let tokens = &slot.request.prompt[slot.position..slot.position + rows];
            let itself = slot.is_wanted_itself();
            // What is read again has its next token already.
            let ends = last && slot.next.is_none();
            let want = match ends {
                _ if itself && slot.request.wants_all_rows() => Want::All,
                true => Want::Last,
                false => Want::Nothing,
            };
            let of = OfSequence { sequence, role: Role::Prompt, long: slot.long };
            batch.push(of, slot.position, tokens, want, states);
            slot.position += rows;
            (left, prompts) = (left - rows, prompts + rows);
            if ends && !itself {
                self.asked.push(sequence);
                self.asked_rows += 1;
            }
        }
        [decoding, prompts]
    }

    /// Rows of prompts that the next step takes beside so many that decode.
    fn prompt_rows(&self, decoding: usize) -> usize {
        let room = self.batch - decoding;
        match decoding {
            0 => room,
            _ => self.pace.rows(room, self.model.store().slots().map(Slots::sizes)),
        }
    }

    /// Learns from the time that a step took.
    fn remember(&mut self, took: Duration, rows: [usize; 2]) {
        let [decoding, prompts] = rows;
        if prompts == 0 {
            self.times.took(decoding, took);
        }
        let counts = self.model.store().slots().map(Slots::counts);
        self.pace.took(took, rows, counts.unwrap_or_default());
    }

    /// Computes the batch, and the logits of the rows that were asked for.
    fn compute(&mut self) -> Result<(), ModelError> {
        for span in self.buffers.batch.all_spans() {
            let end = span.position + span.rows.len();
            let room = self.cache.prepare(span.sequence, span.position, end);
            assert!(room, "pages for the whole context of every sequence");
        }
        let (net, b, cache) = (&self.net, &mut self.buffers, &mut self.cache);
        let (slots, proposers) = (&self.slots, &mut self.proposers);
        match proposers.iter_mut().any(|proposer| proposer.mtp().is_some()) {
            false => net.run(b, cache)?,
            true => net.run_and_show(b, cache, |b, span| {
                let answers = |slot: &Slot| !slot.request.wants_embedding();
                let head = proposers.get_mut(span.sequence).and_then(Proposer::mtp);
                match head.filter(|_| slots[span.sequence].as_ref().is_some_and(answers)) {
                    Some(head) => head.see(net, b, span),
                    None => Ok(()),
                }
            })?,
        }
        let counts = self.buffers.batch.counts_of_first(self.asked_rows);
        if counts.all() > 0 {
            let logits = &mut self.logits[..counts.all() * self.model.spec().vocab];
            self.net.logits(&mut self.buffers, 0, counts, logits)?;
        }
        check(self.model, &self.cache)
    }

    /// Adds to the index what the step has computed of prompts.
    fn index_prompts(&mut self) {
        for &sequence in &self.order {
            let Some(slot) = self.slots[sequence].as_mut().filter(|slot| !slot.cold) else {
                continue;
            };
            let tokens = &slot.request.prompt[..slot.position];
            self.cache.add(sequence, &slot.salt, tokens, false, &mut slot.indexed);
            if slot.marks.contains(&slot.position) {
                self.cache.keep_states(sequence, &slot.indexed);
            }
        }
    }

    /// Chooses the next token of each sequence that has logits, and says so.
    fn hand_out(&mut self, on_event: &mut dyn FnMut(RequestId, Event<'_>)) {
        let mut row = 0;
        for i in 0..self.asked.len() {
            let sequence = self.asked[i];
            let Some(slot) = &mut self.slots[sequence] else { continue };
            let drafted = slot.drafter.as_ref().map_or(0, |drafter| drafter.draft().len());
            for at in 0..=drafted {
                let goes_on = self.hand_out_row(sequence, row + at, on_event);
                let chosen = |slot: &Slot| slot.next.is_some();
                if !goes_on || self.slots[sequence].as_ref().is_none_or(chosen) {
                    break;
                }
            }
            if let Some(slot) = &mut self.slots[sequence]
                && let Some([came, wrong]) = slot.drafter.as_mut().map(Drafter::end)
                && wrong > 0
            {
                self.cache.back_to_draft(sequence, came);
            }
            row += 1 + drafted;
        }
    }

    /// Says how far prompts were read, and hands out what is wanted of their rows.
    fn hand_out_of_prompts(
        &mut self,
        on_event: &mut dyn FnMut(RequestId, Event<'_>),
    ) -> Result<(), ModelError> {
        for i in 0..self.buffers.batch.all_spans().len() {
            let span = &self.buffers.batch.all_spans()[i];
            let (sequence, position, rows) = (span.sequence, span.position, span.rows.clone());
            if span.role == Role::Decode {
                continue;
            }
            let Some(slot) = &self.slots[sequence] else { continue };
            let (id, of_prompt) = (slot.id, slot.request.of_prompt);
            if rows.start >= self.asked_rows {
                let done = match of_prompt {
                    OfPrompt::Nothing => Ok(()),
                    OfPrompt::Logits => self.hand_out_logits(id, position, rows, on_event)?,
                    OfPrompt::Embedding(pooling) => {
                        self.hand_out_embedding(sequence, pooling, rows, on_event)
                    }
                };
                if let Err(error) = done {
                    self.leave(sequence);
                    on_event(id, Event::Failed(error));
                }
            }
            let Some(slot) = &self.slots[sequence] else { continue };
            if slot.unread() > 0 && slot.generated == 0 {
                on_event(id, Event::Reading { read: slot.position, reused: slot.reused });
            }
        }
        Ok(())
    }

    /// Hands out the logits of rows of a prompt, the first of which is at `position`. The inner error is that of the request.
    fn hand_out_logits(
        &mut self,
        id: RequestId,
        position: usize,
        rows: Range<usize>,
        on_event: &mut dyn FnMut(RequestId, Event<'_>),
    ) -> Result<Result<(), ModelError>, ModelError> {
        let vocab = self.model.spec().vocab;
        let most = self.logits.len() / vocab;
        for first in rows.clone().step_by(most) {
            let n = most.min(rows.end - first);
            let logits = &mut self.logits[..n * vocab];
            let counts = RowCounts::new(self.rounding.prompt, n);
            self.net.logits(&mut self.buffers, first, counts, logits)?;
            check(self.model, &self.cache)?;
            for (i, logits) in logits.chunks_exact(vocab).enumerate() {
                let position = position + (first - rows.start) + i;
                if let Err(error) = numbers(self.model, logits, position) {
                    return Ok(Err(error));
                }
                on_event(id, Event::PromptLogits { position, logits });
            }
        }
        Ok(Ok(()))
    }

    /// Adds rows of a prompt to its embedding, and hands it out at the end of the prompt.
    fn hand_out_embedding(
        &mut self,
        sequence: usize,
        pooling: Pooling,
        rows: Range<usize>,
        on_event: &mut dyn FnMut(RequestId, Event<'_>),
    ) -> Result<(), ModelError> {
        let Some(slot) = &mut self.slots[sequence] else { return Ok(()) };
        let isa = self.model.isa();
        let width = slot.embedding.len();
        let state = &mut self.hidden[..width];
        for row in rows {
            self.net.hidden(&self.buffers, row, state);
            vec::add_assign(isa, &mut slot.embedding, state);
        }
        if slot.unread() > 0 {
            return Ok(());
        }
        if pooling == Pooling::Mean {
            vec::scale(isa, &mut slot.embedding, 1.0 / slot.request.prompt.len() as f32);
        }
        if let Err(error) = numbers(self.model, &slot.embedding, slot.position - 1) {
            if slot.reused == 0 {
                return Err(error);
            }
            slot.begin_cold();
            self.cache.clear(sequence);
            return Ok(());
        }
        let (id, embedding) = (slot.id, std::mem::take(&mut slot.embedding));
        self.leave(sequence);
        on_event(id, Event::Embedding(&embedding));
        Ok(())
    }

    /// Chooses a token of a sequence by a row of logits, and says so. Returns whether the sequence goes on.
    fn hand_out_row(
        &mut self,
        sequence: usize,
        row: usize,
        on_event: &mut dyn FnMut(RequestId, Event<'_>),
    ) -> bool {
        let vocab = self.model.spec().vocab;
        let logits = &self.logits[row * vocab..][..vocab];
        let Some(slot) = &mut self.slots[sequence] else { return false };
        let id = slot.id;
        let numbers = numbers(self.model, logits, slot.position - 1);
        if slot.generated == 0 {
            if numbers.is_err() && slot.reused > 0 {
                slot.begin_cold();
                self.cache.clear(sequence);
                return false;
            }
            on_event(id, Event::Prompt { reused: slot.reused });
        }
        let ended = match numbers {
            Err(error) => Some(Event::Failed(error)),
            Ok(()) => {
                let hand_out = &mut |token| on_event(id, Event::Token(token, logits));
                match mask(slot.constraint.as_deref_mut(), logits, &mut self.masked) {
                    Err(error) => Some(Event::Failed(error)),
                    Ok(chosen) => next_token(slot, self.model, self.context, chosen, hand_out)
                        .map(Event::Finished),
                }
            }
        };
        let Some(event) = ended else { return true };
        self.leave(sequence);
        on_event(id, event);
        false
    }

    /// Frees a sequence. What it has of its prompt stays in the index.
    fn leave(&mut self, sequence: usize) {
        if let Some(slot) = self.slots[sequence].take().filter(|slot| !slot.cold) {
            let mut indexed = slot.indexed;
            self.cache.add(sequence, &slot.salt, slot.read(), true, &mut indexed);
        }
        self.cache.clear(sequence);
    }
}
