//! The thread that computes for a model: requests come in by one channel, and what a step brings goes out by one for each request.
//!
//! Invariants: it never touches Python, so it computes while the interpreter does something else; the engine and the model belong to
//! it alone, and are gone when it has ended; a request whose [`Running`] is dropped is cancelled before the next step.

use std::collections::HashMap;
use std::mem;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use alight_model::{
    Engine, EngineOptions, Event, Finish, Logprobs, Model, ModelError, Request, RequestId,
};
use pyo3::PyErr;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError};

use crate::error;

/// What has become of a request.
pub enum Happened {
    /// The prompt was read; so many tokens of it had been computed before.
    Prompt { reused: usize },
    /// The logits of what follows a token of the prompt but the last, `[vocab]`.
    PromptLogits(Vec<f32>),
    /// The next token, and what is wanted of the logits of its place.
    Token(u32, OfLogits),
    /// The prompt as a vector. Nothing else follows.
    Embedding(Vec<f32>),
    /// The end.
    Finished(Finish),
    /// There is no more, and why.
    Failed(Arc<ModelError>),
}

/// What of the logits of a place is wanted.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    Nothing,
    /// All of them.
    Logits,
    /// How likely the token was, and so many of the likeliest.
    Logprobs(usize),
}

/// What was wanted of them.
pub enum OfLogits {
    Nothing,
    /// `[vocab]`
    Logits(Vec<f32>),
    Logprobs(Logprobs),
}

/// Why a request has no end.
pub enum Failure {
    Model(Arc<ModelError>),
    /// The model was closed.
    Closed,
    /// The thread has ended by a bug of ours.
    Ended,
    /// This process is a copy of the one that has the thread.
    Forked,
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        match failure {
            Failure::Model(problem) => error::of_model(&problem),
            Failure::Closed => error::CLOSED.err("the model has been closed"),
            Failure::Ended => error::COMPUTE.err("the engine has failed: open the model again"),
            Failure::Forked => PyRuntimeError::new_err(
                "the model was opened before this process was forked, and its threads are not in the copy: open it here, or \
                 start processes with the method \"spawn\"",
            ),
        }
    }
}

/// A request, and what is wanted of the logits of its tokens.
pub struct Ask {
    pub request: Request,
    pub of_logits: Wanted,
}

enum Command {
    Add(u64, Box<Ask>, Sender<Happened>),
    Cancel(u64),
    Quit,
}

/// The thread, as others see it. The thread ends at the command to quit, or when the last `Worker` that refers to it is dropped.
pub struct Worker {
    commands: Sender<Command>,
    next: AtomicU64,
    closed: AtomicBool,
    process: u32,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A request that is computed, or waits. Dropping it cancels it.
pub struct Running {
    events: Receiver<Happened>,
    key: u64,
    worker: Arc<Worker>,
}

impl Running {
    /// What happens next; `None`: nothing has for so long.
    pub fn next(&mut self, patience: Duration) -> Result<Option<Happened>, Failure> {
        self.worker.check()?;
        match self.events.recv_timeout(patience) {
            Ok(Happened::Failed(problem)) => Err(Failure::Model(problem)),
            Ok(happened) => Ok(Some(happened)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.worker.why_it_ended()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.worker.is_copy() {
            return;
        }
        // A thread that has ended has no requests.
        let _ = self.worker.commands.send(Command::Cancel(self.key));
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.is_copy() {
            // The handle is of a thread that is not here. The system may have given what it points to to a thread of this process,
            // which nobody could join any more if it were let go.
            let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner);
            mem::forget(thread.take());
        }
    }
}

impl Worker {
    /// Makes the engine of a model, which `draft` proposes tokens to, in a thread that has both. Returns how many positions a
    /// sequence has, too.
    ///
    /// # Errors
    /// What the engine refuses; or the system gives no thread.
    pub fn start(
        model: Model,
        draft: Option<Model>,
        options: EngineOptions,
    ) -> Result<(Arc<Worker>, usize), PyErr> {
        let (commands, received) = channel();
        let (made, engine) = channel();
        let work = move || run(&model, draft.as_ref(), &options, &received, &made);
        let thread = thread::Builder::new().name("alight-engine".into()).spawn(work);
        let thread = thread.map_err(|problem| {
            PyMemoryError::new_err(format!("the system gives no thread for the engine: {problem}"))
        })?;
        match engine.recv() {
            Ok(Ok(context)) => {
                let worker = Worker {
                    commands,
                    next: AtomicU64::new(0),
                    closed: AtomicBool::new(false),
                    process: process::id(),
                    thread: Mutex::new(Some(thread)),
                };
                Ok((Arc::new(worker), context))
            }
            Ok(Err(problem)) => Err(error::model(problem)),
            Err(_) => Err(Failure::Ended.into()),
        }
    }

    /// Whether this process is a copy of the one that has the thread.
    fn is_copy(&self) -> bool {
        process::id() != self.process
    }

