//! The bytes of one file: ranges of it over several connections, into an incomplete file.
//!
//! Of a file that is read when it is complete, pieces are taken in order. One thread follows the received ones: it computes the hash while they
//! are still in memory, syncs them to disk and gives up their pages. So at most [`AHEAD`] pieces are cached because of a pull.
//!
//! Of a file that is read while it comes ([`Job::on_readable`]), the ranges are taken that its readers ask for, and their pages stay:
//! they are being used. The hash follows as far as there are no holes.
//!
//! If a server does not support ranges, the file is read from beginning to end, and from the beginning again if the connection
//! breaks off. Then it is not read before it is complete.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use alight_pages::Taken;
use alight_pages::copy::WriteBehind;
use sha2::{Digest, Sha256};

use crate::api::{self, FileInfo, Listed};
use crate::client::{self, Answer, CONNECTIONS, Client, Method, Trouble};
use crate::partial::Partial;
use crate::{HubError, Name};

/// Maximum number of pieces that are in flight, or received and not yet on disk.
const AHEAD: usize = 2 * CONNECTIONS;
/// Maximum number of bytes read from a connection at once.
const BUFFER: usize = 256 << 10;
/// Bytes of the first request for a file that is read while it comes: most of a header.
const FIRST: u64 = 256 << 10;
/// How often a thread without work looks if there is any.
const INTERVAL: Duration = Duration::from_millis(100);

/// A file to be fetched.
pub(crate) struct Job<'a> {
    pub client: &'a Client,
    pub name: &'a Name,
    pub commit: &'a str,
    pub listed: &'a Listed,
    pub info: &'a FileInfo,
    pub partial: &'a Partial,
    /// Bytes received, of all files.
    pub received: &'a AtomicU64,
    pub stop: &'a AtomicBool,
    /// Called once, when a server that supports ranges has answered, if the file is to be read while it comes.
    pub on_readable: Option<&'a (dyn Fn() -> Result<(), HubError> + Sync)>,
}

/// State shared by the threads of one file.
struct State {
    /// Pieces that no thread has begun, in order.
    queue: VecDeque<usize>,
    /// Pieces that were begun and are not yet on disk.
    ahead: BTreeSet<usize>,
    failed: Option<HubError>,
    /// The URL of the bytes; such a URL expires.
    location: String,
    /// The etag with which that URL has answered first.
    etag: Option<String>,
}

struct Shared<'a> {
    job: &'a Job<'a>,
    state: Mutex<State>,
    changed: Condvar,
    /// True once one of the threads has failed.
    halt: AtomicBool,
}

/// A response whose body has begun.
struct Opened {
    answer: Answer,
    /// True if the body is that of the whole file, although a range was requested.
    whole: bool,
}

/// Fetches what is missing. Returns the SHA-256 of the whole file, if the hub has promised one.
pub(crate) fn fetch(job: &Job<'_>) -> Result<Option<String>, HubError> {
    let partial = job.partial;
    let missing: VecDeque<usize> =
        (0..partial.pieces()).filter(|no| !partial.is_complete(*no)).collect();
    let location = job.info.location.clone();
    let state =
        State { queue: missing, ahead: BTreeSet::new(), failed: None, location, etag: None };
    let shared = Shared {
        job,
        state: Mutex::new(state),
        changed: Condvar::new(),
        halt: AtomicBool::new(false),
    };
    if let Some(first) = shared.first() {
        let run = partial.incoming.first_missing(&first).unwrap_or_else(|| first.clone());
        // The first answer shows if the server supports ranges.
        let opened = job.client.patiently(&|| shared.stopped(), || {
            (0, shared.open(&run).and_then(|opened| shared.begun(opened)))
        })?;
        match opened {
            None => return shared.whole_hash(),
            Some(opened) => {
                if let Some(on_readable) = job.on_readable {
                    on_readable()?;
                }
                return shared.in_parallel((first, opened));
            }
        }
    }
    shared.whole_hash()
}

