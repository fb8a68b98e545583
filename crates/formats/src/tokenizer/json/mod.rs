//! Hugging Face's `tokenizer.json`: a pipeline of normalizer, pre_tokenizer, model, post_processor and
//! decoder, and the tokens that were added to the model's.
//!
//! Fields and their defaults are from the library `tokenizers` (its documentation, and the `Deserialize` of
//! each part). The file is parsed as a stream: strings are borrowed from it, and no tree is built in memory.
//! Its small parts are bounded in length and read one by one; nesting is bounded by serde_json's own limit (128
//! deep). Unknown fields are ignored, as in `tokenizers`.

mod bpe;
mod parts;
mod pre;
mod text;
mod unigram;
mod vocabulary;
mod wordpiece;

use serde::Deserialize;
use serde_json::value::RawValue;

pub use parts::{Added, Component, Pattern, TemplatePiece};
pub use text::{Entries, Merge, Text};

use super::{MAX_FILE, TokenizerError};

/// A parsed `tokenizer.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct File<'a> {
    /// Tokens added to those of the model, or marked among them.
    pub added_tokens: Vec<Added<'a>>,
    /// The first transformation of a text.
    pub normalizer: Option<Component<'a>>,
    /// How the text is split.
    pub pre_tokenizer: Option<Component<'a>>,
    /// How its pieces become tokens.
    pub model: JsonModel<'a>,
    /// The tokens put around the others.
    pub post_processor: Option<Component<'a>>,
    /// How tokens become text.
    pub decoder: Option<Component<'a>>,
}

/// The same, before its small parts are parsed.
#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(default, borrow)]
    added_tokens: Option<Vec<Added<'a>>>,
    #[serde(default, borrow)]
    normalizer: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow)]
    model: JsonModel<'a>,
    #[serde(default, borrow)]
    post_processor: Option<&'a RawValue>,
    #[serde(default, borrow)]
    decoder: Option<&'a RawValue>,
}

/// Maximum bytes of a part other than the model: a part uses many times its length in memory.
const MAX_PART: usize = 1 << 20;

/// The model of a file; the fields present depend on its type.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct JsonModel<'a> {
    /// `BPE`, `Unigram`, `WordPiece` or `WordLevel`; early files do not state it.
    #[serde(default, rename = "type", borrow)]
    pub kind: Option<Text<'a>>,
    /// Its tokens.
    #[serde(borrow)]
    pub vocab: Entries<'a>,
    /// Merges of BPE by rank.
    #[serde(default, borrow)]
    pub merges: Option<Vec<Merge<'a>>>,
    /// The prefix of a token that does not begin a word.
    #[serde(default, borrow)]
    pub continuing_subword_prefix: Option<Text<'a>>,
    /// The suffix of a token that ends a word.
    #[serde(default, borrow)]
    pub end_of_word_suffix: Option<Text<'a>>,
    /// The longest word of WordPiece that has tokens, in characters.
    #[serde(default)]
    pub max_input_chars_per_word: Option<u64>,
    /// The unknown token of BPE and of WordPiece.
    #[serde(default, borrow)]
    pub unk_token: Option<Text<'a>>,
    /// The unknown token of Unigram.
    #[serde(default)]
    pub unk_id: Option<u32>,
    /// True if text without a token is spelled in bytes.
    #[serde(default)]
    pub byte_fallback: Option<bool>,
    /// True if several unknown tokens become one.
    #[serde(default)]
    pub fuse_unk: Option<bool>,
    /// True if a piece that is a token is used whole, whatever the merges would yield.
    #[serde(default)]
    pub ignore_merges: Option<bool>,
}

/// Reads a file.
///
/// # Errors
/// The bytes are not JSON, or not a tokenizer.
pub fn parse(bytes: &[u8]) -> Result<File<'_>, TokenizerError> {
    if bytes.len() > MAX_FILE {
        return Err(TokenizerError::TooLong { len: bytes.len() });
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|error| TokenizerError::NotUtf8 { at: error.valid_up_to() })?;
    let raw: Raw<'_> = serde_json::from_str(text).map_err(|error| wrong("the file", &error))?;
    Ok(File {
        added_tokens: raw.added_tokens.unwrap_or_default(),
        normalizer: part("normalizer", raw.normalizer)?,
        pre_tokenizer: part("pre_tokenizer", raw.pre_tokenizer)?,
        model: raw.model,
        post_processor: part("post_processor", raw.post_processor)?,
        decoder: part("decoder", raw.decoder)?,
    })
}

fn part<'a>(
    name: &'static str,
    raw: Option<&'a RawValue>,
) -> Result<Option<Component<'a>>, TokenizerError> {
    let Some(text) = raw.map(RawValue::get) else { return Ok(None) };
    if text.len() > MAX_PART {
        return Err(TokenizerError::PartTooLong { part: name, len: text.len(), most: MAX_PART });
    }
    serde_json::from_str(text).map_err(|error| wrong(name, &error))
}

fn wrong(part: &'static str, error: &serde_json::Error) -> TokenizerError {
    let reason = error.to_string();
    let reason = reason.rsplit_once(" at line ").map_or(&*reason, |(reason, _)| reason);
    // Some of serde's messages repeat the text.
    let reason = reason.chars().take(120).flat_map(char::escape_debug).collect();
    TokenizerError::Json { part, line: error.line(), column: error.column(), reason }
}
