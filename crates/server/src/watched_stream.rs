//! The stream of a connection: ends if its client stops reading, and if its client has left.
//!
//! A client may close its sending side and wait for its answer (`nc -N`, `shutdown(SHUT_WR)`). To the server that looks like a client
//! that has closed its socket: the end of what it sends. Only something that is sent to it tells them apart: the system of the latter
//! refuses it. So a client whose stream ends while its request is answered is sent `100 Continue`, which a client must be able to read
//! before any response (RFC 9110, 15.2), and its request is dropped once the system reports that it was refused. Once the response has begun,
//! its own bytes show the same.
//!
//! **Invariant:** an interim response is written between responses, never within one.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::Version;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Interval, Sleep, interval_at, sleep_until};

/// How long a client may leave pending data unread.
const READ_TIME: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });
/// How soon it is noticed that a client which sends no more has left.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The response that asks a client if it is there.
const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The request that a connection is answering, shared with the connection's stream. Both are polled by the same task.
#[derive(Default)]
pub(crate) struct Exchange {
    /// True from the head of a request to the end of its response.
    in_progress: AtomicBool,
    /// True if the response has begun.
    answered: AtomicBool,
    /// True if the client understands interim responses.
    takes_interim: AtomicBool,
    /// True once the client sends no more.
    half_closed: AtomicBool,
}

impl Exchange {
    /// Begins a request.
    pub(crate) fn begin(self: &Arc<Exchange>, version: Version) -> InProgress {
        self.answered.store(false, Ordering::Relaxed);
        self.takes_interim.store(version >= Version::HTTP_11, Ordering::Relaxed);
        self.in_progress.store(true, Ordering::Relaxed);
        InProgress(Arc::clone(self))
    }
}

/// A request in progress, until it is dropped with the body of its response.
pub(crate) struct InProgress(Arc<Exchange>);

impl InProgress {
    /// Marks that the response has begun.
    pub(crate) fn answered(&self) {
        self.0.answered.store(true, Ordering::Relaxed);
    }

    /// Returns true once the client sends no more. What it has sent before has been passed on.
    pub(crate) fn half_closed(&self) -> bool {
        self.0.half_closed.load(Ordering::Relaxed)
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.in_progress.store(false, Ordering::Relaxed);
    }
}

/// The stream of a connection to a client.
pub(crate) struct WatchedStream<S> {
    stream: S,
    exchange: Arc<Exchange>,
    /// The deadline, while data waits to be written.
    deadline: Option<Pin<Box<Sleep>>>,
    /// True from a write to the next flush.
    unflushed: bool,
    /// The state of a client that sends no more.
    half_closed: Option<HalfClosed>,
}

/// A client that sends no more.
struct HalfClosed {
    checks: Interval,
    /// True once it was sent an interim response.
    asked: bool,
}

impl<S> WatchedStream<S> {
    /// `exchange` is that of the requests that come on this stream.
    pub(crate) fn new(stream: S, exchange: Arc<Exchange>) -> WatchedStream<S> {
        WatchedStream { stream, exchange, deadline: None, unflushed: false, half_closed: None }
    }

    /// True if a response, or a part of one, is still to be sent.
    fn owes(&self) -> bool {
        self.unflushed || self.exchange.in_progress.load(Ordering::Relaxed)
    }
}

