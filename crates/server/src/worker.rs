//! Sends requests to the thread that owns an engine ([`alight_chat::worker`]), for tasks that wait for the results.

use std::sync::Arc;

use alight_chat::worker::{
    EngineAccess, EngineEvent, GenerateRequest, RunningRequest, TooManyRequests, Worker,
};
use alight_model::ModelError;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;

use crate::client_errors::ClientErrors;
use crate::failure::Failure;

/// A request that is computed, or waits. Dropping it cancels it.
pub(crate) struct Running {
    pub(crate) events: UnboundedReceiver<EngineEvent>,
    request: RunningRequest,
    errors: Arc<ClientErrors>,
}

impl Running {
    /// Ends it: no more tokens are needed.
    pub(crate) fn end(self) {
        self.request.end();
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
    let (requests, events): (Vec<_>, Vec<_>) = requests
        .into_iter()
        .map(|request| {
            let (send, events) = unbounded_channel();
            let on_event = Box::new(move |event| {
                // A client that has left receives nothing.
                let _ = send.send(event);
            });
            ((request, on_event as _), events)
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
        .map(|(request, events)| Running { events, request, errors: Arc::clone(errors) })
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
