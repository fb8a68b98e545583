//! The thread that owns an engine: requests come in by one channel, and what a step brings goes out by one for each request.
//!
//! The engine of one of several models is made when something is asked of that model. An engine that had nothing to do for long may rest: its
//! memory is given back, and another one is made when something is asked.
//!
//! Invariants: it waits for nobody but for requests; a request whose guard is dropped is cancelled before the next step; if the
//! engine panics, its requests end with an error and a new engine is made on the same model.

use std::cell::OnceCell;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use alight_model::{
    Constraint, Engine, EngineOptions, Event, Finish, Logprobs, Model, ModelError, OfPrompt,
    Request, RequestId, SamplerOptions,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::counts::{Counts, Totals};
use crate::failure::Failure;
use crate::grammar::{Held, Masks};
use crate::{Log, Options};

/// A prompt is worth a file if so many tokens of it were new.
const LEAST_NEW: usize = 64;
/// Prompts that wait for a quiet moment to be written; more are written at once.
const MOST_TO_KEEP: usize = 32;

/// A prompt to be continued.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ask {
    pub(crate) prompt: Vec<u32>,
    pub(crate) sampling: SamplerOptions,
    pub(crate) logit_bias: Vec<(u32, f32)>,
    pub(crate) max_tokens: usize,
    pub(crate) ignore_eos: bool,
    pub(crate) salt: Box<str>,
    /// How many of the likeliest tokens are told beside each one, if any likelihood is.
    pub(crate) logprobs: Option<usize>,
    /// What is wanted of the prompt itself; of its tokens, how likely they were.
    pub(crate) of_prompt: OfPrompt,
    /// What the answer is held to.
    pub(crate) grammar: Option<Held>,
}

/// What has become of it.
#[derive(Debug)]
pub(crate) enum Happened {
    /// How likely a token of the prompt was after those before it.
    OfPrompt(u32, Box<Logprobs>),
    /// The prompt as a vector. Nothing else follows.
    Embedding(Vec<f32>),
    /// So many tokens of the prompt were read, of which so many were known, and there are more.
    Reading { read: usize, reused: usize },
    /// The prompt was read; so many tokens of it were known.
    Prompt { reused: usize },
    /// The next token.
    Token(u32, Option<Box<Logprobs>>),
    /// The end.
    Finished(Finish),
    /// There is no more, and why.
    Failed(String),
    /// There is no more, because the server ends.
    Ending,
}

enum Command {
    Add(u64, Box<Ask>, UnboundedSender<Happened>, Instant),
    /// Whether its client has left: it may also have all that it wants.
    Cancel(u64, bool),
    /// Something to be done between two steps.
    Between(Box<dyn FnOnce(&mut Between<'_>) + Send>),
    Quit,
}

/// What can be seen between two steps.
pub(crate) struct Between<'a> {
    pub(crate) engine: &'a mut Engine<'static>,
    /// By place: the last prompt that was read there, and whose it was. Of no place, if there are no [slot files](Options::slot_files).
    pub(crate) read: &'a mut [Option<OwnPrompt>],
}

/// A prompt, and the salt that parts its user from others.
pub(crate) type OwnPrompt = (Box<str>, Vec<u32>);

/// A thread with an engine.
pub(crate) struct Worker {
    commands: Sender<Command>,
    next: AtomicU64,
    /// Requests that were not dropped yet, and how many there may be.
    pending: Arc<AtomicUsize>,
    most: usize,
    context: usize,
    page: Arc<OnceLock<(usize, usize)>>,
    counts: Arc<Counts>,
    thread: std::sync::Mutex<Option<JoinHandle<()>>>,
}

/// A request that is computed, or waits. Dropping it cancels it.
pub(crate) struct Running {
    pub(crate) events: UnboundedReceiver<Happened>,
    key: u64,
    /// Whether its client is still interested.
    wanted: bool,
    commands: Sender<Command>,
    pending: Arc<AtomicUsize>,
}

impl Running {
    /// No more of it is wanted.
    pub(crate) fn end(mut self) {
        self.wanted = false;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.pending.fetch_sub(1, Ordering::Relaxed);
        // A thread that has ended has no requests.
        let _ = self.commands.send(Command::Cancel(self.key, self.wanted));
    }
}

/// A model, and what proposes tokens to it.
type Models = (&'static Model, Option<&'static Model>);

impl Worker {
    /// A thread for the engine of a model and its draft model, with so many positions for each sequence. The engine is made `at_once`, or when
    /// something is asked of it.
    pub(crate) fn start(
        models: Models,
        context: usize,
        options: &Options,
        at_once: bool,
        log: Log,
    ) -> Result<Worker, String> {
        let of_engine = EngineOptions { context: Some(context), ..options.engine.clone() };
        let page = Arc::<OnceLock<_>>::default();
        let first = at_once.then(|| engine(models, &of_engine, &page)).transpose();
        let first = first.map_err(|error| error.to_string())?;
        let (commands, received) = channel();
        let sequences = of_engine.sequences;
        let remembered = if options.slot_files.is_some() { sequences } else { 0 };
        let rest = options.rest;
        let wanted =
            Wanted { models, options: of_engine, page: Arc::clone(&page), rest, remembered };
        let most = sequences + options.queue;
        let counts = Arc::new(Counts::new(sequences));
        counts.count(|all| all.resting = first.is_none());
        let counted = Arc::clone(&counts);
        let work = move || run(&wanted, first, &received, &counted, &log);
        let thread = thread::Builder::new().name("alight-engine".into()).spawn(work);
        let thread =
            thread.map_err(|e| format!("the system gives no thread for the engine: {e}"))?;
        Ok(Worker {
            commands,
            next: AtomicU64::new(0),
            pending: Arc::default(),
            most,
            context,
            page,
            counts,
            thread: std::sync::Mutex::new(Some(thread)),
        })
    }

