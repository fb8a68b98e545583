//! What is said to the user, on stderr. Nothing here can fail or panic: a closed stderr is silence.
//!
//! Text that came from a file (names, keys, paths) can hold control characters and newlines; none of them
//! reaches the terminal ([`terminal_text`](crate::terminal_text)). So an error and a note are one line each,
//! whatever they name; only [`plain`] takes a text of several lines, in which names have been made
//! [`one_line`] before.

use std::io::{IsTerminal, Write, stderr};

use crate::terminal_text::{one_line, printable};

/// An error: `alight: error: …`.
pub fn error(text: &str) {
    labelled("error", "\x1b[1;31m", text);
}

/// Something the user should know that is not an error: `alight: note: …`.
pub fn note(text: &str) {
    labelled("note", "\x1b[1;36m", text);
}

/// A line without a label: what was done, and to which file.
pub fn line(text: &str) {
    let _ = writeln!(stderr().lock(), "{}", one_line(text));
}

/// Plain lines, for statistics and greetings.
pub fn plain(text: &str) {
    let _ = writeln!(stderr().lock(), "{}", printable(text));
}

/// A text that is styled already, and in which nothing else drives a terminal.
pub fn styled(text: &str) {
    let _ = stderr().lock().write_all(text.as_bytes());
}

/// A progress line that overwrites the one before it. Only on a terminal that can do that.
pub fn progress(text: &str) {
    let mut err = stderr().lock();
    if err.is_terminal() && !is_dumb() {
        let _ = write!(err, "\r\x1b[K{}", one_line(text));
        let _ = err.flush();
    }
}

/// True if somebody may be looking.
pub fn is_terminal() -> bool {
    stderr().is_terminal()
}

/// True if styled text may be written to stderr: a terminal, and `NO_COLOR` unset or empty.
pub fn colour() -> bool {
    stderr().is_terminal() && colours_allowed()
}

/// True if a terminal may be given styled text: `NO_COLOR` unset or empty, and not a dumb one.
pub fn colours_allowed() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()) && !is_dumb()
}

/// True if the terminal shows text and does nothing else.
pub fn is_dumb() -> bool {
    // (The names for which the line editor does not edit.)
    let names = ["dumb", "cons25", "emacs"];
    let term = std::env::var("TERM").unwrap_or_default();
    names.iter().any(|name| term.eq_ignore_ascii_case(name))
}

fn labelled(label: &str, style: &str, text: &str) {
    let text = one_line(text);
    let _ = if colour() {
        writeln!(stderr().lock(), "alight: {style}{label}:\x1b[0m {text}")
    } else {
        writeln!(stderr().lock(), "alight: {label}: {text}")
    };
}