impl<S: AsyncWrite + Unpin> WatchedStream<S> {
    /// Returns the result of writing, or an error after it has waited for too long.
    fn within<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        self.unflushed = true;
        if let Poll::Ready(done) = write(Pin::new(&mut self.stream), context) {
            self.deadline = None;
            return Poll::Ready(done);
        }
        let deadline =
            self.deadline.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + READ_TIME)));
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }

    /// Is ready once nothing is left to be sent to a client that sends no more, or once that client has left.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.owes() && self.is_present(context) {
            if let Some(HalfClosed { checks, .. }) = &mut self.half_closed {
                ready!(checks.poll_tick(context));
            }
        }
        Poll::Ready(())
    }

    /// Returns false if the client has left, as far as that is known.
    fn is_present(&mut self, context: &mut Context<'_>) -> bool {
        let Some(client) = &mut self.half_closed else { return true };
        let exchange = &self.exchange;
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        let ask = !(client.asked || self.unflushed || is_set(&exchange.answered));
        if ask && !is_set(&exchange.takes_interim) {
            return false;
        }
        // Writing nothing fails, too, once the client's system has refused something.
        let bytes = if ask { INTERIM } else { &[] };
        match Pin::new(&mut self.stream).poll_write(context, bytes) {
            Poll::Ready(Ok(written)) => {
                client.asked |= ask;
                written == bytes.len()
            }
            Poll::Ready(Err(_)) => false,
            Poll::Pending => true,
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.half_closed.is_none() {
            let before = to.filled().len();
            ready!(Pin::new(&mut self.stream).poll_read(context, to))?;
            if to.filled().len() > before || to.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            let checks = interval_at(Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
            self.half_closed = Some(HalfClosed { checks, asked: false });
            self.exchange.half_closed.store(true, Ordering::Relaxed);
        }
        self.poll_end(context).map(Ok)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.within(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        all: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.within(context, |stream, context| stream.poll_write_vectored(context, all))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.unflushed = false;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use tokio::time::timeout;

    use super::*;
    use crate::socket::ClientStream;
    use crate::threads::runtime;

    trait Client: Read + Write {
        fn end(&self);
    }

    impl Client for UnixStream {
        fn end(&self) {
            self.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            self.shutdown(Shutdown::Write).unwrap();
        }
    }

    impl Client for TcpStream {
        fn end(&self) {
            self.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            self.shutdown(Shutdown::Write).unwrap();
        }
    }

    type Server = WatchedStream<Box<dyn ClientStream>>;

    /// A connection of each kind. Must be called within a runtime.
    fn connections() -> [(Box<dyn Client>, Server, Arc<Exchange>); 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        server.set_nonblocking(true).unwrap();
        let server = Box::new(tokio::net::TcpStream::from_std(server).unwrap());
        let tcp: (Box<dyn Client>, Box<dyn ClientStream>) = (Box::new(client), server);
        let (client, server) = UnixStream::pair().unwrap();
        server.set_nonblocking(true).unwrap();
        let server = Box::new(tokio::net::UnixStream::from_std(server).unwrap());
        let unix: (Box<dyn Client>, Box<dyn ClientStream>) = (Box::new(client), server);
        [tcp, unix].map(|(client, server)| {
            let exchange = Arc::<Exchange>::default();
            (client, WatchedStream::new(server, Arc::clone(&exchange)), exchange)
        })
    }

    /// Reads once, within this time.
    async fn read(server: &mut Server, within: Duration) -> Option<Vec<u8>> {
        let mut bytes = [0; 64];
        let mut to = ReadBuf::new(&mut bytes);
        let read = poll_fn(|context| Pin::new(&mut *server).poll_read(context, &mut to));
        timeout(within, read).await.ok()?.unwrap();
        Some(to.filled().to_vec())
    }

    async fn write(server: &mut Server, bytes: &[u8]) {
        let written = poll_fn(|context| Pin::new(&mut *server).poll_write(context, bytes));
        assert_eq!(written.await.unwrap(), bytes.len());
        poll_fn(|context| Pin::new(&mut *server).poll_flush(context)).await.unwrap();
    }

    const SHORT: Duration = Duration::from_millis(300);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_client_that_sends_no_more_gets_its_answer() {
        runtime().unwrap().block_on(async {
            for (mut client, mut server, exchange) in connections() {
                client.write_all(b"request").unwrap();
                assert_eq!(read(&mut server, LONG).await.unwrap(), b"request");
                let begun = exchange.begin(Version::HTTP_11);
                client.end();
                assert_eq!(read(&mut server, SHORT).await, None);
                assert!(begun.half_closed());
                begun.answered();
                write(&mut server, b"answer").await;
                assert_eq!(read(&mut server, SHORT).await, None);
                drop(begun);
                assert_eq!(read(&mut server, LONG).await.unwrap(), b"");
                drop(server);
                let mut all = Vec::new();
                client.read_to_end(&mut all).unwrap();
                assert_eq!(all, [INTERIM, b"answer"].concat());
            }
        });
    }

    #[test]
    fn a_client_that_has_left_is_noticed() {
        runtime().unwrap().block_on(async {
            for answered in [false, true] {
                for (mut client, mut server, exchange) in connections() {
                    client.write_all(b"request").unwrap();
                    assert_eq!(read(&mut server, LONG).await.unwrap(), b"request");
                    let begun = exchange.begin(Version::HTTP_11);
                    drop(client);
                    if answered {
                        begun.answered();
                        assert_eq!(read(&mut server, SHORT).await.unwrap_or_default(), b"");
                        // Its first bytes are refused.
                        let _ =
                            poll_fn(|context| Pin::new(&mut server).poll_write(context, b"answer"))
                                .await;
                        let _ = poll_fn(|context| Pin::new(&mut server).poll_flush(context)).await;
                    }
                    assert_eq!(read(&mut server, LONG).await.unwrap(), b"");
                }
            }
        });
    }

    /// It has to take what is sent to it for the response.
    #[test]
    fn a_client_of_http_1_0_that_sends_no_more_has_left() {
        runtime().unwrap().block_on(async {
            for (client, mut server, exchange) in connections() {
                let _begun = exchange.begin(Version::HTTP_10);
                client.end();
                assert_eq!(read(&mut server, LONG).await.unwrap(), b"");
            }
        });
    }
}
