//! The log of requests, for people: one line for each, once its answer has ended or its client has left.
//!
//! Invariant: no request waits for the log. A thread writes the lines; those that it cannot write fast enough are counted and left out.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use alight_chat::body::fields::Fields;
use hyper::{Method, StatusCode};
use serde_json::Value;

use crate::ending::Ending;
use crate::{Log, ids};

/// Maximum number of lines that wait to be written.
const MAX_WAITING: usize = 1024;
/// Maximum number of notes about a request, of names in one of them, and of characters of each note, path and name.
const MAX_NOTES: usize = 8;
/// Maximum number of warnings about a request.
const MAX_WARNINGS: usize = 64;
const MAX_NAMES: usize = 12;
const MAX_CHARS: usize = 200;
/// The time that the last lines have to be written at the end.
const FLUSH_TIME: Duration = Duration::from_secs(1);
/// Paths that programs ask again and again. They are logged only if they fail.
const POLLED: [&str; 3] = ["/health", "/v1/health", "/alight/memory"];

enum Command {
    Line(String),
    Flush(Sender<()>),
}

/// Writes a line for each request.
pub(crate) struct RequestLog {
    lines: SyncSender<Command>,
    /// The number of lines left out since the last one that was not.
    left_out: AtomicU64,
}

impl RequestLog {
    /// Starts the thread that passes lines to `log`.
    pub(crate) fn start(log: Log) -> Result<RequestLog, String> {
        let (lines, commands) = sync_channel(MAX_WAITING);
        let spawned =
            thread::Builder::new().name("log".into()).spawn(move || write_all(&commands, &log));
        spawned.map_err(|error| format!("the system gives no thread for --log: {error}"))?;
        Ok(RequestLog { lines, left_out: AtomicU64::new(0) })
    }

    fn add(&self, mut line: String) {
        let before = self.left_out.swap(0, Ordering::Relaxed);
        if before > 0 {
            let _ = write!(line, " ({before} lines before this one are left out)");
        }
        if self.lines.try_send(Command::Line(line)).is_err() {
            self.left_out.fetch_add(before + 1, Ordering::Relaxed);
        }
    }

    /// Waits until the lines so far are written, but not for long.
    pub(crate) fn flush(&self) {
        let (done, written) = channel();
        if self.lines.try_send(Command::Flush(done)).is_ok() {
            let _ = written.recv_timeout(FLUSH_TIME);
        }
    }
}

fn write_all(commands: &Receiver<Command>, log: &Log) {
    while let Ok(command) = commands.recv() {
        match command {
            Command::Line(line) => log(&line),
            Command::Flush(done) => drop(done.send(())),
        }
    }
}

/// The facts about a request that are known only while it is answered.
#[derive(Default)]
pub(crate) struct Record(Mutex<Facts>);

#[derive(Default)]
struct Facts {
    model: Option<String>,
    tokens: Option<Tokens>,
    notes: Vec<String>,
    /// The notes that the client gets, too.
    warnings: Vec<String>,
}

/// Numbers of tokens, of all answers to a request.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tokens {
    /// Tokens of prompts that were computed.
    pub(crate) read: usize,
    /// Tokens of prompts that were known.
    pub(crate) reused: usize,
    /// Tokens that were generated.
    pub(crate) written: usize,
}

