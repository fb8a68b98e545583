//! The loop around an engine, [`EngineLoop`], which passes the events of a step to each request's own function; and a thread that
//! runs one, [`Worker`], which receives requests over a channel.
//!
//! An engine is created at once, or on first use. After a long idle time it may rest: its memory is released, and another one is
//! created on the next request.
//!
//! Invariants: it waits only for requests; a request whose [`RunningRequest`] is dropped is cancelled before the next step; if the
//! engine panics, its requests end and a new engine is created on the same model. If a file cannot be read, the requests of the step end, and the
//! next step tries again. A step that does not end is reported ([`STUCK_AFTER`]), and does not keep the
//! process from ending ([`Worker::quit`]).

#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use alight_model::{
    AdapterSet, CachePage, Cancel, Constraint, Engine, EngineOptions, Event, Finish, Logprobs,
    Model, ModelError, OfPrompt, Request, RequestId,
};

use crate::counts::{Counts, Totals};
use crate::grammar::{Held, Masks};
use crate::health::Health;
use crate::thinking::ThinkingBudget;

/// A prompt is worth a file if at least this many of its tokens were new.
const MIN_NEW_TOKENS: usize = 64;
/// Maximum number of prompts that wait for an idle moment to be written; more than that are written at once.
const MAX_PENDING_PROMPTS: usize = 32;

/// The usual time after which a step that makes no progress is reported: see [`WorkerConfig`]. A layer of a batch of tokens is progress.
pub const STUCK_AFTER: Duration = Duration::from_secs(60);
/// The time for which [`Worker::quit`] waits for a piece of work that makes no progress.
const QUIT_WAIT: Duration = Duration::from_secs(30);

pub use crate::Log;

/// Called with each event of a request, on the engine's thread. It must not block.
pub type OnEvent = Box<dyn FnMut(EngineEvent) + Send>;

/// A request to an engine, and the output requested in addition to its tokens.
#[derive(Clone, Debug, Default)]
pub struct GenerateRequest {
    /// The prompt, and the options of the answer.
    pub request: Request,
    /// The output requested for the logits of each position; with [`OfPrompt::Logits`], also for the prompt's positions.
    pub logits: LogitsWanted,
    /// The constraint on the answer.
    pub grammar: Option<Held>,
    /// The limit on its thinking.
    pub thinking: Option<ThinkingBudget>,
}

/// The output requested for the logits of a position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogitsWanted {
    /// Nothing.
    #[default]
    Nothing,
    /// The log probability of the token, and this many of the most likely ones.
    Logprobs(usize),
    /// All logits.
    All,
}

/// The requested output for the logits of a position.
#[derive(Clone, Debug)]
pub enum TokenLogits {
    /// Nothing.
    Nothing,
    /// The log probability of the token, and some of the most likely ones.
    Logprobs(Box<Logprobs>),
    /// `[vocab]`
    All(Vec<f32>),
}

impl LogitsWanted {
    /// Returns the output for the logits `[vocab]` that `token` was chosen from.
    fn of(self, logits: &[f32], token: u32) -> TokenLogits {
        match self {
            LogitsWanted::Nothing => TokenLogits::Nothing,
            LogitsWanted::Logprobs(top) => {
                TokenLogits::Logprobs(Box::new(Logprobs::of(logits, token, top)))
            }
            LogitsWanted::All => TokenLogits::All(logits.to_vec()),
        }
    }
}

/// An event of a request.
#[derive(Clone, Debug)]
pub enum EngineEvent {
    /// A token of the prompt except the first, and the logits of its position.
    PromptToken(u32, TokenLogits),
    /// The prompt as a vector, `[hidden]`. The last event.
    Embedding(Vec<f32>),
    /// It waits for a place. Sent when it begins to wait, and whenever the number has changed.
    Waiting {
        /// Number of requests that get a place first.
        before: usize,
    },
    /// Progress of the prompt; there is more to read.
    Reading {
        /// Number of tokens read, including reused ones.
        read: usize,
        /// Number of reused tokens.
        reused: usize,
    },
    /// The prompt was read.
    Prompt {
        /// Number of its tokens that were reused.
        reused: usize,
        /// The place that computes it.
        place: usize,
    },
    /// The next token, and the logits of its position.
    Token(u32, TokenLogits),
    /// The end. The last event.
    Finished(Finish),
    /// The request was refused, for this reason. The last event.
    Refused(Arc<ModelError>),
    /// The request failed, for this reason; others continue.
    Failed(Arc<ModelError>),
    /// A step failed, for this reason, which ends all requests.
    EngineFailed(Arc<ModelError>),
    /// The worker ends, and with it the request.
    Ending,
}

