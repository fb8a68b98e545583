//! Connections: accepted up to a limit, answered by the table of routes, and closed in order.

use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Incoming};
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_REQUEST_HEADERS, CONNECTION, CONTENT_ENCODING, HeaderValue, VARY,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::{Instant, sleep, timeout_at};

use crate::failure::{ErrorFormat, Failure};
use crate::http::{self, Answered, Call, LargeBody, Logged, Reply};
use crate::models::Served;
use crate::request_log::{Entry, Record};
use crate::routes::AuthRequirement;
use crate::shared::{BODY, Shared};
use crate::socket::{ClientStream, Listener, Listening, Socket};
use crate::threads::runtime;
use crate::watched_stream::{Exchange, InProgress, WatchedStream};
use crate::{Log, Options, routes};

/// Maximum number of connections; more wait in the system's queue.
const CONNECTIONS: usize = 1024;
/// Maximum size in bytes of a body that is accepted regardless of others.
const SMALL_BODY: usize = 256 << 10;
/// The time limit for the head of a request, also on an idle connection; and for the body.
const HEAD_TIME: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 30 });
const BODY_TIME: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });
/// The time that clients have to read that they were cut off.
const SHUTDOWN_FLUSH: Duration = Duration::from_millis(500);

/// Stops a server.
#[derive(Clone)]
pub struct Stopper(watch::Sender<bool>);

impl Stopper {
    /// Stops accepting connections; requests in progress have some seconds to end.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

/// A server that is bound to its address.
pub struct Server {
    socket: Socket,
    options: Options,
    requests: Option<Log>,
    stop: watch::Sender<bool>,
}

impl Server {
    /// Binds the address. Clients can connect from now on, and are answered once it [runs](Self::run).
    ///
    /// # Errors
    /// The address is in use, or does not belong to this machine.
    pub fn bind(options: Options) -> io::Result<Server> {
        let socket = Socket::bind(&options.host, options.port)?;
        Ok(Server::of(socket, options))
    }

    /// Answers on a socket that listens already.
    ///
    /// # Errors
    /// The socket cannot be used.
    pub fn given(listening: Listening, options: Options) -> io::Result<Server> {
        let socket = Socket::given(listening)?;
        Ok(Server::of(socket, options))
    }

    fn of(socket: Socket, options: Options) -> Server {
        Server { socket, options, requests: None, stop: watch::channel(false).0 }
    }

    /// Passes a line for each request to `log`, which may be slow: lines that it has no time for are left out.
    pub fn log_requests(&mut self, log: Log) {
        self.requests = Some(log);
    }

    /// The address for clients: `http://ADDRESS`, or `unix:PATH`.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn address(&self) -> io::Result<String> {
        self.socket.address()
    }

    /// Returns a handle that stops it.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.stop.clone())
    }

    /// Answers until it is stopped. `ready` is called once everything is ready.
    ///
    /// # Errors
    /// A model for which there can be no engine, or a resource that the system refuses.
    pub fn run(self, models: Vec<Served>, log: Log, ready: impl FnOnce()) -> Result<(), String> {
        let shared = Shared::start(models, self.options, &log, self.requests)?;
        let runtime = runtime()?;
        let (socket, stop) = (self.socket, self.stop.subscribe());
        let outcome = runtime.block_on(async {
            let listener = socket.listen().map_err(|e| e.to_string())?;
            ready();
            accept(listener, Arc::clone(&shared), stop, &log).await;
            Ok(())
        });
        runtime.shutdown_background();
        shared.models.quit(&log);
        shared.request_log.iter().for_each(|log| log.flush());
        outcome
    }
}

/// Accepts connections until it is stopped, and then waits for them.
async fn accept(
    listener: Listener,
    shared: Arc<Shared>,
    mut stop: watch::Receiver<bool>,
    log: &Log,
) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let told = {
        let mut stop = stop.clone();
        async move { stop.wait_for(|stop| *stop).await.map(|_| ()) }
    };
    let mut told = pin!(told);
    let mut failures = AcceptFailures::default();
    loop {
        let next = async {
            let place = Arc::clone(&room).acquire_owned().await.ok()?;
            Some((place, listener.accept().await))
        };
        let Some(next) = first(told.as_mut(), next).await else { break };
        match next {
            Some((place, Ok(client))) => {
                failures.end(log);
                let (shared, stop) = (Arc::clone(&shared), stop.clone());
                tokio::spawn(async move {
                    connection(client, shared, stop).await;
                    drop(place);
                });
            }
            Some((_, Err(error))) => {
                // Out of file descriptors, say: some will be closed.
                failures.add(&error, log);
                sleep(Duration::from_millis(100)).await;
            }
            None => break,
        }
    }
    drop(listener);
    let _ = stop.wait_for(|stop| *stop).await;
    let all_gone = || room.acquire_many(CONNECTIONS as u32);
    let end = Instant::now() + shared.options.drain;
    if timeout_at(end, all_gone()).await.is_err() {
        // Requests still in progress end with an error that their clients may read.
        let (done, quitted) = oneshot::channel();
        let (cut, log) = (Arc::clone(&shared), Arc::clone(log));
        cut.ending.begin();
        let quit = move || {
            cut.models.quit(&log);
            let _ = done.send(());
        };
        // On its own thread, so that it does not queue after requests that hold a permit.
        if thread::Builder::new().spawn(quit).is_ok() {
            let _ = quitted.await;
        }
        let _ = timeout_at(Instant::now() + SHUTDOWN_FLUSH, all_gone()).await;
    }
}

