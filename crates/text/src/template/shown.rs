//! Names and texts of a template, as messages show them.

use std::borrow::Cow;

/// A name from a template for a message: short, and on one line.
pub(super) fn clip(name: &str) -> Cow<'_, str> {
    const MAX_CHARS: usize = 60;
    if name.len() <= MAX_CHARS && !name.chars().any(char::is_control) {
        return name.into();
    }
    let short: String = name.chars().take(MAX_CHARS).flat_map(without_control).collect();
    Cow::Owned(if name.chars().nth(MAX_CHARS).is_some() { short + "…" } else { short })
}

/// A template's text for the user: of limited length, and without control characters.
pub(super) fn readable(message: &str) -> String {
    const MAX_CHARS: usize = 2000;
    message.chars().take(MAX_CHARS).flat_map(without_control).collect()
}

fn without_control(c: char) -> impl Iterator<Item = char> {
    let escape = if c.is_control() { Some(c.escape_default()) } else { None };
    let plain = if escape.is_some() { None } else { Some(c) };
    escape.into_iter().flatten().chain(plain)
}
