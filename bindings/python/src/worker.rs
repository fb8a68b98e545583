//! Requests to the thread that computes for a model ([`alight_chat::worker`]), for threads of Python that wait for what comes of them.
//!
//! Invariants: the engine's thread never touches Python, so it computes while the interpreter does something else; the engine and the model
//! belong to it alone, and are gone when it has ended; a request whose [`Running`] is dropped is cancelled before the next step.

use std::mem;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use alight_chat::worker::{EngineEvent, GenerateRequest, RunningRequest, StartError, WorkerConfig};
use alight_model::{EngineOptions, Model, ModelError};
use pyo3::PyErr;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError};

use crate::error;

/// Why a request has no end.
pub enum Failure {
    Model(Arc<ModelError>),
    /// The model was closed.
    Closed,
    /// The engine has failed by a bug of ours.
    Ended,
    /// This process is a copy of the one that has the thread.
    Forked,
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        match failure {
            Failure::Model(problem) => error::of_model(&problem),
            Failure::Closed => error::CLOSED.err("the model has been closed"),
            Failure::Ended => error::COMPUTE.err("the engine has failed, and its answers with it"),
            Failure::Forked => PyRuntimeError::new_err(
                "the model was opened before this process was forked, and its threads are not in the copy: open it here, or \
                 start processes with the method \"spawn\"",
            ),
        }
    }
}

/// The thread, as others see it. The thread ends when it is closed, or when the last `Worker` that refers to it is dropped.
pub struct Worker {
    worker: alight_chat::worker::Worker,
    closed: AtomicBool,
    process: u32,
}

/// A request that is computed, or waits. Dropping it cancels it.
pub struct Running {
    events: Receiver<EngineEvent>,
    /// `None` while it is being dropped.
    request: Option<RunningRequest>,
    worker: Arc<Worker>,
}

impl Running {
    /// What happens next; `None`: nothing has for so long.
    pub fn next(&mut self, patience: Duration) -> Result<Option<EngineEvent>, Failure> {
        self.worker.check()?;
        match self.events.recv_timeout(patience) {
            Ok(
                EngineEvent::Refused(problem)
                | EngineEvent::Failed(problem)
                | EngineEvent::EngineFailed(problem),
            ) => Err(Failure::Model(problem)),
            Ok(EngineEvent::Ending) | Err(RecvTimeoutError::Disconnected) => {
                Err(self.worker.why_it_ended())
            }
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let request = self.request.take();
        if self.worker.is_copy() {
            // The copy has no engine thread to notify.
            mem::forget(request);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.is_copy() {
            // The handle is of a thread that is not here. The system may have given what it points to to a thread of this process,
            // which nobody could join any more if it were let go.
            self.worker.forget_thread();
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
        let config = WorkerConfig {
            engine: options,
            max_pending: usize::MAX,
            rest: None,
            remembers_prompts: false,
            starts_engine: true,
            // A request that has failed says so itself.
            log: Arc::new(|_| {}),
        };
        let worker = alight_chat::worker::Worker::start(model, draft, config);
        let worker = worker.map_err(|error| match error {
            StartError::Model(problem) => error::model(problem),
            StartError::NoThread(_) => PyMemoryError::new_err(error.to_string()),
        })?;
        let context = worker.context();
        let (closed, process) = (AtomicBool::new(false), process::id());
        Ok((Arc::new(Worker { worker, closed, process }), context))
    }

    /// True if this process is a copy of the one that has the thread.
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
    pub fn generate(self: &Arc<Worker>, request: GenerateRequest) -> Result<Running, Failure> {
        self.check()?;
        let (send, events) = channel();
        let on_event = Box::new(move |event| {
            // Who does not listen any more has sent word, or will.
            let _ = send.send(event);
        });
        let running = self.worker.generate(vec![(request, on_event)]);
        // There may be any number of them.
        let request = running.ok().and_then(|mut running| running.pop());
        Ok(Running { events, request, worker: Arc::clone(self) })
    }

    /// Ends the thread, and the model with it. What it computes has no more events. Returns when it has ended.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if !self.is_copy() {
            self.worker.quit();
        }
    }

    /// True if it was closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}
