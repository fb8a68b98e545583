//! Files that are refused: by the right error, with a message that helps.

use std::fmt::Debug;

/// A message is bounded and printable, and holds all of `words`.
#[track_caller]
pub fn says(what: &str, text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{what}: no {word:?} in {text:?}");
    }
    assert!(text.len() < 1000 && !text.chars().any(char::is_control), "{what}: {text:?}");
}

/// The result is the expected error, whose message holds all of `words`.
#[track_caller]
pub fn refused<T, E: std::error::Error + Debug>(
    what: &str,
    result: Result<T, E>,
    expected: impl Fn(&E) -> bool,
    words: &[&str],
) {
    match result {
        Ok(_) => panic!("{what}: was accepted"),
        Err(error) => {
            assert!(expected(&error), "{what}: {error:?}");
            says(what, &error.to_string(), words);
        }
    }
}

/// `what`, file, pattern of the error, words of its message; by the `fails` of the test file.
macro_rules! table {
    ($($what:expr, $bytes:expr, $pattern:pat $(if $guard:expr)?, [$($word:expr),*];)*) => {
        $(fails($what, &$bytes, |error| matches!(error, $pattern $(if $guard)?), &[$($word),*]);)*
    };
}
pub(crate) use table;
