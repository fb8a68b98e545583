//! The loop around an engine, [`EngineLoop`], in which what a step brings is handed to each request's own function; and a thread that has one,
//! [`Worker`], to which requests come by a channel.
//!
//! An engine is made at once, or when something is first asked of it. One that had nothing to do for long may rest: its memory is given back,
//! and another one is made when something is asked.
//!
//! Invariants: it waits for requests alone; a request whose [`RunningRequest`] is dropped is cancelled before the next step; if the
//! engine panics, its requests end and a new engine is made on the same model.

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
    Constraint, Engine, EngineOptions, Event, Finish, Logprobs, Model, ModelError, OfPrompt,
    Request, RequestId,
};

use crate::counts::{Counts, Totals};
use crate::grammar::{Held, Masks};

/// A prompt is worth a file if at least this many of its tokens were new.
const MIN_NEW_TOKENS: usize = 64;
/// Prompts that wait for a quiet moment to be written; more are written at once.
const MAX_PENDING_PROMPTS: usize = 32;

/// What a person is told while it works.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// Is called with each event of a request, on the engine's thread. It must not wait.
pub type OnEvent = Box<dyn FnMut(EngineEvent) + Send>;

/// A request to an engine, and what is wanted beside its tokens.
#[derive(Clone, Debug, Default)]
pub struct GenerateRequest {
    /// The prompt, and how it is to be continued.
    pub request: Request,
    /// What is wanted of the logits of each place; with [`OfPrompt::Logits`], of the prompt's places as well.
    pub logits: LogitsWanted,
    /// The constraint on the answer.
    pub grammar: Option<Held>,
}

/// What is wanted of the logits of a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogitsWanted {
    /// Nothing.
    #[default]
    Nothing,
    /// How likely the token was, and so many of the likeliest.
    Logprobs(usize),
    /// All of them.
    All,
}

/// What was wanted of the logits of a place.
#[derive(Clone, Debug)]
pub enum TokenLogits {
    /// Nothing.
    Nothing,
    /// How likely the token was, and some of the likeliest.
    Logprobs(Box<Logprobs>),
    /// `[vocab]`
    All(Vec<f32>),
}

impl LogitsWanted {
    /// Of the logits `[vocab]` of the place of a token.
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

/// What has become of a request.
#[derive(Clone, Debug)]
pub enum EngineEvent {
    /// A token of the prompt but the first, and the logits of its place.
    PromptToken(u32, TokenLogits),
    /// The prompt as a vector, `[hidden]`. Nothing else follows.
    Embedding(Vec<f32>),
    /// How much of the prompt was read; there is more.
    Reading {
        /// Tokens that were read, those that were known included.
        read: usize,
        /// Tokens that were known.
        reused: usize,
    },
    /// The prompt was read.
    Prompt {
        /// Tokens of it that were known.
        reused: usize,
    },
    /// The next token, and the logits of its place.
    Token(u32, TokenLogits),
    /// The end. Nothing else follows.
    Finished(Finish),
    /// It is not computed, and why. Nothing else follows.
    Refused(Arc<ModelError>),
    /// There is no more of it, and why; others go on.
    Failed(Arc<ModelError>),
    /// A step has failed: there is no more of any request, and why.
    EngineFailed(Arc<ModelError>),
    /// There is no more, because the worker ends.
    Ending,
}

/// How a worker works.
#[derive(Clone)]
pub struct WorkerConfig {
    /// Of each engine that is made.
    pub engine: EngineOptions,
    /// Most requests that are computed or wait.
    pub max_pending: usize,
    /// After how long without a request the memory of the engine is given back; `None`: never.
    pub rest: Option<Duration>,
    /// True if the last prompt of each place is remembered, for [`EngineAccess::prompts`].
    pub remembers_prompts: bool,
    /// True if the engine is made at once, and not when something is first asked.
    pub starts_engine: bool,
    /// What a person is told.
    pub log: Log,
}

/// Why there is no worker.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// What the engine refuses.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The system gives no thread.
    #[error("the system gives no thread for the engine: {0}")]
    NoThread(io::Error),
}

/// More requests than the worker takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyRequests {
    /// Requests that are computed or wait.
    pub pending: usize,
    /// How many there may be.
    pub max_pending: usize,
}