impl Record {
    fn with(&self, change: impl FnOnce(&mut Facts)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Sets the name of the model that was found.
    pub(crate) fn model(&self, name: &str) {
        self.with(|facts| facts.model = Some(short(name)));
    }

    /// Adds tokens.
    pub(crate) fn count(&self, tokens: Tokens) {
        self.with(|facts| {
            let all = facts.tokens.get_or_insert_default();
            all.read += tokens.read;
            all.reused += tokens.reused;
            all.written += tokens.written;
        });
    }

    /// Adds a note about something that was dropped, changed or failed, once.
    pub(crate) fn note(&self, text: &str) {
        self.with(|facts| {
            let note = short(text);
            if facts.notes.len() < MAX_NOTES && !facts.notes.contains(&note) {
                facts.notes.push(note);
            }
        });
    }

    /// Notes fields that the endpoint does not have.
    pub(crate) fn unknown(&self, names: &[String]) {
        self.names("unknown", names.iter().map(|name| short(name)));
    }

    /// Adds a note that the client gets, too: a wish of its request is not met.
    pub(crate) fn warn(&self, text: &str) {
        self.note(text);
        self.with(|facts| {
            let warning = short(text);
            if facts.warnings.len() < MAX_WARNINGS && !facts.warnings.contains(&warning) {
                facts.warnings.push(warning);
            }
        });
    }

    /// Adds the warnings so far to a response, if there are any.
    pub(crate) fn add_warnings(&self, response: &mut Value) {
        self.with(|facts| {
            if !facts.warnings.is_empty() {
                response["warnings"] = facts.warnings.clone().into();
            }
        });
    }

    /// Notes the fields of a request that nothing has taken.
    pub(crate) fn ignored(&self, fields: &Fields) {
        self.ignored_in(&[("", fields)]);
    }

    /// [`ignored`](Self::ignored), for fields in several objects, whose names follow these prefixes.
    pub(crate) fn ignored_in(&self, objects: &[(&str, &Fields)]) {
        let names = objects.iter().flat_map(|(prefix, fields)| {
            fields.left().map(move |name| short(&format!("{prefix}{name}")))
        });
        self.names("ignored", names);
    }

    /// Notes the first of these names, after what they have in common.
    fn names(&self, what: &str, names: impl Iterator<Item = String>) {
        let names: Vec<String> = names.take(MAX_NAMES + 1).collect();
        if !names.is_empty() {
            let more = if names.len() > MAX_NAMES { ", …" } else { "" };
            let names = names[..names.len().min(MAX_NAMES)].join(", ");
            self.note(&format!("{what}: {names}{more}"));
        }
    }
}

/// A text, shortened if it is long.
fn short(text: &str) -> String {
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The entry of a request: its line is written when this is dropped.
pub(crate) struct Entry {
    log: Option<Arc<RequestLog>>,
    /// See [`Shared`](crate::shared::Shared).
    ending: Ending,
    pub(crate) record: Arc<Record>,
    peer: Arc<str>,
    method: Method,
    path: Box<str>,
    began: Instant,
    status: Option<StatusCode>,
    /// True once all of the response has been passed on.
    complete: bool,
}

impl Entry {
    pub(crate) fn new(
        log: Option<Arc<RequestLog>>,
        ending: Ending,
        peer: Arc<str>,
        method: Method,
        path: &str,
    ) -> Entry {
        Entry {
            log,
            ending,
            record: Arc::default(),
            peer,
            method,
            path: short(path).into(),
            began: Instant::now(),
            status: None,
            complete: false,
        }
    }

    /// The response has this status, and its body follows.
    pub(crate) fn answered(&mut self, status: StatusCode) {
        self.status = Some(status);
    }

    /// All of the response has been passed on.
    pub(crate) fn complete(&mut self) {
        self.complete = true;
    }

    fn line(&self) -> String {
        let ending = self.ending.has_begun();
        let status = match self.status {
            Some(status) if self.complete => status.as_u16().to_string(),
            _ if ending => "503 cut off by the shutdown".to_owned(),
            _ => "499 client left".to_owned(),
        };
        let Entry { peer, method, path, .. } = self;
        let seconds = self.began.elapsed().as_secs_f64();
        let now = ids::date(ids::now());
        let mut line = format!("{now} {peer} {method} {path} {status}, {seconds:.2} s");
        self.record.with(|facts| {
            if let Some(model) = &facts.model {
                let _ = write!(line, ", model {model}");
            }
            if let Some(Tokens { read, reused, written }) = facts.tokens {
                let _ = write!(line, ", tokens: {read} read, {reused} reused, {written} written");
            }
            for note in &facts.notes {
                let _ = write!(line, "; {note}");
            }
        });
        line
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let Some(log) = &self.log else { return };
        let polled = self.status == Some(StatusCode::OK) && POLLED.contains(&&*self.path);
        if !polled {
            log.add(self.line());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_is_not_written_delays_no_request() {
        let (reached, written) = channel();
        let (go, release) = channel::<()>();
        let release = Mutex::new(release);
        let log: Log = Arc::new(move |line: &str| {
            let _ = reached.send(line.to_owned());
            let _ = release.lock().unwrap().recv();
        });
        let requests = RequestLog::start(log).unwrap();
        requests.add("first".to_owned());
        assert_eq!(written.recv().unwrap(), "first");
        // The thread writes the first; as many wait as may, and the others are counted.
        for i in 0..MAX_WAITING + 7 {
            requests.add(i.to_string());
        }
        drop(go);
        for i in 0..MAX_WAITING {
            assert_eq!(written.recv().unwrap(), i.to_string());
        }
        requests.add("last".to_owned());
        let last = written.recv().unwrap();
        assert_eq!(last, "last (7 lines before this one are left out)");
        requests.flush();
    }

    #[test]
    fn what_clients_name_is_shortened() {
        let object = (0..20).map(|i| (format!("{i:0300}"), true.into())).collect();
        let record = Record::default();
        record.ignored(&Fields::new(object));
        (0..20).for_each(|i| record.note(&format!("{i}{}", "é".repeat(300))));
        record.note(&"é".repeat(300));
        record.with(|facts| {
            assert_eq!(facts.notes.len(), MAX_NOTES);
            assert!(facts.notes[0].starts_with("ignored: 000"), "{:?}", facts.notes);
            assert!(facts.notes.iter().all(|note| note.chars().count() <= MAX_CHARS + 1));
        });
    }
}
