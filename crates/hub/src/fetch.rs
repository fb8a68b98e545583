//! The bytes of a file: ranges of it over several connections, into an incomplete file.
//!
//! Of a file that is read when it is complete, pieces are taken in order. One thread follows the received ones: it computes the hash while they
//! are still in memory, syncs them to disk and gives up their pages. So at most [`AHEAD`] pieces are cached because of a pull.
//!
//! Of files that are read while they come ([`Job::on_readable`]), the ranges are taken that their readers ask for, and their pages stay:
//! they are being used. All files of a model come together, over the same connections. The hash of each follows as far as it has no
//! holes.
//!
//! If a server does not support ranges, a file is read from beginning to end, and from the beginning again if the connection
//! breaks off. Then it is not read before it is complete, and files come one after another.

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
/// The same of the other files of a model, whose headers have tensors only.
const FIRST_OF_OTHERS: u64 = 32 << 10;
/// How often a thread without work looks if there is any.
const INTERVAL: Duration = Duration::from_millis(100);

/// Files to be fetched. There are several only if they are to be read while they come.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub client: &'a Client,
    pub name: &'a Name,
    pub commit: &'a str,
    pub files: &'a [JobFile<'a>],
    /// Bytes received, of all files.
    pub received: &'a AtomicU64,
    pub stop: &'a AtomicBool,
    /// Called once, when a server has answered, if the files are to be read while they come: with true if it supports ranges, so that
    /// they can be.
    pub on_readable: Option<&'a (dyn Fn(bool) -> Result<(), HubError> + Sync)>,
}

/// One of the files, whose number in the queue of what is incoming is its place among them.
#[derive(Clone, Copy)]
pub(crate) struct JobFile<'a> {
    pub listed: &'a Listed,
    pub info: &'a FileInfo,
    pub partial: &'a Partial,
}

/// A part of a file.
#[derive(Clone, Debug)]
struct Part {
    file: usize,
    bytes: Range<u64>,
}

/// Where the bytes of a file are.
struct Address {
    /// The URL; such a URL expires.
    location: String,
    /// The etag with which that URL has answered first.
    etag: Option<String>,
}