enum Command {
    Add(u64, Box<GenerateRequest>, OnEvent, Instant),
    /// Whether its client has left: it may also have all that it wants.
    Cancel(u64, bool),
    /// Something to be done between two steps.
    Between(Box<dyn FnOnce(&mut EngineAccess<'_, '_>) + Send>),
    Quit,
}

/// What can be seen between two steps.
pub struct EngineAccess<'a, 'm> {
    /// The engine.
    pub engine: &'a mut Engine<'m>,
    /// By place: the last prompt that was read there, and whose it was. Of no place, if prompts are not [remembered](WorkerConfig).
    pub prompts: &'a mut [Option<OwnPrompt>],
}

/// A prompt, and the salt that parts its user from others.
pub type OwnPrompt = (Box<str>, Vec<u32>);

/// A thread with an engine. Dropping it ends the thread after the last request has ended.
pub struct Worker {
    commands: Sender<Command>,
    next: AtomicU64,
    /// Requests that were not dropped yet, and how many there may be.
    pending: Arc<AtomicUsize>,
    max_pending: usize,
    context: usize,
    page: Arc<OnceLock<(usize, usize)>>,
    counts: Arc<Counts>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A request that is computed, or waits. Dropping it cancels it.
pub struct RunningRequest {
    key: u64,
    /// True if its client is still interested.
    wanted: bool,
    commands: Sender<Command>,
    pending: Arc<AtomicUsize>,
}

impl RunningRequest {
    /// No more of it is wanted: its client has not left, but has all.
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

/// An engine of a model, to which `draft` proposes tokens.
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
    /// A thread for the engine of a model and its draft model. Models that it owns are gone when it has ended.
    ///
    /// # Errors
    /// What the engine refuses, if it is made at once; the system gives no thread.
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
        let context = config.engine.context;
        let page = Arc::<OnceLock<_>>::default();
        let work = {
            let (page, counts) = (Arc::clone(&page), Arc::clone(&counts));
            move || {
                let thread = EngineThread { model, draft, config, page, counts };
                thread.run(&received, &made);
            }
        };
        let thread = thread::Builder::new().name("alight-engine".into()).spawn(work);
        let thread = thread.map_err(StartError::NoThread)?;
        let mut worker = Worker {
            commands,
            next: AtomicU64::new(0),
            pending: Arc::default(),
            max_pending,
            context: context.unwrap_or(0),
            page,
            counts,
            thread: Mutex::new(Some(thread)),
        };
        if starts_engine {
            match first.recv() {
                Ok(context) => worker.context = context?,
                // A panic, which the hook has reported.
                Err(_) => return Err(StartError::NoThread(io::Error::other("it has failed"))),
            }
        }
        Ok(worker)
    }

    /// Positions of a sequence; of an engine that is not made at once, those that were asked for.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Positions of a page of the KV cache, and the bytes of one in all layers; `None` while there was no engine yet.
    pub fn page(&self) -> Option<(usize, usize)> {
        self.page.get().copied()
    }

    /// Its work so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Computes all of these, or none.
    ///
    /// # Errors
    /// There would be more requests than the worker takes.
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
            // If the thread has ended, the function is dropped, which its owner sees.
            let _ = commands.send(Command::Add(key, Box::new(request), on_event, asked));
            RunningRequest { key, wanted: true, commands, pending }
        });
        Ok(running.collect())
    }

    /// Does something with the engine between two of its steps. An engine that rests is made for it. If there can be none, `work` is dropped.
    pub fn between(&self, work: Box<dyn FnOnce(&mut EngineAccess<'_, '_>) + Send>) {
        let _ = self.commands.send(Command::Between(work));
    }

    /// Ends the thread, and returns when it has ended; its requests get [`EngineEvent::Ending`]. Prompts that wait to be written are written.
    pub fn quit(&self) {
        let _ = self.commands.send(Command::Quit);
        // Held until it has ended, so that nobody else returns before.
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            let _ = thread.join();
        }
    }

    /// Gives up the handle of the thread without joining it: for a copy of the process (`fork`), which has no such thread.
    pub fn forget_thread(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(thread.take());
    }
}

/// What the thread works with.
struct EngineThread<M> {
    model: M,
    draft: Option<M>,
    config: WorkerConfig,
    page: Arc<OnceLock<(usize, usize)>>,
    counts: Arc<Counts>,
}

/// Why an engine is not needed any more.
enum Ended {
    Quit,
    /// There was nothing to do for long.
    Rested,
}