impl Shared<'_> {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopped(&self) -> bool {
        self.halt.load(Ordering::Relaxed) || self.job.stop.load(Ordering::Relaxed)
    }

    /// The part of the file to begin with, if anything is missing.
    fn first(&self) -> Option<Range<u64>> {
        let partial = self.job.partial;
        if self.job.on_readable.is_none() {
            let mut state = self.lock();
            let no = state.queue.pop_front()?;
            state.ahead.insert(no);
            return Some(partial.range(no));
        }
        let all = 0..self.job.info.size;
        let missing = partial.incoming.first_missing(&all)?;
        partial.incoming.ask_now(missing.start..missing.end.min(missing.start + FIRST));
        match partial.incoming.take(Duration::ZERO) {
            Taken::Range(range) => Some(range),
            Taken::Nothing | Taken::Over => None,
        }
    }

    /// The next part of the file to fetch; `None` when there is none left, or the pull has ended.
    fn next(&self) -> Option<Range<u64>> {
        let partial = self.job.partial;
        if self.job.on_readable.is_some() {
            while !self.stopped() {
                match partial.incoming.take(INTERVAL) {
                    Taken::Range(range) => return Some(range),
                    Taken::Nothing => {}
                    Taken::Over => return None,
                }
            }
            return None;
        }
        let mut state = self.lock();
        while !self.stopped() {
            if state.ahead.len() < AHEAD {
                let no = state.queue.pop_front()?;
                state.ahead.insert(no);
                return Some(partial.range(no));
            }
            state = self.wait(state);
        }
        None
    }

    /// Requests the bytes of a range.
    fn open(&self, run: &Range<u64>) -> Result<Opened, Trouble> {
        let job = self.job;
        let start = run.start;
        let location = self.lock().location.clone();
        let answer = job.client.send(Method::Get, &location, Some((start, run.end - 1)))?;
        let changed = |problem| wrong(&answer, job.listed, start, problem);
        match (served(&answer, job.listed, job.info, run)?, answer.status()) {
            (Some(Served::Whole), _) => Ok(Opened { answer, whole: true }),
            (Some(Served::Range), _) if !self.is_same(&location, answer.header("etag")) => {
                Err(changed("the file has been changed meanwhile: it has another etag"))
            }
            (Some(Served::Range), _) => Ok(Opened { answer, whole: false }),
            // The URL has expired.
            (None, status @ (401 | 403 | 404 | 410)) if !answer.of_hub => {
                let url = client::shown(&answer.url);
                let info = api::head_of(job.client, job.name, job.commit, job.listed)?;
                if (&info.etag, info.size) != (&job.info.etag, job.info.size) {
                    return Err(changed("the file has been changed meanwhile"));
                }
                let mut state = self.lock();
                (state.location, state.etag) = (info.location, None);
                drop(state);
                Err(Trouble::Again(HubError::Status { url, status }, None))
            }
            (None, _) => Err(api::refused(job.client, job.name, Some(&job.listed.path), &answer)),
        }
    }

    /// True if the file at `location` has the etag that it had before, as far as its server sends one. Only a file that is read while it
    /// comes must have one etag: of another, the hash decides at the end, and servers of one address may have etags of their own.
    fn is_same(&self, location: &str, etag: Option<&str>) -> bool {
        if self.job.on_readable.is_none() {
            return true;
        }
        let mut state = self.lock();
        // Another address may be another server.
        let Some(etag) = etag.filter(|_| state.location == location) else { return true };
        *state.etag.get_or_insert_with(|| etag.to_owned()) == etag
    }

    /// The first body: that of a range is passed on to the connections, that of the whole file is read here.
    fn begun(&self, opened: Opened) -> Result<Option<Opened>, Trouble> {
        if !opened.whole {
            return Ok(Some(opened));
        }
        let (job, partial) = (self.job, self.job.partial);
        job.received.fetch_sub(partial.received(), Ordering::Relaxed);
        partial.reset().map_err(self.disk())?;
        let mut written = WriteBehind::new(&partial.file);
        let url = opened.answer.url.clone();
        let mut body = opened.answer.response.into_body().into_reader();
        for no in 0..partial.pieces() {
            self.read(&url, &mut body, partial.range(no))?;
            written.wrote(partial.range(no)).map_err(self.disk())?;
        }
        written.finish().map_err(self.disk())?;
        self.ended(&url, &mut body)?;
        Ok(None)
    }

    /// Reads the bytes of a range.
    fn read(&self, url: &str, body: &mut dyn Read, run: Range<u64>) -> Result<(), Trouble> {
        let (job, partial) = (self.job, self.job.partial);
        let mut at = run.start;
        let left = |at: u64| usize::try_from(run.end - at).unwrap_or(usize::MAX);
        let mut buffer = vec![0; BUFFER.min(left(at))];
        let lost = |at: u64, error: &dyn std::fmt::Display| {
            let problem = format!("{error}, at byte {at} of {}", job.listed.path);
            Trouble::Again(client::connection(url, &problem), None)
        };
        while at < run.end {
            let want = buffer.len().min(left(at));
            let got = match body.read(&mut buffer[..want]) {
                Ok(0) => {
                    return Err(lost(at, &"the connection has ended in the middle of the file"));
                }
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(lost(at, &error)),
            };
            let new = partial.write(at, &buffer[..got]).map_err(self.disk())?;
            job.received.fetch_add(new, Ordering::Relaxed);
            at += got as u64;
            if self.stopped() {
                return Err(HubError::Stopped.into());
            }
        }
        Ok(())
    }

    /// Checks that the body ends after the requested bytes.
    fn ended(&self, url: &str, body: &mut dyn Read) -> Result<(), Trouble> {
        match body.read(&mut [0]) {
            Ok(1..) => {
                Err(client::answer(url, "there is more of it than what was asked for").into())
            }
            // All bytes were received; the state of the connection does not matter.
            _ => Ok(()),
        }
    }

    /// Fetches everything over several connections.
    fn in_parallel(&self, first: (Range<u64>, Opened)) -> Result<Option<String>, HubError> {
        let workers = match self.job.on_readable {
            None => (1 + self.lock().queue.len()).min(CONNECTIONS),
            Some(_) => CONNECTIONS,
        };
        let hash = thread::scope(|scope| {
            let mut first = Some(first);
            for no in 0..workers {
                let first = first.take();
                let spawned = thread::Builder::new()
                    .name("pull".into())
                    .spawn_scoped(scope, move || self.work(first));
                // One connection is enough.
                if let Err(error) = spawned {
                    if no == 0 {
                        self.fail(client::connection(&self.job.info.location, &error));
                    }
                    break;
                }
            }
            self.drain()
        });
        match self.lock().failed.take() {
            Some(error) => Err(error),
            None => hash,
        }
    }

    /// Fetches one part after another until there are none left. `first` is a part that has been taken already, with the answer to
    /// the request for its first missing bytes.
    fn work(&self, first: Option<(Range<u64>, Opened)>) {
        let incoming = &self.job.partial.incoming;
        let mut first = first.map(|(part, opened)| (part, Some(opened)));
        loop {
            let next = first.take().or_else(|| self.next().map(|part| (part, None)));
            let Some((part, mut opened)) = next else { return self.changed.notify_all() };
            let done = self.job.client.patiently(&|| self.stopped(), || {
                let mut result = Ok(());
                while result.is_ok()
                    && let Some(run) = incoming.first_missing(&part)
                {
                    let opened = opened.take().map_or_else(|| self.open(&run), Ok);
                    result = opened.and_then(|opened| self.run(opened, run));
                }
                (self.received_of(&part), result)
            });
            if let Err(error) = done {
                return self.fail(error);
            }
            self.changed.notify_all();
        }
    }

    /// The number of bytes received of a part of the file.
    fn received_of(&self, part: &Range<u64>) -> u64 {
        let (mut at, mut received) = (part.start, 0);
        while let Some(missing) = self.job.partial.incoming.first_missing(&(at..part.end)) {
            received += missing.start.saturating_sub(at);
            at = missing.end;
        }
        received + part.end.saturating_sub(at)
    }

    /// Reads the body of a range.
    fn run(&self, opened: Opened, run: Range<u64>) -> Result<(), Trouble> {
        let url = opened.answer.url.clone();
        if opened.whole {
            let problem = "the server answers some ranges and others not";
            return Err(Trouble::Again(client::answer(&url, problem), None));
        }
        let mut body = opened.answer.response.into_body().into_reader();
        self.read(&url, &mut body, run)?;
        self.ended(&url, &mut body)
    }

    /// Hashes the pieces in order, as they are received, and syncs them to disk if the file is not read yet.
    fn drain(&self) -> Result<Option<String>, HubError> {
        let partial = self.job.partial;
        let mut hash = self.job.info.sha256().map(|_| Sha256::new());
        let is_read = self.job.on_readable.is_some();
        let mut written = WriteBehind::new(&partial.file);
        let mut buffer = vec![0; 1 << 20];
        for no in 0..partial.pieces() {
            let mut state = self.lock();
            while !partial.is_complete(no) {
                if self.stopped() {
                    return Err(HubError::Stopped);
                }
                state = self.wait(state);
            }
            drop(state);
            let range = partial.range(no);
            let result = match &mut hash {
                Some(hash) => self.hash(hash, no, &mut buffer),
                None => Ok(()),
            };
            let given_up = || if is_read { Ok(()) } else { written.wrote(range) };
            if let Err(error) = result.and_then(|()| given_up()) {
                self.fail(self.disk_error(error));
                return Err(HubError::Stopped);
            }
            self.lock().ahead.remove(&no);
            self.changed.notify_all();
        }
        if let Err(error) = written.finish() {
            self.fail(self.disk_error(error));
        }
        Ok(hash.map(|hash| hex(&hash.finalize())))
    }

    /// The hash of a file of which all bytes were received.
    fn whole_hash(&self) -> Result<Option<String>, HubError> {
        let hash = self.drain();
        match self.lock().failed.take() {
            Some(error) => Err(error),
            None => hash,
        }
    }

    fn hash(&self, hash: &mut Sha256, no: usize, buffer: &mut [u8]) -> io::Result<()> {
        let range = self.job.partial.range(no);
        let mut at = range.start;
        while at < range.end {
            let want = buffer.len().min(usize::try_from(range.end - at).unwrap_or(buffer.len()));
            self.job.partial.file.read_exact_at(&mut buffer[..want], at)?;
            hash.update(&buffer[..want]);
            at += want as u64;
        }
        Ok(())
    }

    /// Waits for a change, but not for long, since nothing wakes it when the pull is stopped.
    fn wait<'s>(&'s self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        let waited = self.changed.wait_timeout(state, Duration::from_millis(100));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Ends the other threads as well, and breaks off what they are waiting for.
    fn fail(&self, error: HubError) {
        let mut state = self.lock();
        // Errors that follow from the first are not reported.
        if state.failed.is_none() {
            state.failed = Some(error);
        }
        self.halt.store(true, Ordering::Relaxed);
        drop(state);
        self.job.client.shut_down();
        self.changed.notify_all();
    }

    fn disk_error(&self, error: io::Error) -> HubError {
        HubError::cache(&self.job.partial.path)(error)
    }

    fn disk(&self) -> impl Fn(io::Error) -> Trouble {
        |error| Trouble::Final(self.disk_error(error))
    }
}

