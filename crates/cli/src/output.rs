//! Standard output: everything written to it goes through this module.
//!
//! It is data. A pipe or a file gets it byte for byte; only on a terminal is an answer's text made harmless
//! ([`terminal_text`](crate::terminal_text)). A failed write is an error, also if the stream was closed before the program began;
//! each function here returns when the system has accepted everything.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::OnceLock;

use serde::{Serialize, Serializer};

use crate::layout::words::Wrap;
use crate::layout::{self, lines};
use crate::outcome::Outcome;
use crate::say;
use crate::terminal_text::{self, Filter};

/// Writes a text in which nothing drives a terminal: a report whose strings from files went through
/// [`printable`](terminal_text::printable).
pub fn report(text: impl AsRef<[u8]>) -> Outcome {
    Ok(stdout()?.write_all(text.as_ref())?)
}

/// [`report`] for people, of lines whose words a terminal does not break.
pub fn lines(text: &str) -> Outcome {
    report(lines::fit(text, columns()))
}

/// Returns the columns of stdout, if it is a terminal that can move its cursor.
pub fn columns() -> Option<usize> {
    layout::columns(io::stdout())
}

/// Writes a value as a line of JSON.
pub fn json<T: Serialize + ?Sized>(value: &T) -> Outcome {
    let mut out = BufWriter::new(stdout()?);
    terminal_text::escape_json(value, &mut out)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// Writes the output of `write`, in which nothing drives a terminal: a report that is too long to be built first.
pub fn written(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Outcome {
    let mut out = BufWriter::new(stdout()?);
    write(&mut out)?;
    Ok(out.flush()?)
}

/// Serializes a path as text, with U+FFFD where it is not UTF-8: for `serialize_with`.
///
/// # Errors
/// Those of the serializer.
pub fn lossy<P: AsRef<Path>, S: Serializer>(path: &P, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.as_ref().to_string_lossy())
}

/// Begins dimmed text on a terminal.
const DIM: &str = "\x1b[2m";
/// Ends dimmed text.
const USUAL: &str = "\x1b[0m";

/// Returns true if text may be dimmed: on a terminal that accepts styles.
pub fn can_dim() -> bool {
    io::stdout().is_terminal() && say::colours_allowed()
}

/// Writes a text that a model generates, piece by piece.
#[derive(Debug)]
pub struct Stream {
    /// On a terminal only.
    filter: Option<Filter>,
    wrap: Option<Wrap>,
    safe: String,
    shown: String,
}

impl Stream {
    /// Begins a text, whose words a terminal does not break.
    pub fn new() -> Stream {
        let filter = io::stdout().is_terminal().then(Filter::default);
        let wrap = columns().map(Wrap::new);
        Stream { filter, wrap, safe: String::new(), shown: String::with_capacity(1024) }
    }

    /// Appends a piece to the displayed text, made harmless.
    fn show(&mut self, push: impl FnOnce(&mut Filter, &mut String)) {
        let Some(filter) = &mut self.filter else { return };
        match &mut self.wrap {
            None => push(filter, &mut self.shown),
            Some(wrap) => {
                self.safe.clear();
                push(filter, &mut self.safe);
                wrap.resize(columns().unwrap_or(usize::MAX));
                wrap.push(&self.safe, &mut self.shown);
            }
        }
    }

    /// Writes the next piece.
    ///
    /// # Errors
    /// Those of the system.
    pub fn write(&mut self, piece: &str) -> io::Result<()> {
        if self.filter.is_none() {
            return self::write(piece);
        }
        self.shown.clear();
        self.show(|filter, shown| filter.push(piece, shown));
        self::write(&self.shown)
    }

    /// Writes the next piece dimmed, if [`can_dim`] allows it. Each piece ends its style, so that the terminal is unchanged if
    /// the program ends between two of them.
    ///
    /// # Errors
    /// Those of the system.
    pub fn write_dim(&mut self, piece: &str) -> io::Result<()> {
        if self.filter.is_none() {
            return self::write(piece);
        }
        self.shown.clear();
        self.shown.push_str(DIM);
        self.show(|filter, shown| filter.push(piece, shown));
        self.shown.push_str(USUAL);
        self::write(&self.shown)
    }

    /// Ends the text with a newline.
    ///
    /// # Errors
    /// Those of the system.
    pub fn end(mut self) -> io::Result<()> {
        self.shown.clear();
        self.show(Filter::finish);
        self.shown.push('\n');
        self::write(&self.shown)
    }
}

fn write(text: &str) -> io::Result<()> {
    stdout()?.write_all(text.as_bytes())
}

/// Returns the stream without a buffer. Not [`std::io::Stdout`], which reports success if the descriptor is closed or cannot be
/// written to.
fn stdout() -> io::Result<&'static File> {
    static OUT: OnceLock<File> = OnceLock::new();
    if rusage::inherited::was_closed(1) {
        // The error that a write would have returned, had the runtime not opened /dev/null in its place.
        return Err(rustix::io::Errno::BADF.into());
    }
    if let Some(out) = OUT.get() {
        return Ok(out);
    }
    let ours = io::stdout().as_fd().try_clone_to_owned()?;
    Ok(OUT.get_or_init(|| File::from(ours)))
}
