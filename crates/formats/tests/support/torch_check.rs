//! Parses files of torch's and checks what must hold of every result.

use alight_formats::torch::{Torch, TorchError, parse};

/// Parses and checks that this took memory in proportion to the file: a pickle's densest content is
/// containers of one byte each.
pub fn measured(bytes: &[u8]) -> Result<Torch<'_>, TorchError> {
    let result = super::memory::within(64 * 1024 + 192 * bytes.len(), || parse(bytes));
    if let Err(error) = &result {
        let text = error.to_string();
        assert!(text.len() < 2500 && !text.chars().any(char::is_control), "{text:?}");
    }
    result
}

/// The parse fails as expected, and the message holds all of `words`.
#[track_caller]
pub fn fails(what: &str, bytes: &[u8], expected: impl Fn(&TorchError) -> bool, words: &[&str]) {
    super::refused::refused(what, measured(bytes), expected, words);
}
