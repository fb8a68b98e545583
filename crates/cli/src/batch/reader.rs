//! Lines of the input into prepared requests, ahead of the sequences that are computed and in a thread of their own, so that
//! neither a slow writer of the input nor a long prompt keeps the others waiting.

use std::collections::HashMap;
use std::io::BufRead;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use alight_chat::body::refusal::Refusal;
use alight_chat::grammar::{Grammars, NotHeld};
use alight_text::{Encoder, Vocabulary};
use anyhow::{Context, anyhow, ensure};

use super::fingerprint::{self, Fingerprint};
use super::lines::{LIMIT, Lines};
use super::request::{self, Defaults, Prepared};
use super::result::{DUPLICATE, LineId};
use super::resume::{Done, Key, Keys};

/// So many first lines of which none is JSON are no input of this command, but a text or something else.
const NO_JSON: u64 = 100;

/// Takes lines apart.
pub struct Reader {
    /// The input.
    pub lines: Lines<Box<dyn BufRead + Send>>,
    /// What the input is called.
    pub name: String,
    /// Whose tokenizer and template.
    pub vocabulary: &'static Vocabulary,
    /// Makes tokens.
    pub encoder: Encoder<'static>,
    /// Makes what answers are held to.
    pub grammars: Grammars,
    /// What lines do not say themselves.
    pub defaults: Defaults,
    /// The hash of all that answers depend on besides their lines.
    pub run: u64,
    /// Lines that have results.
    pub done: Done,
    /// Makes keys of ids.
    pub keys: Keys,
    /// Lines by their ids.
    pub seen: HashMap<Key, u64>,
    /// Lines from the first on that are no JSON; none as soon as one is.
    pub no_json: Option<u64>,
}

/// What is read.
pub enum Item {
    /// A line; it ends at this byte of the input.
    Line(u64, Read),
    /// The end.
    End,
    /// The input cannot be read.
    Failed(anyhow::Error),
}

/// What a line is.
pub enum Read {
    /// A request.
    Request(Box<Prepared>),
    /// None that can be computed.
    Refused(LineId, Refusal),
    /// One that has a result already.
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
            // Nothing is wrong with the line: it has no result, and the same command continues with it.
            Err(why @ NotHeld::Compiler(_)) => {
                Err(why).with_context(|| format!("line {number} of {}", self.name))
            }
        }
    }

    /// A line that is refused for itself, unless that has been said.
    fn refused(&self, line: LineId, refusal: Refusal) -> Read {
        if self.done.of(line.number, None).is_some() {
            return Read::Done;
        }
        Read::Refused(line, refusal)
    }
}

/// Where items come from.
pub enum Items {
    /// A thread, which is some items ahead.
    Ahead(Receiver<Item>),
    /// This thread, where the system gives no other.
    Here(Box<Reader>),
}

impl Items {
    /// Begins to read, up to `ahead` lines more than are asked for.
    pub fn begin(reader: Reader, ahead: usize) -> Items {
        // A thread that cannot be made takes what it was given with it, so it is given the reader afterwards.
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

    /// The next item; `None` if none is there yet after `patience`.
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

/// Reads until the end, or until nobody wants more.
fn read_all(mut reader: Reader, send: &SyncSender<Item>) {
    loop {
        let item = reader.next();
        let more = matches!(item, Item::Line(..));
        if send.send(item).is_err() || !more {
            return;
        }
    }
}
