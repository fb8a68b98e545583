//! Tokens from other files: `added_tokens.json`, and `added_tokens_decoder` in
//! `tokenizer_config.json`, which takes precedence.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

use alight_formats::tokenizer::{Model, TokenType, looks_special};
use serde_json::Value;

use super::super::side::SideFiles;
use super::base::{Base, Slot};
use super::config::{CONFIG, TokenizerConfig};
use crate::ConvertError;

const ADDED: &str = "added_tokens.json";
const DECODER: &str = "added_tokens_decoder";
/// The score of an added token, as in llama.cpp's converter.
const SCORE: f32 = -1000.0;

/// Adds the tokens of these files to `base`.
pub(super) fn add(
    base: &mut Base,
    side: &SideFiles,
    config: &TokenizerConfig,
) -> Result<(), ConvertError> {
    let mut left_out = Vec::new();
    let wrong = |path: PathBuf, problem| Err(ConvertError::Side { path, problem });
    for (text, id) in side.tokenizer.json(ADDED)?.unwrap_or_default() {
        let Some(id) = id.as_u64() else {
            return wrong(
                side.tokenizer.path(ADDED),
                format!("{text:?}: its id is {id}, expected a number"),
            );
        };
        let Some(slot) = slot(base, id) else {
            left_out.push(text);
            continue;
        };
        // For the kind of token, `tokenizer.json` is more reliable.
        if base.sentencepiece || base.slots[slot].text != text {
            base.slots[slot] = Slot { text, score: SCORE, ty: TokenType::UserDefined };
        }
    }

    let decoder = config.config.get(DECODER).and_then(Value::as_object);
    let mut entries = BTreeMap::new();
    for (id, token) in decoder.into_iter().flatten() {
        let path = || side.tokenizer.path(CONFIG);
        let Ok(id) = id.parse::<u64>() else {
            return wrong(path(), format!("{DECODER}: {id:?} is no id of a token"));
        };
        let Some(text) = token.get("content").and_then(Value::as_str) else {
            return wrong(path(), format!("{DECODER}: token {id} has no content"));
        };
        let special = token.get("special").and_then(Value::as_bool).unwrap_or(false);
        entries.insert(id, (text, special));
    }
    for (id, (text, special)) in entries {
        let Some(slot) = slot(base, id) else {
            left_out.push(text.to_owned());
            continue;
        };
        let (text, ty) = if special || looks_special(text) {
            (text.to_owned(), TokenType::Control)
        } else {
            // Matched in the text as written.
            (text.replace('▁', " "), TokenType::UserDefined)
        };
        base.slots[slot] = Slot { text, score: SCORE, ty };
    }
    if let Some(first) = left_out.first().filter(|_| !base.left_out) {
        base.notes.push(format!(
            "{} added tokens have no row in the embedding and are left out, the first of them \
             {first:?}",
            left_out.len()
        ));
    }

    // A `tokenizer.json` seldom lacks them; if it does, Hugging Face's library adds them.
    if !base.sentencepiece {
        let mut special: HashSet<&str> = config.special().collect();
        for slot in &mut base.slots {
            if special.remove(slot.text.as_str())
                && matches!(slot.ty, TokenType::Normal | TokenType::UserDefined)
            {
                slot.ty = TokenType::Control;
                if base.model == Model::SentencePiece {
                    slot.score = SCORE;
                }
            }
        }
    }
    Ok(())
}

/// Returns the index of the row `id`, if it exists.
fn slot(base: &Base, id: u64) -> Option<usize> {
    usize::try_from(id).ok().filter(|id| *id < base.slots.len())
}
