//! Requests and responses of all routes.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use alight_chat::body::fields::Fields;
use alight_chat::decoded::decoded;
use alight_model::{AdapterSet, ModelSpec};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::{Map, Value};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::apart::{Client, ThreadPermit};
use crate::endpoints::Endpoint;
use crate::failure::{ErrorFormat, Failure};
use crate::generation::{Choice, Generation, Update};
use crate::models::Serving;
use crate::request_log::{Entry, Record};
use crate::shared::Shared;
use crate::watched_stream::InProgress;

/// The interval at which an idle stream sends a sign of life: clients give up on silent connections.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// A request, as a route gets it.
pub(crate) struct Call {
    pub(crate) server: Arc<Shared>,
    /// The part of the path that matched the `*` of its route.
    pub(crate) named: Box<str>,
    pub(crate) body: Bytes,
    // Dropped after the body.
    pub(crate) _large: Option<LargeBody>,
    /// The address after the `?`.
    pub(crate) query: Box<str>,
    /// Separates the state computed for one key from that of others.
    pub(crate) salt: Box<str>,
    /// The adapter that its `model` names, if it does.
    pub(crate) adapter: OnceLock<Box<str>>,
    /// True if the client is one of Anthropic's, for addresses that it shares with other clients.
    pub(crate) anthropic: bool,
    /// For the log.
    pub(crate) record: Arc<Record>,
}

/// The permit of a large body, out of the memory for all large bodies. When it is dropped, the memory that the request took goes back to
/// the system: the allocator would keep some of it for each thread that has worked on such a body.
pub(crate) struct LargeBody {
    _permit: OwnedSemaphorePermit,
}

impl LargeBody {
    pub(crate) fn new(permit: OwnedSemaphorePermit) -> LargeBody {
        LargeBody { _permit: permit }
    }
}

impl Drop for LargeBody {
    fn drop(&mut self) {
        rusage::release_free_memory();
    }
}

impl Call {
    /// The JSON object in the body.
    pub(crate) fn object(&self) -> Result<Map<String, Value>, Failure> {
        crate::json::object(&self.body)
    }

    /// The JSON object in the body, of which only fields that the endpoint reads or ignores are left. Others are reported.
    pub(crate) fn declared(&self, endpoint: &Endpoint) -> Result<Map<String, Value>, Failure> {
        let mut object = self.object()?;
        self.admit(endpoint, &mut object)?;
        Ok(object)
    }

    /// [`declared`](Self::declared), for an object within the body.
    pub(crate) fn admit(
        &self,
        endpoint: &Endpoint,
        object: &mut Map<String, Value>,
    ) -> Result<(), Failure> {
        let mut unknown = Vec::new();
        let checked = endpoint.check(object, |name| unknown.push(name));
        self.record.unknown(&unknown);
        unknown.iter().for_each(|name| self.server.unknown_fields.count(endpoint.path, name));
        Ok(checked?)
    }

    /// Returns the model with this name, as [`Models::find`](crate::models::Models::find).
    pub(crate) fn serving(&self, name: Option<&str>) -> Result<&Serving, Failure> {
        self.serving_for(name, |_| true)
    }

    /// As [`Call::serving`]; without a name, the only model that is `for_it` is found, too.
    pub(crate) fn serving_for(
        &self,
        name: Option<&str>,
        for_it: fn(&ModelSpec) -> bool,
    ) -> Result<&Serving, Failure> {
        let (serving, adapter) = self.server.models.find_adapted(name, for_it)?;
        if let Some(adapter) = adapter {
            let _ = self.adapter.set(adapter.into());
        }
        self.record.model(&serving.name);
        Ok(serving)
    }

    /// Takes the adapters of the request: see [`Adapters::take`](crate::adapters::Adapters::take).
    pub(crate) fn adapters(
        &self,
        serving: &Serving,
        fields: &mut Fields,
    ) -> Result<AdapterSet, Failure> {
        serving.adapters.take(self.adapter.get().map(|name| &**name), fields)
    }

    /// Returns the value of `name` in the query.
    pub(crate) fn asked(&self, name: &str) -> Option<String> {
        let mut pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| decoded(value))
    }

    /// Runs work that may take long on a thread where only this request waits for it. The number of permits limits such requests. The
    /// work checks `apart::is_cancelled` now and then, and stops once the client has left.
    pub(crate) async fn apart<T: Send + 'static>(
        self,
        work: impl FnOnce(&Call) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let failed = || Failure::internal("internal server error");
        let permit = Arc::clone(&self.server.apart).acquire_owned().await.map_err(|_| failed())?;
        let client = Client::new(&self.server.ending, &self.record);
        let _present = client.presence();
        let done = tokio::task::spawn_blocking(move || {
            let _permit = ThreadPermit::new(permit, client);
            work(&self)
        });
        done.await.unwrap_or_else(|_| Err(failed()))
    }
}

/// The result of a handler.
pub(crate) type Answered = Result<Response<Reply>, Failure>;

/// The body of a response.
pub(crate) enum Reply {
    Whole(Option<Bytes>),
    Stream(Box<Stream>),
}

/// The content type of JSON.
pub(crate) const JSON: &str = "application/json; charset=utf-8";

/// Returns a JSON response with a status.
pub(crate) fn json(status: StatusCode, value: &Value) -> Response<Reply> {
    text(status, JSON, value.to_string())
}