/// State shared by the threads of one job.
struct State {
    /// Pieces that no thread has begun, in order.
    queue: VecDeque<usize>,
    /// Pieces that were begun and are not yet on disk.
    ahead: BTreeSet<usize>,
    failed: Option<HubError>,
    /// One for each file.
    addresses: Vec<Address>,
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

/// Fetches what is missing. Returns the SHA-256 of each file, if the hub has promised one.
pub(crate) fn fetch(job: &Job<'_>) -> Result<Vec<Option<String>>, HubError> {
    let address = |file: &JobFile<'_>| Address { location: file.info.location.clone(), etag: None };
    let queue = match (job.on_readable, job.files) {
        (None, [JobFile { partial, .. }]) => {
            (0..partial.pieces()).filter(|no| !partial.is_complete(*no)).collect()
        }
        _ => VecDeque::new(),
    };
    let state = State {
        queue,
        ahead: BTreeSet::new(),
        failed: None,
        addresses: job.files.iter().map(address).collect(),
    };
    let shared = Shared {
        job,
        state: Mutex::new(state),
        changed: Condvar::new(),
        halt: AtomicBool::new(false),
    };
    let Some(first) = shared.first() else { return shared.whole_hashes() };
    let run = shared.first_missing(&first).unwrap_or_else(|| first.clone());
    // The first answer shows if the server supports ranges.
    let opened = job.client.patiently(&|| shared.stopped(), || (0, shared.open(&run)))?;
    if let Some(on_readable) = job.on_readable {
        on_readable(!opened.whole)?;
    }
    match opened.whole {
        false => shared.in_parallel((first, opened)),
        true => shared.one_by_one(first.file, opened),
    }
}

impl Shared<'_> {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopped(&self) -> bool {
        self.halt.load(Ordering::Relaxed) || self.job.stop.load(Ordering::Relaxed)
    }

    /// The first missing bytes of a part.
    fn first_missing(&self, part: &Part) -> Option<Part> {
        let missing = self.job.files[part.file].partial.incoming.first_missing(&part.bytes);
        missing.map(|bytes| Part { file: part.file, bytes })
    }

    /// The part to begin with, if anything is missing.
    fn first(&self) -> Option<Part> {
        if self.job.on_readable.is_none() {
            let mut state = self.lock();
            let no = state.queue.pop_front()?;
            state.ahead.insert(no);
            return Some(Part { file: 0, bytes: self.job.files.first()?.partial.range(no) });
        }
        let mut asked = FIRST;
        for JobFile { partial, info, .. } in self.job.files {
            let Some(missing) = partial.incoming.first_missing(&(0..info.size)) else { continue };
            partial.incoming.ask_now(missing.start..missing.end.min(missing.start + asked));
            asked = FIRST_OF_OTHERS;
        }
        match self.job.files.first()?.partial.incoming.queue().take(Duration::ZERO) {
            Taken::Range(file, bytes) => Some(Part { file, bytes }),
            Taken::Nothing | Taken::Over => None,
        }
    }

    /// The next part to fetch; `None` when there is none left, or the pull has ended.
    fn next(&self) -> Option<Part> {
        let partial = self.job.files.first()?.partial;
        if self.job.on_readable.is_some() {
            while !self.stopped() {
                match partial.incoming.queue().take(INTERVAL) {
                    Taken::Range(file, bytes) => return Some(Part { file, bytes }),
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
                return Some(Part { file: 0, bytes: partial.range(no) });
            }
            state = self.wait(state);
        }
        None
    }

    /// Requests the bytes of a range.
    fn open(&self, run: &Part) -> Result<Opened, Trouble> {
        let (job, JobFile { listed, info, .. }) = (self.job, self.job.files[run.file]);
        let start = run.bytes.start;
        let location = self.lock().addresses[run.file].location.clone();
        let answer = job.client.send(Method::Get, &location, Some((start, run.bytes.end - 1)))?;
        let changed = |problem| wrong(&answer, listed, start, problem);
        match (served(&answer, listed, info, &run.bytes)?, answer.status()) {
            (Some(Served::Whole), _) => Ok(Opened { answer, whole: true }),
            (Some(Served::Range), _)
                if !self.is_same(run.file, &location, answer.header("etag")) =>
            {
                Err(changed("the file has been changed meanwhile: it has another etag"))
            }
            (Some(Served::Range), _) => Ok(Opened { answer, whole: false }),
            // The URL has expired.
            (None, status @ (401 | 403 | 404 | 410)) if !answer.of_hub => {
                let url = client::shown(&answer.url);
                let found = api::head_of(job.client, job.name, job.commit, listed)?;
                if (&found.etag, found.size) != (&info.etag, info.size) {
                    return Err(changed("the file has been changed meanwhile"));
                }
                self.lock().addresses[run.file] = Address { location: found.location, etag: None };
                Err(Trouble::Again(HubError::Status { url, status }, None))
            }
            (None, _) => Err(api::refused(job.client, job.name, Some(&listed.path), &answer)),
        }
    }

    /// True if the file at `location` has the etag that it had before, as far as its server sends one. Only a file that is read while it
    /// comes must have one etag: of another, the hash decides at the end, and servers of one address may have etags of their own.
    fn is_same(&self, file: usize, location: &str, etag: Option<&str>) -> bool {
        if self.job.on_readable.is_none() {
            return true;
        }
        let address = &mut self.lock().addresses[file];
        // Another address may be another server.
        let Some(etag) = etag.filter(|_| address.location == location) else { return true };
        *address.etag.get_or_insert_with(|| etag.to_owned()) == etag
    }

    /// Reads every file from beginning to end: the server supports no ranges. `opened` is the answer for `first`.
    fn one_by_one(&self, first: usize, opened: Opened) -> Result<Vec<Option<String>>, HubError> {
        let (job, mut opened) = (self.job, Some(opened));
        let whole = Part { file: first, bytes: 0..job.files[first].info.size };
        job.client.patiently(&|| self.stopped(), || {
            let opened = opened.take().map_or_else(|| self.open(&whole), Ok);
            (0, opened.and_then(|opened| self.whole(first, opened)))
        })?;
        let hashes = job.files.iter().enumerate().map(|(no, file)| match no == first {
            true => self.whole_hash(no),
            false => {
                let alone = Job { files: std::slice::from_ref(file), on_readable: None, ..*job };
                Ok(fetch(&alone)?.pop().flatten())
            }
        });
        hashes.collect()
    }

    /// Reads the body of a whole file, which some servers send as a range.
    fn whole(&self, file: usize, opened: Opened) -> Result<(), Trouble> {
        let (job, partial) = (self.job, self.job.files[file].partial);
        let url = opened.answer.url.clone();
        job.received.fetch_sub(partial.received(), Ordering::Relaxed);
        partial.reset().map_err(self.disk(file))?;
        let mut written = WriteBehind::new(&partial.file);
        let mut body = opened.answer.response.into_body().into_reader();
        for no in 0..partial.pieces() {
            self.read(&url, &mut body, &Part { file, bytes: partial.range(no) })?;
            written.wrote(partial.range(no)).map_err(self.disk(file))?;
        }
        written.finish().map_err(self.disk(file))?;
        self.ended(&url, &mut body)
    }

    /// Reads the bytes of a range.
    fn read(&self, url: &str, body: &mut dyn Read, run: &Part) -> Result<(), Trouble> {
        let (job, JobFile { listed, partial, .. }) = (self.job, self.job.files[run.file]);
        let mut at = run.bytes.start;
        let left = |at: u64| usize::try_from(run.bytes.end - at).unwrap_or(usize::MAX);
        let mut buffer = vec![0; BUFFER.min(left(at))];
        let lost = |at: u64, error: &dyn std::fmt::Display| {
            let problem = format!("{error}, at byte {at} of {}", listed.path);
            Trouble::Again(client::connection(url, &problem), None)
        };
        while at < run.bytes.end {
            let want = buffer.len().min(left(at));
            let got = match body.read(&mut buffer[..want]) {
                Ok(0) => {
                    return Err(lost(at, &"the connection has ended in the middle of the file"));
                }
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(lost(at, &error)),
            };
            let new = partial.write(at, &buffer[..got]).map_err(self.disk(run.file))?;
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
    fn in_parallel(&self, first: (Part, Opened)) -> Result<Vec<Option<String>>, HubError> {
        let workers = match self.job.on_readable {
            None => (1 + self.lock().queue.len()).min(CONNECTIONS),
            Some(_) => CONNECTIONS,
        };
        let hashes = thread::scope(|scope| {
            let mut first = Some(first);
            for no in 0..workers {
                let first = first.take();
                let spawned = thread::Builder::new()
                    .name("pull".into())
                    .spawn_scoped(scope, move || self.work(first));
                // One connection is enough.
                if let Err(error) = spawned {
                    if no == 0 {
                        self.fail(client::connection(&self.job.files[0].info.location, &error));
                    }
                    break;
                }
            }
            self.drain()
        });
        match self.lock().failed.take() {
            Some(error) => Err(error),
            None => hashes,
        }
    }

    /// Fetches one part after another until there are none left. `first` is a part that has been taken already, with the answer to
    /// the request for its first missing bytes.
    fn work(&self, first: Option<(Part, Opened)>) {
        let mut first = first.map(|(part, opened)| (part, Some(opened)));
        loop {
            let next = first.take().or_else(|| self.next().map(|part| (part, None)));
            let Some((part, mut opened)) = next else { return self.changed.notify_all() };
            let done = self.job.client.patiently(&|| self.stopped(), || {
                let mut result = Ok(());
                while result.is_ok()
                    && let Some(run) = self.first_missing(&part)
                {
                    let opened = opened.take().map_or_else(|| self.open(&run), Ok);
                    result = opened.and_then(|opened| self.run(opened, &run));
                }
                (self.received_of(&part), result)
            });
            if let Err(error) = done {
                return self.fail(error);
            }
            self.changed.notify_all();
        }
    }

    /// The number of bytes received of a part.
    fn received_of(&self, part: &Part) -> u64 {
        let Range { start, end } = part.bytes;
        let (mut at, mut received) = (start, 0);
        let missing = |at| self.first_missing(&Part { file: part.file, bytes: at..end });
        while let Some(Part { bytes, .. }) = missing(at) {
            received += bytes.start.saturating_sub(at);
            at = bytes.end;
        }
        received + end.saturating_sub(at)
    }

    /// Reads the body of a range.
    fn run(&self, opened: Opened, run: &Part) -> Result<(), Trouble> {
        let url = opened.answer.url.clone();
        if opened.whole {
            let problem = "the server answers some ranges and others not";
            return Err(Trouble::Again(client::answer(&url, problem), None));
        }
        let mut body = opened.answer.response.into_body().into_reader();
        self.read(&url, &mut body, run)?;
        self.ended(&url, &mut body)
    }

    /// Hashes the pieces of each file in order, as they are received.
    fn drain(&self) -> Result<Vec<Option<String>>, HubError> {
        let mut drains: Vec<Drain<'_>> =
            self.job.files.iter().map(|file| Drain::of(*file)).collect();
        let keeps_pages = self.job.on_readable.is_some();
        while drains.iter().any(|drain| !drain.is_over()) {
            let mut state = self.lock();
            let next = loop {
                if let Some(file) = drains.iter().position(Drain::is_ready) {
                    break file;
                }
                if self.stopped() {
                    return Err(HubError::Stopped);
                }
                state = self.wait(state);
            };
            drop(state);
            if let Err(error) = drains[next].piece(keeps_pages) {
                self.fail(self.disk_error(next, error));
                return Err(HubError::Stopped);
            }
            self.lock().ahead.remove(&(drains[next].no - 1));
            self.changed.notify_all();
        }
        for (no, drain) in drains.iter_mut().enumerate() {
            if let Err(error) = drain.written.finish() {
                self.fail(self.disk_error(no, error));
            }
        }
        Ok(drains.into_iter().map(|drain| drain.hash.map(|hash| hex(&hash.finalize()))).collect())
    }

    /// The hash of a file of which all bytes were received.
    fn whole_hash(&self, file: usize) -> Result<Option<String>, HubError> {
        let mut drain = Drain::of(self.job.files[file]);
        while !drain.is_over() {
            if self.stopped() {
                return Err(HubError::Stopped);
            }
            drain
                .piece(self.job.on_readable.is_some())
                .map_err(|error| self.disk_error(file, error))?;
        }
        drain.written.finish().map_err(|error| self.disk_error(file, error))?;
        Ok(drain.hash.map(|hash| hex(&hash.finalize())))
    }

    /// The hashes of the files if all bytes were received.
    fn whole_hashes(&self) -> Result<Vec<Option<String>>, HubError> {
        (0..self.job.files.len()).map(|file| self.whole_hash(file)).collect()
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

    fn disk_error(&self, file: usize, error: io::Error) -> HubError {
        HubError::cache(&self.job.files[file].partial.path)(error)
    }

    fn disk(&self, file: usize) -> impl Fn(io::Error) -> Trouble {
        move |error| Trouble::Final(self.disk_error(file, error))
    }
}

/// Follows the received pieces of a file in order: hashes them, and has them written to the disk and dropped from memory.
struct Drain<'a> {
    partial: &'a Partial,
    /// The next piece.
    no: usize,
    hash: Option<Sha256>,
    written: WriteBehind<'a>,
    buffer: Vec<u8>,
}

impl<'a> Drain<'a> {
    fn of(JobFile { info, partial, .. }: JobFile<'a>) -> Drain<'a> {
        let (hash, written) =
            (info.sha256().map(|_| Sha256::new()), WriteBehind::new(&partial.file));
        Drain { partial, no: 0, hash, written, buffer: Vec::new() }
    }

    fn is_over(&self) -> bool {
        self.no == self.partial.pieces()
    }

    /// True if the next piece was received.
    fn is_ready(&self) -> bool {
        !self.is_over() && self.partial.is_complete(self.no)
    }

    /// Follows the next piece. Pages of a file that is read stay in memory.
    fn piece(&mut self, keeps_pages: bool) -> io::Result<()> {
        let range = self.partial.range(self.no);
        self.no += 1;
        if let Some(hash) = &mut self.hash {
            self.buffer.resize(1 << 20, 0);
            let mut at = range.start;
            while at < range.end {
                let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
                let part = &mut self.buffer[..left.min(1 << 20)];
                self.partial.file.read_exact_at(part, at)?;
                hash.update(&*part);
                at += part.len() as u64;
            }
        }
        if keeps_pages { Ok(()) } else { self.written.wrote(range) }
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
