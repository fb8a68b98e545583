//! How text is laid out in the columns of a terminal: tables, and lines whose words are not broken.
//!
//! The terminal is asked each time, since a person may change its size. A pipe, a file and a terminal that only shows text have no
//! width ([`columns`] is `None`): they get lines of any length.

use std::io::IsTerminal;
use std::os::fd::AsFd;

use unicode_width::UnicodeWidthChar;

pub mod lines;
pub mod table;
pub mod words;

/// Returns the number of columns to write to, if `stream` is a terminal. The last one stays free: with a character in it, terminals
/// differ in whether the cursor is in that column or after it.
pub fn columns(stream: impl AsFd + IsTerminal) -> Option<usize> {
    let (columns, _) = size(stream).filter(|_| !is_dumb())?;
    Some(columns.saturating_sub(1).max(1))
}

/// Returns true if the terminal only shows text.
pub fn is_dumb() -> bool {
    // (The names for which the line editor does not edit.)
    let names = ["dumb", "cons25", "emacs"];
    let term = std::env::var("TERM").unwrap_or_default();
    names.iter().any(|name| term.eq_ignore_ascii_case(name))
}

/// Returns the columns and rows, if `stream` is a terminal. Some pseudo-terminals do not know them: then they are the usual 80 and 24.
pub fn size(stream: impl AsFd + IsTerminal) -> Option<(usize, usize)> {
    if !stream.is_terminal() {
        return None;
    }
    let size = terminal_size::terminal_size_of(stream);
    Some(size.map_or((80, 24), |(columns, rows)| (columns.0.into(), rows.0.into())))
}

/// Returns the number of columns that a line takes; styles take none.
pub fn width(line: &str) -> usize {
    textwrap::core::display_width(line)
}

/// Returns as much of a line as fits, with `…` at its end if something is left out.
pub fn cut(line: &str, columns: usize) -> String {
    if width(line) <= columns {
        return line.to_owned();
    }
    let mut used = 1;
    let fits = |c: &char| {
        used += c.width().unwrap_or(0);
        used <= columns
    };
    let mut shown: String = line.chars().take_while(fits).collect();
    shown.push('…');
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_where_it_no_longer_fits() {
        for (columns, shown) in
            [(11, "日本 and é."), (10, "日本 and …"), (4, "日…"), (3, "日…"), (2, "…"), (1, "…")]
        {
            assert_eq!(cut("日本 and é.", columns), shown, "{columns}");
        }
    }
}
