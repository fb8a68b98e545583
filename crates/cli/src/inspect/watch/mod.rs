//! `alight inspect --watch`: the part of a model in the page cache, layer by layer, sampled repeatedly.
//!
//! **Invariant:** watching brings nothing into memory. The headers are read once, to locate the layers; after that only the
//! system is queried. A file whose pages it does not count for this user is refused, because sampling reads.
//!
//! A terminal shows a picture that is redrawn; any other output gets a line per sample, as text or JSON.

mod parts;
mod screen;

use std::io::Read;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use alight_formats::Format;
use alight_pages::Map;
use anyhow::{Context, anyhow};
use rusage::inherited::is_ignored;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTOU, SIGWINCH};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

pub use self::parts::Placed;
use self::parts::{Part, PartKind, Watched};
use super::cached::{AsFound, Canvas, picture};
use super::{gguf, list};
use crate::outcome::{Outcome, Stop};
use crate::terminal::Terminal;
use crate::{output, say, source, units};

/// One sample.
#[derive(Debug)]
struct Look {
    /// Time since the first one.
    elapsed: Duration,
    /// Bytes of the files, and how many of them are cached.
    bytes: u64,
    cached: u64,
    /// The cached bytes of each part.
    parts: Vec<u64>,
    /// The source of the numbers.
    source: &'static str,
    /// Bytes per second that were cached (evicted if negative) since the previous sample.
    change: f64,
}

/// Watches a model until the user ends it.
pub fn main(model: &Path, every: Duration, json: bool) -> Outcome {
    let found = AsFound::of(model);
    let (maps, tensors) = placed(model)?;
    let watched = Watched::of(maps, tensors)?;
    // Pages that reading the headers has cached are evicted again, if nothing was cached before.
    watched.maps.iter().for_each(|map| found.leave(map));
    let canvas = Canvas::stdout();
    if json || canvas.width.is_none() || say::is_dumb() {
        return lines(&watched, every, json);
    }
    on_terminal(&watched, every, canvas)
}

/// Returns the files of a model, whatever its format, and the locations of its tensors.
fn placed(model: &Path) -> anyhow::Result<(Vec<Map>, Vec<Placed>)> {
    let source = source::find(model)?;
    if source.format == Format::Gguf {
        return gguf::placed(&source.paths[0]);
    }
    let listing = list(&source)?;
    let tensors =
        listing.tensors.into_iter().map(|t| Placed { name: t.name, file: t.file, range: t.range });
    Ok((listing.files.into_iter().map(|file| file.map).collect(), tensors.collect()))
}

/// Takes samples at regular intervals.
struct Looking<'a> {
    watched: &'a Watched,
    began: Instant,
    last: Option<(Duration, u64)>,
}

impl<'a> Looking<'a> {
    fn at(watched: &'a Watched) -> Looking<'a> {
        Looking { watched, began: Instant::now(), last: None }
    }

    fn look(&mut self) -> anyhow::Result<Look> {
        let elapsed = self.began.elapsed();
        let (bytes, cached, source) = self.watched.whole()?;
        let change = self.last.map_or(0.0, |(then, before)| {
            (cached as f64 - before as f64) / (elapsed - then).as_secs_f64().max(1e-3)
        });
        self.last = Some((elapsed, cached));
        let parts = self.watched.parts.iter().map(|part| self.watched.cached(part));
        let parts = parts.collect::<anyhow::Result<_>>()?;
        Ok(Look { elapsed, bytes, cached, parts, source, change })
    }
}

impl Look {
    /// `31.2 MB of 98.4 MB cached (31 %), +12.0 MB/s`.
    fn told(&self) -> String {
        let mut text = format!(
            "{} of {} cached ({})",
            units::bytes(self.cached),
            units::bytes(self.bytes),
            units::percent(self.cached, self.bytes),
        );
        if self.change.abs() >= 1.0 {
            let sign = if self.change < 0.0 { '−' } else { '+' };
            text += &format!(", {sign}{}/s", units::bytes(self.change.abs() as u64));
        }
        text
    }
}

/// Prints a line per sample. The reader ends it by closing the pipe.
fn lines(watched: &Watched, every: Duration, json: bool) -> Outcome {
    let mut looking = Looking::at(watched);
    loop {
        let look = looking.look()?;
        if json {
            output::json(&SampleLine::of(watched, &look))?;
        } else {
            let shares: Vec<f64> =
                watched.parts.iter().zip(&look.parts).map(|(p, c)| p.share(*c)).collect();
            let picture = picture(&shares, shares.len());
            output::report(format!(
                "{:8.1} s  [{picture}]  {}\n",
                look.elapsed.as_secs_f64(),
                look.told()
            ))?;
        }
        thread::sleep(every);
    }
}

/// A sample as JSON. Fields are only ever added.
#[derive(Serialize)]
struct SampleLine<'a> {
    elapsed_s: f64,
    bytes: u64,
    cached_bytes: u64,
    cached_source: &'static str,
    parts: Vec<PartLine<'a>>,
}