    /// Positions of a sequence.
    pub(crate) fn context(&self) -> usize {
        self.context
    }

    /// Positions of a page of the KV cache, and the bytes of one in all layers; `None` while there was no engine yet.
    pub(crate) fn page(&self) -> Option<(usize, usize)> {
        self.page.get().copied()
    }

    /// What it has done.
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Computes all of these, or none.
    pub(crate) fn ask(&self, asks: Vec<Ask>) -> Result<Vec<Running>, Failure> {
        let (n, asked) = (asks.len(), Instant::now());
        let before = self.pending.fetch_add(n, Ordering::Relaxed);
        if before + n > self.most {
            self.pending.fetch_sub(n, Ordering::Relaxed);
            // One request for more answers than there is room for at any time would wait for ever.
            return Err(match n > self.most {
                true => Failure::invalid(format!(
                    "{n} answers are more than the server computes and keeps waiting, {}",
                    self.most
                )),
                false => Failure::busy(before),
            });
        }
        let running = asks.into_iter().map(|ask| {
            let key = self.next.fetch_add(1, Ordering::Relaxed);
            let (send, events) = unbounded_channel();
            let (commands, pending) = (self.commands.clone(), Arc::clone(&self.pending));
            // If the thread has ended, the channel has too, which is seen.
            let _ = commands.send(Command::Add(key, Box::new(ask), send, asked));
            Running { events, key, wanted: true, commands, pending }
        });
        Ok(running.collect())
    }

    /// Does something with the engine between two of its steps. An engine that rests is made for it.
    pub(crate) async fn between<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Between<'_>) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let (send, done) = tokio::sync::oneshot::channel();
        let work = move |between: &mut Between<'_>| {
            // Who has left does not hear of it.
            let _ = send.send(work(between));
        };
        let _ = self.commands.send(Command::Between(Box::new(work)));
        done.await.map_err(|_| Failure::internal("the engine has failed, or ends"))
    }

    /// Ends the thread; what it computes has no more events. Prompts that wait to be written are written.
    pub(crate) fn quit(&self) {
        let _ = self.commands.send(Command::Quit);
        let thread = self.thread.lock().ok().and_then(|mut thread| thread.take());
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

/// The engine of a model and its draft model. The size of a page is the same for each engine of the model.
fn engine(
    (model, draft): Models,
    options: &EngineOptions,
    page: &OnceLock<(usize, usize)>,
) -> Result<Engine<'static>, ModelError> {
    let mut engine = Engine::new(model, options)?;
    if let Some(draft) = draft {
        engine.draft_with(draft)?;
    }
    page.get_or_init(|| engine.page());
    Ok(engine)
}

/// What a worker was made for.
struct Wanted {
    models: Models,
    options: EngineOptions,
    page: Arc<OnceLock<(usize, usize)>>,
    rest: Option<Duration>,
    /// Places whose last prompt is remembered: all of them, or none where nobody may ask for one.
    remembered: usize,
}

/// Why an engine is not needed any more.
enum Ended {
    Quit,
    /// There was nothing to do for long.
    Rested,
}

