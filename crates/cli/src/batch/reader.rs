//! Turns lines of the input into prepared requests, ahead of the sequences being computed and on a separate thread, so that
//! neither a slow writer of the input nor a long prompt delays the others.

use std::collections::HashMap;
use std::io::BufRead;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use alight_chat::body::refusal::Refusal;
use alight_chat::grammar::{Grammars, NotHeld};
use alight_text::{Encoder, Vocabulary};
use anyhow::{anyhow, ensure};

use super::fingerprint::{self, Fingerprint};
use super::lines::{InputLines, LIMIT};
use super::request::{self, Defaults, Prepared};
use super::result::{DUPLICATE, LineId};
use super::resume::{Done, Key, Keys};

/// If this many lines at the start contain no JSON, the file is not an input of this command, but a text or something else.
const NO_JSON: u64 = 100;

/// The code of a line whose grammar could not be compiled, for no reason of its own.
const NOT_COMPILED: &str = "grammar_error";

/// Parses lines.
pub struct Reader {
    /// The input.
    pub lines: InputLines<Box<dyn BufRead + Send>>,
    /// The name of the input.
    pub name: String,
    /// The source of the tokenizer and the template.
    pub vocabulary: &'static Vocabulary,
    /// Tokenizes prompts.
    pub encoder: Encoder<'static>,
    /// Compiles the grammars that constrain answers.
    pub grammars: Grammars,
    /// Values for fields that a line leaves out.
    pub defaults: Defaults,
    /// The hash of everything that answers depend on besides their lines.
    pub run: u64,
    /// Lines that have results.
    pub done: Done,
    /// Turns ids into keys.
    pub keys: Keys,
    /// Lines by their ids.
    pub seen: HashMap<Key, u64>,
    /// The number of lines at the start that are not JSON; `None` once one is.
    pub no_json: Option<u64>,
}

/// An item that was read.
pub enum Item {
    /// A line, and its end as an offset in the input.
    Line(u64, Read),
    /// The end.
    End,
    /// The input cannot be read.
    Failed(anyhow::Error),
}

/// The content of a line.
pub enum Read {
    /// A request.
    Request(Box<Prepared>),
    /// A request that cannot be computed.
    Refused(LineId, Refusal),
    /// A request whose grammar could not be compiled, although nothing is known to be wrong with it.
    Failed(LineId, Refusal),
    /// A request that already has a result.
    Done,
}

impl Reader {
    fn next(&mut self) -> Item {
        match self.lines.next() {
            Ok(None) => Item::End,
            Ok(Some(line)) => match self.read(line.number, line.bytes) {
                Ok(read) => Item::Line(line.end, read),
                Err(error) => Item::Failed(error),
            },
            Err(error) => Item::Failed(anyhow!(error).context(self.name.clone())),
        }
    }

    fn read(&mut self, number: u64, bytes: Option<Vec<u8>>) -> anyhow::Result<Read> {
        let text = bytes.as_deref().unwrap_or_default().trim_ascii();
        let fingerprint = Fingerprint { run: self.run, line: fingerprint::hash(text) };
        let mut line = LineId { number, custom_id: None, fingerprint };
        let Some(bytes) = bytes else {
            let message =
                format!("it is longer than {} MiB, the most that alight reads", LIMIT >> 20);
            return Ok(self.refused(line, Refusal::new("line_too_long", message)));
        };
        let mut parsed = request::parse(&bytes);
        self.no_json = self.no_json.filter(|_| !parsed.is_json()).map(|count| count + 1);
        ensure!(
            self.no_json.is_none_or(|count| count < NO_JSON),
            "none of the first {NO_JSON} lines of {} is JSON: a line is a prompt between quotes or an object, such as \
             {{\"prompt\": \"…\"}}; `jq -R . FILE` makes such lines of a text, and `jq -c '.[]' FILE` of a JSON list",
            self.name
        );
        line.custom_id = parsed.custom_id.take();
        let key = line.custom_id.as_deref().map(|id| self.keys.of(id));
        if let Some(key) = key {
            if let Some(first) = self.seen.get(&key) {
                let message = format!("custom_id: it is that of line {first}");
                let refusal =
                    Refusal { param: Some("custom_id".into()), ..Refusal::new(DUPLICATE, message) };
                return Ok(self.refused(line, refusal));
            }
            self.seen.insert(key, number);
        }
        if let Some(made_of) = self.done.of(number, key.as_ref()) {
            ensure!(
                made_of.is_none_or(|made_of| made_of == fingerprint.line),
                "line {number} of {} is not the line that the file of -o has its result of: give another file, \
                 remove that result from it, or replace all of it with --force",
                self.name
            );
            return Ok(Read::Done);
        }
        let (encoder, grammars) = (&self.encoder, &self.grammars);
        match parsed.prepare(line.clone(), self.vocabulary, encoder, grammars, &self.defaults) {
            Ok(prepared) => Ok(Read::Request(Box::new(prepared))),
            Err(NotHeld::Refused(refusal)) => Ok(Read::Refused(line, refusal)),
            // The grammars of other lines may keep the compiler busy, and no line ends the run for all others.
            Err(NotHeld::Compiler(why)) => {
                let message = format!("its grammar was not compiled: {why}");
                Ok(Read::Failed(line, Refusal::new(NOT_COMPILED, message)))
            }
        }
    }

    /// Refuses a line for its own content, unless that has been reported already.
    fn refused(&self, line: LineId, refusal: Refusal) -> Read {
        if self.done.of(line.number, None).is_some() {
            return Read::Done;
        }
        Read::Refused(line, refusal)
    }
}

/// The source of items.
pub enum Items {
    /// A thread, which reads some items ahead.
    Ahead(Receiver<Item>),
    /// This thread, if the system cannot start another.
    Here(Box<Reader>),
}

impl Items {
    /// Starts reading, up to `ahead` lines ahead of those requested.
    pub fn begin(reader: Reader, ahead: usize) -> Items {
        // If a thread cannot be started, the values moved into it are lost, so it is sent the reader afterwards.
        let (give, given) = sync_channel::<Reader>(1);
        let (send, items) = sync_channel(ahead);
        let work = move || {
            if let Ok(reader) = given.recv() {
                read_all(reader, &send);
            }
        };
        match thread::Builder::new().name("alight-lines".into()).spawn(work) {
            Err(_) => Items::Here(Box::new(reader)),
            Ok(_) => match give.send(reader) {
                Ok(()) => Items::Ahead(items),
                Err(back) => Items::Here(Box::new(back.0)),
            },
        }
    }

    /// Returns the next item; `None` if none has arrived within `patience`.
    pub fn next(&mut self, patience: Duration) -> Option<Item> {
        let gone = || Item::Failed(anyhow!("the thread that reads the input has ended"));
        match self {
            Items::Here(reader) => Some(reader.next()),
            Items::Ahead(items) if patience.is_zero() => match items.try_recv() {
                Err(TryRecvError::Empty) => None,
                item => Some(item.unwrap_or_else(|_| gone())),
            },
            Items::Ahead(items) => match items.recv_timeout(patience) {
                Err(RecvTimeoutError::Timeout) => None,
                item => Some(item.unwrap_or_else(|_| gone())),
            },
        }
    }
}

/// Reads until the end, or until the receiver is dropped.
fn read_all(mut reader: Reader, send: &SyncSender<Item>) {
    loop {
        let item = reader.next();
        let more = matches!(item, Item::Line(..));
        if send.send(item).is_err() || !more {
            return;
        }
    }
}
