//! Sends requests to the thread that owns an engine ([`alight_chat::worker`]), for tasks that wait for the results.
//!
//! Invariant: what is computed faster than a client reads it takes bounded memory. A request of which more than [`MAX_UNREAD`] waits for its
//! client ends.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use alight_chat::worker::{
    EngineAccess, EngineEvent, GenerateRequest, RunningRequest, TokenLogits, TooManyRequests,
    Worker,
};
use alight_model::ModelError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::client_errors::ClientErrors;
use crate::failure::Failure;

/// Maximum number of tokens and log probabilities of all answers to a request that wait for its client to read them. They take some 20 MB.
const MAX_UNREAD: usize = 1 << 18;

/// The tokens and log probabilities of all answers to a request that wait for its client.
#[derive(Default)]
struct Unread {
    count: AtomicUsize,
    /// True once there were too many of them.
    too_many: AtomicBool,
}

impl Unread {
    /// Counts an event that waits from now on. Returns false once too much waits.
    fn add(&self, event: &EngineEvent) -> bool {
        let size = size(event);
        if self.count.fetch_add(size, Ordering::Relaxed) + size > MAX_UNREAD {
            self.too_many.store(true, Ordering::Relaxed);
        }
        !self.too_many.load(Ordering::Relaxed)
    }

    /// Counts tokens and log probabilities that wait no longer.
    fn remove(&self, size: usize) {
        self.count.fetch_sub(size, Ordering::Relaxed);
    }
}

/// Tokens and log probabilities of an event; those of an echoed prompt are limited when the request begins.
fn size(event: &EngineEvent) -> usize {
    match event {
        EngineEvent::Token(_, TokenLogits::Logprobs(logprobs)) => 2 + logprobs.top.len(),
        EngineEvent::PromptToken(..) => 0,
        _ => 1,
    }
}

/// A request, until the engine or the client no longer needs it.
#[derive(Clone, Default)]
struct SharedRequest(Arc<Mutex<Option<RunningRequest>>>);

impl SharedRequest {
    fn lock(&self) -> MutexGuard<'_, Option<RunningRequest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancels it.
    fn cancel(&self) {
        self.lock().take();
    }
}

/// The engine's side of a request.
struct EventSender {
    events: UnboundedSender<EngineEvent>,
    unread: Arc<Unread>,
    request: SharedRequest,
}

impl EventSender {
    fn send(&self, event: EngineEvent) {
        if self.unread.add(&event) {
            // A client that has left receives nothing.
            let _ = self.events.send(event);
        } else {
            self.request.cancel();
        }
    }
}

/// A request that is computed, or waits. Dropping it cancels it.
pub(crate) struct Running {
    events: UnboundedReceiver<EngineEvent>,
    unread: Arc<Unread>,
    request: SharedRequest,
    errors: Arc<ClientErrors>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.request.cancel();
    }
}

impl Running {
    /// Ends it: no more tokens are needed.
    pub(crate) fn end(self) {
        if let Some(request) = self.request.lock().take() {
            request.end();
        }
    }

    /// Returns its next event; `None` after the last one. A token waits further, until it is [passed on](Self::pass_on).
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<EngineEvent>> {
        let event = self.events.poll_recv(context);
        if let Poll::Ready(Some(event)) = &event
            && !matches!(event, EngineEvent::Token(..))
        {
            self.unread.remove(size(event));
        }
        event
    }

    /// Counts tokens, with their log probabilities, that the client gets now.
    pub(crate) fn pass_on(&self, size: usize) {
        self.unread.remove(size);
    }

    /// Returns the failure of a request that has ended without a last event.
    pub(crate) fn failure(&self) -> Failure {
        match self.unread.too_many.load(Ordering::Relaxed) {
            true => Failure::unread(MAX_UNREAD),
            false => Failure::internal("the engine has ended before the answer"),
        }
    }

    /// Returns the text of its error for the client, and logs what that leaves out.
    pub(crate) fn error_text(&self, error: &ModelError) -> String {
        self.errors.logged(error)
    }
}