fn run(
    wanted: &Wanted,
    mut first: Option<Engine<'static>>,
    commands: &Receiver<Command>,
    counts: &Counts,
    log: &Log,
) {
    let mut next = None;
    if first.is_none() {
        let Some(command) = wait(commands, counts) else { return };
        next = Some(command);
    }
    let mut read = vec![None; wanted.remembered];
    let masks = OnceCell::new();
    loop {
        let made = match first.take() {
            Some(engine) => Ok(engine),
            None => engine(wanted.models, &wanted.options, &wanted.page),
        };
        let engine = match made {
            Ok(engine) => engine,
            Err(error) => {
                let name = wanted.models.0.name();
                let why = format!("the engine of '{name}' cannot be made: {error}");
                log(&why);
                if let Some(Command::Add(_, _, events, _)) = next.take() {
                    // The client may have left: then nobody receives it.
                    let _ = events.send(Happened::Failed(why));
                }
                let Some(command) = wait(commands, counts) else { return };
                next = Some(command);
                continue;
            }
        };
        let mut state = State {
            model: wanted.models.0,
            engine,
            rest: wanted.rest,
            active: HashMap::new(),
            ids: HashMap::new(),
            keep: VecDeque::new(),
            read: &mut read,
            masks: &masks,
            counts,
            log,
        };
        match catch_unwind(AssertUnwindSafe(|| state.run(next.take(), commands))) {
            Ok(Ended::Quit) => return,
            Ok(Ended::Rested) => {
                drop(state);
                match rest(wanted, commands, counts, log) {
                    Some(command) => next = Some(command),
                    None => return,
                }
            }
            Err(_) => {
                log("the engine has failed: its requests have ended, and a new one is made");
                // Their clients see that the channels end. What the engine owns may be in any state.
                state.active.clear();
                counts.count(Totals::clear);
                std::mem::forget(state);
            }
        }
    }
}

/// Gives back what this process has mapped of the models, and [waits](wait).
fn rest(
    wanted: &Wanted,
    commands: &Receiver<Command>,
    counts: &Counts,
    log: &Log,
) -> Option<Command> {
    let (model, draft) = wanted.models;
    log(&format!("'{}' rests: nothing was asked of it for a while", model.name()));
    [Some(model), draft].into_iter().flatten().for_each(Model::rest);
    wait(commands, counts)
}

/// Waits, without an engine, for something to do. `None`: there is to be no more.
fn wait(commands: &Receiver<Command>, counts: &Counts) -> Option<Command> {
    counts.count(|all| (all.resting, all.kept) = (true, 0));
    let command = loop {
        match commands.recv() {
            // Of a request that had ended.
            Ok(Command::Cancel(..)) => {}
            Ok(Command::Quit) | Err(_) => return None,
            Ok(command) => break command,
        }
    };
    counts.count(|all| all.resting = false);
    Some(command)
}

/// A request of the engine's.
struct Active {
    key: u64,
    events: UnboundedSender<Happened>,
    logprobs: Option<usize>,
    /// The tokens of the prompt, if they are wanted themselves.
    echoed: Vec<u32>,
    /// Whose it is, and its prompt until it is read.
    prompt: Option<OwnPrompt>,
}

struct State<'l> {
    model: &'static Model,
    engine: Engine<'static>,
    rest: Option<Duration>,
    active: HashMap<RequestId, Active>,
    ids: HashMap<u64, RequestId>,
    keep: VecDeque<OwnPrompt>,
    /// By place: the last prompt that was read there.
    read: &'l mut [Option<OwnPrompt>],
    /// Made when an answer is first held to something.
    masks: &'l OnceCell<Masks>,
    counts: &'l Counts,
    log: &'l Log,
}