impl<M: AsModel> EngineThread<M> {
    fn run(&self, commands: &Receiver<Command>, made: &Sender<Result<usize, ModelError>>) {
        let EngineThread { config, page, counts, .. } = self;
        let (model, draft) = (self.model.as_model(), self.draft.as_ref().map(AsModel::as_model));
        let make = || {
            let engine = engine(model, draft, &config.engine)?;
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
            let made = first.take().map_or_else(make, Ok);
            let engine = match made {
                Ok(engine) => engine,
                Err(error) => {
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
            let mut engine = EngineLoop::of(model, engine, Arc::clone(counts), &config.log);
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
                    // Their functions are dropped. What the engine owns may be in any state.
                    engine.active.clear();
                    counts.count(Totals::clear);
                    std::mem::forget(engine);
                }
            }
        }
    }

    /// Waits, without an engine, for something to do. `None`: there is to be no more.
    fn wait(&self, commands: &Receiver<Command>) -> Option<Command> {
        self.counts.count(|all| (all.resting, all.kept) = (true, 0));
        let command = loop {
            match commands.recv() {
                // Of a request that had ended.
                Ok(Command::Cancel(..)) => {}
                Ok(Command::Quit) | Err(_) => return None,
                Ok(command) => break command,
            }
        };
        self.counts.count(|all| all.resting = false);
        Some(command)
    }
}

/// A request of the engine's.
struct Active {
    key: u64,
    on_event: OnEvent,
    logits: LogitsWanted,
    /// The tokens of the prompt, if their logits are wanted.
    echoed: Vec<u32>,
    /// Whose it is, and its prompt until it is read.
    prompt: Option<OwnPrompt>,
}

/// An engine, and what becomes of its requests. Whoever has it calls [`step`](Self::step); nothing here needs a thread.
pub struct EngineLoop<'m> {
    model: &'m Model,
    engine: Engine<'m>,
    active: HashMap<RequestId, Active>,
    ids: HashMap<u64, RequestId>,
    keep: VecDeque<OwnPrompt>,
    /// By place: the last prompt that was read there.
    prompts: Vec<Option<OwnPrompt>>,
    /// Made when an answer is first held to something.
    masks: OnceCell<Masks>,
    counts: Arc<Counts>,
    log: Log,
}

