//! What must hold of every tokenizer that is accepted, whatever the bytes of its file.

use alight_formats::tokenizer::{Model, TokenType, TokenizerError, Vocabulary, byte_of};

/// Checks every promise of a [`Vocabulary`] and of its errors. Panics on a broken one.
pub fn check(found: Result<Vocabulary<'_>, TokenizerError>) {
    let found = match found {
        Ok(found) => found,
        Err(error) => {
            // Messages are bounded and printable, whatever the file says.
            let text = error.to_string();
            assert!(text.len() < 2000 && !text.chars().any(char::is_control), "{text:?}");
            return;
        }
    };
    assert!(!found.tokens.is_empty());
    assert!(found.tokens.windows(2).all(|pair| pair[0].id < pair[1].id));
    for token in &found.tokens {
        assert!(token.score.is_finite());
        assert!(token.ty != TokenType::Byte || byte_of(&token.text).is_some());
    }
    let special = &found.special;
    let ids =
        [special.bos, special.eos, special.eot, special.eom, special.unknown, special.padding];
    for id in ids.into_iter().flatten() {
        assert!(found.tokens.binary_search_by_key(&id, |token| token.id).is_ok(), "{id}");
    }
    assert!(found.merges.is_empty() || found.model == Model::ByteLevel);
    for note in &found.notes {
        assert!(note.len() < 1000 && !note.chars().any(char::is_control), "{note:?}");
    }
}