impl State<'_> {
    /// Computes, beginning with `first`, until the command to quit comes, until the last sender of commands is gone, or until the engine was
    /// idle for as long as the options say.
    fn run(&mut self, mut first: Option<Command>, commands: &Receiver<Command>) -> Ended {
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
                        Err(TryRecvError::Empty) => match self.next(commands) {
                            Err(RecvTimeoutError::Timeout) => return Ended::Rested,
                            command => command.map_err(|_| TryRecvError::Disconnected),
                        },
                        command => command,
                    }
                }
            };
            match command {
                Ok(Command::Add(key, ask, events, asked)) => self.add(key, *ask, events, asked),
                Ok(Command::Cancel(key, left)) => self.cancel(key, left),
                Ok(Command::Between(work)) => {
                    work(&mut Between { engine: &mut self.engine, read: self.read });
                    self.count_kept();
                }
                Ok(Command::Quit) | Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => self.step(),
            }
        }
        for (_, active) in self.active.drain() {
            // The client may have left.
            let _ = active.events.send(Happened::Ending);
        }
        while !self.keep.is_empty() {
            self.keep_one();
        }
        Ended::Quit
    }

    /// The next command, for which an idle engine waits no longer than it may.
    fn next(&self, commands: &Receiver<Command>) -> Result<Command, RecvTimeoutError> {
        match self.rest {
            Some(rest) => commands.recv_timeout(rest),
            None => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn count_kept(&self) {
        let kept = self.engine.kept_bytes();
        self.counts.count(|all| all.kept = kept);
    }

    fn add(&mut self, key: u64, ask: Ask, events: UnboundedSender<Happened>, asked: Instant) {
        let Ask {
            prompt,
            sampling,
            logit_bias,
            max_tokens,
            ignore_eos,
            salt,
            logprobs,
            of_prompt,
            grammar,
        } = ask;
        let hold = |held| self.masks.get_or_init(Masks::start).hold(held);
        let constraint = grammar.map(|held| Box::new(hold(held)) as Box<dyn Constraint>);
        let own = Some((salt.clone(), prompt.clone()));
        let echoed = if of_prompt == OfPrompt::Logits { prompt.clone() } else { Vec::new() };
        let prompt_tokens = prompt.len();
        let request =
            Request { prompt, sampling, logit_bias, max_tokens, ignore_eos, salt, of_prompt };
        match self.engine.add_constrained(request, constraint) {
            Ok(id) => {
                self.counts.count(|all| all.came(key, prompt_tokens, max_tokens, asked));
                self.ids.insert(key, id);
                self.active.insert(id, Active { key, events, logprobs, echoed, prompt: own });
            }
            Err(error) => {
                self.counts.count(|all| all.failed += 1);
                let _ = events.send(Happened::Failed(error.to_string()));
            }
        }
    }

    fn cancel(&mut self, key: u64, left: bool) {
        if let Some(id) = self.ids.remove(&key) {
            self.active.remove(&id);
            self.engine.cancel(id);
            self.counts.count(|all| {
                *(if left { &mut all.left } else { &mut all.ended }) += 1;
                all.gone(key);
            });
        }
    }

    fn step(&mut self) {
        let State { model, engine, active, ids, keep, read, counts, .. } = self;
        counts.count(Totals::step);
        let vocab = model.tokenizer().vocab_size();
        let mut on_event = |id, event: Event<'_>| {
            let Some(request) = active.get_mut(&id) else { return };
            let key = request.key;
            let happened = match event {
                Event::Prompt { reused } => {
                    let mut place = None;
                    counts.count(|all| {
                        place = all.place(key);
                        all.read(key, reused);
                    });
                    if let Some(prompt) = request.prompt.take() {
                        if prompt.1.len() - reused >= LEAST_NEW {
                            keep.push_back(prompt.clone());
                        }
                        if let Some(last) = place.and_then(|place| read.get_mut(place)) {
                            *last = Some(prompt);
                        }
                    }
                    Happened::Prompt { reused }
                }
                Event::Token(token, logits) => {
                    counts.count(|all| all.token(key));
                    let logits = &logits[..logits.len().min(vocab)];
                    let told = request.logprobs.map(|top| Logprobs::of(logits, token, top));
                    Happened::Token(token, told.map(Box::new))
                }
                Event::Finished(finish) => Happened::Finished(finish),
                Event::Failed(error) => Happened::Failed(error.to_string()),
                Event::PromptLogits { position, logits } => {
                    let Some(&next) = request.echoed.get(position + 1) else { return };
                    let logits = &logits[..logits.len().min(vocab)];
                    let top = request.logprobs.unwrap_or(0);
                    Happened::OfPrompt(next, Box::new(Logprobs::of(logits, next, top)))
                }
                Event::Embedding(embedding) => {
                    // All of it has to be computed.
                    counts.count(|all| all.read(key, 0));
                    Happened::Embedding(embedding.to_vec())
                }
                Event::Reading { read, reused } => {
                    counts.count(|all| all.reading(key, read, reused));
                    Happened::Reading { read, reused }
                }
            };
            let ended = matches!(
                happened,
                Happened::Finished(_) | Happened::Failed(_) | Happened::Embedding(_)
            );
            if ended {
                let failed = matches!(happened, Happened::Failed(_));
                counts.count(|all| {
                    *(if failed { &mut all.failed } else { &mut all.ended }) += 1;
                    all.gone(key);
                });
            }
            // Who does not listen any more has sent word, or will.
            let _ = request.events.send(happened);
            if ended {
                ids.remove(&request.key);
                active.remove(&id);
            }
        };
        if let Err(error) = engine.step(&mut on_event) {
            self.fail_all(&error);
        }
        self.count_kept();
        while self.keep.len() > MOST_TO_KEEP {
            self.keep_one();
        }
        for ignored in self.engine.ignored_prompts() {
            let path = ignored.path.display();
            (self.log)(&format!("the kept prompt '{path}' is not used: {}", ignored.why));
        }
    }

    /// The engine has forgotten all requests.
    fn fail_all(&mut self, error: &ModelError) {
        self.ids.clear();
        self.counts.count(Totals::clear);
        for (_, request) in self.active.drain() {
            let _ = request.events.send(Happened::Failed(error.to_string()));
        }
    }

    fn keep_one(&mut self) {
        let Some((salt, prompt)) = self.keep.pop_front() else { return };
        if let Err(error) = self.engine.keep(&salt, &prompt) {
            (self.log)(&format!("a prompt is not kept: {error}"));
        }
    }
}
