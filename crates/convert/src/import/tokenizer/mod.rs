//! The files of a tokenizer, into the keys of GGUF: which tokens there are, which of them mean
//! something, and how a chat is written.
//!
//! The names of keys, their order and what goes where are llama.cpp's (`conversion/base.py`, and
//! `SpecialVocab` of its package `gguf`), so that a file converted here is the one converted there.
//! Where the result would be worse for it this is said beside the code.
//!
//! - `base`: the tokens themselves, of `tokenizer.model` or `tokenizer.json`;
//! - `added`: what other files add to them;
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

use super::side::SideFiles;
use super::tensor::Entry;
use crate::ConvertError;
use base::Base;
use config::Config;

/// What the files of a tokenizer come to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tokens {
    /// Metadata, in the order in which it is written.
    pub(crate) keys: Vec<(String, Entry)>,
    /// What a person should know: guesses, and what was lost.
    pub(crate) notes: Vec<String>,
}

/// The tokenizer of a folder whose embedding has `vocab` rows; `None` if it has none.
///
/// # Errors
/// Its files are not in order, or do not fit each other or the embedding.
pub(crate) fn read(
    side: &SideFiles,
    architecture: &str,
    vocab: u64,
) -> Result<Option<Tokens>, ConvertError> {
    let files = base::find(side, architecture)?;
    let Some((mut base, json)) = Base::read(&files, vocab)? else { return Ok(None) };
    let config = Config::read(side)?;
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
    if model != Model::ByteLevel {
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
    for (name, id) in &special.ids {
        put(&format!("tokenizer.ggml.{name}_token_id"), Entry::U32(*id));
    }
    for (name, add) in &special.add {
        put(&format!("tokenizer.ggml.add_{name}_token"), Entry::Bool(*add));
    }
    for (key, entry) in template::read(side, &config, &mut notes)? {
        put(&key, entry);
    }
    if gemma && model != Model::Unigram {
        put_prefix(&mut put);
    }
    Ok(Some(Tokens { keys, notes }))
}

/// What Gemma 4 writes around its thoughts and calls, which programs have to see, as in llama.cpp's converter.
const VISIBLE: [&str; 7] = [
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
];

/// Makes tokens that have to be seen no control tokens.
fn show(base: &mut Base) {
    for slot in &mut base.slots {
        if VISIBLE.contains(&slot.text.as_str()) {
            slot.ty = TokenType::UserDefined;
        }
    }
}

/// `tokenizer.ggml.add_space_prefix`, if it is to be written. llama.cpp writes it for llama where the
/// configuration has it, and for Gemma always; what a file of SentencePiece says of itself is written
/// too where it is not what readers take for granted.
fn prefix(base: &Base, config: &Config, architecture: &str) -> Option<bool> {
    let given = config.flag("add_prefix_space").filter(|_| architecture == "llama");
    let own = match base.model {
        Model::ByteLevel => false,
        Model::SentencePiece => !base.add_space_prefix || architecture.starts_with("gemma"),
        // Of these readers take the opposite for granted.
        Model::Unigram | Model::Characters => true,
    };
    given.or(own.then_some(base.add_space_prefix))
}
