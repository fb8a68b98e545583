//! What all prompts have in common, wherever they come from: a limit that is seen before memory is spent on tokens.

use alight_text::Tokenizer;

/// Refuses a prompt of `bytes` that is too long for the context whatever its tokens are, before memory is spent on
/// finding them: each token stands for its own bytes and no more.
///
/// # Errors
/// What is wrong, for people.
pub fn check_length(bytes: usize, tokenizer: &Tokenizer, context: usize) -> Result<(), String> {
    // Nothing needs to be known of the vocabulary for most prompts.
    if bytes <= context {
        return Ok(());
    }
    let lengths = (0..tokenizer.vocab_size() as u32).map(|id| tokenizer.token_text(id).len());
    // A character that has no token is one unknown token.
    let longest = lengths.max().unwrap_or(0).max(char::MAX.len_utf8());
    if bytes <= context.saturating_mul(longest) {
        return Ok(());
    }
    Err(format!(
        "the prompt has {bytes} bytes, and the context of {context} tokens holds {} at most (no token of this \
         model is longer than {longest}): shorten it, or give a larger -c",
        context.saturating_mul(longest)
    ))
}
