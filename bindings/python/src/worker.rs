//! Requests to the thread that computes for a model ([`alight_chat::worker`]), for Python threads that wait for the results.
//!
//! Invariants: the engine's thread never touches Python, so it computes while the interpreter does something else; the engine and
//! the model belong only to it, and are gone when it has ended; a request whose [`Running`] is dropped is cancelled before the next
//! step.

use std::mem;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use alight_chat::worker::{
    EngineEvent, GenerateRequest, RunningRequest, STUCK_AFTER, StartError, WorkerConfig,
};
use alight_model::{EngineOptions, Model, ModelError};
use pyo3::PyErr;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError};

use crate::error;

/// The reason a request was not finished.
pub enum Failure {
    Model(Arc<ModelError>),
    /// The model was closed.
    Closed,
    /// The engine has failed because of a bug.
    Ended,
    /// This process is a fork of the one that owns the thread.
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

/// The handle of the thread. The thread ends when it is closed, or when the last `Worker` that refers to it is dropped.
pub struct Worker {
    worker: alight_chat::worker::Worker,
    closed: AtomicBool,
    process: u32,
}

/// A request that is being computed, or waits. Dropping it cancels it.
pub struct Running {
    events: Receiver<EngineEvent>,
    /// `None` while it is being dropped.
    request: Option<RunningRequest>,
    worker: Arc<Worker>,
}

impl Running {
    /// The next event; `None` if there was none within `patience`.
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
            // The forked process has no engine thread to notify.
            mem::forget(request);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.is_copy() {
            // The handle is of a thread of the parent process. The memory that it points to may have been reused for a thread of
            // this process, which could not be joined any more if the handle were dropped.
            self.worker.forget_thread();
        }
    }
}

impl Worker {
    /// Creates the engine of a model, and that of `draft`, which proposes tokens to it, on one thread. Also returns the number of
    /// positions of a sequence.
    ///
    /// # Errors
    /// The engine rejects the model, or no thread can be started.
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
            stuck_after: STUCK_AFTER,
            // A failed request reports its error itself.
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

    /// True if this process is a fork of the one that owns the thread.
    fn is_copy(&self) -> bool {
        process::id() != self.process
    }

    /// Checks that requests can be computed here.
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

    /// Starts the computation.
    pub fn generate(self: &Arc<Worker>, request: GenerateRequest) -> Result<Running, Failure> {
        self.check()?;
        let (send, events) = channel();
        let on_event = Box::new(move |event| {
            // A receiver that is gone has cancelled the request, or will.
            let _ = send.send(event);
        });
        let running = self.worker.generate(vec![(request, on_event)]);
        // There is no limit on the number of pending requests.
        let request = running.ok().and_then(|mut running| running.pop());
        Ok(Running { events, request, worker: Arc::clone(self) })
    }

    /// Ends the thread, and the model with it; requests get no more events. Returns when the thread has ended.
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