/// The body of an answer to the request for a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// That of the range, from its beginning.
    Range,
    /// That of the whole file: the server does not support ranges.
    Whole,
}

/// Finds out what an answer to the request for `run` of a file has in its body; `None` if it is a refusal.
///
/// # Errors
/// It is another range, or another file, than the one that was promised.
pub(crate) fn served(
    answer: &Answer,
    listed: &Listed,
    info: &FileInfo,
    run: &Range<u64>,
) -> Result<Option<Served>, Trouble> {
    let wrong = |problem| Err(wrong(answer, listed, run.start, problem));
    match answer.status() {
        206 => match answer.header("content-range").and_then(content_range) {
            Some((first, last, size))
                if first == run.start
                    && run.contains(&last)
                    && size.is_none_or(|size| size == info.size) =>
            {
                Ok(Some(Served::Range))
            }
            _ => wrong("it is another range than what was asked for"),
        },
        200 => {
            let length = answer.header("content-length").map(str::parse::<u64>);
            match length.is_some_and(|length| length.ok() != Some(info.size)) {
                true => wrong("the file has another size than what was promised"),
                false => Ok(Some(Served::Whole)),
            }
        }
        416 => wrong("the file is shorter than what was promised"),
        _ => Ok(None),
    }
}

/// The error for an answer that does not fit what was asked for from this byte on.
fn wrong(answer: &Answer, listed: &Listed, start: u64, problem: &str) -> Trouble {
    let problem = format!("at byte {start} of {}, {problem}", listed.path);
    Trouble::Final(client::answer(&answer.url, problem))
}

/// `bytes 0-99/1234` or `bytes 0-99/*`: first and last byte, size.
fn content_range(text: &str) -> Option<(u64, u64, Option<u64>)> {
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let size = match size {
        "*" => None,
        size => Some(size.parse().ok()?),
    };
    Some((first.parse().ok()?, last.parse().ok()?, size))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
