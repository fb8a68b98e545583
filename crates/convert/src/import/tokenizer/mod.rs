//! Converts tokenizer files into GGUF keys: the tokens, their special meanings, and the chat
//! templates.
//!
//! The names of keys, their order and their values follow llama.cpp (`conversion/base.py`, and
//! `SpecialVocab` of its package `gguf`), so that a file converted here equals one converted there.
//! Where that would give a worse result, a comment explains it.
//!
//! - `base`: the tokens themselves, from `tokenizer.model` or `tokenizer.json`;
//! - `added`: tokens from other files;
//! - `special`: ids and flags;
//! - `template`: chat templates.

mod added;
mod base;
mod config;
mod special;
mod template;
#[cfg(test)]
mod tests;

use alight_formats::tokenizer::{Model, TokenType};
use alight_text::tokenizer::END_IDS;

use super::side::SideFiles;
use super::tensor::Entry;
use crate::ConvertError;
use base::Base;
use config::TokenizerConfig;

/// The contents of a tokenizer's files.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tokens {
    /// Metadata, in the order in which it is written.
    pub(crate) keys: Vec<(String, Entry)>,
    /// Notes for the user: guesses and losses.
    pub(crate) notes: Vec<String>,
}

/// Reads the tokenizer of a folder whose embedding has `vocab` rows; `None` if it has none. `templates` (name, text) are added to its own.
///
/// # Errors
/// Its files are malformed, or do not match each other or the embedding.
pub(crate) fn read(
    side: &SideFiles,
    architecture: &str,
    vocab: u64,
    templates: &[(&'static str, String)],
) -> Result<Option<Tokens>, ConvertError> {
    let files = base::find(side, architecture)?;
    let Some((mut base, json)) = Base::read(&files, vocab)? else { return Ok(None) };
    let config = TokenizerConfig::read(side)?;
    let json = if json.is_some() { json } else { files.json()? };
    added::add(&mut base, side, &config)?;
    if base.model == Model::Characters {
        show(&mut base);
    }
    let mut notes = std::mem::take(&mut base.notes);
    let special = special::find(&base, &config, json.as_ref(), side, &mut notes)?;
    base.check_texts()?;

    let mut keys = Vec::new();
    let mut put = |key: &str, entry| keys.push((key.to_owned(), entry));
    let gemma = architecture.starts_with("gemma");
    let prefix = prefix(&base, &config, architecture);
    let put_prefix = |put: &mut dyn FnMut(&str, Entry)| {
        if let Some(prefix) = prefix {
            put("tokenizer.ggml.add_space_prefix", Entry::Bool(prefix));
        }
    };
    // llama.cpp writes it first or last.
    if !gemma && base.model != Model::Unigram {
        put_prefix(&mut put);
    }
    put("tokenizer.ggml.model", Entry::Str(base.model.name().into()));
    put("tokenizer.ggml.pre", Entry::Str(base.pre.into()));
    let types = base.slots.iter().map(|slot| slot.ty as i32).collect();
    let scores = base.slots.iter().map(|slot| slot.score).collect();
    let model = base.model;
    let texts = base.slots.into_iter().map(|slot| slot.text).collect();
    put("tokenizer.ggml.tokens", Entry::Strs(texts));
    if !matches!(model, Model::ByteLevel | Model::WordPiece) {
        put("tokenizer.ggml.scores", Entry::F32s(scores));
    }
    put("tokenizer.ggml.token_type", Entry::I32s(types));
    if matches!(model, Model::ByteLevel | Model::Characters) {
        put("tokenizer.ggml.merges", Entry::Strs(base.merges));
    }
    if model == Model::Unigram {
        put_prefix(&mut put);
        let merges = Entry::Bool(base.remove_extra_whitespaces);
        put("tokenizer.ggml.remove_extra_whitespaces", merges);
        if !base.charsmap.is_empty() {
            put("tokenizer.ggml.precompiled_charsmap", Entry::U8s(base.charsmap));
        }
    }
    if let Some(rules) = base.word_piece {
        for (name, rule) in [("lowercase", rules.lowercase), ("strip_accents", rules.strip_accents)]
        {
            put(&format!("tokenizer.ggml.normalizer.{name}"), Entry::Bool(rule));
        }
        // Keys of our own, for what llama.cpp takes for granted.
        for (name, rule) in
            [("clean_text", rules.clean_text), ("handle_chinese_chars", rules.split_ideographs)]
        {
            if !rule {
                put(&format!("tokenizer.ggml.normalizer.{name}"), Entry::Bool(rule));
            }
        }
    }
    for (name, id) in &special.ids {
        put(&format!("tokenizer.ggml.{name}_token_id"), Entry::U32(*id));
    }
    if !special.ends.is_empty() {
        put(END_IDS, Entry::U32s(special.ends));
    }
    for (name, add) in &special.add {
        put(&format!("tokenizer.ggml.add_{name}_token"), Entry::Bool(*add));
    }
    for (key, entry) in template::read(side, &config, templates, &mut notes)? {
        put(&key, entry);
    }
    if gemma && model != Model::Unigram {
        put_prefix(&mut put);
    }
    Ok(Some(Tokens { keys, notes }))
}

/// Returns the ids of these texts in the tokenizer of a folder, whose embedding has `vocab` rows; `None` if it has none.
///
/// # Errors
/// Its files are malformed, or do not match the embedding.
pub(crate) fn ids<const N: usize>(
    side: &SideFiles,
    architecture: &str,
    vocab: u64,
    texts: [&str; N],
) -> Result<Option<[Option<u32>; N]>, ConvertError> {
    let files = base::find(side, architecture)?;
    let read = Base::read(&files, vocab)?;
    Ok(read.map(|(base, _)| texts.map(|text| base.id(text))))
}

/// Tokens that Gemma 4 writes around its thoughts and calls, which programs have to see, as in llama.cpp's
/// converter.
const VISIBLE: [&str; 7] = [
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
];

/// Makes tokens that have to be visible user-defined instead of control tokens.
fn show(base: &mut Base) {
    for slot in &mut base.slots {
        if VISIBLE.contains(&slot.text.as_str()) {
            slot.ty = TokenType::UserDefined;
        }
    }
}

/// Returns `tokenizer.ggml.add_space_prefix`, if it is to be written. llama.cpp writes it for llama
/// if the configuration has it, and for Gemma always; a SentencePiece file's own setting is also
/// written if it differs from the readers' default.
fn prefix(base: &Base, config: &TokenizerConfig, architecture: &str) -> Option<bool> {
    let given = config.flag("add_prefix_space").filter(|_| architecture == "llama");
    let own = match base.model {
        Model::ByteLevel | Model::WordPiece => false,
        Model::SentencePiece => !base.add_space_prefix || architecture.starts_with("gemma"),
        // For these, readers assume the opposite by default.
        Model::Unigram | Model::Characters => true,
    };
    given.or(own.then_some(base.add_space_prefix))
}