/// Options of a worker.
#[derive(Clone)]
pub struct WorkerConfig {
    /// Options of each engine that is created.
    pub engine: EngineOptions,
    /// Maximum number of requests that are computed or wait.
    pub max_pending: usize,
    /// The time without a request after which the memory of the engine is released; `None`: never.
    pub rest: Option<Duration>,
    /// True to remember the last prompt of each place, for [`EngineAccess::prompts`].
    pub remembers_prompts: bool,
    /// True to create the engine at once, false to create it on first use.
    pub starts_engine: bool,
    /// The time after which a step that makes no progress is logged, and reported by [`Worker::trouble`].
    pub stuck_after: Duration,
    /// Receives messages for the user.
    pub log: Log,
}

/// The reason why a worker could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An error of the engine.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The system could not start a thread.
    #[error("the system gives no thread for the engine: {0}")]
    NoThread(io::Error),
}

/// The worker has too many requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyRequests {
    /// Requests that are computed or wait.
    pub pending: usize,
    /// The maximum number of such requests.
    pub max_pending: usize,
}

enum Command {
    Add(u64, Box<GenerateRequest>, OnEvent, Instant),
    /// True if its client has disconnected, false if it has all it needs.
    Cancel(u64, bool),
    /// Work to do between two steps.
    Between(Box<dyn FnOnce(&mut EngineAccess<'_, '_>) + Send>),
    Quit,
}

/// The state that is accessible between two steps.
pub struct EngineAccess<'a, 'm> {
    /// The engine.
    pub engine: &'a mut Engine<'m>,
    /// By place: the last prompt that was read there, with its salt. Empty if prompts are not [remembered](WorkerConfig).
    pub prompts: &'a mut [Option<OwnPrompt>],
}

/// A prompt that was computed.
#[derive(Clone, Debug)]
pub struct OwnPrompt {
    /// It separates its user from others.
    pub salt: Box<str>,
    /// The adapters that it was computed with.
    pub adapters: AdapterSet,
    /// Its tokens.
    pub tokens: Vec<u32>,
}

/// A thread with an engine. Dropping it ends the thread after the last request has ended.
pub struct Worker {
    commands: Sender<Command>,
    next: AtomicU64,
    /// The number of requests that were not dropped yet, and its maximum.
    pending: Arc<AtomicUsize>,
    max_pending: usize,
    context: usize,
    page: Arc<OnceLock<CachePage>>,
    counts: Arc<Counts>,
    health: Arc<Health>,
    stuck_after: Duration,
    /// When it was first asked to quit, which ends the current step.
    quitting: Arc<OnceLock<Instant>>,
    thread: Mutex<Option<RunningThread>>,
}

/// The thread of a worker.
struct RunningThread {
    handle: JoinHandle<()>,
    /// Disconnected when everything that the thread owns has been dropped.
    ended: Receiver<()>,
}

/// A request that is computed or waits. Dropping it cancels it.
pub struct RunningRequest {
    key: u64,
    /// True if its client is still interested.
    wanted: bool,
    commands: Sender<Command>,
    pending: Arc<AtomicUsize>,
}

impl RunningRequest {
    /// Ends the request: its client has not disconnected, but has all it needs.
    pub fn end(mut self) {
        self.wanted = false;
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.pending.fetch_sub(1, Ordering::Relaxed);
        // A thread that has ended has no requests.
        let _ = self.commands.send(Command::Cancel(self.key, self.wanted));
    }
}

/// Cancels from the moment on at which `quitting` is set.
fn cancel_when_set(quitting: &Arc<OnceLock<Instant>>) -> Cancel {
    let quitting = Arc::clone(quitting);
    Cancel::when(move || quitting.get().is_some())
}

/// Creates an engine for a model, for which `draft` proposes tokens.
fn engine<'m>(
    model: &'m Model,
    draft: Option<&'m Model>,
    options: &EngineOptions,
) -> Result<Engine<'m>, ModelError> {
    let mut engine = Engine::new(model, options)?;
    if let Some(draft) = draft {
        engine.draft_with(draft)?;
    }
    Ok(engine)
}