    /// Whether requests can be computed here.
    fn check(&self) -> Result<(), Failure> {
        if self.is_copy() {
            return Err(Failure::Forked);
        }
        if self.closed.load(Ordering::Acquire) { Err(Failure::Closed) } else { Ok(()) }
    }

    fn why_it_ended(&self) -> Failure {
        match self.check() {
            Err(failure) => failure,
            Ok(()) => Failure::Ended,
        }
    }

    /// Begins to compute.
    pub fn ask(self: &Arc<Worker>, ask: Ask) -> Result<Running, Failure> {
        self.check()?;
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let (send, events) = channel();
        let sent = self.commands.send(Command::Add(key, Box::new(ask), send));
        sent.map_err(|_| self.why_it_ended())?;
        Ok(Running { events, key, worker: Arc::clone(self) })
    }

    /// Ends the thread, and the model with it. What it computes has no more events. Returns when it has ended.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if self.is_copy() {
            return;
        }
        let _ = self.commands.send(Command::Quit);
        // Held until it has ended, so that nobody else returns before.
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            let _ = thread.join();
        }
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// A request of the engine's.
struct Active {
    key: u64,
    events: Sender<Happened>,
    of_logits: Wanted,
}

struct State<'m> {
    vocab: usize,
    engine: Engine<'m>,
    active: HashMap<RequestId, Active>,
    ids: HashMap<u64, RequestId>,
}

/// Computes until the command to quit comes, or until the last sender of commands is gone.
fn run(
    model: &Model,
    draft: Option<&Model>,
    options: &EngineOptions,
    commands: &Receiver<Command>,
    made: &Sender<Result<usize, ModelError>>,
) {
    let engine = Engine::new(model, options).and_then(|mut engine| {
        draft.map_or(Ok(()), |draft| engine.draft_with(draft))?;
        Ok(engine)
    });
    let engine = match engine {
        Ok(engine) => engine,
        Err(problem) => {
            let _ = made.send(Err(problem));
            return;
        }
    };
    let _ = made.send(Ok(engine.context()));
    let vocab = model.tokenizer().vocab_size();
    let mut state = State { vocab, engine, active: HashMap::new(), ids: HashMap::new() };
    loop {
        let command = match state.engine.is_idle() {
            true => commands.recv().map_err(|_| TryRecvError::Disconnected),
            false => commands.try_recv(),
        };
        match command {
            Ok(Command::Add(key, ask, events)) => state.add(key, *ask, events),
            Ok(Command::Cancel(key)) => state.cancel(key),
            Ok(Command::Quit) | Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => state.step(),
        }
    }
}

impl State<'_> {
    fn add(&mut self, key: u64, ask: Ask, events: Sender<Happened>) {
        match self.engine.add(ask.request) {
            Ok(id) => {
                self.ids.insert(key, id);
                self.active.insert(id, Active { key, events, of_logits: ask.of_logits });
            }
            Err(problem) => {
                let _ = events.send(Happened::Failed(Arc::new(problem)));
            }
        }
    }

    fn cancel(&mut self, key: u64) {
        if let Some(id) = self.ids.remove(&key) {
            self.active.remove(&id);
            self.engine.cancel(id);
        }
    }

    fn step(&mut self) {
        let State { vocab, engine, active, ids } = self;
        // Beyond the tokens there may be padding.
        let vocab = *vocab;
        let of_tokens = |logits: &[f32]| logits[..logits.len().min(vocab)].to_vec();
        let mut on_event = |id, event: Event<'_>| {
            let Some(request) = active.get(&id) else { return };
            let happened = match event {
                Event::Reading { .. } => return,
                Event::Prompt { reused } => Happened::Prompt { reused },
                Event::PromptLogits { logits, .. } => Happened::PromptLogits(of_tokens(logits)),
                Event::Token(token, logits) => {
                    let of_logits = match request.of_logits {
                        Wanted::Nothing => OfLogits::Nothing,
                        Wanted::Logits => OfLogits::Logits(of_tokens(logits)),
                        Wanted::Logprobs(top) => {
                            let logits = &logits[..logits.len().min(vocab)];
                            OfLogits::Logprobs(Logprobs::of(logits, token, top))
                        }
                    };
                    Happened::Token(token, of_logits)
                }
                Event::Embedding(embedding) => Happened::Embedding(embedding.to_vec()),
                Event::Finished(finish) => Happened::Finished(finish),
                Event::Failed(problem) => Happened::Failed(Arc::new(problem)),
            };
            let ended = matches!(
                happened,
                Happened::Finished(_) | Happened::Failed(_) | Happened::Embedding(_)
            );
            // Who does not listen any more has sent word, or will.
            let _ = request.events.send(happened);
            if ended {
                ids.remove(&request.key);
                active.remove(&id);
            }
        };
        if let Err(problem) = engine.step(&mut on_event) {
            let problem = Arc::new(problem);
            self.ids.clear();
            for (_, request) in self.active.drain() {
                let _ = request.events.send(Happened::Failed(Arc::clone(&problem)));
            }
        }
    }
}
