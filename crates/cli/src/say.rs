//! Messages to the user, on stderr. Nothing here can fail or panic: if stderr is closed, nothing is printed.
//!
//! Text from a file (names, keys, paths) can contain control characters and newlines; none of them reaches the terminal
//! ([`terminal_text`](crate::terminal_text)). So an error and a note are one line each, whatever names they contain, which a terminal
//! shows in several without breaking a word; only [`plain`] accepts a text of several lines, in which names must already have been
//! passed through [`one_line`].

use std::io::{IsTerminal, Write, stderr};

pub use crate::layout::is_dumb;
use crate::layout::{self, lines};
use crate::terminal_text::{one_line, printable};

/// Prints an error: `alight: error: …`.
pub fn error(text: &str) {
    labelled("error", "\x1b[1;31m", text);
}

/// Prints information that is not an error: `alight: note: …`.
pub fn note(text: &str) {
    labelled("note", "\x1b[1;36m", text);
}

/// Prints a line without a label: an action and its file.
pub fn line(text: &str) {
    let _ = writeln!(stderr().lock(), "{}", lines::fit(&one_line(text), columns()));
}

/// Prints plain lines, for statistics and greetings. A terminal breaks none of their words.
pub fn plain(text: &str) {
    let _ = writeln!(stderr().lock(), "{}", lines::fit(&printable(text), columns()));
}

/// Prints lines that are already styled, and in which nothing else drives a terminal. A terminal breaks none of their words.
pub fn styled(text: &str) {
    let _ = stderr().lock().write_all(lines::fit(text, columns()).as_bytes());
}

/// Prints a progress line that overwrites the previous one, cut where the terminal ends: only one line can be overwritten. Only on a
/// terminal that supports it.
pub fn progress(text: &str) {
    let Some(columns) = columns() else { return };
    let mut err = stderr().lock();
    let _ = write!(err, "\r\x1b[K{}", layout::cut(&one_line(text), columns));
    let _ = err.flush();
}

/// Returns the columns of stderr, if it is a terminal that can move its cursor.
pub fn columns() -> Option<usize> {
    layout::columns(stderr())
}

/// Returns true if stderr is a terminal.
pub fn is_terminal() -> bool {
    stderr().is_terminal()
}

/// Returns true if styled text may be written to stderr: a terminal, and `NO_COLOR` unset or empty.
pub fn colour() -> bool {
    stderr().is_terminal() && colours_allowed()
}

/// Returns true if styled text may be written to a terminal: `NO_COLOR` unset or empty, and not a dumb one.
pub fn colours_allowed() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()) && !is_dumb()
}

fn labelled(label: &str, style: &str, text: &str) {
    let plain = format!("alight: {label}: {}", one_line(text));
    let text = lines::fit(&plain, columns());
    let _ = match text.strip_prefix(&format!("alight: {label}:")).filter(|_| colour()) {
        Some(text) => writeln!(stderr().lock(), "alight: {style}{label}:\x1b[0m{text}"),
        None => writeln!(stderr().lock(), "{text}"),
    };
}