/// A model that the worker owns, or one that lives as long as the process.
pub trait AsModel: Send + 'static {
    /// The model.
    fn as_model(&self) -> &Model;
}

impl AsModel for Model {
    fn as_model(&self) -> &Model {
        self
    }
}

impl AsModel for &'static Model {
    fn as_model(&self) -> &Model {
        self
    }
}

impl Worker {
    /// Starts a thread for the engine of a model and its draft model. Models that it owns have been dropped when it has ended.
    ///
    /// # Errors
    /// An error of the engine, if it is created at once; the system could not start a thread.
    pub fn start<M: AsModel>(
        model: M,
        draft: Option<M>,
        config: WorkerConfig,
    ) -> Result<Worker, StartError> {
        let sequences = config.engine.sequences;
        let counts = Arc::new(Counts::new(sequences));
        counts.count(|all| all.resting = !config.starts_engine);
        let (commands, received) = channel();
        let (made, first) = channel();
        let (max_pending, starts_engine) = (config.max_pending, config.starts_engine);
        let (stuck_after, log) = (config.stuck_after, Arc::clone(&config.log));
        let health = Arc::new(Health::new(model.as_model()));
        let [(ends, ended), (ends_watch, watched)] = [channel(), channel()];
        let context = config.engine.context;
        let page = Arc::<OnceLock<_>>::default();
        let quitting = Arc::<OnceLock<_>>::default();
        let work = {
            let (page, counts) = (Arc::clone(&page), Arc::clone(&counts));
            let health = Arc::clone(&health);
            let cancel = cancel_when_set(&quitting);
            move || {
                // Dropped after the model, also by a panic.
                let _ends = (ends, ends_watch);
                let thread = EngineThread { model, draft, config, page, counts, health, cancel };
                thread.run(&received, &made);
            }
        };
        let thread = thread::Builder::new().name("alight-engine".into()).spawn(work);
        let handle = thread.map_err(StartError::NoThread)?;
        let watch = {
            let health = Arc::clone(&health);
            move || health.watch(stuck_after, &watched, &log)
        };
        // Without it, nothing is logged about a step that does not end.
        let _ = thread::Builder::new().name("alight-watch".into()).spawn(watch);
        let mut worker = Worker {
            commands,
            next: AtomicU64::new(0),
            pending: Arc::default(),
            max_pending,
            context: context.unwrap_or(0),
            page,
            counts,
            health,
            stuck_after,
            quitting,
            thread: Mutex::new(Some(RunningThread { handle, ended })),
        };
        if starts_engine {
            match first.recv() {
                Ok(context) => worker.context = context?,
                // A panic, reported by the hook.
                Err(_) => return Err(StartError::NoThread(io::Error::other("it has failed"))),
            }
        }
        Ok(worker)
    }

    /// The number of positions of a sequence; if the engine is created on first use, the configured number.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The sizes of pages of the KV cache; `None` before the first engine is created.
    pub fn page(&self) -> Option<CachePage> {
        self.page.get().copied()
    }

    /// The counters of its work so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The reason why the engine does not work at the moment, if it does not: it could not read a file when it last tried, or a step has made no
    /// progress for longer than [configured](WorkerConfig). It names the model, and of files only the name.
    pub fn trouble(&self) -> Option<String> {
        self.health.trouble(self.stuck_after)
    }

    /// Starts all of these requests, or none.
    ///
    /// # Errors
    /// The worker would have too many requests.
    pub fn generate(
        &self,
        requests: Vec<(GenerateRequest, OnEvent)>,
    ) -> Result<Vec<RunningRequest>, TooManyRequests> {
        let (n, asked) = (requests.len(), Instant::now());
        let pending = self.pending.fetch_add(n, Ordering::Relaxed);
        if pending.saturating_add(n) > self.max_pending {
            self.pending.fetch_sub(n, Ordering::Relaxed);
            return Err(TooManyRequests { pending, max_pending: self.max_pending });
        }
        let running = requests.into_iter().map(|(request, on_event)| {
            let key = self.next.fetch_add(1, Ordering::Relaxed);
            let (commands, pending) = (self.commands.clone(), Arc::clone(&self.pending));
            // If the thread has ended, the function is dropped, which its owner can detect.
            let _ = commands.send(Command::Add(key, Box::new(request), on_event, asked));
            RunningRequest { key, wanted: true, commands, pending }
        });
        Ok(running.collect())
    }