/// Consecutive failures to accept connections. Only the first one and their end are logged: they may occur ten times a second for
/// days.
#[derive(Default)]
struct AcceptFailures {
    count: u64,
}

impl AcceptFailures {
    fn add(&mut self, error: &io::Error, log: &Log) {
        if self.count == 0 {
            log(&format!("no connection can be accepted: {error}; trying again until one can"));
        }
        self.count += 1;
    }

    /// A connection was accepted.
    fn end(&mut self, log: &Log) {
        if self.count > 0 {
            log(&format!("connections are accepted again, after {} failures", self.count));
            self.count = 0;
        }
    }
}

/// Returns the result of `work`, unless `told` is ready first.
async fn first<T>(mut told: Pin<&mut impl Future>, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|context| {
        if told.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        work.as_mut().poll(context).map(Some)
    })
    .await
}

/// Answers the requests of a connection, whose client has this address.
pub(crate) async fn connection(
    (stream, peer): (Box<dyn ClientStream>, Arc<str>),
    shared: Arc<Shared>,
    mut stop: watch::Receiver<bool>,
) {
    let exchange = Arc::<Exchange>::default();
    let stream = WatchedStream::new(stream, Arc::clone(&exchange));
    let service = service_fn(move |request: Request<Incoming>| {
        let (shared, peer) = (Arc::clone(&shared), Arc::clone(&peer));
        // Here and not in the future: hyper may read further before it polls that.
        let begun = exchange.begin(request.version());
        async move { Ok::<_, std::convert::Infallible>(logged(shared, peer, begun, request).await) }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(64 << 10);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    let told = first(pin!(stop.wait_for(|stop| *stop)), connection.as_mut()).await;
    if told.is_none() {
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}

/// Answers a request, and logs it.
async fn logged(
    shared: Arc<Shared>,
    peer: Arc<str>,
    begun: InProgress,
    request: Request<Incoming>,
) -> Response<Logged> {
    let (method, path) = (request.method().clone(), request.uri().path());
    let entry = Entry::new(shared.request_log.clone(), shared.ending.clone(), peer, method, path);
    // If the client leaves, this is dropped before the entry.
    let response = respond(shared, &entry.record, &begun, request).await;
    begun.answered();
    Logged::response(response, entry, begun)
}

/// Answers a request. A panic ends only this request.
async fn respond(
    shared: Arc<Shared>,
    record: &Arc<Record>,
    begun: &InProgress,
    request: Request<Incoming>,
) -> Response<Reply> {
    let (head, body) = request.into_parts();
    let found = routes::find(&head.method, head.uri.path());
    let shape: ErrorFormat = match &found {
        Ok((route, _)) => route.failure,
        Err((shape, _)) => *shape,
    };
    let origin = match shared.access.names(&head.headers) {
        Ok(origin) => origin,
        Err(_) if matches!(&found, Ok((route, _)) if route.auth == AuthRequirement::Any) => None,
        Err(failure) => {
            record.note(&failure.message);
            return closing(http::failed(&failure, shape));
        }
    };
    let preflight = head.method == Method::OPTIONS && origin.is_some();
    let ending = shared.ending.clone();
    let handled = async {
        if preflight {
            let mut response = Response::new(Reply::Whole(None));
            *response.status_mut() = StatusCode::NO_CONTENT;
            return Ok(response);
        }
        let (route, named) = found.map_err(|(_, failure)| failure)?;
        if head.headers.get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
            let message = "a compressed body is not supported: send it without Content-Encoding";
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Err(Failure::new(status, "invalid_request_error", message));
        }
        let salt = match route.auth {
            AuthRequirement::Any | AuthRequirement::Open => "".into(),
            AuthRequirement::Key => shared.access.key(&head.headers)?,
        };
        let (body, large) = match route.method {
            // A GET needs no body, and some of these routes need no key. hyper closes the connection after a request with one.
            Method::GET => (Bytes::new(), None),
            _ => collect(body, begun, &shared.bodies).await?,
        };
        let query = head.uri.query().unwrap_or_default().into();
        let server = Arc::clone(&shared);
        let anthropic = head.headers.contains_key("anthropic-version");
        let (named, record) = (named.into(), Arc::clone(record));
        let adapter = OnceLock::new();
        let call =
            Call { server, named, body, _large: large, query, salt, adapter, anthropic, record };
        (route.handler)(call).await
    };
    // Work may take longer than the server still has, and a client may not send the rest of its request.
    let answered = first(pin!(ending.begun()), unharmed(handled)).await;
    let mut response = match answered.unwrap_or_else(|| Err(Failure::ending())) {
        Ok(response) => response,
        Err(failure) => {
            record.note(&failure.message);
            let response = http::failed(&failure, shape);
            // The unread part of the body must not be taken for the next request.
            let unread = matches!(
                failure.status,
                StatusCode::PAYLOAD_TOO_LARGE
                    | StatusCode::REQUEST_TIMEOUT
                    | StatusCode::UNSUPPORTED_MEDIA_TYPE
                    | StatusCode::SERVICE_UNAVAILABLE
            );
            if unread { closing(response) } else { response }
        }
    };
    if let Some(origin) = origin {
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(VARY, HeaderValue::from_static("origin"));
        if preflight {
            let all = HeaderValue::from_static("GET, POST, OPTIONS");
            headers.insert(ACCESS_CONTROL_ALLOW_METHODS, all);
            // A page that is allowed may send any headers, as OpenAI's and Anthropic's clients do.
            if let Some(names) = head.headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
                headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
            }
        }
    }
    response
}

fn closing(mut response: Response<Reply>) -> Response<Reply> {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Returns the result of `work`, or a failure if it panics.
async fn unharmed(work: impl Future<Output = Answered>) -> Answered {
    let mut work = pin!(work);
    let polled = poll_fn(|context| {
        // After a panic it is not polled again.
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
            Ok(poll) => poll,
            Err(_) => Poll::Ready(Err(Failure::internal("internal server error"))),
        }
    });
    polled.await
}

/// Returns the whole body, unless it is too large or too slow, and its permit out of the memory for large bodies.
async fn collect(
    mut body: Incoming,
    begun: &InProgress,
    room: &Arc<Semaphore>,
) -> Result<(Bytes, Option<LargeBody>), Failure> {
    let too_large = || {
        let message = format!("the body has more than {} MiB", BODY >> 20);
        Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    };
    if body.size_hint().lower() > BODY as u64 {
        return Err(too_large());
    }
    // The size of a body that is sent in chunks is unknown.
    let most = body.size_hint().exact().map_or(BODY, |bytes| bytes as usize);
    let end = Instant::now() + BODY_TIME;
    let (mut all, mut taken) = (BytesMut::new(), None);
    loop {
        let next = poll_fn(|context| {
            let frame = Pin::new(&mut body).poll_frame(context);
            match frame.map_err(|error| error.to_string()) {
                // hyper has passed on all that has come, and waits for the rest.
                Poll::Pending if begun.half_closed() => {
                    Poll::Ready(Some(Err("the client sends no more".to_owned())))
                }
                frame => frame,
            }
        });
        let frame = timeout_at(end, next).await.map_err(|_| {
            let message = format!("the body did not arrive within {} s", BODY_TIME.as_secs());
            Failure::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
        })?;
        let Some(frame) = frame else { return Ok((all.freeze(), taken)) };
        let frame = frame.map_err(|e| Failure::invalid(format!("the body is cut off: {e}")))?;
        if let Ok(data) = frame.into_data() {
            if all.len() + data.len() > BODY {
                return Err(too_large());
            }
            if taken.is_none() && all.len() + data.len() > SMALL_BODY {
                let wanted = Arc::clone(room).acquire_many_owned((most >> 10) as u32);
                let got = timeout_at(end, wanted).await.ok().and_then(Result::ok);
                taken = Some(LargeBody::new(got.ok_or_else(Failure::no_room)?));
            }
            all.extend_from_slice(&data);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::shared::APART;

    /// Returns a server without models.
    fn alone() -> Arc<Shared> {
        let log: Log = Arc::new(|_| ());
        Shared::start(Vec::new(), Options::of_tests(), &log, None).unwrap()
    }

    /// Returns a connection to it.
    fn connected(
        runtime: &tokio::runtime::Runtime,
        shared: Arc<Shared>,
        stop: &watch::Sender<bool>,
    ) -> UnixStream {
        let (client, server) = UnixStream::pair().unwrap();
        server.set_nonblocking(true).unwrap();
        let told = stop.subscribe();
        runtime.spawn(async move {
            let server = tokio::net::UnixStream::from_std(server).unwrap();
            connection((Box::new(server), "test".into()), shared, told).await;
        });
        client
    }

    /// Returns the response of a server without models to these bytes, until it closes the connection.
    fn heard(sent: &[u8]) -> String {
        heard_of(alone(), sent)
    }

    fn heard_of(shared: Arc<Shared>, sent: &[u8]) -> String {
        let runtime = runtime().unwrap();
        let stop = watch::channel(false).0;
        let mut client = connected(&runtime, shared, &stop);
        client.write_all(sent).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let mut all = Vec::new();
        client.read_to_end(&mut all).expect("the connection is closed");
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn who_sends_slowly_is_not_waited_for() {
        // A head that does not end, no head at all, and a body that does not arrive.
        for head in ["GET /health HTTP/1.1\r\nhost: localhost\r\nx: ", ""] {
            assert!(!heard(head.as_bytes()).contains(" 200 "));
        }
        let body = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{";
        let answer = heard(body.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        // A client that sends all of it in time is answered, and then its connection is closed as well.
        let answer = heard(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    #[test]
    fn who_reads_nothing_is_not_waited_for() {
        let runtime = runtime().unwrap();
        let stop = watch::channel(false).0;
        let mut client = connected(&runtime, alone(), &stop);
        client.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
        // More requests and answers than the system buffers, until the connection is closed.
        let error = loop {
            let sent = client.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n");
            if let Err(error) = sent {
                break error.kind();
            }
        };
        use io::ErrorKind::{BrokenPipe, ConnectionReset};
        assert!([BrokenPipe, ConnectionReset].contains(&error), "{error}");
    }

    #[test]
    fn a_body_of_what_is_only_asked_for_is_not_waited_for() {
        let answer =
            heard(b"GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 33554432\r\n\r\nx");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    #[test]
    fn large_bodies_share_their_room() {
        let shared = alone();
        let room = Arc::clone(&shared.bodies);
        let _others =
            room.try_acquire_many_owned((crate::shared::LARGE_BODIES >> 10) as u32).unwrap();
        let post = |bytes: usize| {
            let head = format!(
                "POST /tokenize HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {bytes}\r\n\r\n"
            );
            heard_of(Arc::clone(&shared), &[head.as_bytes(), &vec![b'x'; bytes]].concat())
        };
        let answer = post(SMALL_BODY + 1);
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(answer.contains("retry-after"), "{answer}");
        let answer = post(SMALL_BODY);
        assert!(answer.starts_with("HTTP/1.1 400"), "it is no JSON: {answer}");
    }

    /// Requests that wait until a grammar that they sent is compiled hold no permit.
    #[test]
    fn who_steps_aside_keeps_nobody_waiting() {
        let runtime = runtime().unwrap();
        let shared = alone();
        let call = || Call {
            server: Arc::clone(&shared),
            named: "".into(),
            body: Bytes::new(),
            _large: None,
            query: "".into(),
            salt: "".into(),
            adapter: OnceLock::new(),
            anthropic: false,
            record: Arc::default(),
        };
        let (release, released) = std::sync::mpsc::channel::<()>();
        let released = Arc::new(std::sync::Mutex::new(released));
        let waiting: Vec<_> = (0..APART + 2)
            .map(|_| {
                let released = Arc::clone(&released);
                runtime.spawn(call().apart(move |_| {
                    crate::apart::step_aside(&mut || released.lock().unwrap().recv().unwrap());
                    Ok(())
                }))
            })
            .collect();
        for _ in 0..2 * APART {
            assert!(runtime.block_on(call().apart(|_| Ok(()))).is_ok());
        }
        waiting.iter().for_each(|_| release.send(()).unwrap());
        waiting.into_iter().for_each(|one| runtime.block_on(one).unwrap().unwrap());
        assert_eq!(shared.apart.available_permits(), APART);
    }

    #[test]
    fn a_panic_is_a_failure_of_its_request_alone() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let panicking = async {
            tokio::task::yield_now().await;
            panic!("in a request, on purpose")
        };
        let outcome = runtime.block_on(unharmed(panicking));
        assert_eq!(outcome.err().map(|failure| failure.status.as_u16()), Some(500));
    }
}
