//! Standard output: everything that is written there goes through here.
//!
//! It is data. A pipe or a file gets it byte for byte; only on a terminal is an answer's text made
//! harmless ([`terminal_text`](crate::terminal_text)). What cannot be written is an error, also where
//! the stream was closed before the program began; each function here returns when the system has
//! taken everything.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::OnceLock;

use serde::{Serialize, Serializer};

use crate::outcome::Outcome;
use crate::say;
use crate::terminal_text::{self, Filter};

/// Writes a text in which nothing drives a terminal: a report whose strings from files went through
/// [`printable`](terminal_text::printable).
pub fn report(text: impl AsRef<[u8]>) -> Outcome {
    Ok(stdout()?.write_all(text.as_ref())?)
}

/// Writes a value as a line of JSON.
pub fn json<T: Serialize + ?Sized>(value: &T) -> Outcome {
    let mut out = BufWriter::new(stdout()?);
    terminal_text::escape_json(value, &mut out)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// Serializes a path as text, with U+FFFD where it is not UTF-8: for `serialize_with`.
///
/// # Errors
/// Of the serializer.
pub fn lossy<P: AsRef<Path>, S: Serializer>(path: &P, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.as_ref().to_string_lossy())
}

/// Begins dimmed text on a terminal, and ends it.
const DIM: &str = "\x1b[2m";
const USUAL: &str = "\x1b[0m";

/// Writes a text that a model makes, piece by piece.
#[derive(Debug)]
pub struct Stream {
    /// On a terminal only.
    filter: Option<Filter>,
    shown: String,
    /// Whether what was written last is dimmed.
    dim: bool,
}

impl Stream {
    /// A text begins.
    pub fn new() -> Stream {
        let filter = io::stdout().is_terminal().then(Filter::default);
        Stream { filter, shown: String::with_capacity(1024), dim: false }
    }

    /// Writes its next piece, `dim` or not on a terminal that may be given styles.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&mut self, dim: bool, piece: &str) -> io::Result<()> {
        let Some(filter) = &mut self.filter else { return self::write(piece) };
        self.shown.clear();
        if dim != self.dim && say::colours_allowed() {
            self.dim = dim;
            self.shown.push_str(if dim { DIM } else { USUAL });
        }
        filter.push(piece, &mut self.shown);
        self::write(&self.shown)
    }

    /// Writes the newline after its end.
    ///
    /// # Errors
    /// The system's.
    pub fn end(mut self) -> io::Result<()> {
        self.shown.clear();
        if let Some(filter) = &mut self.filter {
            filter.finish(&mut self.shown);
        }
        if self.dim {
            self.shown.push_str(USUAL);
        }
        self.shown.push('\n');
        self::write(&self.shown)
    }
}

fn write(text: &str) -> io::Result<()> {
    stdout()?.write_all(text.as_bytes())
}

/// The stream without a buffer. Not as [`std::io::Stdout`], which takes it for success if the descriptor
/// is closed or cannot be written to.
fn stdout() -> io::Result<&'static File> {
    static OUT: OnceLock<File> = OnceLock::new();
    if rusage::inherited::was_closed(1) {
        // What a write would have said, had the runtime not opened /dev/null in its place.
        return Err(rustix::io::Errno::BADF.into());
    }
    if let Some(out) = OUT.get() {
        return Ok(out);
    }
    let ours = io::stdout().as_fd().try_clone_to_owned()?;
    Ok(OUT.get_or_init(|| File::from(ours)))
}