    /// Calls `work` with the engine between two of its steps. If the engine rests, it is created first; if that fails, `work` is dropped.
    pub fn between(&self, work: Box<dyn FnOnce(&mut EngineAccess<'_, '_>) + Send>) {
        let _ = self.commands.send(Command::Between(work));
    }

    /// Begins to end the thread: see [`Worker::quit`]. The current step ends within milliseconds.
    pub fn begin_quit(&self) {
        self.quitting.get_or_init(Instant::now);
        let _ = self.commands.send(Command::Quit);
    }

    /// Ends the thread, and returns when it has ended; its requests get [`EngineEvent::Ending`]. Prompts that wait to be written are written. The thread
    /// is left to itself if a piece of its work (a step, the writing of a prompt) makes no progress for 30 s: then its model stays in use until the process
    /// ends. Returns false in that case; later calls do not wait for it.
    pub fn quit(&self) -> bool {
        self.begin_quit();
        let began = self.quitting.get_or_init(Instant::now);
        // Locked until the thread has ended, so that no other call returns earlier.
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(RunningThread { handle, ended }) = thread.take() else { return true };
        let limit = QUIT_WAIT.min(self.stuck_after);
        while ended.recv_timeout(limit / 10) == Err(RecvTimeoutError::Timeout) {
            let stuck = self.health.stuck_for().is_some_and(|time| time > limit);
            if stuck && began.elapsed() > limit {
                return false;
            }
        }
        let _ = handle.join();
        true
    }

    /// Drops the handle of the thread without joining it: for a copy of the process (`fork`), which has no such thread.
    pub fn forget_thread(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(thread.take());
    }
}

/// The state of the thread.
struct EngineThread<M> {
    model: M,
    draft: Option<M>,
    config: WorkerConfig,
    page: Arc<OnceLock<CachePage>>,
    counts: Arc<Counts>,
    health: Arc<Health>,
    cancel: Cancel,
}

/// The reason why an engine is no longer needed.
enum Ended {
    Quit,
    /// It was idle for too long.
    Rested,
}

impl<M: AsModel> EngineThread<M> {
    fn run(&self, commands: &Receiver<Command>, made: &Sender<Result<usize, ModelError>>) {
        let EngineThread { config, page, counts, health, .. } = self;
        let (model, draft) = (self.model.as_model(), self.draft.as_ref().map(AsModel::as_model));
        let make = || {
            let mut engine = engine(model, draft, &config.engine)?;
            engine.cancel_by(self.cancel.clone());
            // The same for each engine of the model.
            page.get_or_init(|| engine.page());
            Ok(engine)
        };
        let (mut first, mut next) = (None, None);
        if config.starts_engine {
            match make() {
                Ok(engine) => {
                    let _ = made.send(Ok(engine.context()));
                    first = Some(engine);
                }
                Err(error) => {
                    let _ = made.send(Err(error));
                    return;
                }
            }
        } else {
            let Some(command) = self.wait(commands) else { return };
            next = Some(command);
        }
        let remembered = if config.remembers_prompts { config.engine.sequences } else { 0 };
        let mut prompts = vec![None; remembered];
        loop {
            let made = first.take().map_or_else(
                || {
                    let _working = health.begin();
                    make()
                },
                Ok,
            );
            let engine = match made {
                Ok(engine) => engine,
                Err(error) => {
                    health.tried(Some(&error));
                    (config.log)(&format!(
                        "the engine of '{}' cannot be made: {error}",
                        model.name()
                    ));
                    if let Some(Command::Add(_, _, mut on_event, _)) = next.take() {
                        on_event(EngineEvent::EngineFailed(Arc::new(error)));
                    }
                    let Some(command) = self.wait(commands) else { return };
                    next = Some(command);
                    continue;
                }
            };
            let (counts, health) = (Arc::clone(counts), Arc::clone(health));
            let mut engine = EngineLoop::of(model, engine, counts, health, &config.log);
            engine.prompts = std::mem::replace(&mut prompts, vec![None; remembered]);
            let run = || engine.run(next.take(), commands, config.rest);
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(Ended::Quit) => return,
                Ok(Ended::Rested) => {
                    prompts = std::mem::take(&mut engine.prompts);
                    drop(engine);
                    (config.log)(&format!(
                        "'{}' rests: nothing was asked of it for a while",
                        model.name()
                    ));
                    [Some(model), draft].into_iter().flatten().for_each(Model::rest);
                    match self.wait(commands) {
                        Some(command) => next = Some(command),
                        None => return,
                    }
                }
                Err(_) => {
                    (config.log)(
                        "the engine has failed: its requests have ended, and a new one is made",
                    );
                    // Their functions are dropped. The engine's own data may be in any state.
                    engine.active.clear();
                    self.counts.count(Totals::clear);
                    std::mem::forget(engine);
                }
            }
        }
    }

    /// Waits for work, without an engine. `None` means that the thread has to end.
    fn wait(&self, commands: &Receiver<Command>) -> Option<Command> {
        self.counts.count(|all| (all.resting, all.kept) = (true, 0));
        let command = loop {
            match commands.recv() {
                // Belongs to a request that has ended.
                Ok(Command::Cancel(..)) => {}
                Ok(Command::Quit) | Err(_) => return None,
                Ok(command) => break command,
            }
        };
        self.counts.count(|all| all.resting = false);
        Some(command)
    }
}