impl<'m> EngineLoop<'m> {
    /// A loop around an engine of a model, to which `draft` proposes tokens. Remarks go to `log`.
    ///
    /// # Errors
    /// What the engine refuses.
    pub fn start(
        model: &'m Model,
        draft: Option<&'m Model>,
        options: &EngineOptions,
        log: &Log,
    ) -> Result<EngineLoop<'m>, ModelError> {
        let engine = engine(model, draft, options)?;
        Ok(EngineLoop::of(model, engine, Arc::new(Counts::new(options.sequences)), log))
    }

    fn of(model: &'m Model, engine: Engine<'m>, counts: Arc<Counts>, log: &Log) -> EngineLoop<'m> {
        EngineLoop {
            model,
            engine,
            active: HashMap::new(),
            ids: HashMap::new(),
            keep: VecDeque::new(),
            prompts: Vec::new(),
            masks: OnceCell::new(),
            counts,
            log: Arc::clone(log),
        }
    }

    /// Positions of a sequence.
    pub fn context(&self) -> usize {
        self.engine.context()
    }

    /// Computes a request from the next step on, under a key of the caller's that no other one has.
    pub fn generate(&mut self, key: u64, request: GenerateRequest, on_event: OnEvent) {
        self.add(key, request, on_event, Instant::now());
    }

    /// Computes no more of a request that has not ended.
    pub fn cancel(&mut self, key: u64) {
        self.end(key, false);
    }

    /// Computes, beginning with `first`, until the command to quit comes, until the last sender of commands is gone, or until the engine was
    /// idle for so long.
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
                    // A quiet moment, as far as is known: another request is looked for before each file.
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
                    work(&mut EngineAccess {
                        engine: &mut self.engine,
                        prompts: &mut self.prompts,
                    });
                    self.count_kept();
                }
                Ok(Command::Quit) | Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => self.step(),
            }
        }
        for (_, mut active) in self.active.drain() {
            (active.on_event)(EngineEvent::Ending);
        }
        while !self.keep.is_empty() {
            self.keep_one();
        }
        Ended::Quit
    }

    fn count_kept(&self) {
        let kept = self.engine.kept_bytes();
        self.counts.count(|all| all.kept = kept);
    }

    fn add(&mut self, key: u64, request: GenerateRequest, mut on_event: OnEvent, asked: Instant) {
        let GenerateRequest { request, logits, grammar } = request;
        let hold = |held| self.masks.get_or_init(Masks::start).hold(held);
        let constraint = grammar.map(|held| Box::new(hold(held)) as Box<dyn Constraint>);
        let Request { prompt, salt, max_tokens, of_prompt, .. } = &request;
        let own = Some((salt.clone(), prompt.clone()));
        let echoed = if *of_prompt == OfPrompt::Logits { prompt.clone() } else { Vec::new() };
        let (prompt_tokens, max_tokens) = (prompt.len(), *max_tokens);
        match self.engine.add_constrained(request, constraint) {
            Ok(id) => {
                self.counts.count(|all| all.came(key, prompt_tokens, max_tokens, asked));
                self.ids.insert(key, id);
                self.active.insert(id, Active { key, on_event, logits, echoed, prompt: own });
            }
            Err(error) => {
                self.counts.count(|all| all.failed += 1);
                on_event(EngineEvent::Refused(Arc::new(error)));
            }
        }
    }

    /// Ends a request that has not ended, because its client has `left`, or has all.
    fn end(&mut self, key: u64, left: bool) {
        if let Some(id) = self.ids.remove(&key) {
            self.active.remove(&id);
            self.engine.cancel(id);
            self.counts.count(|all| {
                *(if left { &mut all.left } else { &mut all.ended }) += 1;
                all.gone(key);
            });
        }
    }

    /// Computes the next token of all sequences, and reads some of the prompts that have come.
    pub fn step(&mut self) {
        let EngineLoop { model, engine, active, ids, keep, prompts, counts, .. } = self;
        counts.count(Totals::step);
        let vocab = model.tokenizer().vocab_size();
        // Beyond the tokens there may be padding.
        let of_tokens = |logits: &'_ [f32]| logits.len().min(vocab);
        let mut on_event = |id, event: Event<'_>| {
            let Some(request) = active.get_mut(&id) else { return };
            let key = request.key;
            let event = match event {
                Event::Prompt { reused } => {
                    let mut place = None;
                    counts.count(|all| {
                        place = all.place(key);
                        all.read(key, reused);
                    });
                    if let Some(prompt) = request.prompt.take() {
                        if prompt.1.len() - reused >= MIN_NEW_TOKENS {
                            keep.push_back(prompt.clone());
                        }
                        if let Some(last) = place.and_then(|place| prompts.get_mut(place)) {
                            *last = Some(prompt);
                        }
                    }
                    EngineEvent::Prompt { reused }
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
                    // All of it has to be computed.
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
            // Who does not listen any more has sent word, or will.
            (request.on_event)(event);
            if ended {
                ids.remove(&request.key);
                active.remove(&id);
            }
        };
        if let Err(error) = engine.step(&mut on_event) {
            self.fail_all(error);
        }
        self.count_kept();
        while self.keep.len() > MAX_PENDING_PROMPTS {
            self.keep_one();
        }
        for ignored in self.engine.ignored_prompts() {
            let path = ignored.path.display();
            (self.log)(&format!("the kept prompt '{path}' is not used: {}", ignored.why));
        }
    }

    /// The engine has forgotten all requests.
    fn fail_all(&mut self, error: ModelError) {
        let error = Arc::new(error);
        self.ids.clear();
        self.counts.count(Totals::clear);
        for (_, mut request) in self.active.drain() {
            (request.on_event)(EngineEvent::EngineFailed(Arc::clone(&error)));
        }
    }

    fn keep_one(&mut self) {
        let Some((salt, prompt)) = self.keep.pop_front() else { return };
        if let Err(error) = self.engine.keep(&salt, &prompt) {
            (self.log)(&format!("a prompt is not kept: {error}"));
        }
    }
}

/// The next command, for which an idle engine waits no longer than it may.
fn next(commands: &Receiver<Command>, rest: Option<Duration>) -> Result<Command, RecvTimeoutError> {
    match rest {
        Some(rest) => commands.recv_timeout(rest),
        None => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
    }
}