#[derive(Serialize)]
struct PartLine<'a> {
    /// `header`, `embedding`, `layer`, `other` or `output`.
    part: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    layer: Option<u64>,
    name: &'a str,
    bytes: u64,
    cached_bytes: u64,
}

impl<'a> SampleLine<'a> {
    fn of(watched: &'a Watched, look: &Look) -> SampleLine<'a> {
        let part = |(part, cached): (&'a Part, &u64)| PartLine {
            part: part.kind.name(),
            layer: match part.kind {
                PartKind::Layer(n) => Some(n),
                _ => None,
            },
            name: &part.label,
            bytes: part.bytes,
            cached_bytes: *cached,
        };
        SampleLine {
            elapsed_s: look.elapsed.as_secs_f64(),
            bytes: look.bytes,
            cached_bytes: look.cached,
            cached_source: look.source,
            parts: watched.parts.iter().zip(&look.parts).map(part).collect(),
        }
    }
}

/// An event while a terminal shows the picture.
enum ScreenEvent {
    Key(u8),
    Signal(i32),
}

/// The reason that the picture ends.
enum Left {
    /// A key or Ctrl-C: this is the outcome.
    Done(Outcome),
    /// A signal that has its usual effect once the terminal is restored.
    By(i32),
}

fn on_terminal(watched: &Watched, every: Duration, canvas: Canvas) -> Outcome {
    let (send, events) = channel();
    let caught = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP];
    let caught = caught.into_iter().filter(|&s| !is_ignored(s)).chain([SIGWINCH]);
    let mut signals = Signals::new(caught).context("cannot handle signals")?;
    let to = send.clone();
    let listen =
        move || signals.forever().all(|signal| to.send(ScreenEvent::Signal(signal)).is_ok());
    thread::Builder::new().name("signals".into()).spawn(listen).context("cannot start a thread")?;
    let terminal = Terminal::of_process().context("there is no terminal")?;
    let mut keys = Some(send);
    let mut looking = Looking::at(watched);
    loop {
        while terminal.is_others() {
            // As for any process that writes to a terminal from the background: stopped until it is brought to the foreground.
            emulate_default_handler(SIGTTOU).context("cannot stop")?;
        }
        if let Some(send) = keys.take() {
            listen_for_keys(terminal, send);
        }
        let left = terminal.screened(|| shown(&mut looking, every, canvas, &events));
        match left {
            Left::By(SIGTSTP) => emulate_default_handler(SIGTSTP).context("cannot stop")?,
            Left::By(signal) => rusage::signals::die_by(signal),
            Left::Done(outcome) => {
                // The picture is gone; its last totals stay.
                if let Some((elapsed, cached)) = looking.last {
                    let (bytes, parts) = (watched.bytes(), Vec::new());
                    let look = Look { elapsed, bytes, cached, parts, source: "", change: 0.0 };
                    output::report(format!(
                        "{} after {}\n",
                        look.told(),
                        units::duration(elapsed.as_secs_f64())
                    ))?;
                }
                return outcome;
            }
        }
    }
}

/// Draws until an event ends it.
fn shown(
    looking: &mut Looking<'_>,
    every: Duration,
    canvas: Canvas,
    events: &Receiver<ScreenEvent>,
) -> Left {
    loop {
        let look = match looking.look() {
            Ok(look) => look,
            Err(error) => return Left::Done(Err(Stop::Failed(error))),
        };
        let until = Instant::now() + every;
        loop {
            let size = screen::Size::of_stdout();
            let frame = screen::frame(looking.watched, &look, size, canvas);
            if let Err(stop) = output::report(frame) {
                return Left::Done(Err(stop));
            }
            match events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                // Another size: redraw.
                Ok(ScreenEvent::Signal(SIGWINCH)) => continue,
                Ok(ScreenEvent::Signal(SIGINT)) => return Left::Done(Err(Stop::Interrupted)),
                Ok(ScreenEvent::Signal(signal)) => return Left::By(signal),
                Ok(ScreenEvent::Key(b'q' | b'Q')) => return Left::Done(Ok(())),
                Ok(ScreenEvent::Key(_)) => continue,
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => {
                    return Left::Done(Err(Stop::Failed(anyhow!(
                        "the threads that listen are gone"
                    ))));
                }
            }
        }
    }
}

/// Listens for keys. If none can be read, signals can still end the program.
fn listen_for_keys(terminal: &'static Terminal, send: Sender<ScreenEvent>) {
    let listen = move || {
        let mut key = [0];
        while matches!(terminal.keys().read(&mut key), Ok(1))
            && send.send(ScreenEvent::Key(key[0])).is_ok()
        {}
    };
    let _ = thread::Builder::new().name("keys".into()).spawn(listen);
}