/// A request in the engine.
struct Active {
    key: u64,
    on_event: OnEvent,
    logits: LogitsWanted,
    /// The tokens of the prompt, if their logits are requested.
    echoed: Vec<u32>,
    /// The salt and the prompt, until the prompt is read.
    prompt: Option<OwnPrompt>,
    /// The last reported number of requests that get a place before it.
    before: Option<usize>,
}

/// An engine, and the state of its requests. Its owner calls [`step`](Self::step); nothing here needs a thread.
pub struct EngineLoop<'m> {
    model: &'m Model,
    engine: Engine<'m>,
    active: HashMap<RequestId, Active>,
    ids: HashMap<u64, RequestId>,
    keep: VecDeque<OwnPrompt>,
    /// By place: the last prompt that was read there.
    prompts: Vec<Option<OwnPrompt>>,
    /// Created when an answer first has a constraint.
    masks: OnceCell<Masks>,
    counts: Arc<Counts>,
    health: Arc<Health>,
    log: Log,
}

impl<'m> EngineLoop<'m> {
    /// Creates a loop around an engine for a model, for which `draft` proposes tokens. Messages go to `log`.
    ///
    /// # Errors
    /// An error of the engine.
    pub fn start(
        model: &'m Model,
        draft: Option<&'m Model>,
        options: &EngineOptions,
        log: &Log,
    ) -> Result<EngineLoop<'m>, ModelError> {
        let engine = engine(model, draft, options)?;
        let counts = Arc::new(Counts::new(options.sequences));
        let health = Arc::new(Health::new(model));
        Ok(EngineLoop::of(model, engine, counts, health, log))
    }

    fn of(
        model: &'m Model,
        engine: Engine<'m>,
        counts: Arc<Counts>,
        health: Arc<Health>,
        log: &Log,
    ) -> EngineLoop<'m> {
        EngineLoop {
            model,
            engine,
            active: HashMap::new(),
            ids: HashMap::new(),
            keep: VecDeque::new(),
            prompts: Vec::new(),
            masks: OnceCell::new(),
            counts,
            health,
            log: Arc::clone(log),
        }
    }

    /// The number of positions of a sequence.
    pub fn context(&self) -> usize {
        self.engine.context()
    }

    /// Adds a request that is computed from the next step on, under a unique key that the caller chooses.
    pub fn generate(&mut self, key: u64, request: GenerateRequest, on_event: OnEvent) {
        self.add(key, request, on_event, Instant::now());
    }

    /// Lets `cancel` end a step early, which ends its requests.
    pub fn cancel_by(&mut self, cancel: Cancel) {
        self.engine.cancel_by(cancel);
    }

    /// Cancels a request that has not ended.
    pub fn cancel(&mut self, key: u64) {
        self.end(key, false);
    }

    /// Runs, beginning with `first`, until the quit command arrives, the last sender of commands is dropped, or the engine has been
    /// idle for `rest`.
    fn run(
        &mut self,
        mut first: Option<Command>,
        commands: &Receiver<Command>,
        rest: Option<Duration>,
    ) -> Ended {
        loop {
            let command = match (first.take(), self.engine.is_idle()) {
                (Some(command), _) => Ok(command),
                (None, false) => commands.try_recv(),
                (None, true) => {
                    // Idle, as far as is known: the queue is checked for a request before each file.
                    match commands.try_recv() {
                        Err(TryRecvError::Empty) if !self.keep.is_empty() => {
                            self.keep_one();
                            continue;
                        }
                        Err(TryRecvError::Empty) => match next(commands, rest) {
                            Err(RecvTimeoutError::Timeout) => return Ended::Rested,
                            command => command.map_err(|_| TryRecvError::Disconnected),
                        },
                        command => command,
                    }
                }
            };
            match command {
                Ok(Command::Add(key, request, on_event, asked)) => {
                    self.add(key, *request, on_event, asked);
                }
                Ok(Command::Cancel(key, left)) => self.end(key, left),
                Ok(Command::Between(work)) => {
                    let health = Arc::clone(&self.health);
                    let _working = health.begin();
                    work(&mut EngineAccess {
                        engine: &mut self.engine,
                        prompts: &mut self.prompts,
                    });
                    self.count_engine();
                }
                Ok(Command::Quit) | Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    let health = Arc::clone(&self.health);
                    let _working = health.begin();
                    self.step();
                }
            }
        }
        self.end_all(|| EngineEvent::Ending);
        while !self.keep.is_empty() {
            self.keep_one();
        }
        Ended::Quit
    }

    /// Counts what the engine keeps, and the drafts since the last call.
    fn count_engine(&mut self) {
        let (kept, drafts) = (self.engine.kept_bytes(), self.engine.take_draft_counts());
        self.counts.count(|all| {
            all.kept = kept;
            all.drafted(drafts);
        });
    }

    fn add(&mut self, key: u64, request: GenerateRequest, mut on_event: OnEvent, asked: Instant) {
        let GenerateRequest { mut request, logits, grammar, thinking } = request;
        request.ignores_logits = logits == LogitsWanted::Nothing;
        let hold = |held| self.masks.get_or_init(Masks::start).hold(held);
        let constraint = grammar.map(|held| Box::new(hold(held)) as Box<dyn Constraint>);
        let constraint = match thinking {
            Some(budget) => Some(budget.constraint(&request.prompt, constraint)),
            None => constraint,
        };
        let Request { prompt, salt, adapters, max_tokens, of_prompt, place, .. } = &request;
        let own = Some(OwnPrompt {
            salt: salt.clone(),
            adapters: adapters.clone(),
            tokens: prompt.clone(),
        });
        let echoed = if *of_prompt == OfPrompt::Logits { prompt.clone() } else { Vec::new() };
        let (lengths, place) = ([prompt.len(), *max_tokens], *place);
        match self.engine.add_constrained(request, constraint) {
            Ok(id) => {
                self.counts.count(|all| all.came(key, lengths, place, asked));
                self.ids.insert(key, id);
                self.active.insert(
                    id,
                    Active { key, on_event, logits, echoed, prompt: own, before: None },
                );
                self.report_queue();
            }
            Err(error) => {
                self.counts.count(|all| all.failed += 1);
                on_event(EngineEvent::Refused(Arc::new(error)));
            }
        }
    }

    /// Ends a request that has not ended, because its client has `left`, or has all it needs.
    fn end(&mut self, key: u64, left: bool) {
        if let Some(id) = self.ids.remove(&key) {
            self.active.remove(&id);
            self.engine.cancel(id);
            self.counts.count(|all| {
                *(if left { &mut all.left } else { &mut all.ended }) += 1;
                all.gone(key);
            });
            self.report_queue();
        }
    }

    /// Reports to each request that waits for a place how many get one first, unless that is known.
    fn report_queue(&mut self) {
        let mut waiting = Vec::new();
        self.counts.count(|all| waiting.extend(all.waiting.iter().map(|task| task.key)));
        for (before, key) in waiting.iter().enumerate() {
            let request = self.ids.get(key).and_then(|id| self.active.get_mut(id));
            if let Some(request) = request
                && request.before.replace(before) != Some(before)
            {
                (request.on_event)(EngineEvent::Waiting { before });
            }
        }
    }

    /// Computes the next token of all sequences, and reads part of the prompts that have arrived.
    pub fn step(&mut self) {
        let EngineLoop { model, engine, active, ids, keep, prompts, counts, .. } = self;
        counts.count(Totals::step);
        let vocab = model.tokenizer().vocab_size();
        let mut place_is_free = false;
        // The logits may have padding after the tokens.
        let of_tokens = |logits: &'_ [f32]| logits.len().min(vocab);
        let mut on_event = |id, event: Event<'_>| {
            let Some(request) = active.get_mut(&id) else { return };
            let key = request.key;
            let event = match event {
                Event::Prompt { reused, place } => {
                    counts.count(|all| {
                        all.placed(key, place);
                        all.read(key, reused);
                    });
                    if let Some(prompt) = request.prompt.take() {
                        if prompt.tokens.len() - reused >= MIN_NEW_TOKENS {
                            keep.push_back(prompt.clone());
                        }
                        if let Some(last) = prompts.get_mut(place) {
                            *last = Some(prompt);
                        }
                    }
                    EngineEvent::Prompt { reused, place }
                }
                Event::Token(token, logits) => {
                    counts.count(|all| all.token(key));
                    let logits = request.logits.of(&logits[..of_tokens(logits)], token);
                    EngineEvent::Token(token, logits)
                }
                Event::Finished(finish) => EngineEvent::Finished(finish),
                Event::Failed(error) => EngineEvent::Failed(Arc::new(error)),
                Event::PromptLogits { position, logits } => {
                    let Some(&next) = request.echoed.get(position + 1) else { return };
                    let wanted = match request.logits {
                        LogitsWanted::Nothing => LogitsWanted::Logprobs(0),
                        wanted => wanted,
                    };
                    EngineEvent::PromptToken(next, wanted.of(&logits[..of_tokens(logits)], next))
                }
                Event::Embedding(embedding) => {
                    // An embedding always computes the whole prompt.
                    counts.count(|all| all.read(key, 0));
                    EngineEvent::Embedding(embedding.to_vec())
                }
                Event::Reading { read, reused } => {
                    counts.count(|all| all.reading(key, read, reused));
                    EngineEvent::Reading { read, reused }
                }
            };
            let failed = matches!(event, EngineEvent::Failed(_));
            let ended =
                failed || matches!(event, EngineEvent::Finished(_) | EngineEvent::Embedding(_));
            if ended {
                counts.count(|all| {
                    *(if failed { &mut all.failed } else { &mut all.ended }) += 1;
                    all.gone(key);
                });
            }
            // If the receiver no longer listens, a cancel command has been sent or will follow.
            (request.on_event)(event);
            if ended {
                place_is_free = true;
                ids.remove(&request.key);
                active.remove(&id);
            }
        };
        match engine.step(&mut on_event) {
            Ok(_) => {
                self.health.tried(None);
            }
            Err(ModelError::Cancelled) => self.end_all(|| EngineEvent::Ending),
            Err(error) => self.fail_all(error),
        }
        if place_is_free {
            self.report_queue();
        }
        self.count_engine();
        while self.keep.len() > MAX_PENDING_PROMPTS {
            self.keep_one();
        }
        for ignored in self.engine.ignored_prompts() {
            let path = ignored.path.display();
            (self.log)(&format!("the kept prompt '{path}' is not used: {}", ignored.why));
        }
    }

    /// Ends all requests with an error; the engine has already dropped them.
    fn fail_all(&mut self, error: ModelError) {
        if self.health.tried(Some(&error)) {
            (self.log)(&format!("a step has failed: {error}; the next request tries again"));
        }
        let error = Arc::new(error);
        self.end_all(|| EngineEvent::EngineFailed(Arc::clone(&error)));
    }

    /// Hands a last event to all requests, which the engine has already dropped.
    fn end_all(&mut self, event: impl Fn() -> EngineEvent) {
        self.ids.clear();
        self.counts.count(Totals::clear);
        for (_, mut request) in self.active.drain() {
            (request.on_event)(event());
        }
    }

    fn keep_one(&mut self) {
        let health = Arc::clone(&self.health);
        let _working = health.begin();
        let Some(OwnPrompt { salt, adapters, tokens }) = self.keep.pop_front() else { return };
        if let Err(error) = self.engine.keep((&salt, &adapters), &tokens) {
            (self.log)(&format!("a prompt is not kept: {error}"));
        }
    }
}

/// Returns the next command. An idle engine waits for at most `rest`.
fn next(commands: &Receiver<Command>, rest: Option<Duration>) -> Result<Command, RecvTimeoutError> {
    match rest {
        Some(rest) => commands.recv_timeout(rest),
        None => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
    }
}