/// Starts all of these requests, or none.
pub(crate) fn generate(
    worker: &Worker,
    errors: &Arc<ClientErrors>,
    requests: Vec<GenerateRequest>,
) -> Result<Vec<Running>, Failure> {
    let n = requests.len();
    let unread = Arc::<Unread>::default();
    let (requests, events): (Vec<_>, Vec<_>) = requests
        .into_iter()
        .map(|request| {
            let (events, received) = unbounded_channel();
            let (unread, running) = (Arc::clone(&unread), SharedRequest::default());
            let sender = EventSender { events, unread, request: running.clone() };
            let on_event = Box::new(move |event| sender.send(event));
            ((request, on_event as _), (received, running))
        })
        .unzip();
    let running =
        worker.generate(requests).map_err(|TooManyRequests { pending, max_pending }| {
            // A request for more answers than ever fit at the same time would wait for ever.
            match n > max_pending {
                true => Failure::invalid(format!(
                    "{n} answers are more than the server runs and queues at a time, {max_pending}"
                )),
                false => Failure::busy(pending),
            }
        })?;
    Ok(running
        .into_iter()
        .zip(events)
        .map(|(started, (events, request))| {
            request.lock().replace(started);
            Running { events, unread: Arc::clone(&unread), request, errors: Arc::clone(errors) }
        })
        .collect())
}

/// Runs `work` with the engine between two of its steps. If the engine rests, it is started for that.
pub(crate) async fn between<T: Send + 'static>(
    worker: &Worker,
    work: impl FnOnce(&mut EngineAccess<'_, '_>) -> T + Send + 'static,
) -> Result<T, Failure> {
    let (send, done) = oneshot::channel();
    worker.between(Box::new(move |access| {
        // A client that has left receives nothing.
        let _ = send.send(work(access));
    }));
    done.await.map_err(|_| Failure::internal("the engine has failed, or ends"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request as the engine and its client see it.
    fn pair() -> (EventSender, Running) {
        let (events, received) = unbounded_channel();
        let unread = Arc::<Unread>::default();
        let request = SharedRequest::default();
        let errors = Arc::new(ClientErrors::new([], Arc::new(|_| ())));
        let sender = EventSender { events, unread: Arc::clone(&unread), request: request.clone() };
        (sender, Running { events: received, unread, request, errors })
    }

    fn token() -> EngineEvent {
        EngineEvent::Token(1, TokenLogits::Nothing)
    }

    #[test]
    fn what_waits_for_a_client_is_bounded() {
        let (sender, mut running) = pair();
        let mut context = Context::from_waker(std::task::Waker::noop());
        // A client that reads gets as much as there is.
        for _ in 0..2 * MAX_UNREAD {
            sender.send(token());
            assert!(matches!(running.poll(&mut context), Poll::Ready(Some(_))));
            running.pass_on(1);
        }
        // Tokens that are taken and not passed on count as those that are not taken.
        for _ in 0..MAX_UNREAD / 2 {
            sender.send(token());
            assert!(matches!(running.poll(&mut context), Poll::Ready(Some(_))));
        }
        for _ in 0..MAX_UNREAD {
            sender.send(token());
        }
        drop(sender);
        let mut waiting = 0;
        while let Poll::Ready(Some(_)) = running.poll(&mut context) {
            waiting += 1;
        }
        assert_eq!(waiting, MAX_UNREAD / 2);
        assert!(running.failure().message.contains("were not read"), "{:?}", running.failure());
    }

    #[test]
    fn log_probabilities_count_as_tokens_do() {
        let (sender, mut running) = pair();
        let logprobs = alight_model::Logprobs { chosen: 0.0, top: vec![(1, 0.0); 18] };
        for _ in 0..MAX_UNREAD {
            let logprobs = TokenLogits::Logprobs(Box::new(logprobs.clone()));
            sender.send(EngineEvent::Token(1, logprobs));
        }
        drop(sender);
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut waiting = 0;
        while let Poll::Ready(Some(_)) = running.poll(&mut context) {
            waiting += 1;
        }
        assert_eq!(waiting, MAX_UNREAD / 20);
    }
}