/// Returns a text response of any content type.
pub(crate) fn text(status: StatusCode, kind: &'static str, text: String) -> Response<Reply> {
    bytes(status, kind, text.into())
}

/// Returns a response from bytes.
pub(crate) fn bytes(status: StatusCode, kind: &'static str, bytes: Bytes) -> Response<Reply> {
    let mut response = Response::new(Reply::Whole(Some(bytes)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Returns the response for a failure, formatted by `shape`.
pub(crate) fn failed(failure: &Failure, shape: ErrorFormat) -> Response<Reply> {
    let mut response = json(failure.status, &shape(failure));
    let headers = response.headers_mut();
    if let Some(methods) = failure.allow {
        headers.insert(ALLOW, HeaderValue::from_static(methods));
    }
    if failure.status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    } else if failure.status.is_server_error() {
        // A retry would fail again.
        headers
            .insert(HeaderName::from_static("x-should-retry"), HeaderValue::from_static("false"));
    }
    response
}

/// Formats events for a client.
pub(crate) trait Shape: Send {
    /// The content type.
    fn kind(&self) -> &'static str {
        "text/event-stream"
    }

    /// The text that shows that the server is alive.
    fn keep_alive(&self) -> &'static str {
        ":\n\n"
    }

    /// Writes what precedes all events.
    fn begin(&mut self, choices: &[Choice], out: &mut String);

    /// Writes an event of an answer.
    fn update(&mut self, choices: &[Choice], at: usize, update: Update, out: &mut String);

    /// Writes the end, after all answers have ended; not called after a failure.
    fn end(&mut self, choices: &[Choice], out: &mut String);
}

/// A response that is written while it is computed. Dropping it cancels the computation.
pub(crate) struct Stream {
    generation: Generation,
    shape: Box<dyn Shape>,
    life: Interval,
    ready: VecDeque<String>,
    ended: bool,
}

impl Stream {
    /// Returns the response with its headers, which are sent at once.
    pub(crate) fn response(generation: Generation, mut shape: Box<dyn Shape>) -> Response<Reply> {
        let mut life = interval(KEEP_ALIVE_INTERVAL);
        life.set_missed_tick_behavior(MissedTickBehavior::Delay);
        life.reset();
        let kind = shape.kind();
        let mut begun = String::new();
        shape.begin(&generation.choices, &mut begun);
        let ready = VecDeque::from([begun]);
        let stream = Stream { generation, shape, life, ready, ended: false };
        let mut response = Response::new(Reply::Stream(Box::new(stream)));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        // For proxies that would otherwise buffer the response.
        headers
            .insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
        response
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            while let Some(text) = self.ready.pop_front() {
                if !text.is_empty() {
                    self.life.reset();
                    return Poll::Ready(Some(text.into()));
                }
            }
            if self.ended {
                return Poll::Ready(None);
            }
            let mut out = String::new();
            match self.generation.poll(context) {
                Poll::Ready(Some((at, update))) => {
                    if let Update::Failed(failure) = &update {
                        self.generation.record.note(&format!("failed: {}", failure.message));
                        self.ended = true;
                    }
                    self.shape.update(&self.generation.choices, at, update, &mut out);
                }
                Poll::Ready(None) => {
                    self.ended = true;
                    self.shape.end(&self.generation.choices, &mut out);
                }
                Poll::Pending => {
                    if self.life.poll_tick(context).is_pending() {
                        return Poll::Pending;
                    }
                    out.push_str(self.shape.keep_alive());
                }
            }
            self.ready.push_back(out);
        }
    }
}

impl Reply {
    /// Sends a sign of life at once, if nothing else is sent.
    fn show_life(&mut self) {
        if let Reply::Stream(stream) = self {
            stream.life.reset_immediately();
        }
    }

    /// True once all of it has been passed on, or is there at once.
    fn is_complete(&self) -> bool {
        match self {
            Reply::Whole(_) => true,
            Reply::Stream(stream) => stream.ended && stream.ready.iter().all(String::is_empty),
        }
    }
}

/// A body with the entry of its request in the log.
pub(crate) struct Logged {
    // Dropped before the entry, which it gives its last numbers.
    reply: Reply,
    entry: Entry,
    begun: InProgress,
    /// True once the client was sent something after it had closed its sending side.
    shown_life: bool,
}

impl Logged {
    /// Returns a response whose entry ends with its body.
    pub(crate) fn response(
        response: Response<Reply>,
        mut entry: Entry,
        begun: InProgress,
    ) -> Response<Logged> {
        entry.answered(response.status());
        response.map(|reply| {
            let mut logged = Logged { reply, entry, begun, shown_life: false };
            logged.check();
            logged
        })
    }

    fn check(&mut self) {
        if self.reply.is_complete() {
            self.entry.complete();
        }
    }
}

impl Body for Logged {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let logged = self.get_mut();
        if !logged.shown_life && logged.begun.half_closed() {
            // Only something that is sent to it shows if it is still there.
            logged.shown_life = true;
            logged.reply.show_life();
        }
        let frame = Pin::new(&mut logged.reply).poll_frame(context);
        logged.check();
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.reply.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.reply.size_hint()
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match self.get_mut() {
            Reply::Whole(bytes) => Poll::Ready(bytes.take()),
            Reply::Stream(stream) => stream.poll(context),
        };
        next.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Reply::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Reply::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Reply::Stream(_) => SizeHint::default(),
        }
    }
}
